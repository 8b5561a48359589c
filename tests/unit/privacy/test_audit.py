"""The tests of an audit: p-values are right by hand and under the claim, and small where it is broken."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from privacy.audit import correlation_p, inclusion_p, scale_p

TRIALS = 300


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def smallest(drawn, rate):
    """Return the smallest p-value of the tests of inclusion, corrected for their number."""
    p = [p for p, _ in inclusion_p(drawn, rate)]
    return min(p) * len(p)


def hits(p_values, level=0.05):
    return sum(p <= level for p in p_values)


def test_scale_by_hand():
    """Squares 4 and 4: chi-square 8 with 2 degrees has upper tail exp(-4); 2 and std 2 give exp(-1), doubled."""
    assert scale_p(torch.tensor([2.0, -2.0])) == pytest.approx(2 * math.exp(-4))
    assert scale_p(torch.tensor([2.0, math.nan, -2.0]), std=2.0) == pytest.approx(2 * math.exp(-1))
    assert scale_p(torch.zeros(3)) == 0.0
    assert scale_p(torch.tensor([math.nan])) == 1.0


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_other_scales_are_found(factor):
    assert scale_p(factor * normal(60)) < 1e-3


def test_scales_of_true_claims_are_hardly_ever_found():
    """More than the quantile has probability below 1e-3 at a level of 5 %."""
    found = hits(scale_p(normal(20, seed=seed)) for seed in range(TRIALS))
    assert found <= stats.binom.ppf(0.999, TRIALS, 0.05)


def test_correlation_by_hand():
    """Rows (1, ..., 1) and (1, ..., 1, -1) of length 8 have r = 6/8, so t = 0.75 sqrt(7 / (1 - 0.5625)) = 3."""
    ones = torch.ones(8, dtype=torch.float64)
    last = ones.clone()
    last[-1] = -1
    p, pair = correlation_p(torch.stack([ones, last]))
    assert (p, pair) == (pytest.approx(2 * stats.t.sf(3.0, 7)), (0, 1))


def test_correlation_names_the_pair_and_skips_what_is_missing():
    rows = normal(5, 40)
    rows[3] = rows[1]
    rows[:, ::2][1] = math.nan
    p, pair = correlation_p(rows)
    assert p < 1e-6 and pair == (1, 3)
    assert correlation_p(torch.full((3, 20), math.nan)) == (1.0, (0, 0))
    assert correlation_p(normal(3, 7))[0] == 1.0  # too short


def test_correlations_of_independent_rows_are_hardly_ever_found():
    found = hits(correlation_p(normal(6, 15, seed=seed))[0] for seed in range(TRIALS))
    assert found <= stats.binom.ppf(0.999, TRIALS, 0.05)


def poisson(rate, *shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < rate)


def shuffled(draws, groups, units, size, seed=0):
    """Return batches of shuffled passes."""
    generator, each = np.random.default_rng(seed), units // size
    drawn = torch.zeros(draws, groups, units, dtype=torch.bool)
    for group in range(groups):
        for first in range(0, draws, each):
            for step, batch in enumerate(generator.permutation(units).reshape(each, size)[: draws - first]):
                drawn[first + step, group, batch] = True
    return drawn


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_poisson_samples_are_hardly_ever_found(rate):
    found = hits(smallest(poisson(rate, 12, 3, 20, seed=seed), rate) for seed in range(TRIALS))
    assert found <= stats.binom.ppf(0.999, TRIALS, 0.05)


@pytest.mark.parametrize(
    "drawn",
    [
        poisson(0.5, 12, 3, 20),
        shuffled(12, 3, 20, 5),
        poisson(0.25, 1, 3, 20).expand(12, 3, 20),  # always the same units
        poisson(0.25, 12, 3, 1).expand(12, 3, 20),  # all units together
        poisson(0.25, 4, 3, 20, seed=1).repeat(3, 1, 1),  # every fourth draw is the same
    ],
    ids=["twice the rate", "shuffled", "same units", "all or none", "periodic"],
)
def test_other_samples_are_found(drawn):
    assert smallest(drawn, 0.25) < 1e-4


def test_equal_sizes_by_hand():
    """Ten draws of exactly 2 in 5 at rate 0.4 have probability 0.3456^10 = 2.43e-5, doubled; one is not strange."""
    drawn = torch.tensor([True, True, False, False, False]).expand(10, 1, 5)
    p = {text: p for p, text in inclusion_p(drawn, 0.4)}
    assert p["sizes of draws vary as no Poisson sample at rate 0.4"] == pytest.approx(2 * 0.3456**10)
    p = {text: p for p, text in inclusion_p(drawn[:1], 0.4)}
    assert p["sizes of draws vary as no Poisson sample at rate 0.4"] == pytest.approx(2 * 0.3456)


def test_rate_by_hand():
    """No member among 8 at rate 1/2 has probability 2^-8, doubled."""
    p, text = next(inclusion_p(torch.zeros(2, 1, 4, dtype=torch.bool), 0.5))
    assert p == pytest.approx(2 / 256) and "rate 0, booked 0.5" in text


def test_noise_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        scale_p(torch.tensor([math.inf]))
