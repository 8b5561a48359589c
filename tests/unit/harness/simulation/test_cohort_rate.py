"""Cohorts at a public rate: what is released and booked does not tell how many clients there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.simulation.calibration import recalibrated
from harness.simulation.cohorts import Cohorts
from harness.simulation.dry_run import expected_cost
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, given, ready
from tests.support.wire import privacy

CENTRAL = {"placement": "central", "clip": 0.5, "epsilon": 2.0}
RATE = {"rate": 0.4, "divisor": 3}
STEPS = {"local_steps": 2, "batch_size": 4}


def without(setup: Setup, client: int) -> Setup:
    """Return the run when one client has left."""
    rows = [number for number in range(setup.federation.clients) if number != client]
    splits = {name: index[rows] for name, index in setup.federation.splits.items()}
    return replace(setup, federation=replace(setup.federation, splits=splits))


def run_of(data: Any, name: str = "fedavg", **settings: Any) -> Setup:
    mechanism = {**CENTRAL, **settings}
    return ready(data, {"name": name, **STEPS}, privacy=mechanism, cohort=RATE, rounds=4)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("clip", [0.5, "adaptive"])
def test_nothing_booked_or_counted_tells_how_many_clients_there_are(data, name: str, clip: Any) -> None:
    setup = run_of(data, name, clip=clip)
    fewer = without(setup, 2)
    full, less = setup, recalibrated(fewer)
    assert less.federation.clients == full.federation.clients - 1
    assert less.privacy == full.privacy  # noise, rate, releases a round
    costs, fewer_costs = expected_cost(full), expected_cost(less)
    assert costs is not None and fewer_costs is not None
    assert [costs(0, round) for round in (0, 1, 4)] == [fewer_costs(0, round) for round in (0, 1, 4)]
    one, other = finished(full).statement(), finished(less).statement()
    private = {"unit_most", "units_most"}  # how many share a history
    assert one is not None and other is not None
    assert {k: v for k, v in one.items() if k not in private} == {
        k: v for k, v in other.items() if k not in private
    }
    assert one["adjacency"] == "add-remove" and one["sampling_rate"] == 0.4


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_client_that_leaves_moves_a_round_by_its_own_clipped_message(data, name: str) -> None:
    """Without noise: nobody else's message or weight changes, and its own moves the sum by the clip norm."""
    setup = run_of(data, name, noise_multiplier=0.0, epsilon=None)
    fewer = without(setup, 6)  # the last one, so that the others keep their numbers
    both = [Simulation.from_setup(one) for one in (setup, recalibrated(fewer))]
    for run, ids in zip(both, (torch.arange(7), torch.arange(6)), strict=True):
        run.step(ids, drawn=True)
    moved = (both[0].state.x - both[1].state.x).norm()
    assert 0 < float(moved) <= 0.5 / 3 * (1 + 1e-5)


def test_who_needs_the_number_of_clients_is_refused(data) -> None:
    with pytest.raises(Incompatible, match="uses the number of clients, which add-remove hides"):
        finished(run_of(data, "feddyn"))


def test_at_a_rate_of_size_over_clients_add_remove_is_refused(data) -> None:
    for adjacency, cohort, message in (
        ("add-remove", {"size": 2}, r"give cohort\.rate and cohort\.divisor"),
        (None, {"rate": 0.4}, r"cohort\.divisor: a rate needs the public number"),
        (None, {"size": 2, **RATE}, "give either size"),
        (None, {**RATE, "kind": "balanced"}, r"cohort\.kind: a rate is of clients that are drawn"),
    ):
        with pytest.raises(UserError, match=message):
            read_spec(given(data, privacy={**CENTRAL, "adjacency": adjacency}, cohort=cohort))
    with pytest.raises(UserError, match="for secret Poisson cohorts"):
        read_spec(given(data, {"name": "fedavg", **STEPS}, cohort=RATE))
    mechanism = privacy("central", z=1.0, rate=0.5, adjacency="add-remove")
    with pytest.raises(Incompatible, match="needs a public rate of the cohorts"):
        Cohorts(4, 2, False, mechanism, (0,), ("run",))


def test_zero_out_and_add_remove_have_the_same_noise(data) -> None:
    """At the rate that a size gives: what changes is what the statement says, and the divisor."""
    cohort = {"rate": 3 / 7, "divisor": 3}
    algorithm = {"name": "fedavg", **STEPS}
    found = [
        ready(data, algorithm, privacy=CENTRAL, cohort=one, rounds=4).privacy for one in ({"size": 3}, cohort)
    ]
    assert [one.adjacency for one in found if one] == ["zero-out", "add-remove"]
    assert len({one.noise_multiplier for one in found if one}) == 1
