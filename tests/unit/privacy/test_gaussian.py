import math

import numpy as np
import pytest
import torch
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privacy.gaussian import analytic_sigma, classic_sigma, gaussian_delta, gaussian_epsilon, gaussian_noise

DELTA = 1e-5


def test_classic_sigma_is_the_papers_number():
    """sqrt(2 ln(1.25e5)) = sqrt(2 * 11.73607) = 4.844805; times Phi 10 over epsilon."""
    assert classic_sigma(1, DELTA, 10) == pytest.approx(48.448, abs=5e-4)
    assert classic_sigma(10, DELTA, 10) == pytest.approx(4.8448, abs=5e-5)
    assert classic_sigma(100, DELTA, 10) == pytest.approx(0.48448, abs=5e-6)


@pytest.mark.parametrize(
    ("nominal", "exact", "tolerance"), [(1, 1.6, 0.05), (10, 25, 0.5), (1000, 87_000, 500)]
)
def test_the_papers_nominal_epsilon_is_too_small(nominal, exact, tolerance):
    """The formula takes C as sensitivity; replacing a client moves a vector clipped to C by up to 2 C."""
    clip_norm = 10.0
    z = classic_sigma(nominal, DELTA, clip_norm) / (2 * clip_norm)
    assert gaussian_epsilon(z, DELTA) == pytest.approx(exact, abs=tolerance)


def test_delta_is_theorem_8_where_the_plain_formula_is_accurate():
    for z, epsilon in [(0.5, 1.0), (1.0, 0.0), (1.0, 3.0), (3.0, 0.2)]:
        a, b = 1 / (2 * z), epsilon * z
        plain = norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)
        assert gaussian_delta(z, epsilon) == pytest.approx(plain, rel=1e-10)


def test_delta_at_epsilon_zero_is_the_total_variation_distance():
    """Two unit-variance normals at distance 1/z: total variation 2 Phi(1 / 2z) - 1; z = 1 gives 0.382925."""
    assert gaussian_delta(1.0, 0.0) == pytest.approx(0.3829249, abs=1e-7)


def test_extreme_multipliers_stay_finite_and_ordered():
    """z = 1e-3: privacy loss is N(1/(2 z^2), 1/z^2), so epsilon is about 5e5 + 4.26e3 at delta 1e-5."""
    assert gaussian_epsilon(1e-3, DELTA) == pytest.approx(5e5 + 4.2649e3, rel=1e-4)
    assert gaussian_epsilon(1e6, DELTA) == 0.0
    assert 0 < gaussian_epsilon(1e6, 1e-12) < 1e-4
    assert gaussian_epsilon(0.0, DELTA) == math.inf
    assert gaussian_delta(0.0, 5.0) == 1.0
    assert gaussian_delta(1e-3, 1e6) == 0.0
    assert gaussian_delta(1e-3, 0.0) == pytest.approx(1.0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 6), st.floats(-12, -0.5))
def test_the_exact_epsilon_reaches_delta_and_no_smaller_one_does(log_z, log_delta):
    z, delta = 10**log_z, 10**log_delta
    epsilon = gaussian_epsilon(z, delta)
    assert gaussian_delta(z, epsilon) <= delta * (1 + 1e-6)
    if epsilon > 0:
        assert gaussian_delta(z, epsilon * (1 - 1e-4)) > delta


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 6), st.floats(-12, -0.5), st.floats(-2, 2))
def test_analytic_sigma_meets_the_budget_tightly(log_epsilon, log_delta, log_sensitivity):
    epsilon, delta, sensitivity = 10**log_epsilon, 10**log_delta, 10**log_sensitivity
    sigma = analytic_sigma(epsilon, delta, sensitivity)
    assert gaussian_epsilon(sigma / sensitivity, delta) <= epsilon * (1 + 1e-9)
    assert gaussian_epsilon(sigma / sensitivity * (1 - 1e-5), delta) > epsilon


@pytest.mark.parametrize("z", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_epsilon_and_sigma_agree_with_dp_accounting(z, delta):
    epsilon = get_epsilon_gaussian(z, delta)
    assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-6)
    assert analytic_sigma(epsilon, delta, 1) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)


@pytest.mark.parametrize("function", [classic_sigma, analytic_sigma])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, DELTA, 1), "epsilon"),
        ((-1, DELTA, 1), "epsilon"),
        ((math.nan, DELTA, 1), "epsilon"),
        ((1, 0, 1), "delta"),
        ((1, 1, 1), "delta"),
        ((1, DELTA, 0), "sensitivity"),
        ((1, DELTA, math.inf), "sensitivity"),
    ],
)
def test_impossible_budgets_are_refused_by_name(function, arguments, named):
    with pytest.raises(ValueError, match=named):
        function(*arguments)


def _generators(*seeds):
    return [np.random.default_rng(seed) for seed in seeds]


def test_a_rows_noise_depends_on_its_own_generator_only():
    rows = torch.zeros(2, 3, 5)
    together = gaussian_noise(rows, 2.0, _generators(0, 1, 2, 3, 4, 5))
    alone = gaussian_noise(rows[1, 1], 2.0, _generators(4))
    assert torch.equal(together[1, 1], alone)
    assert not torch.equal(together[0, 0], together[0, 1])


def test_noise_has_the_scale_of_each_row():
    noise = gaussian_noise(
        torch.zeros(2, 40_000, dtype=torch.float64), torch.tensor([0.5, 3.0]), _generators(1, 2)
    )
    assert noise.dtype == torch.float64
    assert noise.std(dim=-1) == pytest.approx([0.5, 3.0], rel=0.02)
    assert torch.equal(gaussian_noise(torch.ones(1, 7), 0.0, _generators(1)), torch.zeros(1, 7))


def test_noise_needs_one_generator_per_row_and_a_scale():
    with pytest.raises(ValueError, match="one generator per row, got 1 for 2 rows"):
        gaussian_noise(torch.zeros(2, 3), 1.0, _generators(1))
    with pytest.raises(ValueError, match="negative"):
        gaussian_noise(torch.zeros(1, 3), -1.0, _generators(1))
