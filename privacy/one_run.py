"""Lower bounds on epsilon from guesses: many canaries in one run, or one canary in many runs.

In one run, each of m canaries is included by a fair coin. An auditor names a status for r of them, of which v are
right. `one_run_epsilon` refutes (epsilon, delta)-privacy, `one_run_gaussian_epsilon` a Gaussian trade-off curve: it
uses the whole curve instead of one point of it, and is much tighter where releases compose to a Gaussian.
`clopper_pearson_epsilon` is the test of two hypotheses over repeated runs.

References
----------
T. Steinke, M. Nasr and M. Jagielski, *Privacy auditing with one (1) training run*, NeurIPS 2023 (Theorem 5.2).
S. Mahloujifar, L. Melis and K. Chaudhuri, *Auditing f-differential privacy in one run*, 2024.
J. Dong, A. Roth and W. Su, *Gaussian differential privacy*, JRSS-B 2022 (trade-off curves, mu).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import

from privacy.gaussian import gaussian_epsilon, lowest

TOLERANCE = 1e-9


def one_run_epsilon(
    guesses_correct: int, guesses_made: int, canaries: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from one run in which each canary was included by a fair coin (Theorem 5.2).

    If the run is (epsilon, delta)-private, at least ``v`` of ``r`` guesses are right with probability at most
    ``P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i`` with W binomial(r, e^epsilon / (1 + e^epsilon)) and
    m canaries. The bound is the largest epsilon under which the observation has probability below ``1 -
    confidence``.

    Parameters
    ----------
    guesses_correct, guesses_made, canaries : int
        ``v <= r <= m``; abstaining is allowed.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1).

    Returns
    -------
    float
        0 where the guesses prove nothing.

    Raises
    ------
    ValueError
        If the counts are not ordered as above or a number is out of range.
    """
    _check(guesses_correct, guesses_made, canaries, delta, confidence)

    def refuted(epsilon: float) -> bool:
        return _guessing_p(guesses_correct, guesses_made, canaries, epsilon, delta) <= 1 - confidence

    return _largest(refuted)


def one_run_gaussian_epsilon(
    guesses_correct: int, guesses_made: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from one run, if its releases compose to a Gaussian without sampling.

    Let two neighboring runs be as hard to tell as N(0, 1) and N(mu, 1): an event of probability x in one has at
    most ``F(x) = Phi(Phi^-1(x) + mu)`` in the other. N of the r guesses are right, ``p_i = P[N = i]``. For a
    canary j and any set T of counts, compare the event "j is guessed to be in, and N - 1 of the others are guessed
    right, N in T" with the canary in (the guess is right, N in T) and out (the guess is wrong, N - 1 right in all);
    the same for guesses "out". Averaged over the m canaries and both cases, as F is concave:

    ``sum_{i in T} i p_i / m <= F(sum_{i in T} (r - i + 1) p_{i-1} / m)``.

    With ``R_k = sum_{i >= k} i p_i / m`` and ``S_k = sum_{i >= k} (r - i) p_i / m`` this says
    ``S_k >= F^-1(R_{k+1})``, and ``R_k - R_{k+1} = k / (r - k) (S_k - S_{k+1})``. Were ``P[N >= v]`` as large as
    a > 0, the smallest possible ``R_0 + S_0`` would follow from ``R_v = a v / m, S_v = a (r - v) / m`` by equality
    in every step down (moving mass up, or adding some, never makes the end smaller). But ``R_0 + S_0 = r / m``;
    where the smallest value is larger, ``P[N >= v] < a``.

    Parameters
    ----------
    guesses_correct, guesses_made, canaries, confidence
        As in `one_run_epsilon`.
    delta : float
        At which epsilon is quoted, in (0, 1).

    Returns
    -------
    float
        The epsilon of the largest mu that is refuted; 0 where the guesses prove nothing.

    Raises
    ------
    ValueError
        As in `one_run_epsilon`.
    """
    _check(guesses_correct, guesses_made, canaries, delta, confidence)
    counts = guesses_correct, guesses_made, canaries

    def refuted(mu: float) -> bool:
        return _refuted(
            *counts, 1 - confidence, lambda x: float(scipy.special.ndtr(scipy.special.ndtri(x) - mu))
        )

    mu = _largest(refuted)
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def clopper_pearson_epsilon(
    tp: int, positives: int, fp: int, negatives: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from a test of two hypotheses, repeated on independent runs.

    A private run has ``TPR <= e^epsilon FPR + delta`` and ``1 - FPR <= e^epsilon (1 - TPR) + delta``. Both rates
    get exact one-sided bounds (Clopper, Pearson 1934) of half the doubt.

    Parameters
    ----------
    tp, positives : int
        Runs with the canary that the test accused, and all runs with it.
    fp, negatives : int
        Runs without the canary that the test accused, and all runs without.
    delta, confidence : float
        As in `one_run_epsilon`. The test must be fixed before the runs.

    Returns
    -------
    float
        0 where the test proves nothing.

    Raises
    ------
    ValueError
        If a count exceeds its total, a total is 0, or a number is out of range.
    """
    if not (0 <= tp <= positives and 0 <= fp <= negatives and positives and negatives):
        raise ValueError(
            f"need 0 <= tp <= positives and 0 <= fp <= negatives, got {tp}, {positives}, {fp} and {negatives}"
        )
    _check(0, 0, 0, delta, confidence)
    doubt = (1 - confidence) / 2
    low = float(scipy.special.betaincinv(tp, positives - tp + 1, doubt)) if tp else 0.0
    high = float(scipy.special.betaincinv(fp + 1, negatives - fp, 1 - doubt)) if fp < negatives else 1.0
    ratios = [(low - delta) / high, (1 - high - delta) / (1 - low)]
    return max(0.0, math.log(max(*ratios, 1.0)))


def _refuted(
    correct: int, guesses: int, canaries: int, doubt: float, inverse: Callable[[float], float]
) -> bool:
    """Return whether this number of right guesses has probability below ``doubt`` under F, given its inverse."""
    right, wrong = doubt * correct / canaries, doubt * (guesses - correct) / canaries
    for count in range(correct - 1, -1, -1):
        needed = max(wrong, inverse(right))
        right, wrong = right + count / (guesses - count) * (needed - wrong), needed
        if right + wrong > guesses / canaries:
            return True
    return False


def _guessing_p(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return the bound of Theorem 5.2 on the probability of at least ``correct`` right guesses."""
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(scipy.special.bdtrc(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return tail
    steps = np.arange(1, correct + 1)
    below = scipy.special.bdtrc(correct - 1 - steps, guesses, right) - tail
    return min(1.0, tail + 2 * canaries * delta * float((below / steps).max()))


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the largest parameter that is refuted, to `TOLERANCE` below; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    high = 1.0
    while refuted(high):
        high *= 2
    return max(0.0, lowest(lambda value: not refuted(value), 0.0, high, TOLERANCE) - TOLERANCE)


def _check(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"need 0 <= correct <= made <= canaries, got {correct}, {guesses} and {canaries}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie strictly between 0 and 1, got {confidence}")
