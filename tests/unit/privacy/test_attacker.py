"""Bounds on an attacker, against closed forms, simulated tests and the definition."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privacy.accounting import account
from privacy.attacker import attack_bound
from privacy.event import Event
from privacy.trade_off import accuracy_bound, detection_bound

DELTA = 1e-5


def test_accuracy_of_an_epsilon_is_that_of_randomized_response():
    """Telling the truth with probability e / (1 + e) is (1, 0)-private and right that often."""
    assert accuracy_bound(1.0, 0.0) == pytest.approx(math.e / (1 + math.e))
    assert accuracy_bound(1.0, 0.1) == pytest.approx((math.e + 0.1) / (1 + math.e))
    assert accuracy_bound(0.0, 0.0) == 0.5
    assert accuracy_bound(1e9, 0.0) == 1.0
    with pytest.raises(ValueError, match="negative"):
        accuracy_bound(-1.0, 0.0)


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0])
def test_unsampled_gaussians_give_the_likelihood_ratio_test(z):
    """9 releases of multiplier z are one of mu = 3 / z; accuracy is Phi(mu / 2), detection Phi(mu - z_fpr)."""
    mu = 3 / z
    found = attack_bound([Event(z, 1.0, 9)], DELTA)
    assert found.accuracy == pytest.approx(norm.cdf(mu / 2), rel=1e-9)
    assert found.detection == pytest.approx(
        [norm.cdf(mu + norm.ppf(0.001)), norm.cdf(mu + norm.ppf(0.01))], rel=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize(("z", "rate", "draws"), [(1.0, 0.1, 50), (0.6, 0.3, 5), (2.0, 0.5, 20)])
def test_the_likelihood_ratio_test_of_sampled_releases_comes_close_and_not_above(z, rate, draws):
    generator = np.random.default_rng(7)
    runs = 200_000

    def losses(present):
        at = generator.normal(0, z, (runs, draws))
        if present:
            at = at + (generator.random((runs, draws)) < rate)
        ratio = np.exp((2 * at - 1) / (2 * z * z))
        return np.log1p(rate * (ratio - 1)).sum(1)

    absent, present = losses(False), losses(True)
    accuracy = ((present > 0).mean() + (absent <= 0).mean()) / 2
    found = attack_bound([Event(z, rate, draws)], DELTA)
    error = 3 * 0.5 / math.sqrt(runs)
    assert found.accuracy - 0.01 - error < accuracy < found.accuracy + error
    for bound, false in zip(found.detection, (0.001, 0.01), strict=True):
        detected = (present > np.quantile(absent, 1 - false)).mean()
        assert detected < bound * (1 + 6 / math.sqrt(runs * false))
        assert detected > bound * 0.8


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.floats(-0.3, 0.8), st.floats(-2, -0.2), st.integers(1, 300))
def test_the_whole_curve_is_never_worse_than_one_of_its_points(log_z, log_rate, draws):
    for sampling in ("poisson", "without-replacement"):
        event = Event(10**log_z, 10**log_rate, draws, sampling)
        found, epsilon = attack_bound([event], DELTA), account([event], DELTA, "pld").epsilon
        assert 0.5 <= found.accuracy <= accuracy_bound(epsilon, DELTA) + 1e-6
        for bound, false in zip(found.detection, (0.001, 0.01), strict=True):
            assert false <= bound <= detection_bound(epsilon, DELTA, false) + 1e-6


def test_no_noise_hides_nothing():
    assert attack_bound([Event(0.0)], DELTA) == (1.0, (1.0, 1.0))
    assert detection_bound(0.0, 0.0, 0.01) == pytest.approx(0.01)
