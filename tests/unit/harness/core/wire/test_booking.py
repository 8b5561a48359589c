"""Rules 1 and 2: what is booked, and what it is worth."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from algorithms.centralized.fedavg import FedAvg
from harness.config.run import read_spec
from harness.core import Increment, Meta
from harness.core.errors import Incompatible
from harness.core.settings.privacy import PrivacyTerms
from harness.core.settings.privacy_section import read_privacy
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated, recalibrated, with_noise
from harness.simulation.loop import simulate
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import stack_setups
from privacy.accounting import account, epsilon
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from privacy.ledger import Draw, Ledger
from tests.support.runs import finished, given, ready
from tests.support.wire import booked, channel, privacy, rows

CENTRAL = {"unit": "client", "placement": "central", "clip": 1.0}
LOCAL = {"unit": "client", "placement": "local", "clip": 1.0}


def test_the_releases_of_one_cohort_compose_inside_its_draw() -> None:
    """Two releases of one draw at z = 1 are one at z / sqrt 2; booked apart they would be understated."""
    mechanism = privacy("central", z=1.0, rate=0.1)
    way = channel(mechanism)
    for _ in range(2):
        way.mean(rows(3))
    found = booked(way)
    assert (found["draws"], found["releases"]) == (1, 2)
    assert found["epsilon_total"] == pytest.approx(epsilon(2**-0.5, 1, 1e-5, 0.1))
    assert found["epsilon_total"] > epsilon(1.0, 2, 1e-5, 0.1)


def test_without_sampling_the_total_is_the_exact_gaussian() -> None:
    """k releases at rate 1 are one with multiplier z / sqrt(k)."""
    way = channel(privacy(z=4.0))
    for _ in range(16):
        way.gather(rows(3))
    found = booked(way, 4.0)
    assert found["accountant"] == "exact"
    assert found["epsilon_total"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert found["epsilon_release"] == pytest.approx(gaussian_epsilon(4.0, 1e-5))


def test_what_the_server_sends_books_nothing() -> None:
    way = channel(privacy(z=1.0))
    way.down(torch.zeros(3, dtype=torch.float64))
    way.scatter(rows(3))
    assert booked(way)["releases"] == 0


def test_rows_known_from_earlier_rounds_book_nothing_in_a_mix() -> None:
    way = channel(privacy(z=1.0), mixing=torch.full((4, 4), 0.25, dtype=torch.float64))
    way.mix(rows(3), rebroadcast=(rows(3),))
    assert booked(way)["releases"] == 1


def test_an_adaptive_norm_and_its_count_cost_one_multiplier() -> None:
    way = channel(privacy("central", clip="adaptive", z=2.0))
    way.mean(rows(3))
    found = booked(way, 2.0)
    assert found["releases"] == 2
    assert found["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))


def test_releases_before_the_first_round_are_not_amplified() -> None:
    way = channel(privacy("central", z=1.0, rate=0.01), round=-1)
    way.mean(rows(3))
    assert booked(way)["epsilon_total"] == pytest.approx(gaussian_epsilon(1.0, 1e-5))


def test_a_budget_covers_a_release_before_the_first_round_too() -> None:
    """One unsampled release and 10 sampled ones of two releases each: in total the budget, to 1e-4."""
    ledger = Ledger()
    ledger.add(Draw(((1.0, 1),)), 1)
    ledger.add(Draw(((1.0, 2),), "poisson", 0.1), 10)
    spec = read_privacy({**CENTRAL, "sampling": "poisson", "adjacency": "add-remove", "epsilon": 2.0})
    z = with_noise(PrivacyTerms(spec), ledger, releases=2).noise_multiplier
    total = account([Event(z), Event(z / 2**0.5, 0.1, 10)], 1e-5).epsilon
    assert total == pytest.approx(2.0, rel=1e-4)
    assert total <= 2.0


@pytest.mark.parametrize(("nominal", "real"), [(1, 1.6), (10, 25), (1000, 87_000)])
def test_the_classic_formula_is_worth_less_than_it_says(data, nominal: float, real: float) -> None:
    """delta 1e-5; sigma = sqrt(2 ln(1.25 / delta)) C / epsilon, but a replaced client moves 2 C."""
    run = finished(ready(data, privacy={**LOCAL, "epsilon_nominal": nominal}, rounds=1))
    claims = run.statement()
    assert claims["epsilon_nominal"] == nominal
    assert claims["epsilon_release"] == claims["epsilon_total"] == pytest.approx(real, rel=0.04)


@pytest.mark.parametrize("cohort", [{"size": 2}, {"size": 2, "kind": "balanced"}])
@pytest.mark.parametrize("mechanism", [LOCAL, {**CENTRAL, "sampling": "fixed"}])
def test_where_participation_is_public_each_client_is_charged_for_its_rounds(data, cohort, mechanism) -> None:
    run = finished(ready(data, privacy={**mechanism, "noise_multiplier": 2.0}, cohort=cohort, rounds=9))
    counts = [0] * run.cohorts.total
    for round in range(9):
        for client in run.cohorts.draw(round)[0][0].tolist():
            counts[client] += 1
    claims = run.statement()
    assert sum(counts) == 18 and (cohort.get("kind") is None or max(counts) == 3)  # 18 turns of 7 clients
    assert claims["adjacency"] == "replace"
    assert claims["releases"] == max(counts) < 9
    assert claims["unit_most"] == counts.index(max(counts)) and claims["units_most"] == counts.count(
        max(counts)
    )
    assert claims["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / max(counts) ** 0.5, 1e-5))
    middle = sorted(counts)[3]
    expected = gaussian_epsilon(2.0 / middle**0.5, 1e-5) if middle else 0.0
    assert claims["epsilon_median"] == pytest.approx(expected)


def test_secret_cohorts_of_fixed_size_are_amplified_under_replacement(data) -> None:
    mechanism = {**CENTRAL, "noise_multiplier": 2.0, "sampling": "without-replacement"}
    claims = finished(ready(data, privacy=mechanism, cohort={"size": 2})).statement()
    assert (claims["adjacency"], claims["sampling_rate"]) == ("replace", pytest.approx(2 / 7))
    assert claims["epsilon_total"] == pytest.approx(
        epsilon(2.0, 2, 1e-5, 2 / 7, sampling="without-replacement")
    )
    assert claims["epsilon_total"] < gaussian_epsilon(2.0 / 2**0.5, 1e-5)


def test_poisson_cohorts_are_amplified_with_public_numbers_of_clients(data) -> None:
    run = finished(ready(data, privacy={**CENTRAL, "noise_multiplier": 2.0}, cohort={"size": 2}))
    claims = run.statement()
    assert (claims["adjacency"], claims["sampling"]) == ("zero-out", "poisson")
    assert claims["sampling_rate"] == pytest.approx(2 / 7)
    assert claims["epsilon_total"] == pytest.approx(epsilon(2.0, 2, 1e-5, 2 / 7))


SCAFFOLD = {"name": "scaffold", "local_steps": 2}
BUDGETS = {
    "local": (LOCAL, {}),
    "central": (CENTRAL, {}),
    "poisson": (CENTRAL, {"cohort": {"size": 3}}),
    "fixed": ({**CENTRAL, "sampling": "fixed"}, {"cohort": {"size": 3}}),
    "secret": ({**CENTRAL, "sampling": "without-replacement"}, {"cohort": {"size": 3}}),
    "turns": (LOCAL, {"cohort": {"size": 3, "kind": "balanced"}}),
    "adaptive": ({**CENTRAL, "clip": "adaptive"}, {"cohort": {"size": 3}}),
    "record": ({"unit": "record", "clip": 1.0}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "budget"), [*((kind, 8.0) for kind in BUDGETS), ("local", 0.5), ("poisson", 0.5)]
)
def test_the_reported_total_is_the_budget_and_never_more(data, kind: str, budget: float) -> None:
    """Calibration to other budgets is tested with the accountants."""
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
            channel.mean(Increment(clients.rows(done.x), of=clients.rows(state.x)))
        return done


def test_a_round_that_releases_more_than_the_first_ends_the_run(data) -> None:
    """The noise was settled on a dry first round; going on would spend more than the budget."""
    setup = ready(data, "fedavg", privacy={"placement": "local", "epsilon": 2, "clip": 1.0}, rounds=6)
    setup = replace(setup, algorithm=Anchored(local_steps=2, batch_size=8))
    with pytest.raises(Incompatible, match="round 3 made 2 releases, but the noise is calibrated for 1"):
        finished(setup)


def test_a_run_that_has_its_noise_is_not_calibrated_again(data, monkeypatch) -> None:
    once = ready(data, "fedavg", privacy={**LOCAL, "noise_multiplier": None, "epsilon": 1})
    monkeypatch.setattr("harness.simulation.calibration.dry_run", None)
    assert calibrated(once) is once and calibrated(stack_setups([once])) is once
    twice = calibrated(stack_setups([once, replace(once, spec=once.spec.model_copy(update={"seed": 1}))]))
    assert [one.privacy for one in twice.each] == [once.privacy] * 2 and twice.dry is None


def test_a_run_that_has_changed_is_calibrated_anew(data) -> None:
    once = ready(data, "fedavg", privacy={**LOCAL, "noise_multiplier": None, "epsilon": 1}, rounds=2)
    more = replace(once, spec=once.spec.model_copy(update={"rounds": 8}))
    assert recalibrated(once).privacy == once.privacy
    assert recalibrated(more).privacy.noise_multiplier > 1.5 * once.privacy.noise_multiplier


def test_only_a_run_that_has_its_noise_can_be_simulated(data) -> None:
    prepared = prepare(read_spec(given(data, privacy={**LOCAL, "noise_multiplier": None, "epsilon": 1})))
    assert type(prepared.privacy) is PrivacyTerms and not hasattr(prepared.privacy, "noise_multiplier")
    with pytest.raises(TypeError, match="calibrated"):
        Simulation.from_setup(prepared)


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
        return self.State(state.x + channel.mean(Increment(x, of=x_t)))


@pytest.mark.parametrize("twice", [False, True])
def test_batches_are_booked_at_the_rates_at_which_they_were_drawn(data, twice: bool) -> None:
    """A stream iterated again gives the same batches, so its releases join the same draws."""
    asked = {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0}
    setup = ready(data, {"name": "fedavg", "local_steps": 2, "batch_size": 2}, privacy=asked, rounds=3)
    counts = setup.federation.counts()
    algorithm = LargeBatches(local_steps=2, batch_size=2, twice=twice)
    setup = recalibrated(replace(setup, algorithm=algorithm))
    run = Simulation.from_setup(setup)
    for _ in range(3):
        run.step()
    events = [Event(2**-0.5 if twice else 1.0, min(1.0, 8 / int(n)), 6) for n in counts]
    expected = max(account([event], 1e-5).epsilon for event in events)
    assert run.statement()["epsilon_total"] == pytest.approx(expected)


@pytest.mark.slow
def test_cohorts_are_public_unless_privacy_rests_on_them(data) -> None:
    claim = "who takes part in which round"
    local = simulate(ready(data, "fedavg", privacy={"placement": "local", "epsilon": 2}, cohort={"size": 3}))
    poisson = {"placement": "central", "epsilon": 2}
    central = simulate(ready(data, "fedavg", privacy=poisson, cohort={"size": 3}))
    assert claim in local["public"] and claim not in central["public"]
