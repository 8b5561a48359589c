import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import ndtr, ndtri

from privacy.gaussian import analytic_sigma
from privacy.one_run import _refuted, clopper_pearson_epsilon, one_run_epsilon, one_run_gaussian_epsilon

DELTA = 1e-5


def test_bound_by_hand_when_every_guess_is_right():
    """All of r = 100 right, delta 0: q^100 = 0.05, so q = 0.970487 and epsilon = ln(q / (1 - q)) = 3.4930."""
    assert one_run_epsilon(100, 100, 100) == pytest.approx(3.4930, abs=1e-4)


def test_delta_correction_by_hand():
    """One guess, right: p = q + 2 m delta q0 with q0 = 1 - q, the only i being 1: P[0 <= W < 1] = 1 - q.

    m = 1, delta = 0.1, confidence 0.2: q + 0.2 (1 - q) = 0.8, q = 0.75, epsilon = ln 3; at delta 0 ln 4.
    """
    assert one_run_epsilon(1, 1, 1, delta=0.1, confidence=0.2) == pytest.approx(math.log(3), abs=1e-6)
    assert one_run_epsilon(1, 1, 1, confidence=0.2) == pytest.approx(math.log(4), abs=1e-6)


def test_bound_grows_with_evidence_and_falls_with_delta():
    bounds = [one_run_epsilon(correct, 1000, 1000) for correct in (400, 500, 600, 800, 990)]
    assert bounds[:2] == [0.0, 0.0]
    assert bounds == sorted(bounds)
    assert bounds[2] > 0
    assert one_run_epsilon(800, 1000, 1000, delta=1e-4) < bounds[3]
    assert one_run_epsilon(80, 100, 1000, delta=1e-5) < one_run_epsilon(80, 100, 100, delta=1e-5)
    assert one_run_epsilon(0, 0, 10) == 0.0


def test_bound_holds_for_randomized_response():
    """At epsilon 1 it is right with probability e / (1 + e); the bound exceeds 1 in at most 5 % of runs."""
    right, trials = math.e / (1 + math.e), 300
    guesses = torch.rand(trials, 500, generator=torch.Generator().manual_seed(5)) < right
    counts = Counter(guesses.sum(dim=-1).tolist())
    bounds = {count: one_run_epsilon(count, 500, 500) for count in counts}
    assert sum(counts[count] for count, bound in bounds.items() if bound > 1) <= stats.binom.ppf(
        0.999, trials, 0.05
    )
    assert sum(counts[count] for count, bound in bounds.items() if bound > 0.6) > 0.8 * trials


def ideal_guesses(mu, canaries, share, generator):
    """Return (correct, made, canaries) of the likeliest guesses from scores N(mu, 1) of canaries that are in."""
    inside = generator.random(canaries) < 0.5
    order = (generator.normal(size=canaries) + mu * inside).argsort()
    half = round(share * canaries / 2)
    return int(inside[order[-half:]].sum() + (~inside[order[:half]]).sum()), 2 * half, canaries


@pytest.mark.parametrize(("true", "gaussian", "guesses"), [(8.0, 4.18, 3.1), (4.0, 1.93, 1.7)])
def test_whole_curve_refutes_more_than_one_point_of_it(true, gaussian, guesses):
    """With 1000 canaries and ideal scores, on average over draws; the better share is known here."""
    mu, generator = 1 / analytic_sigma(true, DELTA, 1.0), np.random.default_rng(0)
    drawn = [ideal_guesses(mu, 1000, 0.1, generator) for _ in range(20)]
    assert gaussian < np.mean([one_run_gaussian_epsilon(*counts, DELTA) for counts in drawn]) < true
    assert np.mean([one_run_epsilon(*counts, DELTA) for counts in drawn]) < guesses


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_gaussian_bound_covers_the_truth(share):
    """At most 5 % of bounds exceed the truth: more than the quantile has probability below 1e-3."""
    true, trials, generator = 2.0, 300, np.random.default_rng(1)
    mu = 1 / analytic_sigma(true, DELTA, 1.0)
    counts = Counter(ideal_guesses(mu, 200, share, generator) for _ in range(trials))
    above = sum(n for drawn, n in counts.items() if one_run_gaussian_epsilon(*drawn, DELTA) > true)
    assert above <= stats.binom.ppf(0.999, trials, 0.05)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("canaries", [1, 5, 40])
def test_probability_of_a_true_mechanism_is_never_refuted(canaries, mu):
    """Guessing every canary by the sign of its score is right with probability Phi(mu / 2), independently."""
    inverse = partial(_shifted, mu)
    for correct in range(1, canaries + 1):
        exact = stats.binom.sf(correct - 1, canaries, ndtr(mu / 2))
        assert not _refuted(correct, canaries, canaries, exact * (1 - 1e-9), inverse)
        assert _refuted(correct, canaries, canaries, 1.0, inverse) or exact > 1e-3


@pytest.mark.parametrize(
    ("correct", "made", "canaries", "mu"), [(5, 6, 6, 1.0), (7, 8, 12, 0.7), (7, 9, 9, 0.1)]
)
def test_recursion_finds_the_most_probable_success(correct, made, canaries, mu):
    """A linear program over all distributions of the number of right guesses finds the same largest probability."""
    number = np.arange(made + 1)
    rows, bounds = [], []
    for k in range(made):  # R_{k+1} <= F(S_k), F concave: below each of its tangents
        gained, lost = number * (number > k) / canaries, (made - number) * (number >= k) / canaries
        for point in np.linspace(-6, 4, 400):
            x, slope = ndtr(point), math.exp(-mu * point - mu * mu / 2)
            rows.append(gained - slope * lost)
            bounds.append(ndtr(point + mu) - slope * x)
    target = -1.0 * (number >= correct)
    best = -optimize.linprog(target, rows, bounds, np.ones((1, made + 1)), [1.0], bounds=(0, 1)).fun
    inverse = partial(_shifted, mu)
    assert 0 < best < 1
    assert not _refuted(correct, made, canaries, best - 2e-3, inverse)
    assert _refuted(correct, made, canaries, best + 1e-6, inverse)


def _shifted(mu, x):
    return float(ndtr(ndtri(x) - mu))


def test_gaussian_bound_proves_nothing_from_blind_guesses():
    assert one_run_gaussian_epsilon(50, 100, 100, DELTA) == 0.0
    assert one_run_gaussian_epsilon(0, 0, 10, DELTA) == 0.0
    bounds = [one_run_gaussian_epsilon(right, 100, 100, DELTA) for right in (50, 70, 90, 100)]
    assert bounds == sorted(bounds)


def test_clopper_pearson_by_hand():
    """All 100 of 100 right: TPR >= 0.025^(1/100) = 0.96378, FPR <= 0.03622: epsilon >= ln 26.61 = 3.2814."""
    assert clopper_pearson_epsilon(100, 100, 0, 100) == pytest.approx(3.2814, abs=1e-4)
    low = 0.025 ** (1 / 100)
    with_delta = clopper_pearson_epsilon(100, 100, 0, 100, delta=0.1)
    assert with_delta == pytest.approx(math.log((low - 0.1) / (1 - low)))
    assert clopper_pearson_epsilon(50, 100, 50, 100) == 0.0


def test_clopper_pearson_uses_both_errors():
    """A test that hardly accuses and one that hardly acquits are mirror images."""
    assert clopper_pearson_epsilon(40, 100, 0, 100) == pytest.approx(
        clopper_pearson_epsilon(100, 100, 60, 100)
    )
    assert clopper_pearson_epsilon(40, 100, 0, 100) > 2


def test_clopper_pearson_covers_the_truth():
    """Randomized response at epsilon 1: the bound exceeds it in at most 5 % of experiments."""
    right, trials, generator = math.e / (1 + math.e), 1000, np.random.default_rng(2)
    hits, false = generator.binomial(200, [[right], [1 - right]], (2, trials))
    bounds = [clopper_pearson_epsilon(int(a), 200, int(b), 200) for a, b in zip(hits, false, strict=True)]
    assert sum(bound > 1 for bound in bounds) <= stats.binom.ppf(0.999, trials, 0.05)
    assert np.mean(bounds) > 0.6


def test_bad_arguments_are_refused():
    for bound in (one_run_epsilon, partial(one_run_gaussian_epsilon, delta=DELTA)):
        with pytest.raises(ValueError, match="correct <= made <= canaries"):
            bound(5, 4, 10)
        with pytest.raises(ValueError, match="delta"):
            bound(1, 2, 3, delta=1)
        with pytest.raises(ValueError, match="confidence"):
            bound(1, 2, 3, confidence=1)
    with pytest.raises(ValueError, match="positives"):
        clopper_pearson_epsilon(3, 2, 0, 1)
    with pytest.raises(ValueError, match="positives"):
        clopper_pearson_epsilon(0, 0, 0, 1)
