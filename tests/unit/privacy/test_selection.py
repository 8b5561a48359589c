"""Private selection: the bounds of dp-accounting, and the exact privacy of a search that can be computed."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from privacy.event import Event
from privacy.selection import ORDERS, selection_epsilon

DELTA = 1e-5
SHAPES = (math.inf, 1, 0)  # Poisson, geometric, logarithmic


@pytest.mark.parametrize("mean", [2, 5, 25])
@pytest.mark.parametrize(("z", "rate", "times"), [(1.0, 1.0, 1), (5.0, 1.0, 10), (2.0, 0.1, 20)])
def test_the_best_bound_of_dp_accounting(z, rate, times, mean):
    noise = dp_event.GaussianDpEvent(z)
    single = noise if rate == 1 else dp_event.PoissonSampledDpEvent(rate, noise)
    repeated = dp_event.SelfComposedDpEvent(single, times)
    theirs = []
    for shape in SHAPES:
        accountant = RdpAccountant(orders=ORDERS.tolist())
        accountant.compose(dp_event.RepeatAndSelectDpEvent(repeated, mean, shape))
        theirs.append(accountant.get_epsilon(DELTA))
    ours = selection_epsilon([[Event(z, rate, times)]], DELTA, mean)
    assert ours.epsilon == pytest.approx(min(theirs), rel=1e-3)


def test_an_exact_search_is_within_its_bound():
    """The largest of a geometric number of N(0, z^2), or N(1, z^2): its density is known, and so is its delta."""
    z, mean = 2.0, 5.0
    x = np.linspace(-40, 60, 400_001)

    def density(shift):
        below = norm.cdf(x, shift, z)
        gamma = 1 / mean
        generating = gamma * below / (1 - (1 - gamma) * below)  # distribution of the largest
        return np.gradient(generating, x)

    p, q = density(1.0), density(0.0)

    def delta(epsilon):
        return max(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), x) for a, b in ((p, q), (q, p)))

    bound = selection_epsilon([[Event(z)]], DELTA, mean)
    assert delta(bound.epsilon) <= DELTA
    one = selection_epsilon([[Event(z)]], DELTA, 1)
    assert delta(one.epsilon) > DELTA  # a single run's epsilon would understate


def test_the_worst_candidate_and_every_run_count():
    mild, strong = [Event(20.0)], [Event(5.0)]
    both = selection_epsilon([mild, strong], DELTA, 5)
    assert both == selection_epsilon([strong], DELTA, 5)
    assert both.epsilon > selection_epsilon([mild], DELTA, 5).epsilon
    twice = selection_epsilon([strong], DELTA, 5, tries=2).epsilon
    assert twice == pytest.approx(selection_epsilon([[Event(5.0, 1.0, 2)]], DELTA, 5).epsilon)
    after = selection_epsilon([strong], DELTA, 5, after=1).epsilon
    assert both.epsilon < after < twice  # a release once chosen is not searched for


@pytest.mark.parametrize(("delta", "mean"), [(0.0, 5), (1.0, 5), (1e-5, 0.5), (1e-5, math.nan)])
def test_what_is_no_search_is_refused(delta, mean):
    with pytest.raises(ValueError, match=r"at least 1|delta"):
        selection_epsilon([[Event(1.0)]], delta, mean)
