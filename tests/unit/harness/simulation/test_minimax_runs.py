"""Minimax methods as runs: what is planned is what happens, under privacy, in partial cohorts, on lossy wires."""

from itertools import product

import pytest

from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.simulation.plan import plan
from tests.support.runs import finished, given, ready

WORK = {"local_steps": 2, "batch_size": 8}
METHODS = {
    "local_sgda_plus": {"snapshot_rounds": 2},
    "fedsgda_plus": {"snapshot_rounds": 1, "server_lr": 1.5},
    "momentum_local_sgda": {},
    "coda_plus": {"stage_rounds": 2},
    "codasca": {"stage_rounds": 2},
    "fednest": {"inner_rounds": 2},
    "fed_norm_sgda": {"own_steps": [1, 3], "snapshot_rounds": 2},
}
PRIVACY = {
    "none": None,
    "local": {"placement": "local", "clip": 1.0, "epsilon": 4.0},
    "central": {"placement": "central", "sampling": "fixed", "clip": 1.0, "epsilon": 4.0},
    "record": {"unit": "record", "clip": 1.0, "epsilon": 4.0},
}
FAIR = {"problem": "fair_classification", "model": "logistic"}
AUROC = {"problem": "auroc", "model": "logistic"}  # a mean over samples, as unit record needs it


def of(name, **settings):
    return {"name": name, **WORK, **METHODS[name], **settings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit"),
    [*product(METHODS, ["local", "record"]), *product(["codasca", "fednest"], ["none", "central"])],
)
def test_releases_epsilon_and_bytes_are_as_planned(data, name, unit):
    """Three of seven clients a round: every round sends and releases alike, whatever is renewed when.

    Noise changes no byte, and messages are counted alike whoever adds it: two methods of several messages and parts
    go through all kinds.
    """
    problem, privacy = AUROC if unit == "record" else FAIR, PRIVACY[unit]
    fields = {**problem, "cohort": {"size": 3}, "rounds": 5, "privacy": privacy}
    (row,) = plan([Combination({}, read_spec(given(data, of(name), **fields)))])
    run = finished(ready(data, of(name), **fields))
    claims = run.statement() or {}
    for figure in ("releases", "epsilon_total", "noise_multiplier"):
        assert row[figure] == claims.get(figure), figure
    assert claims.get("epsilon_total", 0.0) <= 4.0 + 1e-9
    assert (row["bytes_up"], row["bytes_down"]) == (int(run.cost.up), int(run.cost.down))
    assert all(bool(part.isfinite().all()) for part in run.state)
    if problem is FAIR:
        assert abs(float(run.state.y.sum()) - 1) < 1e-5 and bool((run.state.y >= 0).all())
