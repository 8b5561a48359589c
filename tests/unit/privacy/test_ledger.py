import math

import numpy as np
import pytest

from privacy.accounting import account, epsilon
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from privacy.individual import calibrate_all, calibrate_each
from privacy.ledger import Draw, Ledger

DELTA = 1e-5


def _rounds(number, releases, rate=1.0, sampling="none", units=1):
    ledger = Ledger(units)
    for key in range(number):
        ledger.begin()
        for _ in range(releases):
            ledger.book(("cohort", key), rate=rate, sampling=sampling)
        ledger.end()
    return ledger


def test_releases_of_one_draw_are_one_event_and_draws_add_up():
    """Rule 1: 100 draws at rate 0.1, two releases of multiplier 1 each; booked apart they would be understated."""
    ledger = _rounds(100, 2, 0.1, "poisson")
    report = ledger.report(DELTA, "rdp")
    assert report["epsilon_total"] == pytest.approx(16.1, abs=0.05)
    assert (report["releases"], report["draws"], report["accountant"]) == (200, 100, "rdp")
    assert _rounds(200, 1, 0.1, "poisson").report(DELTA, "rdp")["epsilon_total"] == pytest.approx(
        11.0, abs=0.05
    )
    assert ledger.report(DELTA)["epsilon_total"] == pytest.approx(
        14.28, abs=0.01
    )  # by the default accountant
    assert len(ledger.counts) == 1 and (ledger.made, ledger.last) == (200, 2)


def test_k_unsampled_releases_are_one_gaussian():
    report = _rounds(5, 3).report(DELTA, "prv", noise_multiplier=2.0)
    assert report["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / math.sqrt(15), DELTA))
    assert report["epsilon_release"] == pytest.approx(gaussian_epsilon(2.0, DELTA))
    assert report["noise_multiplier"] == 2.0
    assert report["accountant"] == "exact"


def test_the_weakest_release_is_the_one_reported():
    ledger = Ledger()
    ledger.begin()
    for draw, multiplier in ((0, 3.0), (0, 0.5), (1, 2.0)):
        ledger.book(draw, multiplier)
    ledger.end()
    report = ledger.report(DELTA)
    assert report["noise_multiplier"] == 0.5
    assert report["epsilon_release"] == gaussian_epsilon(0.5, DELTA)
    assert report["epsilon_total"] > report["epsilon_release"]


def test_a_release_without_noise_makes_everything_infinite():
    report = _rounds(3, 1, 0.5, "poisson").report(DELTA, noise_multiplier=0.0)
    assert report["epsilon_total"] == report["epsilon_release"] == math.inf


def test_an_empty_ledger_reveals_nothing():
    report = Ledger(4).report(DELTA)
    assert (report["epsilon_total"], report["epsilon_release"], report["releases"]) == (0.0, 0.0, 0)
    assert report["note"] == "nothing was released"


def test_public_members_are_charged_for_the_rounds_they_took_part_in():
    ledger = Ledger(4)
    for ids, mask in (([0, 2], [1, 1]), ([1, 2], [1, 1]), ([0, 2], [0, 1])):
        ledger.begin(np.array(ids), np.array(mask))
        ledger.book("round")
        ledger.end()
    report = ledger.report(DELTA)
    assert (report["releases"], report["unit_most"], report["units_most"]) == (3, 2, 1)
    assert report["epsilon_total"] == pytest.approx(gaussian_epsilon(3**-0.5, DELTA))
    assert report["epsilon_median"] == pytest.approx(gaussian_epsilon(1.0, DELTA))  # of 0, 1, 1, 3 rounds


def test_public_records_are_charged_for_each_appearance():
    ledger = Ledger(5)
    ledger.begin()
    ledger.charge(np.array([0, 3]))
    ledger.charge(np.array([3, 3, 4]))
    ledger.end()
    assert (ledger.last, ledger.made) == (3, 2)
    report = ledger.report(DELTA)
    assert (report["releases"], report["unit_most"]) == (3, 3)


def _mixed(rng, units):
    """Return a ledger of clients with their own rates and steps, as record-level privacy has them."""
    ledger = Ledger(units)
    counts = rng.integers(1, 300, units)
    ledger.rates["train"] = np.minimum(1.0, 16 / counts)
    ledger.add(Draw(((1.0, 1),), "poisson", "train"), -(-counts // 16) * 10)
    ledger.add(Draw(((1.0, 2),), "poisson", "train"), rng.integers(0, 5, units))
    ledger.add(Draw(((2.0, 1),)), np.ones((), np.int64))
    return ledger


def _brute(ledger, z, unit):
    """Return the epsilon of one unit, by its own events."""
    events = []
    for draw, times in ledger.counts.items():
        rate = ledger.rates[draw.rate][unit] if isinstance(draw.rate, str) else draw.rate
        noise = z * draw.noise_multiplier
        events.append(Event(noise, float(rate), int(np.broadcast_to(times, ledger.shape)[unit])))
    return account(events, DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_largest_epsilon_is_the_maximum_over_all_units(seed):
    rng = np.random.default_rng(seed)
    ledger, z = _mixed(rng, 12), float(rng.uniform(0.7, 3))
    each = [_brute(ledger, z, unit) for unit in range(12)]
    report = ledger.report(DELTA, noise_multiplier=z)
    assert report["epsilon_total"] == pytest.approx(max(each), rel=1e-9)
    assert each[report["unit_most"]] == pytest.approx(max(each), rel=1e-9)
    assert min(each) <= report["epsilon_median"] <= max(each)


@pytest.mark.slow
def test_shared_noise_is_what_the_most_exposed_unit_needs():
    ledger = _mixed(np.random.default_rng(3), 8)
    z = calibrate_all(2.0, DELTA, ledger.histories())
    each = [_brute(ledger, z, unit) for unit in range(8)]
    assert max(each) <= 2.0
    assert max(each) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.slow
def test_with_noise_of_its_own_every_unit_spends_the_budget():
    ledger = _mixed(np.random.default_rng(4), 6)
    own = calibrate_each(2.0, DELTA, ledger.histories())
    each = [_brute(ledger, z, unit) for unit, z in enumerate(own)]
    assert all(spent <= 2.0 and spent == pytest.approx(2.0, rel=1e-4) for spent in each)
    assert own.max() == pytest.approx(calibrate_all(2.0, DELTA, ledger.histories()), rel=1e-5)
    report = ledger.report(DELTA, noise_multiplier=own)
    assert report["epsilon_total"] <= 2.0
    assert report["noise_multiplier"] == own.min()


def test_the_bounds_that_rank_units_are_never_below_the_accountant():
    rng = np.random.default_rng(8)
    for sampling in ("poisson", "without-replacement", "none"):
        ledger = Ledger(40)
        ledger.rates["own"] = 1.0 if sampling == "none" else rng.uniform(0.001, 0.9, 40)
        ledger.rates["own"] = np.broadcast_to(ledger.rates["own"], 40)
        ledger.add(Draw(((1.0, 1),), sampling, "own"), rng.integers(1, 200, 40))
        histories = ledger.histories(rng.uniform(0.5, 8, 40))
        bounds = histories.bounds(DELTA)
        for one in range(0, len(bounds), 8):
            assert bounds[one] >= account(histories.events(one), DELTA).epsilon * (1 - 1e-9)


def test_stacked_runs_keep_their_own_counts():
    ledger = Ledger(3, (2,))
    for ids in ([[0, 1], [1, 2]], [[0, 2], [1, 2]]):
        ledger.begin(np.array(ids))
        ledger.book("round")
        ledger.end()
    reports = [ledger.report(DELTA, noise_multiplier=z, run=run) for run, z in ((0, 1.0), (1, 2.0))]
    assert [report["unit_most"] for report in reports] == [0, 1]
    assert [report["units_most"] for report in reports] == [1, 2]
    assert reports[1]["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / 2**0.5, DELTA))


def test_a_restored_ledger_is_the_same():
    ledger = _mixed(np.random.default_rng(1), 5)
    again = Ledger(5)
    again.restore(*ledger.state())
    assert again.report(DELTA) == ledger.report(DELTA)


def test_a_million_units_are_counted_quickly():
    ledger = Ledger(1_000_000)
    ledger.add(Draw(((1.0, 1),)), np.random.default_rng(0).binomial(50, 0.1, 1_000_000))
    report = ledger.report(DELTA)
    assert report["epsilon_total"] == pytest.approx(gaussian_epsilon(report["releases"] ** -0.5, DELTA))


def test_bad_bookings_are_refused():
    ledger = Ledger()
    ledger.begin()
    with pytest.raises(ValueError, match="must be finite and not negative"):
        ledger.book(0, -1.0)
    with pytest.raises(ValueError, match=r"sampling rate must lie in \(0, 1\]"):
        ledger.book(0, rate=0.0)
    with pytest.raises(ValueError, match="no rates are named"):
        ledger.book(0, rate="own")
    ledger.book(0, rate=0.5, sampling="poisson")
    with pytest.raises(ValueError, match="one draw has one rate"):
        ledger.book(0, rate=0.4, sampling="poisson")
    with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1"):
        ledger.report(1.0)
    assert epsilon(1.0, 1, DELTA) > 0


def test_whoever_a_release_of_a_draw_is_about_is_charged_for_the_draw():
    """As when a stream of batches is gone through again, and other clients take part in a step."""
    ledger = Ledger(3)
    ledger.begin()
    ledger.book("batch", active=np.array([1, 0, 0]))
    ledger.book("batch", active=np.array([0, 1, 0]))
    ledger.end()
    ((draw, times),) = ledger.counts.items()
    assert draw.releases == ((1.0, 2),) and times.tolist() == [1, 1, 0]
