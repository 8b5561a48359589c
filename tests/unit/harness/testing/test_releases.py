"""Noise fades from what servers keep where values are released, and adds up where changes are."""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from harness.core.algorithm import ALGORITHMS, Release
from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy
from harness.core.wire.channel import Channel
from harness.core.wire.message import Increment
from harness.testing import conformance, conformance_privacy, conformance_releases
from harness.testing.conformance import check
from harness.testing.conformance_releases import LOCAL, Still, noise_growth
from harness.testing.small_tasks import NotedStages, simulate, small, wide_task

PAGE = Path(__file__).parents[4] / "docs" / "releases.md"
KEPT = {
    "scaffold": {"c"},
    "codasca": {"cx", "cy"},
    "fedsgda_m": {"v"},
    "momentum_local_sgda": {"dy"},
    "k_gt_minimax": {"cx", "cy"},
}


@cache
def growth_of(name):
    """How noise grows under an algorithm's own settings, which several tests ask for."""
    return noise_growth(ALGORITHMS[name])


@pytest.mark.parametrize("name", KEPT)
def test_noise_of_changes_adds_up_and_noise_of_values_does_not(name):
    changes = {one.field for one in noise_growth(ALGORITHMS[name], release="change") if one.adds_up}
    assert KEPT[name] <= changes
    assert not [one for one in growth_of(name) if one.adds_up]


def test_a_random_walk_has_exponent_one_and_a_moving_average_none():
    growth = {one.field: one for one in growth_of("fedavgm")}
    assert growth["x_m"].exponent == pytest.approx(0, abs=0.4) and not growth["x_m"].model
    (walk,) = growth_of("fedavg")
    assert walk.exponent == pytest.approx(1, abs=0.4) and walk.model and not walk.adds_up


@dataclass(frozen=True, kw_only=True)
class Liar(ALGORITHMS["fedavg"], Release):
    """Pulls towards the model that a client has kept to itself, and calls it released."""

    class State(NamedTuple):
        """The model, and the clients' own."""

        x: Tensor
        pi: Tensor

    mean: bool = True

    def init(self, start, clients, channel):
        return self.State(start["x"], clients.rows(start["x"]))

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        pi = clients.take(state.pi, **({"mean": state.x} if self.mean else {}))
        for batch in clients.batches(self):
            x = x - self.lr * (clients.grad(x, batch) + 0.1 * (x - pi))
        return self.State(state.x + channel.mean(Increment(x, of=x_t)), clients.put(state.pi, x))


@dataclass(frozen=True, kw_only=True)
class Silent(Liar):
    """Does so without saying anything of it."""

    mean: bool = False


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
    (row,) = check(cls, [conformance._replaced])
    assert row["result"] == "failed" and "known terms" in row["why"]


def test_rows_that_clients_keep_are_caught_where_nothing_is_said_of_them():
    (row,) = check(Silent, [conformance._replaced])
    assert row["result"] == "failed" and "rows that clients keep to themselves" in row["why"]


@dataclass(frozen=True, kw_only=True)
class Companion(ALGORITHMS["scaffold"]):
    """Takes as many steps for known as anybody in its cohort."""

    def reach(self, batches):
        return super().reach(batches).max()


def test_a_term_that_depends_on_others_in_the_cohort_is_caught():
    """Another member would move what is clipped of this one."""
    (row,) = check(Companion, [conformance_privacy._separate])
    assert row["result"] == "failed" and "another member of the cohort" in row["why"]


@dataclass(frozen=True, kw_only=True)
class Hoarder(ALGORITHMS["scaffold"]):
    """Keeps a step with its gradients, and takes it again where it has none."""

    kept: ClassVar = {}

    def step(self, x, gradient, *others, **given):
        if bool(gradient.any()):
            self.kept["gradient"] = gradient
        elif gradient.shape == self.kept["gradient"].shape:
            gradient = self.kept["gradient"]
        return super().step(x, gradient, *others, **given)


def test_a_gradient_that_is_kept_for_the_round_without_gradients_is_caught():
    (row,) = check(Hoarder, [conformance._replaced])
    assert row["result"] == "failed" and "known terms" in row["why"]


@dataclass(frozen=True, kw_only=True)
class Lister(Liar):
    """Pulls towards what a client has sent, and keeps a list of the cohort for what it takes as its mean."""

    kept: ClassVar = {}

    def round(self, state, clients, channel):
        if clients.ids.shape[-1] > 1:
            self.kept["last"] = float(clients.ids.max())
        x = x_t = channel.down(state.x)
        pi = clients.take(state.pi, mean=state.x + self.kept["last"])
        for batch in clients.batches(self):
            x = x - self.lr * (clients.grad(x, batch) + 0.1 * (x - pi))
        dx, sent = channel.mean_and_sent(Increment(x, of=x_t))
        return self.State(state.x + dx, clients.put(state.pi, x_t + sent))


def test_what_a_server_knows_of_a_mean_does_not_depend_on_the_cohort():
    (row,) = check(Lister, [conformance_privacy._separate])
    assert row["result"] == "failed" and "another member of the cohort" in row["why"]


def test_a_warning_is_printed_and_is_no_failure():
    (row,) = check(ALGORITHMS["feddyn"], [conformance_releases._noise_fades])
    assert row["result"] == "warned"
    assert "x (variance grows with T^2" in row["why"] and "releases.md" in row["why"]


class Counting(NotedStages):
    """Stages that note the length of every booked message of a round."""

    def book(self, message):
        """Book the message and note its length."""
        super().book(message)
        if self.clients.round >= 0:
            self.log.append(sum(part.shape[-1] for part in message.parts))


def relative_noise(cls):
    """Return the norm of the noise of a message, relative to one message a round with the problem's variables.

    It is the root of the number of messages a round, which share a budget, times the length of the longest over
    that of all variables. None for what is not released or protected by samples.
    """
    if cls.meta.solves[0] == "vertical":
        return None
    lengths = []
    counted = partial(Channel, stages=partial(Counting, log=lengths))
    with suppress(Incompatible):
        run = simulate(
            small(cls),
            wide_task(cls),
            rounds=1,
            privacy=Privacy.of(1.0, **LOCAL),
            clients=partial(Still, shapes={}),
            channel=counted,
        )
    if not lengths:
        return None
    variables = sum(part.shape[-1] for part in run.problem.init(torch.Generator()).values())
    return math.sqrt(len(lengths) * max(lengths) / variables)


def table():
    """Return the rows of the page: name to relative noise, parts from which it fades, parts where it adds up."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    return {cells[0]: cells[2:] for cells in lines if len(cells) == 5 and cells[0] in ALGORITHMS}


def test_the_page_has_a_row_for_every_algorithm():
    assert list(table()) == list(ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_table_of_the_page_is_what_is_measured(name):
    found, growth = relative_noise(ALGORITHMS[name]), growth_of(name)
    noise = "" if found is None else f"{found:.2f}"
    fades = ", ".join(one.field for one in growth if not (one.model or one.adds_up))
    adds = ", ".join(one.field for one in growth if one.adds_up)
    assert table()[name] == [noise, fades, adds]
