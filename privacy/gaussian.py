"""The Gaussian mechanism: exact privacy of one release, calibration of its noise, and the noise itself.

The *noise multiplier* is the standard deviation of the noise divided by the L2 sensitivity. The privacy of a
Gaussian release depends on it only.

References
----------
B. Balle and Y.-X. Wang, *Improving the Gaussian mechanism for differential privacy: analytical calibration and
optimal denoising*, ICML 2018 (Theorem 8: necessary and sufficient).

C. Dwork and A. Roth, *The algorithmic foundations of differential privacy*, 2014 (Appendix A: the classical
formula, proved for epsilon < 1 only).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import

if TYPE_CHECKING:
    from torch import Tensor

# delta reached from "shift" -40 upward is 1 to within rounding, so every root lies above it.
_LOWEST_SHIFT = -40.0


def check_budget(epsilon: float, delta: float) -> None:
    """Check the range of a budget.

    Raises
    ------
    ValueError
        If ``epsilon`` is not a positive finite number or ``delta`` is not in (0, 1).
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    check_delta(delta)


def check_delta(delta: float) -> None:
    """Check the range of a delta.

    Raises
    ------
    ValueError
        If ``delta`` is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")


def check_multiplier(noise_multiplier: float) -> None:
    """Check the range of a noise multiplier.

    Raises
    ------
    ValueError
        If ``noise_multiplier`` is negative, infinite or not a number.
    """
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise ValueError(f"the noise multiplier must be finite and not negative, got {noise_multiplier}")


def _check_sensitivity(sensitivity: float) -> None:
    if not (sensitivity > 0 and math.isfinite(sensitivity)):
        raise ValueError(f"the sensitivity must be positive and finite, got {sensitivity}")


def classic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Calibrate by the classical formula: ``sigma = sqrt(2 ln(1.25 / delta)) * sensitivity / epsilon``.

    The formula of the FedReCo paper (appendix A.3). It is proved for epsilon < 1 only; for larger values epsilon is
    *nominal*, and the exact value is that of `gaussian_epsilon`.

    Raises
    ------
    ValueError
        If epsilon or sensitivity is not positive and finite, or delta is not in (0, 1).
    """
    check_budget(epsilon, delta)
    _check_sensitivity(sensitivity)
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Return the smallest delta of an (epsilon, delta)-private Gaussian release (Balle & Wang, Theorem 8).

    With ``a = 1 / (2 z)`` and ``b = epsilon * z`` the theorem reads ``delta = Phi(a - b) - exp(epsilon)
    Phi(-a - b)``.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over sensitivity; 0 means no noise, hence delta 1.
    epsilon : float
        Not negative.

    Raises
    ------
    ValueError
        If an argument is negative or not finite.
    """
    check_multiplier(noise_multiplier)
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be finite and not negative, got {epsilon}")
    if noise_multiplier == 0:
        return 1.0
    a, b = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return _delta(b - a, 2 * a)


def _delta(shift: float, mu: float) -> float:
    """Evaluate Theorem 8 at ``shift = b - a`` and ``mu = 2 a = 1 / z``.

    Because ``2 a b = epsilon``, ``exp(epsilon) Phi(-a - b) = exp(-shift^2 / 2) erfcx((shift + mu) / sqrt 2) /
    2``: no factor overflows, and the terms are subtracted without their common Gaussian factor.
    """
    bell = 0.5 * math.exp(-shift * shift / 2)
    far = float(scipy.special.erfcx((shift + mu) / math.sqrt(2)))
    if shift >= 0:
        return bell * (float(scipy.special.erfcx(shift / math.sqrt(2))) - far)
    return float(scipy.special.ndtr(-shift)) - bell * far


@lru_cache(maxsize=1024)  # asked at every evaluation of a run, of many runs with equal noise
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the smallest epsilon at which one Gaussian release is (epsilon, delta)-private; 0 if none is needed.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over sensitivity; 0 gives infinity.
    delta : float
        In (0, 1).

    Raises
    ------
    ValueError
        If the multiplier is negative or not finite, or delta is not in (0, 1).
    """
    check_multiplier(noise_multiplier)
    check_delta(delta)
    if noise_multiplier == 0:
        return math.inf
    mu = 1 / noise_multiplier
    start = -mu / 2
    if _delta(start, mu) <= delta:
        return 0.0
    shift = lowest(lambda shift: _delta(shift, mu) <= delta, start, _highest_shift(delta))
    return (mu / 2 + shift) / noise_multiplier


def analytic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest standard deviation that makes one release (epsilon, delta)-private (Balle & Wang).

    Solved by bisection in ``shift = epsilon z - 1 / (2 z)``, in which delta decreases, down to neighboring floats.
    The end that satisfies the budget is returned.

    Raises
    ------
    ValueError
        If epsilon or sensitivity is not positive and finite, or delta is not in (0, 1).
    """
    check_budget(epsilon, delta)
    _check_sensitivity(sensitivity)

    def multiplier(shift: float) -> float:
        root = math.sqrt(shift * shift + 2 * epsilon)
        # Two forms of the root of a quadratic; each avoids the other's cancellation.
        return (root + shift) / (2 * epsilon) if shift >= 0 else 1 / (root - shift)

    shift = lowest(
        lambda shift: _delta(shift, 1 / multiplier(shift)) <= delta, _LOWEST_SHIFT, _highest_shift(delta)
    )
    return multiplier(shift) * sensitivity


def _highest_shift(delta: float) -> float:
    """Return a shift that reaches delta, from ``delta(shift) <= Phi(-shift) <= exp(-shift^2 / 2)``."""
    return math.sqrt(2 * math.log(1 / delta)) + 1e-9


def lowest(holds: Callable[[float], bool], low: float, high: float, tolerance: float = 0.0) -> float:
    """Bisect for the lowest point at which a monotone condition holds.

    Parameters
    ----------
    holds : callable
        False below some point of ``[low, high]``, True from there on; assumed to hold at ``high``.
    low, high : float
        The interval.
    tolerance : float
        Stop when the bracket is this narrow; 0: at neighboring floats.

    Returns
    -------
    float
        The upper end of the last bracket: a point at which the condition holds.
    """
    while high - low > tolerance:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


class Normals(Protocol):
    """A source of standard normal numbers, such as `numpy.random.Generator`."""

    def standard_normal(self, *, dtype: Any, out: Any) -> Any:
        """Fill an array."""


def gaussian_noise(rows: Tensor, std: float | Tensor, generators: Sequence[Normals]) -> Tensor:
    """Draw Gaussian noise of the shape of ``rows``, each row from its own generator.

    A row's noise depends only on its generator, not on the other rows or the device. Numpy's generators use all
    bits of their seeds: with the 32 bits of torch's, two of some ten thousand messages would get the same noise.

    Parameters
    ----------
    rows : Tensor
        ``(..., P)``; only shape, dtype and device are used.
    std : float or Tensor
        Standard deviation; a tensor broadcasts against the leading axes ``(...)``.
    generators : sequence of numpy.random.Generator, or of others with its ``standard_normal``
        One per row, in row-major order of the leading axes; one for a single vector ``(P,)``.

    Returns
    -------
    Tensor
        ``(..., P)``; no gradient.

    Raises
    ------
    ValueError
        If the number of generators is not the number of rows, or the standard deviation is negative or not a
        number.
    """
    import torch  # here, as readers account and do not draw

    *leading, size = rows.shape
    if len(generators) != math.prod(leading):
        raise ValueError(f"need one generator per row, got {len(generators)} for {math.prod(leading)} rows")
    scale = torch.as_tensor(std, dtype=rows.dtype, device=rows.device)
    if not bool((scale >= 0).all()):
        raise ValueError(f"the standard deviation must not be negative, got {std}")
    if not generators:
        return torch.zeros_like(rows)
    drawn = np.empty((len(generators), size), np.float64 if rows.dtype == torch.float64 else np.float32)
    for row, generator in zip(drawn, generators, strict=True):
        generator.standard_normal(dtype=drawn.dtype, out=row)
    noise = torch.from_numpy(drawn).to(rows).reshape(rows.shape)
    return noise.mul_(scale.unsqueeze(-1) if scale.dim() else scale)
