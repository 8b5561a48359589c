"""What a process remembers of its runs makes the next ones faster and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.config.run import read_spec
from harness.core.execution import tracing
from harness.executors.scheduler import run_one
from harness.problems import PROBLEMS
from harness.simulation import build as preparation
from harness.simulation import evaluation
from harness.simulation import setup as ready
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation

SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.05, "local_steps": 3, "batch_size": 8},
    "rounds": 4,
}


@pytest.fixture
def forgotten():
    """Return what makes the process forget, and forget now and in the end."""

    def forget():
        preparation._problems.clear()
        ready._shared_executor.cache_clear()

    forget()
    yield forget
    forget()


def end(changes):
    run = Simulation.from_setup(calibrated(prepare(read_spec(SPEC | changes))))
    for _ in range(4):
        run.step()
    return run


def test_a_run_after_others_ends_as_it_does_alone(forgotten, monkeypatch):
    monkeypatch.setattr(tracing, "CALLS", 2)
    alone = end({"seed": 1})
    forgotten()
    earlier = end({"seed": 0})
    later = end({"seed": 1})
    assert later.executor is earlier.executor is not alone.executor
    (gradient,) = earlier.executor._recorded.values()
    assert gradient._recordings
    assert torch.equal(later.state.x, alone.state.x) and not torch.equal(later.state.x, earlier.state.x)
    assert all(torch.equal(later.cost.state()[name], count) for name, count in alone.cost.state().items())


def test_step_sizes_share_a_problem_and_models_do_not(forgotten):
    first = prepare(read_spec(SPEC))
    faster = prepare(read_spec(SPEC | {"algorithm": SPEC["algorithm"] | {"lr": 0.5}}))
    wider = prepare(read_spec(SPEC | {"model": "mlp"}))
    exact = prepare(read_spec(SPEC | {"precision": "float64"}))
    assert faster.problem is first.problem
    assert len({id(run.problem) for run in (first, wider, exact)}) == 3


def test_what_a_problem_does_not_vouch_for_is_made_anew(forgotten):
    """A plugin may use a name again; and a problem may have taken from the data what it does not tell."""
    spec, kind = read_spec(SPEC), PROBLEMS["classify"]
    first = prepare(spec)
    again, digest = replace(first.problem), first.federation.digest
    assert preparation._cached_problem(spec, kind, again, digest) is first.problem
    other = replace(kind, build=lambda setting: kind.build(setting))
    assert preparation._cached_problem(spec, other, again, digest) is again
    assert preparation._cached_problem(spec, kind, again, "of a file that has changed") is again
    silent = replace(first.problem, constants=None)
    assert preparation._cached_problem(spec, kind, silent, digest) is silent


def test_only_a_few_problems_are_remembered(forgotten):
    runs = [prepare(read_spec(SPEC | {"partition": {"kind": "iid", "clients": 2 + n}})) for n in range(6)]
    assert len(preparation._problems) == ready.CACHED_PROBLEMS
    assert prepare(runs[-1].spec).problem is runs[-1].problem
    assert prepare(runs[-4].spec).problem is runs[-4].problem
    assert prepare(runs[0].spec).problem is not runs[0].problem


def predict(setup, model, split="test"):
    return evaluation.predict(setup.problem, setup.federation, setup.executor, model, split)


def two_runs():
    return [calibrated(prepare(read_spec(SPEC | {"seed": seed}))) for seed in (0, 1)]


def test_remembered_samples_are_of_the_run_and_its_split():
    setups = two_runs()
    model = setups[0].start["x"]
    fresh = {}
    for number, setup in enumerate(setups):
        for split in ("test", "train"):
            evaluation.test_samples.cache_clear()
            fresh[number, split] = predict(setup, model, split)
    evaluation.test_samples.cache_clear()
    for number, split in [(0, "test"), (0, "test"), (0, "train"), (1, "test"), (1, "train"), (0, "test")]:
        found, expected = predict(setups[number], model, split), fresh[number, split]
        for name in ("client", "y_true", "score", "y_pred", "loss"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert evaluation.test_samples.cache_info().misses == 3, "only those of the last run"


def test_in_place_networks_do_not_change_later_evaluations():
    (setup, _) = two_runs()
    inner = setup.problem.predict
    setup = replace(setup, problem=replace(setup.problem, predict=lambda x, inputs: inner(x, inputs.mul_(2))))
    model = torch.ones_like(setup.start["x"])
    first, second = (predict(setup, model) for _ in range(2))
    assert np.array_equal(first.score, second.score)


def test_a_metric_cannot_change_what_others_see():
    found = predict(two_runs()[0], two_runs()[0].start["x"])
    for name in ("client", "y_true", "score", "loss"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(found, name)[0] = 0


@pytest.mark.parametrize(("rounds", "calls"), [(60, 5), (4, 12)])
def test_only_long_runs_record_operations(rounds, calls, forgotten, tmp_path):
    """Three gradients a round, the first of a kind of its own: 1 + 2, then one more of each."""
    spec = read_spec(SPEC | {"rounds": rounds, "eval_every": rounds})
    assert run_one(spec, tmp_path).status == "done"
    executor = prepare(spec).executor
    (gradient,) = executor._recorded.values()
    assert sum(gradient._calls.values()) == calls
    assert bool(gradient._recordings) is (rounds == 60)
