"""Whether the bits of a sum suffice depends on its noise, also on that which a budget requires."""

from itertools import product

import pytest

from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.core.errors import Incompatible
from harness.executors.tuning.cost import Releases
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.plan import plan, vetted
from tests.support.runs import finished, given, ready

TOGETHER = {"placement": "distributed", "clip": 1.0}
BROAD = {"name": "mlp", "hidden": [16]}


def spec_of(data, seed=0, fields=None, **budget):
    return read_spec(given(data, seed=seed, privacy={**TOGETHER, **budget}, **(fields or {})))


@pytest.mark.parametrize(
    ("name", "fits", "too_much"), [("noise_multiplier", 0.5, 3.0), ("epsilon", 50.0, 1.0)]
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_same_runs_are_skipped_in_any_order(data, name, fits, too_much, turned):
    """One budget was tried for all: it decided for the others, and those under too large a budget failed."""
    asked = list(product((too_much, fits) if turned else (fits, too_much), (0, 1)))
    cells = [Combination({}, spec_of(data, seed, bits=7, **{name: value})) for value, seed in asked]
    found = vetted(cells)
    assert [cell.spec is None for cell in found] == [value == too_much for value, _ in asked]
    assert all("7 bits a coordinate cannot hold the sum" in cell.reason for cell in found if cell.reason)
    assert [row["status"] == "skipped" for row in plan(cells, timed=False)] == [
        cell.spec is None for cell in found
    ]
    for cell in found:
        if cell.spec is not None:
            calibrated(prepare(cell.spec))


def test_a_budget_is_not_refused_for_the_noise_of_another(data):
    """7 bits hold 256 coordinates of 7 clients with multiplier 0.1, not with 1, the draft of every budget."""
    model = {"model": BROAD}
    quiet, loud = (spec_of(data, bits=7, noise_multiplier=z, fields=model) for z in (0.1, 1.0))
    generous = spec_of(data, bits=7, epsilon=1e3, fields=model)
    first, second, third = vetted([Combination({}, spec) for spec in (quiet, loud, generous)])
    assert first.spec is not None and second.spec is None and third.spec is not None
    assert calibrated(prepare(generous)).privacy.noise_multiplier < 0.1


@pytest.mark.parametrize("epsilon", [0.1, 8.0, 1e3])
def test_planned_bytes_are_those_of_the_calibrated_noise(data, epsilon):
    """They were those of multiplier 1: 12544 for 12684 at epsilon 0.1."""
    (row,) = plan([Combination({}, spec_of(data, epsilon=epsilon))], timed=False)
    run = finished(ready(data, privacy={**TOGETHER, "epsilon": epsilon}))
    assert (row["bytes_up"], row["bytes_down"]) == (int(run.cost.up), int(run.cost.down))
    assert row["noise_multiplier"] == run.statement()["noise_multiplier"]


def test_an_incompatible_run_adds_nothing_to_the_cost_of_a_search(data):
    """It has failed before its first release; others, with a smaller model, have made theirs."""
    releases, budget = Releases(), {"bits": 7, "noise_multiplier": 1.0}
    with pytest.raises(Incompatible):
        calibrated(prepare(spec_of(data, fields={"model": BROAD}, **budget)))
    assert releases.of(spec_of(data, fields={"model": BROAD}, **budget)) == []
    assert releases.of(spec_of(data, **budget)) != []
