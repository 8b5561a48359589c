"""Noise is that of the code; what repeats a run uses the code on record, whatever code is here."""

import json
import sys
from types import ModuleType

import pytest
from torch import nn

from algorithms.centralized.fedavg import FedAvg
from harness.api.reading import leaderboard
from harness.config import code
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.core.settings.privacy import Privacy
from harness.executors.local import run_one
from harness.executors.replay import replay
from harness.executors.scheduler import run_all
from harness.problems.classify import classifier
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.callbacks import StopEarly
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from harness.storage import seals
from harness.storage.store import Store
from tests.support.runs import given

PRIVATE = {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0}


@pytest.fixture
def spec(data):
    return read_spec(given(data, rounds=4, privacy=PRIVATE))


def ran(spec, root, execution=None, **options):
    outcome = run_one(spec, root, execution, **options)
    folder = Store(root).folder(outcome.id)
    return outcome, folder


def edited(monkeypatch):
    """Let our code be another."""
    monkeypatch.setattr(code, "OURS", "edited")


def test_other_code_has_other_noise_under_the_same_id(spec, tmp_path, monkeypatch):
    first, before = ran(spec, tmp_path / "a")
    again, same = ran(spec, tmp_path / "b")
    edited(monkeypatch)
    other, after = ran(spec, tmp_path / "c")
    assert first.id == again.id == other.id
    assert before.code == same.code != after.code
    losses = [folder.end()["metrics"]["loss"] for folder in (before, same, after)]
    assert losses[0] == losses[1] != losses[2]


def test_the_noise_of_a_row_is_repeated_by_its_digest(spec, tmp_path, monkeypatch):
    _, published = ran(spec, tmp_path / "published")
    (row,) = leaderboard(tmp_path / "published").to_dict("records")
    assert row["noise_code"] == published.code
    edited(monkeypatch)
    _, repeated = ran(spec, tmp_path / "repeated", Execution(noise_code=row["noise_code"]))
    assert repeated.end()["metrics"] == published.end()["metrics"]
    assert repeated.code == published.code
    assert published.code in repeated.end()["privacy"]["noise_code"]
    assert "noise_code" not in published.end()["privacy"]


def test_a_run_is_verified_with_the_noise_on_its_record(spec, tmp_path, monkeypatch):
    outcome, _ = ran(spec, tmp_path)
    edited(monkeypatch)
    found = replay(Store(tmp_path), outcome.id)
    assert found.state == "identical", found


def test_records_of_earlier_versions_keep_their_noise(spec, tmp_path):
    """They have no digest, and their noise is keyed by the id alone."""
    outcome, folder = ran(spec, tmp_path, Execution(noise_code=code.NO_CODE))
    final, seal = seals.read_sealed(folder.path / "done.json")
    for name in ("events", "noise_code"):
        final.pop(name, None)
        final["privacy"].pop(name, None)
    seals.write_sealed(folder.path / "done.json", final, seal)
    assert folder.code is None and "code" not in json.loads((folder.path / "spec.json").read_text())
    assert replay(Store(tmp_path), outcome.id).state == "identical"


def test_a_resumed_run_goes_on_with_its_noise(spec, tmp_path, monkeypatch, caplog):
    def stop(_, round, line):
        if round == 2:
            raise StopEarly

    _, whole = ran(spec, tmp_path / "whole")
    ran(spec, tmp_path / "parts", progress=stop)
    edited(monkeypatch)
    outcome, folder = ran(spec, tmp_path / "parts", retry=True)
    assert outcome.status == "done" and folder.code == whole.code
    assert folder.end()["metrics"] == whole.end()["metrics"]
    assert "began with other code" in caplog.text


def test_predictions_of_a_finished_run_are_those_of_its_noise(spec, tmp_path, monkeypatch):
    _, folder = ran(spec, tmp_path)
    edited(monkeypatch)
    outcome, _ = ran(spec, tmp_path, save=["predictions.csv"])
    assert outcome.status == "done" and folder.has("predictions.csv")


def test_noise_that_a_finished_run_has_not_is_refused(spec, tmp_path):
    ran(spec, tmp_path)
    with pytest.raises(UserError, match=r"noise-code: .* is done and has the noise of code"):
        ran(spec, tmp_path, Execution(noise_code="a" * 32))
    with pytest.raises(UserError, match="noise-code: the 32 hexadecimal digits"):
        Execution(noise_code="no digest")


def test_runs_without_noise_to_repeat_have_no_code(data, tmp_path):
    for number, privacy in enumerate((None, PRIVATE | {"secure_rng": True})):
        _, folder = ran(read_spec(given(data, privacy=privacy)), tmp_path / str(number))
        assert folder.code is None


def test_simulations_without_a_run_have_noise_of_their_code(spec, monkeypatch):
    setup = calibrated(prepare(spec))
    first = Simulation.from_setup(setup, noise_keys=None).cohorts.noise_keys
    edited(monkeypatch)
    assert Simulation.from_setup(setup, noise_keys=None).cohorts.noise_keys != first


class Scaled(nn.Module):
    """A user's module, whose text does not show the factor."""

    def __init__(self, inputs, factor):
        super().__init__()
        self.layer, self.factor = nn.Linear(inputs, 2), factor

    def forward(self, x):
        return self.factor * self.layer(x)


def test_modules_of_users_that_look_alike_share_no_noise(spec):
    setup = prepare(spec)
    inputs = setup.federation.pool.x.shape[-1]

    def names(module):
        parts = (classifier(module), setup.federation, setup.algorithm, Privacy.of(2.0, clip=1.0))
        return Simulation(*parts, setup.compression, setup.seeds).cohorts.noise_keys

    assert names(Scaled(inputs, 1.0)) != names(Scaled(inputs, 10.0))
    assert names(nn.Linear(inputs, 2)) == names(nn.Linear(inputs, 2)), "known by its text"


def test_algorithms_whose_code_is_not_known_share_no_noise(spec, monkeypatch):
    """Of a notebook, and made by a function, as adapters are."""
    setup = prepare(spec)

    def names(kind):
        made = kind(**vars(setup.algorithm))
        mechanism = Privacy.of(2.0, clip=1.0)
        return Simulation(
            setup.problem, setup.federation, made, mechanism, setup.compression, setup.seeds
        ).cohorts.noise_keys

    of_notebook = [type("Mine", (FedAvg,), {"__module__": "notebook"}) for _ in range(2)]
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))
    of_adapter = [type("Made", (FedAvg,), {"__module__": FedAvg.__module__}) for _ in range(2)]
    for one, other in (of_notebook, of_adapter):
        assert names(one) != names(other)
    assert names(FedAvg) == names(FedAvg)


@pytest.mark.slow
def test_worker_processes_have_the_noise_of_the_command(data, tmp_path, monkeypatch):
    """Noise, secret cohorts and batches are the same here and there."""
    monkeypatch.setattr(code, "OURS", code._ours())
    secret = {"placement": "central", "clip": 1.0, "noise_multiplier": 1.0}
    specs = [
        read_spec(given(data, cohort={"size": 3}, privacy=secret)),
        read_spec(given(data, privacy={"unit": "record", "clip": 1.0, "noise_multiplier": 1.0})),
    ]
    run_all(specs, tmp_path / "here")
    run_all(specs, tmp_path / "there", jobs=2, executor="processes")
    here, there = (Store(tmp_path / name).run_folders() for name in ("here", "there"))
    for one, other in zip(here, there, strict=True):
        assert one.code == other.code is not None
        assert one.end()["metrics"] == other.end()["metrics"]
