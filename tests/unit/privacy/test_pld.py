"""Privacy loss distributions against quadrature, closed forms and dp_accounting's own accountants."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import pld
from privacy.accounting import account, calibrate
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from privacy.pld import pld_delta, pld_epsilon

DELTA = 1e-5
REPLACED = "without-replacement"


def _pld(z, rate, draws, sampling="poisson", delta=DELTA):
    return account([Event(z, rate, draws, sampling)], delta, "pld").epsilon


def _library(z, rate, draws, step, delta=DELTA, relation=NeighboringRelation.ADD_OR_REMOVE_ONE):
    single = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=step, neighboring_relation=relation
    )
    return single.self_compose(draws).get_epsilon_for_delta(delta)


def _divergence(first, second, loss, scale):
    """Hockey-stick divergence of two mixtures, lists of (weight, mean), by the trapezoid rule."""
    grid = np.linspace(-2 - 12 * scale, 2 + 12 * scale, 400_001)

    def density(mixture):
        bells = (weight * np.exp(-(((grid - mean) / scale) ** 2) / 2) for weight, mean in mixture)
        return sum(bells) / (scale * math.sqrt(2 * math.pi))

    return np.trapezoid(np.maximum(0.0, density(first) - math.exp(loss) * density(second)), grid)


@pytest.mark.parametrize("loss", [-0.5, -0.05, 0.0, 0.02, 0.3, 1.5])
@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.4, 0.3), (3.0, 0.6)])
def test_divergences_of_one_draw_equal_quadrature(z, rate, loss):
    mixture, zero = [(1 - rate, 0.0), (rate, 1.0)], [(1.0, 0.0)]
    at = np.array([loss])
    assert pld._mixture_first(z, rate, at)[0] == pytest.approx(_divergence(mixture, zero, loss, z), abs=2e-8)
    assert pld._mixture_second(z, rate, at)[0] == pytest.approx(_divergence(zero, mixture, loss, z), abs=2e-8)
    one = _divergence([(1.0, 1.0)], zero, loss, z)
    assert pld._gaussian(z, at)[0] == pytest.approx(one, abs=2e-8)


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5, 1.0])
def test_no_three_points_in_a_ball_beat_the_bound_for_draws_without_replacement(loss):
    """Whom a unit displaces lies at 0, the unit at ``a``, its substitute at ``b``, none farther apart than 1.

    A draw of m from n contains the unit with probability q = m / n and otherwise somebody in its place.
    """
    z, rate, worst = 0.7, 0.2, 0.0
    for a in (-1.0, -0.5, 0.5, 1.0):
        for b in (value for value in (-1.0, -0.5, 0.0, 0.5, 1.0) if abs(value - a) <= 1):
            with_unit, substituted = [(1 - rate, 0.0), (rate, a)], [(1 - rate, 0.0), (rate, b)]
            worst = max(worst, _divergence(with_unit, substituted, loss, z))
    bound = pld._mixture_first(z, rate, np.array([loss]))[0]
    assert worst == pytest.approx(bound, abs=2e-8)  # never above, and attained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "draws", "step"),
    [
        (1, 0.1, 100, 1e-3),
        (1.1, 0.1, 500, 1e-3),
        (5, 0.01, 10_000, 2e-5),
        (20, 0.01, 1000, 1e-5),
        (0.3, 0.01, 1000, 1e-3),
        (0.23, 0.5, 100, 1e-2),
        (0.3, 1e-4, 100, 1e-3),
        (0.05, 0.3, 1000, 0.1),
        (1, 0.1, 1, 1e-4),
    ],
)
def test_poisson_epsilons_are_within_1_percent_of_a_fine_library_grid_and_not_below(z, rate, draws, step):
    exact = _library(z, rate, draws, step)
    fastest = _pld(z, rate, draws)
    assert exact * (1 - 2e-4) <= fastest <= exact * 1.005  # the library's grid is pessimistic, too


def test_review_median_gain_over_rdp_is_far_more_than_the_error():
    """Review B10: RDP is a median of 18 % above PLD."""
    cases = [(1, 0.1, 100), (2, 0.05, 500), (0.8, 0.2, 50), (5, 0.01, 10_000), (1, 0.01, 1000), (3, 0.3, 200)]
    ratios = [account([Event(*case)], DELTA, "rdp").epsilon / _pld(*case) for case in cases]
    assert min(ratios) > 1.0
    assert 1.05 < np.median(ratios) < 1.4


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-8, 1e-10])
@pytest.mark.parametrize(("z", "draws"), [(30.0, 1000), (3.0, 10), (1.0, 1), (0.5, 50)])
def test_unsampled_gaussians_come_out_at_their_exact_value(z, draws, delta):
    """Through the discretization, which `account` avoids where it can."""
    exact = gaussian_epsilon(z / math.sqrt(draws), delta)
    found = pld_epsilon([Event(z, 1.0, draws)], delta, 10 * exact)
    assert exact <= found <= exact * 1.005 + 1e-6


def test_mixtures_of_releases_agree_with_the_library():
    events = [Event(1, 0.1, 100), Event(2, 1.0, 3), Event(3, 0.01, 50), Event(0.9, 0.05, 1)]
    library = privacy_loss_distribution.identity(value_discretization_interval=1e-3)
    for event in events:
        one = privacy_loss_distribution.from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=event.rate, value_discretization_interval=1e-3
        )
        library = library.compose(one.self_compose(event.times))
    exact = library.get_epsilon_for_delta(DELTA)
    assert exact * (1 - 2e-4) <= account(events, DELTA, "pld").epsilon <= exact * 1.005


def test_review_b9_fixed_cohorts_without_replacement():
    """10 of 100, 100 rounds, z = 4: 13.2 unamplified, 2.29 by the library's Renyi bound, less by PLD."""
    unamplified = gaussian_epsilon(4 / 10, DELTA)
    renyi = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(4.0))
    renyi.compose(SelfComposedDpEvent(event, 100))
    library = renyi.get_epsilon(DELTA)
    tight = _pld(4, 0.1, 100, REPLACED)
    ours = account([Event(4, 0.1, 100, REPLACED)], DELTA, "rdp").epsilon
    assert unamplified == pytest.approx(13.2, abs=0.05)
    assert library == pytest.approx(2.29, abs=0.01)
    assert tight == pytest.approx(1.035, abs=0.005)
    assert tight < ours < library


@pytest.mark.parametrize(
    ("z", "rate", "draws"), [(4, 0.1, 100), (1, 0.1, 100), (1, 0.01, 2000), (0.5, 0.3, 10)]
)
def test_draws_without_replacement_cost_at_least_any_one_pair_of_neighbors(z, rate, draws):
    """Lower bounds: displaced unit at one end (Poisson's pair), or in the middle of unit and substitute."""
    bound = _pld(z, rate, draws, REPLACED)
    relation = NeighboringRelation.REPLACE_ONE  # of half the sensitivity on each side
    middle = _library(2 * z, rate, draws, 1e-3, relation=relation)
    end = _library(z, rate, draws, 1e-3)
    assert max(middle, end) * (1 - 2e-3) <= bound
    assert bound <= gaussian_epsilon(z / math.sqrt(draws), DELTA)


def test_one_draw_without_replacement_costs_what_a_poisson_draw_does():
    assert _pld(1, 0.1, 1, REPLACED) == pytest.approx(_pld(1, 0.1, 1), rel=1e-3)


def test_a_grid_too_coarse_for_a_finite_epsilon_is_made_finer():
    """At step 1/4 this one has none, and the bound by Renyi divergences is 63 % above."""
    z = 0.5424690937011326
    assert _pld(z, z, 754, REPLACED, 1e-4) == pytest.approx(708, rel=5e-3)
    assert _pld(z, z, 754, REPLACED, 1e-4) < _pld(z, z, 754, REPLACED, 1e-5)


def test_epsilons_whose_exponential_underflows_are_found():
    """The library's formula has none here; the bound by Renyi divergences is 57 % above."""
    z = 0.5424690937011326
    assert _pld(z, z, 757, REPLACED, 1e-4) < _pld(z, z, 757, REPLACED, 1e-5) < 745
    many = [_pld(z, z, draws, REPLACED) for draws in (700, 760, 1000, 2000)]
    assert many == sorted(many) and many[3] < 2.2 * many[2]


def _delta_of_one(z, rate, epsilon):
    """Delta of one Poisson-sampled draw by its threshold, in 60 digits."""
    with mpmath.workdps(60):
        z, rate, bound = mpmath.mpf(z), mpmath.mpf(rate), mpmath.exp(mpmath.mpf(epsilon))
        at = 0.5 + z**2 * mpmath.log(1 + (bound - 1) / rate)  # where the mixture is ``bound`` times the base
        base, moved = (mpmath.erfc((at - mean) / z / mpmath.sqrt(2)) / 2 for mean in (0, 1))
        return float((1 - rate) * base + rate * moved - bound * base)


LITTLE_NOISE = [
    (0.01993, 0.00128),
    (0.02139, 0.00153),
    (0.03, 0.01),
    (0.005, 1e-4),
    (0.001, 1e-4),
    (0.06, 0.3),
]


@pytest.mark.parametrize(("z", "rate"), LITTLE_NOISE)
def test_with_little_noise_a_draw_that_tells_everything_is_not_forgotten(z, rate):
    """Losses of several hundred overflow exp; a budget of 0.008 was found for the first, in place of 1,373."""
    found = _pld(z, rate, 1)
    assert _delta_of_one(z, rate, found) <= DELTA < _delta_of_one(z, rate, 0.99 * found)
    many = [_pld(z, rate, draws) for draws in (1, 2, 10, 96)]
    assert many == sorted(many)


@pytest.mark.parametrize("sampling", ["poisson", REPLACED])
def test_so_many_draws_that_their_rounding_exceeds_delta_are_left_to_renyi(sampling):
    """The probability that a sum of ten million draws is large gives the lower bound; 0.1646 was printed."""
    found = account([Event(100.0, 1e-3, 10**7, sampling)], 1e-10, "pld")
    assert found.epsilon > 0.174555 and found.accountant == "rdp" and "10,000,000 draws" in found.note


def test_what_cannot_be_inverted_is_infinite(monkeypatch):
    """Of a distribution with NaN, and where the library says too little: the caller then uses another bound."""
    (pmf, _) = pld._compose((Event(1.0, 0.1, 100),), DELTA, 2.0**-9)
    usual = pld._invert(pmf, DELTA, math.inf)
    assert usual == pytest.approx(_pld(1.0, 0.1, 100), rel=1e-2)
    for wrong in (usual / 2, math.nan, 0.0):
        monkeypatch.setattr(pmf, "get_epsilon_for_delta", lambda delta, wrong=wrong: wrong)
        assert pld._invert(pmf, DELTA, math.inf) == math.inf
    monkeypatch.undo()
    pmf._probs[-7] = math.nan
    assert pld._invert(pmf, DELTA, math.inf) == math.inf


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.floats(-0.7, 1.5), st.floats(-3, -0.1), st.integers(1, 3000), st.sampled_from(["poisson", REPLACED]),
    st.floats(1.05, 2.0),
)  # fmt: skip
def test_epsilon_is_monotone_and_never_above_other_bounds(log_z, log_rate, draws, sampling, more):
    z, rate = 10**log_z, 10**log_rate
    here = _pld(z, rate, draws, sampling)
    slack = 1 + 5e-3  # of the grid
    assert _pld(z * more, rate, draws, sampling) <= here * slack
    assert here <= _pld(z, min(1.0, rate * more), draws, sampling) * slack
    assert here <= _pld(z, rate, math.ceil(draws * more), sampling) * slack
    assert _pld(z, rate, draws, sampling, 10 * DELTA) <= here * slack
    assert here <= account([Event(z, rate, draws, sampling)], DELTA, "rdp").epsilon * slack
    assert here <= gaussian_epsilon(z / math.sqrt(draws), DELTA)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.floats(-3, 1), st.floats(-5, -0.3), st.floats(-7, -2))
def test_one_sampled_draw_is_never_below_the_exact_value(log_z, log_rate, log_delta):
    z, rate, delta = 10**log_z, 10**log_rate, 10**log_delta
    found = _pld(z, rate, 1, delta=delta)
    if found > 1e-3:
        reached, before = _delta_of_one(z, rate, found), _delta_of_one(z, rate, 0.99 * found)
        assert reached <= delta and (before > delta or reached > 0.99 * delta)  # where delta hardly changes


@pytest.mark.parametrize("sampling", ["poisson", REPLACED])
def test_calibration_by_pld_stays_within_the_budget_and_needs_less_noise(sampling):
    z = calibrate(2.0, DELTA, [Event(1.0, 0.1, 100, sampling)], "pld")
    assert _pld(z, 0.1, 100, sampling) <= 2.0 < _pld(z * 0.999, 0.1, 100, sampling) * 1.005
    assert z < calibrate(2.0, DELTA, [Event(1.0, 0.1, 100, sampling)], "rdp")


@pytest.mark.slow
def test_profile_is_above_delta_at_every_epsilon():
    events, epsilon = [Event(1, 0.1, 100)], _pld(1, 0.1, 100)
    points = np.array([-2.0, 0.0, 1.0, epsilon])
    found = pld_delta(events, points, DELTA, epsilon)
    single = privacy_loss_distribution.from_gaussian_mechanism(
        1, sampling_prob=0.1, value_discretization_interval=1e-4
    )
    composed = single.self_compose(100)
    exact = [composed.get_delta_for_epsilon(float(point)) for point in points[1:]]
    assert found[1:] == pytest.approx(exact, rel=5e-3)
    assert (found[1:] >= np.array(exact) * (1 - 1e-3)).all()
    assert (np.diff(found) < 0).all()


def test_where_it_cannot_be_computed_rdp_is_used_and_named():
    event = Event(1, 0.1, 10)
    result = account([event], 1e-12, "pld")
    assert result.accountant == "rdp"
    assert "pld accountant not usable here, rdp instead: delta below 1e-10" in result.note
    assert result.epsilon == account([event], 1e-12, "rdp").epsilon
    prv = account([Event(1, 0.1, 10, REPLACED)], DELTA, "prv")
    assert prv.accountant == "rdp" and "without replacement" in prv.note


@pytest.mark.slow
def test_huge_losses_stay_finite_and_below_the_unamplified_value():
    for z, rate, draws in ((1e-3, 0.1, 100), (1e-4, 0.9, 10), (0.01, 1e-6, 5)):
        found = account([Event(z, rate, draws)], DELTA, "pld")
        assert 0 <= found.epsilon <= gaussian_epsilon(z / math.sqrt(draws), DELTA)
        assert found.accountant in ("pld", "rdp")


def test_two_kinds_of_sampling_have_no_common_adjacency():
    with pytest.raises(ValueError, match="no common adjacency"):
        account([Event(1, 0.1), Event(1, 0.1, 1, REPLACED)], DELTA, "pld")
    with pytest.raises(ValueError, match="unknown sampling 'shuffled'"):
        account([Event(1, 0.1, 1, "shuffled")], DELTA)


def test_growing_runs_use_cached_draws_and_repeated_questions_cached_answers():
    pld._single.cache_clear()
    pld._epsilon.cache_clear()
    _pld(1.1, 0.1, 480)
    draws, answers = pld._single.cache_info().misses, pld._epsilon.cache_info().misses
    _pld(1.1, 0.1, 500)
    assert pld._single.cache_info().misses == draws
    assert pld._epsilon.cache_info().misses == answers + 1
    _pld(1.1, 0.1, 500)
    assert pld._epsilon.cache_info().misses == answers + 1
