"""Rules 1 and 2: what is booked, and what it is worth."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from algorithms.centralized.fedavg import FedAvg
from harness.core import Meta
from harness.core.registry import Incompatible
from harness.core.wire.settings import PrivacySpec
from harness.simulation.calibration import calibrated, with_noise
from harness.simulation.loop import simulate
from privacy import Ledger, epsilon, gaussian_epsilon
from tests.support.runs import finished, ready
from tests.support.wire import channel, privacy, rows

CENTRAL = {"unit": "client", "placement": "central", "clip": 1.0}
LOCAL = {"unit": "client", "placement": "local", "clip": 1.0}


def test_the_releases_of_one_cohort_compose_inside_its_draw() -> None:
    """q = 0.1, z = 1, T = 100, m = 2: 16.1 with RDP; booked apart they would be understated as 11.0."""
    mechanism = privacy("central", z=1.0, rate=0.1)
    privacy_log = Ledger()
    for round in range(100):
        way = channel(mechanism, round=round)
        way.privacy_log.ledger = privacy_log
        way.mean(rows(3))
        way.mean(rows(3))
        privacy_log = way.privacy_log.ledger
    assert (privacy_log.draws, privacy_log.releases) == (100, 200)
    assert privacy_log.report(1e-5)["epsilon_total"] == pytest.approx(16.1, abs=0.05)
    assert epsilon(1.0, 200, 1e-5, 0.1) == pytest.approx(11.0, abs=0.05)


def test_without_sampling_the_total_is_the_exact_gaussian() -> None:
    """k releases at rate 1 are one with multiplier z / sqrt(k)."""
    mechanism, privacy_log = privacy(z=4.0), Ledger()
    for round in range(16):
        way = channel(mechanism, round=round)
        way.privacy_log.ledger = privacy_log
        way.gather(rows(3))
        privacy_log = way.privacy_log.ledger
    found = privacy_log.report(1e-5)
    assert found["accountant"] == "exact"
    assert found["epsilon_total"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert found["epsilon_release"] == pytest.approx(gaussian_epsilon(4.0, 1e-5))


def test_what_the_server_sends_books_nothing() -> None:
    way = channel(privacy(z=1.0))
    way.down(torch.zeros(3, dtype=torch.float64))
    way.scatter(rows(3))
    assert way.privacy_log.ledger.releases == 0


def test_rows_known_from_earlier_rounds_book_nothing_in_a_mix() -> None:
    way = channel(privacy(z=1.0), mixing=torch.full((4, 4), 0.25, dtype=torch.float64))
    way.mix(rows(3), rebroadcast=(rows(3),))
    assert way.privacy_log.ledger.releases == 1


def test_an_adaptive_norm_and_its_count_cost_one_multiplier() -> None:
    way = channel(privacy("central", clip="adaptive", z=2.0))
    way.mean(rows(3))
    assert way.privacy_log.ledger.releases == 2
    assert way.privacy_log.ledger.report(1e-5)["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))


def test_releases_before_the_first_round_are_not_amplified() -> None:
    way = channel(privacy("central", z=1.0, rate=0.01), round=-1)
    way.mean(rows(3))
    assert way.privacy_log.ledger.report(1e-5)["epsilon_total"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))


def test_a_budget_covers_a_release_before_the_first_round_too() -> None:
    """One unsampled release and 10 sampled ones of two releases each: in total the budget, to 1e-4."""
    draft = privacy("central", z=1.0, rate=0.1)
    before = Ledger().book("init", 1.0)
    each = Ledger().book("round", 1.0, 0.1).book("round", 1.0, 0.1)
    asked = replace(
        draft, spec=PrivacySpec(**CENTRAL, sampling="poisson", adjacency="add-remove", epsilon=2.0)
    )
    z = with_noise(asked, before.merge(each.repeat(10)), releases=2).noise_multiplier
    real = Ledger().book("init", z).merge(Ledger().book("round", z, 0.1).book("round", z, 0.1).repeat(10))
    assert real.report(1e-5)["epsilon_total"] == pytest.approx(2.0, rel=1e-4)
    assert real.report(1e-5)["epsilon_total"] <= 2.0


@pytest.mark.parametrize(("nominal", "real"), [(1, 1.6), (10, 25), (1000, 87_000)])
def test_the_classic_formula_is_worth_less_than_it_says(data, nominal: float, real: float) -> None:
    """delta 1e-5; sigma = sqrt(2 ln(1.25 / delta)) C / epsilon, but a replaced client moves 2 C."""
    run = finished(ready(data, privacy={**LOCAL, "epsilon_nominal": nominal}, rounds=1))
    claims = run.statement()
    assert claims["epsilon_nominal"] == nominal
    assert claims["epsilon_release"] == claims["epsilon_total"] == pytest.approx(real, rel=0.04)


def test_local_placement_is_not_amplified_by_its_cohorts(data) -> None:
    run = finished(ready(data, privacy={**LOCAL, "noise_multiplier": 2.0}, cohort={"size": 2}))
    claims = run.statement()
    assert claims["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / 2**0.5, 1e-5))
    assert claims["epsilon_approximate"] is None


def test_fixed_size_cohorts_get_the_unamplified_bound(data) -> None:
    run = finished(
        ready(data, privacy={**CENTRAL, "noise_multiplier": 2.0, "sampling": "fixed"}, cohort={"size": 2})
    )
    claims = run.statement()
    assert claims["adjacency"] == "replace"
    assert claims["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / 2**0.5, 1e-5))
    assert 0 < claims["epsilon_approximate"] < claims["epsilon_total"]
    assert claims["epsilon_approximate"] == pytest.approx(epsilon(2.0, 2, 1e-5, 2 / 7))


def test_poisson_cohorts_are_amplified_by_add_remove(data) -> None:
    run = finished(ready(data, privacy={**CENTRAL, "noise_multiplier": 2.0}, cohort={"size": 2}))
    claims = run.statement()
    assert (claims["adjacency"], claims["sampling"]) == ("add-remove", "poisson")
    assert claims["sampling_rate"] == pytest.approx(2 / 7)
    assert claims["epsilon_total"] == pytest.approx(epsilon(2.0, 2, 1e-5, 2 / 7))


SCAFFOLD = {"name": "scaffold", "local_steps": 2}
BUDGETS = {
    "local": (LOCAL, {}),
    "central": (CENTRAL, {}),
    "poisson": (CENTRAL, {"cohort": {"size": 3}}),
    "fixed": ({**CENTRAL, "sampling": "fixed"}, {"cohort": {"size": 3}}),
    "adaptive": ({**CENTRAL, "clip": "adaptive"}, {"cohort": {"size": 3}}),
    "record": ({"unit": "record", "clip": 1.0}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("budget", [0.5, 8.0])
def test_the_reported_total_is_the_budget_and_never_more(data, kind: str, budget: float) -> None:
    mechanism, others = BUDGETS[kind]
    setup = ready(data, SCAFFOLD, privacy={**mechanism, "epsilon": budget}, **others)
    total = finished(setup).statement()["epsilon_total"]
    assert total <= budget
    assert total == pytest.approx(budget, rel=1e-4)


def test_the_budget_of_a_single_release_is_exact(data) -> None:
    claims = finished(ready(data, privacy={**LOCAL, "epsilon_release": 3.0})).statement()
    assert claims["epsilon_release"] == pytest.approx(3.0, rel=1e-6)
    assert claims["epsilon_total"] > 3.0


def test_clipping_only_claims_nothing(data) -> None:
    claims = finished(ready(data, privacy={**LOCAL, "noise_multiplier": 0})).statement()
    assert claims["epsilon_total"] == "inf"


def test_an_algorithm_that_sends_nothing_needs_no_noise(data) -> None:
    claims = finished(ready(data, "local", privacy={**LOCAL, "epsilon": 1.0})).statement()
    assert (claims["releases"], claims["epsilon_total"]) == (0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Anchored(FedAvg):
    """FedAvg that tells its mean again in every third round."""

    meta: ClassVar = Meta("anchored", "test", ("erm",), "-")

    def round(self, state, clients, channel):
        done = super().round(state, clients, channel)
        if clients.round % 3 == 2:
            channel.mean(clients.rows(done.x), base=clients.rows(state.x))
        return done


def test_a_round_that_releases_more_than_the_first_ends_the_run(data) -> None:
    """The noise was settled on a dry first round; going on would spend more than the budget."""
    setup = ready(data, "fedavg", privacy={"epsilon": 2, "clip": 1.0}, rounds=6)
    setup = replace(setup, algorithm=Anchored(local_steps=2, batch_size=8))
    with pytest.raises(Incompatible, match="round 3 made 2 releases, but the noise is calibrated for 1"):
        finished(setup)


@pytest.mark.slow
def test_settling_twice_changes_nothing(data) -> None:
    """`simulate` settles what it is given, which may be settled already."""
    adaptive = {"placement": "central", "clip": "adaptive"}
    for mechanism in ({}, {"unit": "record"}, adaptive):
        once = ready(data, "fedavg", privacy={"clip": 1.0, "epsilon": 1, **mechanism})
        again = calibrated(once).privacy
        assert again.noise_multiplier == pytest.approx(once.privacy.noise_multiplier, rel=1e-5)


@dataclass(frozen=True, kw_only=True)
class LargeBatches(FedAvg):
    """FedAvg that asks for batches four times as large as its settings say."""

    meta: ClassVar = Meta("large", "test", ("erm",), "-")
    twice: bool = False

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for _ in range(2 if self.twice else 1):
            for batch in clients.batches(self, batch_size=4 * self.batch_size):
                x = x - self.lr * clients.grad(x, batch)
        return self.State(state.x + channel.mean(x, base=x_t))


def test_a_batch_is_booked_at_the_rate_at_which_it_was_drawn(data) -> None:
    asked = {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0}
    setup = ready(data, {"name": "fedavg", "local_steps": 2, "batch_size": 2}, privacy=asked)
    fewest = int(setup.federation.counts().min())
    run = finished(replace(setup, algorithm=LargeBatches(local_steps=2, batch_size=2)))
    assert {draw.rate for draw in run.privacy_log.ledger.merge(Ledger()).closed} == {8 / fewest}


def test_batches_gone_through_twice_are_refused(data) -> None:
    """Two releases of one draw, booked apart, would count as two amplified draws."""
    asked = {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0}
    setup = ready(data, {"name": "fedavg", "local_steps": 2, "batch_size": 2}, privacy=asked)
    with pytest.raises(Incompatible, match="can be iterated only once"):
        finished(replace(setup, algorithm=LargeBatches(local_steps=2, batch_size=2, twice=True)))


@pytest.mark.slow
def test_cohorts_are_public_unless_privacy_rests_on_them(data) -> None:
    claim = "who takes part in which round"
    local = simulate(ready(data, "fedavg", privacy={"epsilon": 2}, cohort={"size": 3}))
    poisson = {"placement": "central", "epsilon": 2}
    central = simulate(ready(data, "fedavg", privacy=poisson, cohort={"size": 3}))
    assert claim in local["public"] and claim not in central["public"]
