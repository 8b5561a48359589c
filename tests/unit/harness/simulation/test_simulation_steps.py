"""A simulation made of plain objects, one round at a time, and what it keeps for its evaluations."""

import doctest

import pytest
import torch

from datasets.federation import stack
from harness import Simulation, prepare
from harness.core.clients.clients import Clients
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire.channel import Channel
from harness.simulation import loop, simulation
from harness.simulation.loop import simulate
from harness.storage.store import RunFolder
from tests.support.wire import SOFTMAX
from tests.support.worlds import COUNTS, iid_federation, make_algorithm

SPEC = {
    "problem": {
        "kind": "quadratic_minimax",
        "P": [1, 2],
        "B": [1, 2],
        "Q": [1, 2],
        "c": [2, -2],
        "d": [0, 4],
    },
    "algorithm": {"name": "local_sgda", "local_steps": 2},
    "rounds": 4,
    "eval_every": 2,
}


def test_the_example_of_the_documentation_runs():
    failed, tried = doctest.testmod(simulation)
    assert tried > 5 and not failed


def test_plain_objects_make_the_run_that_a_spec_makes():
    setup = prepare(SPEC)
    run = Simulation(setup.problem, setup.federation, setup.algorithm, None, setup.compression, setup.seeds)
    for _ in range(4):
        run.step()
    final = simulate(setup)
    assert run.round == 4
    assert run.evaluate().metrics == final["metrics"]
    assert run.snapshot().cost["up"] == final["bytes_up"]


def test_a_simulation_goes_on_from_its_state_dict_without_a_changed_bit():
    setup = prepare(SPEC)
    options = {
        "privacy": Privacy.of(1.0, clip=1.0),
        "compression": Compression(beta=0.5, error_feedback=True),
    }
    straight, half, resumed = (
        Simulation(setup.problem, setup.federation, setup.algorithm, cohort=1, **options) for _ in range(3)
    )
    for _ in range(4):
        straight.step()
    for _ in range(2):
        half.step()
    resumed.load_state_dict(half.state_dict())
    for _ in range(2):
        resumed.step()
    assert all(torch.equal(one, other) for one, other in zip(straight.state, resumed.state, strict=True))
    assert resumed.statement() == straight.statement()
    assert resumed.snapshot().cost == straight.snapshot().cost


def test_one_mechanism_for_all_seeds_is_each_run_s_own():
    setup = prepare(SPEC)
    federation = stack([setup.federation] * 3)
    given = (setup.problem, federation, setup.algorithm)
    one = Simulation(*given, Privacy.of(1.0, clip=1.0), Compression(beta=0.5), seeds=(0, 1, 2))
    three = Simulation(
        *given,
        [Privacy.of(1.0, clip=1.0)] * 3,
        [Compression(beta=0.5)] * 3,
        seeds=(0, 1, 2),
        noise_keys=one.cohorts.noise_keys,
    )
    for run in (one, three):
        run.step()
    for number in range(3):
        assert one.statement(number) == three.statement(number)
        assert one.statement(number)["epsilon_total"] > 0
        assert torch.equal(one.snapshot(number).state.x, three.snapshot(number).state.x)


@pytest.mark.parametrize(("name", "clients"), [("centralized", 1), ("fedavg", len(COUNTS))])
def test_each_run_has_its_own_settings_and_data(name, clients):
    """The reference trains on one client with all data, which its evaluations make once."""
    works, data = [make_algorithm(name, lr=lr) for lr in (0.1, 0.2)], iid_federation()
    run = Simulation(SOFTMAX, stack([data] * 2), works, seeds=(3, 4))
    assert [(one.seed, one.algorithm.lr, one.privacy) for one in run.each] == [(3, 0.1, None), (4, 0.2, None)]
    assert all(one.federation.clients == len(COUNTS) for one in run.each)
    assert all(one.training.clients == clients and one.training is one.training for one in run.each)
    assert run.cohorts.total == clients


def test_a_round_may_name_its_clients():
    setup, seen = prepare(SPEC), []

    class Noting(Clients):
        def batches(self, *arguments, **options):
            seen.append((self.round, self.ids.tolist()))
            return super().batches(*arguments, **options)

    run = Simulation(setup.problem, setup.federation, setup.algorithm, clients=Noting)
    run.step(torch.tensor([1]))
    assert seen[-1] == (0, [1])


@pytest.fixture
def telling(monkeypatch):
    """A channel that tells which round it diagnoses."""
    begin = Channel.__init__

    def init(self, clients, *, diagnose=False, **options):
        begin(self, clients, **options)
        if diagnose:
            shape = clients.ids.shape[:-1]
            self.seen = {"test_round": torch.full(shape, float(clients.round))}
            self.seen["test_nan"] = torch.full(shape, torch.nan)

    monkeypatch.setattr(Channel, "__init__", init)
    monkeypatch.setattr(Channel, "diagnostics", property(lambda self: getattr(self, "seen", {})))


def test_only_rounds_before_an_evaluation_are_diagnosed_and_finite_values_written(telling, tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    final = simulate(prepare(SPEC | {"rounds": 5}), folder)
    found = [(line["round"], line.get("diagnostics")) for line in folder.evaluations.all()]
    assert found == [(0, None), (2, {"test_round": 1.0}), (4, {"test_round": 3.0}), (5, {"test_round": 4.0})]
    assert final["diagnostics"] == {"test_round": 4.0}


def test_a_resumed_run_writes_the_diagnostics_of_the_straight_one(telling, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    setup = prepare(SPEC | {"eval_every": 3})

    def kill(round, line):
        if round == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        simulate(setup, folder, kill)
    assert folder.load()["diagnostics"]["test_round"] == 2.0
    assert simulate(setup, folder)["diagnostics"] == {"test_round": 3.0}


def test_a_checkpoint_without_diagnostics_is_still_read(tmp_path):
    setup = prepare(SPEC)
    run = Simulation.from_setup(setup)
    run.step()
    older = run.state_dict()
    del older["diagnostics"]
    again = Simulation.from_setup(setup)
    again.load_state_dict(older)
    assert again.round == 1 and again.diagnostics == {}
