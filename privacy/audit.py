"""Audit: test a claimed mechanism on released data.

`flags` tests releases under both hypotheses (canary absent, canary present), projected on the canary's direction: a
Gaussian mechanism of noise multiplier ``z`` separates them by at most ``mu = 1 / z`` standard deviations.
`one_run_epsilon` computes a lower bound on epsilon from guesses about the presence of many canaries in one run.

References
----------
T. Steinke, M. Nasr and M. Jagielski, *Privacy auditing with one (1) training run*,
NeurIPS 2023 (Theorem 5.2). J. Dong, A. Roth and W. Su, *Gaussian differential privacy*, JRSS-B 2022 (mu).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, chdtr, gammaincinv, ndtr, ndtri, stdtr  # scipy.stats is slow to import
from torch import Tensor

from privacy.gaussian import lowest

Vector = npt.NDArray[np.float64]

# Quantiles of the noise scale averaged over in `_separation_p`; 2000 give p to three digits around 0.01.
_SCALES = 2000


class Separation(NamedTuple):
    """Estimated separation of two hypotheses, in standard deviations, with a confidence interval.

    ``shift`` is the difference of the means and ``std`` the pooled standard deviation; ``mu = shift / std``.
    """

    mu: float
    low: float
    high: float
    shift: float
    std: float


def project(outputs: Tensor, direction: Tensor) -> Tensor:
    """Project ``outputs (n, P)`` on ``direction (P,)``, in float64: ``(n,)``.

    Raises
    ------
    ValueError
        If the direction is zero or not finite.
    """
    axis = direction.double()
    length = float(axis.norm())
    if not (length > 0 and math.isfinite(length)):
        raise ValueError(f"the canary's direction must have a positive finite length, got {length}")
    return outputs.double() @ (axis / length)


def separation_mu(
    outputs_without: Tensor, outputs_with: Tensor, direction: Tensor, confidence: float = 0.95
) -> Separation:
    """Estimate the separation of releases with and without the canary along its direction.

    Parameters
    ----------
    outputs_without, outputs_with : Tensor
        ``(n0, P)`` and ``(n1, P)``: independent releases under the two hypotheses, at least two of each.
    direction : Tensor
        The canary's contribution ``(P,)``, of any length.
    confidence : float
        Level of the interval, which uses the asymptotic variance ``1/n0 + 1/n1 + mu^2 / (2 (n0 + n1 - 2))``.

    Raises
    ------
    ValueError
        If there are fewer than two releases of a kind, a value is not finite, or the direction is zero.
    """
    without, present = _sample(project(outputs_without, direction)), _sample(project(outputs_with, direction))
    shift, std = _shift_and_std(without, present)
    mu = _ratio(shift, std)
    freedom = len(without) + len(present) - 2
    error = math.sqrt(1 / len(without) + 1 / len(present) + mu * mu / (2 * freedom))
    margin = float(ndtri(0.5 + confidence / 2)) * error if math.isfinite(mu) else 0.0
    return Separation(mu, mu - margin, mu + margin, shift, std)


def flags(
    projections0: Tensor,
    projections1: Tensor,
    claimed_mu: float,
    alpha: float = 0.01,
    *,
    claimed_std: float | None = None,
    pairs: Sequence[tuple[Tensor, Tensor]] = (),
) -> tuple[str, ...]:
    """Test a claimed mechanism and describe contradictions in the data.

    With normal projections and a true claim, the probability of any contradiction is at most ``alpha``, which the
    tests share evenly.

    Parameters
    ----------
    projections0, projections1 : Tensor
        ``(n0,)`` and ``(n1,)``: independent releases on the canary's direction without and with it.
    claimed_mu : float
        Largest separation the mechanism allows: sensitivity over total standard deviation (infinity: no
        claim).
    alpha : float
        Probability of a false alarm.
    claimed_std : float, optional
        Standard deviation the projections are claimed to have at least; tested if given.
    pairs : sequence of (Tensor, Tensor)
        Pairs of ``(n,)`` samples of noise that should be independent (two clients in a round, two rounds of a
        client); tested for correlation.

    Returns
    -------
    tuple of str
        One description per contradiction; empty if the claim is not rejected.

    Raises
    ------
    ValueError
        If a sample is too small or not finite, or a claim or ``alpha`` is out of range.
    """
    if not claimed_mu >= 0:
        raise ValueError(f"the claimed separation must not be negative, got {claimed_mu}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie strictly between 0 and 1, got {alpha}")
    without, present = _sample(projections0), _sample(projections1)
    shift, std = _shift_and_std(without, present)
    tests = [
        (
            _separation_p(without, present, claimed_mu),
            f"separation {_ratio(shift, std):.3g}, claimed {claimed_mu:.3g}",
        )
    ]
    if claimed_std is not None:
        if not claimed_std >= 0:
            raise ValueError(f"the claimed standard deviation must not be negative, got {claimed_std}")
        tests.append(
            (_scale_p(without, present, claimed_std), f"noise std {std:.3g}, claimed {claimed_std:.3g}")
        )
    for one, other in pairs:
        first, second = _sample(one, least=4), _sample(other, least=4)
        if len(first) != len(second):
            raise ValueError(f"pairs need samples of equal size, got {len(first)} and {len(second)}")
        tests.append(
            (_correlation_p(first, second), "noise is correlated between releases claimed independent")
        )
    return tuple(dict.fromkeys(text for p_value, text in tests if p_value < alpha / len(tests)))


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
    if not 0 <= guesses_correct <= guesses_made <= canaries:
        raise ValueError(
            f"need 0 <= correct <= made <= canaries, got {guesses_correct}, {guesses_made} and {canaries}"
        )
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie strictly between 0 and 1, got {confidence}")

    def plausible(epsilon: float) -> bool:
        return _guessing_p(guesses_correct, guesses_made, canaries, epsilon, delta) > 1 - confidence

    if plausible(0.0):
        return 0.0
    high = 1.0
    while not plausible(high):
        high *= 2
    # The largest epsilon that is ruled out: the bisection's result is within the tolerance above it.
    tolerance = 1e-9
    return max(0.0, lowest(plausible, 0.0, high, tolerance) - tolerance)


def _guessing_p(correct: int, made: int, canaries: int, epsilon: float, delta: float) -> float:
    """Bound of Theorem 5.2 on the probability of at least ``correct`` right guesses."""
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(bdtrc(correct - 1, made, right))
    if delta == 0 or correct == 0:
        return tail
    steps = np.arange(1, correct + 1)
    below = bdtrc(correct - 1 - steps, made, right) - tail
    return min(1.0, tail + 2 * canaries * delta * float((below / steps).max()))


def _sample(values: Tensor, least: int = 2) -> Vector:
    sample: Vector = values.detach().cpu().double().numpy()
    if sample.ndim != 1 or len(sample) < least:
        raise ValueError(f"need a vector of at least {least} releases, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError("releases must be finite")
    return sample


def _shift_and_std(without: Vector, present: Vector) -> tuple[float, float]:
    squares = float(((without - without.mean()) ** 2).sum() + ((present - present.mean()) ** 2).sum())
    return float(present.mean() - without.mean()), math.sqrt(squares / (len(without) + len(present) - 2))


def _ratio(shift: float, std: float) -> float:
    if std > 0:
        return shift / std
    return math.copysign(math.inf, shift) if shift else 0.0


def _separation_p(without: Vector, present: Vector, claimed_mu: float) -> float:
    """Probability of a t statistic at least as large, of either sign, at exactly the claimed separation.

    The two-sample statistic is noncentral t, and its absolute value grows stochastically with the separation,
    so the boundary is the worst case of the claim.
    """
    if math.isinf(claimed_mu):
        return 1.0
    shift, std = _shift_and_std(without, present)
    if std == 0:
        return 0.0  # a finite claim needs noise, and there is none
    weight = math.sqrt(len(without) * len(present) / (len(without) + len(present)))
    statistic, freedom = abs(shift) / std * weight, len(without) + len(present) - 2
    # Given the estimated scale the statistic is normal, so average over quantiles of that scale: SciPy's
    # noncentral t returns nan in the far tails.
    quantiles = (np.arange(_SCALES) + 0.5) / _SCALES
    edge = statistic * np.sqrt(2 * gammaincinv(freedom / 2, quantiles) / freedom)
    center = claimed_mu * weight
    return float(np.mean(ndtr(center - edge) + ndtr(-edge - center)))


def _scale_p(without: Vector, present: Vector, claimed_std: float) -> float:
    """Probability of a pooled variance this small if the noise has the claimed scale (chi-square)."""
    if claimed_std == 0:
        return 1.0
    _, std = _shift_and_std(without, present)
    freedom = len(without) + len(present) - 2
    return float(chdtr(freedom, freedom * (std / claimed_std) ** 2))


def _correlation_p(first: Vector, second: Vector) -> float:
    """Probability of a correlation this strong, of either sign, in independent samples (t with n - 2)."""
    first, second = first - first.mean(), second - second.mean()
    product = math.sqrt(float((first**2).sum() * (second**2).sum()))
    correlation = float((first * second).sum()) / product if product > 0 else 1.0
    freedom = len(first) - 2
    statistic = abs(correlation) * math.sqrt(freedom / max(1 - correlation**2, 1e-300))
    return float(2 * stdtr(freedom, -statistic))
