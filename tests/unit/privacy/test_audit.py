import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from privacy import clip, flags, gaussian_noise, one_run_epsilon, project, separation_mu

SIZE, RELEASES, CLIP_NORM, STD, TRIALS = 20, 60, 1.0, 1.0, 200
MU = CLIP_NORM / STD
DIRECTION = torch.ones(SIZE, dtype=torch.float64) / math.sqrt(SIZE)


def _release(generator, length, mechanism="honest"):
    """Release a canary of this length ``RELEASES`` times by an honest mechanism or one with a named bug."""
    messages = (DIRECTION * length).expand(RELEASES, SIZE)
    std = STD / 2 if mechanism == "half the noise" else STD
    noise = gaussian_noise(messages.reshape(-1), std, [generator]).reshape(RELEASES, SIZE)
    if mechanism == "clip skipped":
        return messages + noise
    if mechanism == "noise before clip":
        return clip((messages + noise,), CLIP_NORM).parts[0]
    return clip((messages,), CLIP_NORM).parts[0] + noise


def _power(mechanism, length=10.0, **claims):
    generator = np.random.default_rng(7)
    flagged = 0
    for _ in range(TRIALS):
        without, present = (
            _release(generator, 0.0, mechanism),
            _release(generator, length, mechanism),
        )
        flagged += bool(flags(project(without, DIRECTION), project(present, DIRECTION), MU, **claims))
    return flagged / TRIALS


@pytest.mark.parametrize("claims", [{}, {"claimed_std": STD}], ids=["separation only", "with the scale"])
def test_an_honest_mechanism_is_hardly_ever_flagged(claims):
    """At false alarm 0.01 more than 8 alarms in 200 trials have probability below 1e-3 (binomial)."""
    assert stats.binom.sf(8, TRIALS, 0.01) < 1e-3
    assert _power("honest", **claims) <= 8 / TRIALS


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["half the noise", "clip skipped", "noise before clip"])
def test_broken_mechanisms_are_flagged(mechanism):
    assert _power(mechanism, claimed_std=STD) >= 0.99


@pytest.mark.parametrize("mechanism", ["half the noise", "clip skipped"])
def test_the_separation_alone_gives_these_away(mechanism):
    assert _power(mechanism) >= 0.99


def _pairs_flagged(reused):
    generator = torch.Generator().manual_seed(3)
    flagged = 0
    for _ in range(TRIALS):
        first, second = (torch.randn(RELEASES, generator=generator) for _ in range(2))
        other = first + 0.5 if reused else second
        flagged += bool(flags(first, second, 0.0, pairs=[(first, other)]))
    return flagged / TRIALS


@pytest.mark.slow
def test_reused_noise_is_flagged_and_fresh_noise_is_not():
    assert _pairs_flagged(reused=True) == 1.0
    assert _pairs_flagged(reused=False) <= 8 / TRIALS


def test_the_finding_says_what_was_claimed():
    generator = torch.Generator().manual_seed(1)
    far = torch.randn(50, generator=generator) + 10
    (finding,) = flags(torch.randn(50, generator=generator), far, 1.0)
    assert "claimed 1" in finding


def test_missing_noise_is_flagged_unless_nothing_is_claimed():
    silent = torch.zeros(5)
    assert flags(silent, silent, 1.0)
    assert flags(silent, silent, 1.0, claimed_std=1.0)
    assert not flags(silent, silent + 1, math.inf)


def test_the_interval_covers_the_separation():
    """95 % intervals: fewer than 91 % hits in 300 trials have probability below 0.01."""
    generator, hits = torch.Generator().manual_seed(11), 0
    assert stats.binom.cdf(272, 300, 0.95) < 0.01
    for _ in range(300):
        without, present = (torch.randn(40, 3, generator=generator) for _ in range(2))
        estimate = separation_mu(
            without, present + torch.tensor([0.0, 2.0, 0.0]), torch.tensor([0.0, 5.0, 0.0])
        )
        hits += estimate.low <= 2.0 <= estimate.high
    assert hits > 272


def test_separation_by_hand():
    """Projections 0, 2 and 4, 6: means 1 and 5; pooled variance (2 + 2) / 2 = 2: mu = 4 / sqrt 2."""
    without, present = (
        torch.tensor([[0.0, 9.0], [2.0, 8.0]]),
        torch.tensor([[4.0, 7.0], [6.0, 1.0]]),
    )
    estimate = separation_mu(without, present, torch.tensor([3.0, 0.0]))
    assert estimate.mu == pytest.approx(4 / math.sqrt(2))
    assert (estimate.shift, estimate.std) == pytest.approx((4.0, math.sqrt(2)))
    assert separation_mu(torch.zeros(2, 1), torch.ones(2, 1), torch.ones(1)).mu == math.inf


def test_one_run_bound_by_hand_when_every_guess_is_right():
    """All of r = 100 right, delta 0: q^100 = 0.05, so q = 0.970487 and epsilon = ln(q / (1 - q)) = 3.4930."""
    assert one_run_epsilon(100, 100, 100) == pytest.approx(3.4930, abs=1e-4)


def test_one_run_delta_correction_by_hand():
    """One guess, right: p = q + 2 m delta q0 with q0 = 1 - q, the only i being 1: P[0 <= W < 1] = 1 - q.

    m = 1, delta = 0.1, confidence 0.2: q + 0.2 (1 - q) = 0.8, q = 0.75, epsilon = ln 3; at delta 0 ln 4.
    """
    assert one_run_epsilon(1, 1, 1, delta=0.1, confidence=0.2) == pytest.approx(math.log(3), abs=1e-6)
    assert one_run_epsilon(1, 1, 1, confidence=0.2) == pytest.approx(math.log(4), abs=1e-6)


def test_one_run_bound_grows_with_evidence_and_falls_with_delta():
    bounds = [one_run_epsilon(correct, 1000, 1000) for correct in (400, 500, 600, 800, 990)]
    assert bounds[:2] == [0.0, 0.0]
    assert bounds == sorted(bounds)
    assert bounds[2] > 0
    assert one_run_epsilon(800, 1000, 1000, delta=1e-4) < bounds[3]
    assert one_run_epsilon(80, 100, 1000, delta=1e-5) < one_run_epsilon(80, 100, 100, delta=1e-5)
    assert one_run_epsilon(0, 0, 10) == 0.0


def test_one_run_bound_holds_for_randomized_response():
    """At epsilon 1 it is right with probability e / (1 + e); the bound exceeds 1 in at most 5 % of runs."""
    right, trials = math.e / (1 + math.e), 300
    guesses = torch.rand(trials, 500, generator=torch.Generator().manual_seed(5)) < right
    counts = Counter(guesses.sum(dim=-1).tolist())
    bounds = {count: one_run_epsilon(count, 500, 500) for count in counts}
    assert sum(counts[count] for count, bound in bounds.items() if bound > 1) <= stats.binom.ppf(
        0.999, trials, 0.05
    )
    assert sum(counts[count] for count, bound in bounds.items() if bound > 0.6) > 0.8 * trials


def test_bad_arguments_are_refused():
    sample = torch.randn(5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="claimed separation"):
        flags(sample, sample, -1.0)
    with pytest.raises(ValueError, match="alpha"):
        flags(sample, sample, 1.0, alpha=0)
    with pytest.raises(ValueError, match="claimed standard deviation"):
        flags(sample, sample, 1.0, claimed_std=-1)
    with pytest.raises(ValueError, match="equal size"):
        flags(sample, sample, 1.0, pairs=[(sample, sample[:4])])
    with pytest.raises(ValueError, match="at least 2"):
        flags(sample[:1], sample, 1.0)
    with pytest.raises(ValueError, match="finite"):
        flags(sample / 0, sample, 1.0)
    with pytest.raises(ValueError, match="direction"):
        project(torch.ones(2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="correct <= made <= canaries"):
        one_run_epsilon(5, 4, 10)
    with pytest.raises(ValueError, match="delta"):
        one_run_epsilon(1, 2, 3, delta=1)
    with pytest.raises(ValueError, match="confidence"):
        one_run_epsilon(1, 2, 3, confidence=1)
