"""What a process remembers of its runs makes the next one faster and nothing else."""

from dataclasses import replace

import pytest
import torch

from harness import setup as preparation
from harness.core import recording
from harness.problems import PROBLEMS
from harness.setup import prepare
from harness.simulate import Run, settled
from harness.spec import read_spec

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
        preparation._rows.cache_clear()

    forget()
    yield forget
    forget()


def end(changes):
    run = Run(settled(prepare(read_spec(SPEC | changes))))
    for _ in range(4):
        run.advance()
    return run


def test_a_run_after_others_ends_as_it_does_alone_to_the_last_bit(forgotten, monkeypatch):
    monkeypatch.setattr(recording, "CALLS", 2)
    alone = end({"seed": 1})
    forgotten()
    earlier = end({"seed": 0})
    later = end({"seed": 1})
    assert later.setup.rows is earlier.setup.rows is not alone.setup.rows
    assert any(known._recordings for known in earlier.setup.rows._recorded.values())
    assert torch.equal(later.state.x, alone.state.x) and not torch.equal(later.state.x, earlier.state.x)
    assert all(torch.equal(later.cost.state()[name], count) for name, count in alone.cost.state().items())


def test_another_step_size_is_the_same_problem_and_another_model_is_not(forgotten):
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
    again = replace(first.problem)
    assert preparation._known(spec, kind, again) is first.problem
    assert preparation._known(spec, replace(kind, build=lambda setting: kind.build(setting)), again) is again
    silent = replace(first.problem, constants=None)
    assert preparation._known(spec, kind, silent) is silent


def test_only_a_few_problems_are_remembered(forgotten):
    runs = [prepare(read_spec(SPEC | {"partition": {"kind": "iid", "clients": 2 + n}})) for n in range(6)]
    assert len(preparation._problems) == preparation.KNOWN
    assert prepare(runs[-1].spec).problem is runs[-1].problem
    assert prepare(runs[0].spec).problem is not runs[0].problem
