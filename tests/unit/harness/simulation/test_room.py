"""Runs fit into memory before they begin: in parts, in smaller stacks, or not at all, which is said."""

import pytest
import torch

from harness.config.run import read_spec
from harness.core.execution.memory import Room
from harness.core.registry import UserError
from harness.executors import scheduler
from harness.executors.local import run_together
from harness.simulation import room
from harness.simulation.build import Execution, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.footprint import footprint
from harness.simulation.room import fit
from harness.storage.store import Store
from tests.support.runs import finished, given

WIDE = {"model": {"name": "mlp", "hidden": [200, 200]}, "partition": {"kind": "iid", "clients": 10}}
SCAFFOLD = {"name": "scaffold", "local_steps": 2}


@pytest.fixture
def left(monkeypatch):
    """Set what is left of the memory."""

    def leave(bytes):
        monkeypatch.setattr(room, "room", lambda: Room(int(bytes), "limit of a test"))

    return leave


def setup_of(data, algorithm="fedavg", **fields):
    return calibrated(prepare(read_spec(given(data, algorithm, **{**WIDE, **fields}))))


def test_what_fits_runs_as_ever(data, left) -> None:
    setup = setup_of(data)
    left(2 * footprint(setup).to_come)
    found = fit(setup, Execution(), 5)
    assert found.setup is setup
    assert found.most == 2
    assert "more memory, and" in str(found)


def test_a_cohort_that_does_not_fit_is_taken_client_by_client(data, left) -> None:
    setup = setup_of(data, precision="float64")
    left(footprint(setup).to_come / 2)
    found = fit(setup, Execution())
    assert found.setup.in_parts
    assert found.most == 1
    assert "its clients are computed one after another" in str(found)
    assert footprint(found.setup).to_come < footprint(setup).to_come / 2
    together, apart = finished(setup), finished(found.setup)
    torch.testing.assert_close(apart.state.x, together.state.x, rtol=0, atol=1e-10)
    assert int(apart.cost.up) == int(together.cost.up)


def test_what_cannot_be_parted_is_refused_with_numbers_by_part(data, left) -> None:
    setup = setup_of(data, SCAFFOLD)
    left(footprint(setup).to_come - 1)
    with pytest.raises(UserError, match=r"^memory: the run takes about \d") as error:
        fit(setup, Execution(memory=10**12))
    told = str(error.value)
    assert "copies in steps" in told
    assert "left (limit of a test)" in told
    assert "cohort.size" in told
    assert "fewer --jobs" in told
    assert "\n" not in told


def test_a_worker_has_its_share(data, left, monkeypatch) -> None:
    setup = setup_of(data, SCAFFOLD)
    left(10**12)
    monkeypatch.setattr(room, "resident", lambda: 10**8)
    with pytest.raises(UserError, match="one of several workers"):
        fit(setup, Execution(memory=10**8 + footprint(setup).to_come - 1))
    assert fit(setup, Execution(memory=10**8 + footprint(setup).to_come)).most == 1


def test_workers_share_what_is_left(monkeypatch) -> None:
    monkeypatch.setattr(scheduler, "room", lambda: Room(9_000, "limit of a test"))
    assert scheduler._share_of_memory(Execution(stack=2), 3) == Execution(stack=2, memory=3_000)
    monkeypatch.setattr(scheduler, "room", lambda: None)
    assert scheduler._share_of_memory(Execution(), 3) == Execution()


def test_small_runs_are_not_gone_through(data, left, monkeypatch) -> None:
    left(10**12)
    monkeypatch.setattr(room, "footprint", None)
    assert fit(setup_of(data), Execution()).needed is None


def test_stacks_are_as_large_as_fits_and_write_the_same(data, left, tmp_path) -> None:
    specs = [read_spec(given(data, **WIDE, seed=seed)) for seed in range(4)]
    whole = run_together(specs, tmp_path / "whole", Execution(stack=4))
    left(2.5 * footprint(calibrated(prepare(specs[0]))).to_come)
    fewer = run_together(specs, tmp_path / "fewer", Execution(stack=4))
    ends = [[Store(tmp_path / name).folder(one.id).end() for one in whole] for name in ("whole", "fewer")]
    assert [one["timing"]["stacked"] for one in ends[0]] == [4] * 4
    assert [one["timing"]["stacked"] for one in ends[1]] == [2] * 4
    assert [one.id for one in fewer] == [one.id for one in whole]
    assert [one["metrics"] for one in ends[0]] == [one["metrics"] for one in ends[1]]


def test_a_refused_run_is_recorded_and_the_others_go_on(data, left, tmp_path) -> None:
    specs = [read_spec(given(data, SCAFFOLD, **WIDE)), read_spec(given(data))]
    left(footprint(calibrated(prepare(specs[0]))).to_come - 1)
    refused, done = run_together(specs, tmp_path, Execution())
    assert (refused.status, done.status) == ("failed", "done")
    status, reason = Store(tmp_path).folder(refused.id).read()[:2]
    assert status == "failed"
    assert reason.startswith("memory: the run takes about")
