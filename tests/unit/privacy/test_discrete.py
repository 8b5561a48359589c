"""Noise on integers: its distribution, what sums of it protect, and the grid."""

import math

import numpy as np
import pytest
import torch

from privacy.discrete import (
    CLOSE,
    GROWTH,
    WRAPS,
    Grid,
    _least,
    discrete_gaussian,
    grid,
    padded_length,
    rotate,
    rotate_back,
    rounded,
)
from privacy.gaussian import analytic_sigma, gaussian_delta

NUMBERS = np.arange(-60, 61)


def sum_multiplier(sigma, sensitivity, clients, length):
    """Return the noise multiplier of a sum, at least; 0 where sigma is too small to tell."""
    r, least = _least(clients, length)
    return math.sqrt(max(0.0, clients * sigma**2 - r**2)) / sensitivity if sigma >= least else 0.0


def masses(sigma):
    weights = np.exp(-0.5 * (NUMBERS / sigma) ** 2)
    return weights / weights.sum()


def summed(sigma, clients):
    total = masses(sigma)
    for _ in range(clients - 1):
        total = np.convolve(total, masses(sigma))[60:-60]
    return total


def e(v):
    return 2.1 * math.exp(-2 * (math.pi * v) ** 2)


@pytest.mark.parametrize("v", [0.5, 0.6, 0.8, 1.2])
def test_sums_over_integers_are_close_to_integrals_for_every_center(v):
    off = [
        abs(np.exp(-0.5 * ((NUMBERS - c) / v) ** 2).sum() / (v * math.sqrt(2 * math.pi)) - 1)
        for c in np.linspace(0, 1, 21)
    ]
    assert max(off) <= e(v)
    assert max(off) > 0.9 * e(v)  # so that the bound could fail


@pytest.mark.parametrize(("sigma", "clients"), [(0.75, 2), (0.8, 5), (1.0, 3)])
def test_a_sum_of_discrete_gaussians_is_nearly_one(sigma, clients):
    whole = masses(math.sqrt(clients) * sigma)
    near = np.abs(NUMBERS) <= 4 * math.sqrt(clients) * sigma
    ratio = np.abs(np.log(summed(sigma, clients)[near] / whole[near])).max()
    steps = [sigma * math.sqrt(k / (k + 1)) for k in range(1, clients)]
    assert 1e-12 < ratio <= sum(-4 * math.log1p(-e(v)) for v in steps)


@pytest.mark.parametrize(("s", "r"), [(1.0, 0.6), (2.0, 0.7)])
def test_it_is_nearly_a_gaussian_that_is_rounded_by_a_discrete_one(s, r):
    grid = np.linspace(-40, 40, 80_001)  # centers of the rounding
    density = np.exp(-0.5 * grid**2 / (s**2 - r**2))
    density /= density.sum()
    kernel = np.exp(-0.5 * ((NUMBERS[:, None] - grid) / r) ** 2)
    made = (kernel / kernel.sum(0)) @ density
    near = np.abs(NUMBERS) <= 4 * s
    ratio = np.abs(np.log(made[near] / masses(s)[near])).max()
    assert 1e-12 < ratio <= -2 * math.log1p(-e(r))


@pytest.mark.parametrize(("clients", "length"), [(1, 1), (10, 1024), (1000, 2**20)])
def test_the_least_noise_keeps_releases_that_close(clients, length):
    r, sigma = _least(clients, length)
    off = sum(-4 * math.log1p(-e(sigma * math.sqrt(k / (k + 1)))) for k in range(1, clients))
    assert length * (off - 2 * math.log1p(-e(r))) <= CLOSE
    assert r > 1 and sigma > 1


def test_a_release_of_one_coordinate_is_as_private_as_stated():
    """The exact delta of a sum of integers, against that of the Gaussian with the stated multiplier."""
    clients, move, sigma = 3, 4, 3.2
    z = sum_multiplier(sigma, move, clients, 1)
    assert 0.9 < z / (math.sqrt(clients) * sigma / move) < 1
    one = summed(sigma, clients)
    other = np.roll(one, move)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        delta = np.maximum(one - math.exp(epsilon) * other, 0).sum()
        assert 0 < delta <= gaussian_delta(z, epsilon)
        assert delta > 0.8 * gaussian_delta(math.sqrt(clients) * sigma / move, epsilon)  # nothing is wasted


def test_too_little_noise_of_a_client_protects_nothing():
    assert sum_multiplier(0.9, 1.0, 10, 1024) == 0.0


@pytest.mark.parametrize("sigma", [0.6, 3.0, 200.0])
def test_noise_has_the_probabilities_of_its_definition(sigma):
    drawn = discrete_gaussian(sigma, np.random.default_rng(0).random(400_000))
    assert drawn.mean() == pytest.approx(0, abs=4 * sigma / math.sqrt(400_000))
    exact = math.sqrt((masses(0.6) * NUMBERS**2).sum()) if sigma == 0.6 else sigma
    assert drawn.std() == pytest.approx(exact, rel=0.005)
    if sigma == 3.0:
        seen = np.bincount(drawn + 60, minlength=121) / len(drawn)
        assert np.abs(seen - masses(3.0)).max() < 0.003


def test_uniform_numbers_at_the_ends_give_the_ends_of_the_table():
    low, high = discrete_gaussian(2.0, np.array([0.0, np.nextafter(1, 0)]))
    assert -25 <= low < -12 and 12 < high <= 25


@pytest.mark.parametrize("z", [0.0, 0.5, 4.0, 40.0])
@pytest.mark.parametrize(
    ("clients", "length", "dropouts"), [(10, 128, 0.0), (100, 1024, 0.2), (3, 2**15, 0.0)]
)
def test_a_grid_has_the_noise_that_is_asked_for_and_room_for_the_sum(z, clients, length, dropouts):
    made = grid(z, 2.0, clients, length, None, dropouts)
    honest = math.ceil((1 - dropouts) * clients)
    if z:
        assert sum_multiplier(made.sigma, 2 * made.longest, honest, length) >= z * (1 - 1e-12)
        assert made.bits <= 20
        assert made.noise <= GROWTH * 1.001 * 2 * z * math.sqrt(clients / honest) * 1.01
    spread = math.sqrt(clients**2 / length + made.noise**2 + clients * made.step**2 / 4)
    room = made.step * 2 ** (made.bits - 1)
    assert 2 * length * math.exp(-0.5 * (room / spread) ** 2) <= WRAPS * (1 + 1e-6)


def test_fewer_bits_need_more_noise_and_too_few_are_refused():
    noise = [grid(4.0, 1.0, 100, 1024, bits).noise for bits in (10, 12, 16, 20)]
    assert noise == sorted(noise, reverse=True) and noise[0] > 1.05 * noise[-1]
    with pytest.raises(ValueError, match="4 bits a coordinate cannot hold the sum of 100 messages"):
        grid(4.0, 1.0, 100, 1024, 4)
    with pytest.raises(ValueError, match="use less noise, a larger cohort or a smaller model"):
        grid(1e6, 2.0, 10, 1024)


def test_a_grid_chooses_the_fewest_bits_with_little_more_noise():
    made = grid(4.0, 1.0, 100, 1024)
    best = grid(4.0, 1.0, 100, 1024, 20)
    assert isinstance(made, Grid) and made.noise <= GROWTH * best.noise
    assert grid(4.0, 1.0, 100, 1024, made.bits - 1).noise > GROWTH * best.noise


@pytest.mark.parametrize("norm", [0.0, 3.0, 400.0])
def test_rounded_vectors_are_within_their_bound_and_right_on_average(norm):
    generator = np.random.default_rng(1)
    row = generator.standard_normal(64)
    row *= norm / np.linalg.norm(row)
    bound = math.sqrt(norm**2 + 16 + norm + 4)  # that of Algorithm 1
    made = np.stack([rounded(row, bound, generator.random) for _ in range(2000)])
    assert np.linalg.norm(made, axis=1).max() <= bound
    assert np.abs(made - row).max() < 1
    assert np.abs(made.mean(0) - row).max() < 0.12  # a little bias: long ones are drawn again


def test_a_vector_that_cannot_be_rounded_within_the_bound_is_truncated():
    row = np.full(16, 0.75)
    assert not rounded(row, 0.0, np.random.default_rng(0).random).any()


def test_a_rotation_keeps_norms_and_can_be_undone():
    rows = torch.randn(3, 2, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    signs = torch.where(
        torch.rand(3, 1, 64, generator=torch.Generator().manual_seed(1)) < 0.5, 1.0, -1.0
    ).double()
    turned = rotate(rows, signs)
    torch.testing.assert_close(turned.norm(dim=-1), rows.norm(dim=-1))
    torch.testing.assert_close(rotate_back(turned, signs), rows)
    one = torch.zeros(64, dtype=torch.float64)
    one[5] = 1.0
    assert rotate(one, signs[0, 0]).abs().unique().tolist() == [0.125]  # spread evenly


@pytest.mark.parametrize(("length", "padded"), [(1, 1), (2, 2), (3, 4), (650, 1024), (1024, 1024)])
def test_lengths_are_padded_to_powers_of_two(length, padded):
    assert padded_length(length) == padded


@pytest.mark.parametrize(("epsilon", "more"), [(0.5, 0.09), (2.0, 0.078), (8.0, 0.062)])
def test_accounting_by_concentrated_privacy_takes_more_noise(epsilon, more):
    """By Proposition 12 of Canonne, Kamath and Steinke 2020 at the best order; the module says 6 to 9 %."""
    above = np.geomspace(1e-4, 1e4, 100_000)

    def concentrated(z):
        spent = (1 + above) / (2 * z * z) + np.log(above / (1 + above))
        return float((spent - (math.log(1e-5) + np.log1p(above)) / above).min())

    exact = analytic_sigma(epsilon, 1e-5, 1.0)
    low, high = exact, 2 * exact
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if concentrated(middle) <= epsilon else (middle, high)
    assert high / exact - 1 == pytest.approx(more, abs=0.003)
