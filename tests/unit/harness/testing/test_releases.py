"""Noise fades from what servers keep where values are released, and adds up where changes are."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from harness.core.algorithm import ALGORITHMS
from harness.core.clients.clients import Clients
from harness.core.wire.message import Known
from harness.testing import conformance, conformance_privacy, conformance_releases
from harness.testing.conformance import check
from harness.testing.conformance_releases import noise_growth, relative_noise

PAGE = Path(__file__).parents[4] / "docs" / "releases.md"
KEPT = {
    "scaffold": {"c"},
    "codasca": {"cx", "cy"},
    "fedsgda_m": {"v"},
    "momentum_local_sgda": {"dy"},
    "k_gt_minimax": {"cx", "cy"},
}


@pytest.mark.parametrize("name", KEPT)
def test_noise_of_changes_adds_up_and_noise_of_values_does_not(name):
    changes = {one.field for one in noise_growth(ALGORITHMS[name], release="change") if one.adds_up}
    assert KEPT[name] <= changes
    assert not [one for one in noise_growth(ALGORITHMS[name]) if one.adds_up]


def test_a_random_walk_has_exponent_one_and_a_moving_average_none():
    growth = {one.field: one for one in noise_growth(ALGORITHMS["fedavgm"])}
    assert growth["x_m"].exponent == pytest.approx(0, abs=0.4) and not growth["x_m"].model
    (walk,) = noise_growth(ALGORITHMS["fedavg"])
    assert walk.exponent == pytest.approx(1, abs=0.4) and walk.model and not walk.adds_up


@dataclass(frozen=True, kw_only=True)
class Liar(ALGORITHMS["fedavg"]):
    """Calls half of its increment known."""

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for batch in clients.batches(self):
            x = x - self.lr * clients.grad(x, batch)
        known = [Known((x - x_t) / 2, torch.zeros_like(state.x))]
        return self.State(state.x + channel.mean_and_sent(x, base=x_t, known=known)[0])


@dataclass(frozen=True, kw_only=True)
class Forgetful(ALGORITHMS["scaffold"]):
    """Keeps its own control variate instead of what it has sent, and calls it known."""

    def round(self, state, clients, channel):
        made = super().round(state, clients, channel)
        own = clients.grad(clients.rows(state.x), next(iter(clients.batches(self))))
        return made._replace(ci=clients.put(made.ci, clients.take(made.ci) + own))


@dataclass(frozen=True, kw_only=True)
class Absent(Forgetful):
    """Does so in partial cohorts only."""

    def round(self, state, clients, channel):
        return (ALGORITHMS["scaffold"] if clients.n == clients.total else Forgetful).round(
            self, state, clients, channel
        )


@pytest.mark.parametrize("cls", [Liar, Forgetful, Absent])
def test_a_private_term_that_is_called_known_is_caught(cls):
    (row,) = check(cls, [conformance._silent])
    assert row["result"] == "failed" and "known terms" in row["why"]


def test_a_term_that_depends_on_others_in_the_cohort_is_caught(monkeypatch):
    """Another member would move what is clipped of this one."""
    monkeypatch.setattr(Clients, "known_steps", lambda self, work, batches: batches.num_steps.max())
    (row,) = check(ALGORITHMS["scaffold"], [conformance_privacy._separate])
    assert row["result"] == "failed" and "another member of the cohort" in row["why"]


def test_a_warning_is_printed_and_is_no_failure():
    (row,) = check(ALGORITHMS["feddyn"], [conformance_releases._noise_fades])
    assert row["result"] == "warned"
    assert "x (variance grows with T^2" in row["why"] and "releases.md" in row["why"]


def table():
    """Return the rows of the page: name to relative noise, parts from which it fades, parts where it adds up."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    return {cells[0]: cells[2:] for cells in lines if len(cells) == 5 and cells[0] in ALGORITHMS}


def test_the_page_has_a_row_for_every_algorithm():
    assert list(table()) == list(ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_table_of_the_page_is_what_is_measured(name):
    found, growth = relative_noise(ALGORITHMS[name]), noise_growth(ALGORITHMS[name])
    noise, fades, adds = table()[name]
    assert noise == ("" if found is None else f"{found:.2f}")
    assert fades == ", ".join(one.field for one in growth if not (one.model or one.adds_up))
    assert adds == ", ".join(one.field for one in growth if one.adds_up)
