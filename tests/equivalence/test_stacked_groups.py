"""Runs that compare sensitive groups write the same files side by side as apart."""

import pytest
from test_stacked_suites import APART, STACKED, _noted, stacked  # noqa: F401

from harness.config.run import read_spec
from harness.executors.scheduler import run_all
from harness.simulation.build import prepare
from harness.simulation.stacking import signature
from tests.support.runs import table
from tests.support.written import written

STEPS = {"local_steps": 2, "batch_size": 8}
UNEVEN, EVEN = {"kind": "dirichlet", "alpha": 0.5, "clients": 5}, {"kind": "iid", "clients": 5}
RUNS = {  # algorithm, other fields, beside how many runs each of them was done
    "directions of all clients": ({"name": "fcfl", "batch_size": 8, "minmax_rounds": 3}, {}, [3, 3, 3]),
    "soft rates of groups": ({"name": "fedreg", "slope": 10.0, **STEPS}, {}, [3, 3, 3]),
    "two stages": (
        {"name": "fedbioacc", "outer_rounds": 2, "local_steps": 2, "batch_size": 2, "neumann_terms": 2},
        {"problem": "fair_weights", "partition": EVEN | {"clients": 3}},
        [3, 3, 3],
    ),
    "validation data of unlike sizes": (
        {"name": "fedbio", "outer_rounds": 2, "local_steps": 2, "batch_size": 16, "neumann_terms": 2},
        {"problem": "fair_weights", "partition": UNEVEN | {"alpha": 5.0, "clients": 3}},
        [1, 2, 2],
    ),
}


@pytest.mark.parametrize("what", RUNS)
def test_stacked_runs_write_what_the_runs_apart_write(what, tmp_path):
    algorithm, others, beside = RUNS[what]
    given = {
        "data": {"name": "csv", "path": str(table(tmp_path)), "label": "label", "sensitive": "group"},
        "partition": UNEVEN,
        "model": "logistic",
        "rounds": 4,
        "eval_every": 2,
    }
    specs = [read_spec(given | {"algorithm": algorithm, "seed": seed} | others) for seed in range(3)]
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        outcomes = run_all(specs, tmp_path / name, execution=execution)
        assert {outcome.status for outcome in outcomes} == {"done"}
    assert sorted(stacked(tmp_path / "stacked")) == beside
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")


def test_stacks_need_validation_batches_of_one_width(tmp_path):
    """Seeds deal unlike validation data, and all of it is less than a batch."""
    algorithm, others, _ = RUNS["validation data of unlike sizes"]
    given = {
        "data": {"name": "csv", "path": str(table(tmp_path)), "label": "label", "sensitive": "group"},
        "algorithm": algorithm,
        "model": "logistic",
        "rounds": 2,
    } | others
    specs = [read_spec(given | {"seed": seed}) for seed in range(8)]
    setups = [prepare(spec) for spec in specs]
    most = [int(setup.federation.counts("validation").max()) for setup in setups]
    assert 1 < len(set(most)) < len(specs)
    for setup, own in zip(setups, most, strict=True):
        beside = [signature(other) == signature(setup) for other in setups]
        assert beside == [other == own for other in most]
