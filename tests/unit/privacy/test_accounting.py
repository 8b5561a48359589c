import math

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import Account, account, calibrate, compose, epsilon
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon

DELTA = 1e-5
ORDERS = [1.5 + step / 20 for step in range(200)] + [*range(12, 64), *range(64, 1025, 4)]


def _oracle(accountant, z, rate, draws, delta=DELTA):
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), draws))
    return accountant.get_epsilon(delta)


@pytest.mark.slow
def test_two_releases_of_one_draw_cost_more_than_two_draws():
    """q = 0.1, z = 1, T = 100, m = 2 at delta 1e-5: one event has multiplier 1 / sqrt 2."""
    together = epsilon(compose([1.0, 1.0]), 100, DELTA, 0.1, "rdp")
    apart = epsilon(1.0, 200, DELTA, 0.1, "rdp")
    assert together == pytest.approx(16.1, abs=0.05)
    assert apart == pytest.approx(11.0, abs=0.05)


def test_releases_of_one_draw_compose_to_one_gaussian():
    """1/3^2 + 1/4^2 = 25/144, so multipliers 3 and 4 act like 12/5."""
    assert compose([3.0, 4.0]) == pytest.approx(2.4)
    assert compose([]) == math.inf
    assert compose([5.0, 0.0]) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 100), st.integers(1, 10_000), st.sampled_from(["rdp", "prv"]))
def test_the_unsampled_total_is_one_gaussian(z, k, accountant):
    result = account([Event(z, 1.0, k)], DELTA, accountant)
    assert result.accountant == "exact"
    assert result.epsilon == pytest.approx(gaussian_epsilon(z / math.sqrt(k), DELTA), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "draws"), [(1, 0.1, 100), (0.8, 0.2, 50), (5, 0.01, 10_000), (20, 0.01, 1000), (2, 0.5, 30)]
)
def test_sampled_draws_agree_with_dp_accounting(z, rate, draws):
    """RDP against the oracle on a dense grid of orders; PRV is an upper end, within 1 % of exact."""
    rdp, prv = (epsilon(z, draws, DELTA, rate, name) for name in ("rdp", "prv"))
    oracle = _oracle(RdpAccountant(ORDERS), z, rate, draws)
    assert rdp == pytest.approx(oracle, rel=0.01)
    assert rdp <= oracle * 1.0001
    exact = _oracle(PLDAccountant(), z, rate, draws)
    assert exact * 0.9999 <= prv <= exact * 1.01 + 2e-3
    assert prv <= rdp


@pytest.mark.slow
def test_a_small_delta_does_not_make_prv_understate():
    exact = _oracle(PLDAccountant(), 1, 0.1, 100, delta=1e-9)
    assert exact <= epsilon(1, 100, 1e-9, 0.1, "prv") <= exact * 1.01


@pytest.mark.slow
def test_mixed_events_agree_with_dp_accounting():
    events = [Event(1, 0.1, 100), Event(2, 1.0, 3), Event(3, 0.01, 50)]
    oracle = PLDAccountant()
    for event in events:
        one = PoissonSampledDpEvent(event.rate, GaussianDpEvent(event.noise_multiplier))
        oracle.compose(ComposedDpEvent([SelfComposedDpEvent(one, event.times)]))
    exact = oracle.get_epsilon(DELTA)
    assert exact <= account(events, DELTA, "prv").epsilon <= exact * 1.01
    assert exact <= account(events, DELTA, "rdp").epsilon <= exact * 1.15


@pytest.mark.parametrize(
    ("event", "delta"),
    [(Event(0.2, 0.5, 100), DELTA), (Event(1e-3, 0.1, 100), DELTA), (Event(1, 0.1, 10), 1e-12)],
    ids=["large epsilon", "huge epsilon", "tiny delta"],
)
def test_prv_falls_back_to_rdp_and_says_so(event, delta):
    result, rdp = account([event], delta, "prv"), account([event], delta, "rdp")
    assert result.epsilon == rdp.epsilon < math.inf
    assert result.accountant == "rdp"
    assert "rdp instead" in result.note
    assert rdp.note == ""


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.floats(-3, 3), st.floats(-5, -0.01), st.floats(0, 4))
def test_sampling_never_costs_more_than_not_sampling(log_z, log_rate, log_draws):
    z, rate, draws = 10**log_z, 10**log_rate, round(10**log_draws)
    sampled = epsilon(z, draws, DELTA, rate)
    assert 0 <= epsilon(z, 1, DELTA, rate) <= sampled * (1 + 1e-6)
    assert sampled <= epsilon(z, draws, DELTA)
    assert sampled <= epsilon(z, draws + 1, DELTA, rate) * (1 + 1e-6)


def test_no_noise_is_no_privacy_and_no_release_no_loss():
    assert epsilon(0.0, 1, DELTA) == math.inf
    assert account([Event(1.0), Event(0.0, 0.1)], DELTA).epsilon == math.inf
    assert epsilon(0.0, 0, DELTA) == 0.0
    assert account([], DELTA) == Account(0.0, "exact", "nothing was released")


@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("budget", [pytest.param(0.01, marks=pytest.mark.slow), 0.5, 8.0, 1000.0])
def test_calibration_stays_within_the_budget_and_wastes_nothing(budget, rate):
    z = calibrate(budget, DELTA, [Event(1.0, rate, 200)])
    assert epsilon(z, 200, DELTA, rate) <= budget
    assert epsilon(z * (1 - 2e-6), 200, DELTA, rate) > budget


@pytest.mark.slow
def test_calibration_by_prv_needs_less_noise_than_by_rdp():
    prv, rdp = (calibrate(2.0, DELTA, [Event(1.0, 0.1, 100)], name) for name in ("prv", "rdp"))
    assert prv < rdp
    assert epsilon(prv, 100, DELTA, 0.1, "prv") <= 2.0


def test_calibration_charges_releases_inside_their_draw():
    for rate in (0.1, 1.0):
        events = [Event(compose([1.0] * 4), rate, 50), Event(3.0)]
        factor = calibrate(3.0, DELTA, events)
        scaled = [event._replace(noise_multiplier=factor * event.noise_multiplier) for event in events]
        assert 3.0 * (1 - 1e-4) < account(scaled, DELTA).epsilon <= 3.0
    four = calibrate(3.0, DELTA, [Event(compose([1.0] * 4), 1.0, 50)])
    assert four == pytest.approx(calibrate(3.0, DELTA, [Event(1.0, 1.0, 200)]), rel=1e-6)
    assert calibrate(3.0, DELTA, []) == 0.0


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown accountant 'rpd'.*nearest: rdp"):
        epsilon(1, 1, DELTA, accountant="rpd")
    with pytest.raises(ValueError, match="unknown accountant"):
        calibrate(1, DELTA, [Event(1.0)], accountant="gdp")
    with pytest.raises(ValueError, match="sampling rate"):
        epsilon(1, 1, DELTA, sampling_rate=0)
    with pytest.raises(ValueError, match="sampling rate"):
        calibrate(1, DELTA, [Event(1.0, 1.5)])
    with pytest.raises(ValueError, match="noise multiplier"):
        epsilon(-1, 1, DELTA)
    with pytest.raises(ValueError, match="delta"):
        epsilon(1, 1, 0)
    with pytest.raises(ValueError, match="draws"):
        epsilon(1, -1, DELTA)
    with pytest.raises(ValueError, match="epsilon"):
        calibrate(math.inf, DELTA, [Event(1.0)])
