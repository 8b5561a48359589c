"""Concentrated differential privacy: the guarantee of releases whose noise is not exactly Gaussian.

A release with noise multiplier z is here one that is 1 / (2 z^2)-concentrated: its Renyi divergence of every order
a > 1 is at most a / (2 z^2), as that of a Gaussian release. Such releases compose like Gaussian ones, but the
conversion to (epsilon, delta) uses the divergences only, which costs a few percent.

References
----------
M. Bun and T. Steinke, *Concentrated differential privacy: simplifications, extensions, and lower bounds*, TCC 2016,
https://arxiv.org/abs/1605.02065.

C. L. Canonne, G. Kamath and T. Steinke, *The discrete Gaussian for differential privacy*, NeurIPS 2020,
https://arxiv.org/abs/2004.00030 (Proposition 12, the conversion).
"""

from __future__ import annotations

import math

import numpy as np

from privacy.gaussian import check_budget, check_delta, check_multiplier, lowest

_LEAST, _MOST = 1e-9, 1e9  # of the order minus 1
_GRID = np.geomspace(_LEAST, _MOST, 2000)


def concentrated_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return an epsilon at which a concentrated release is (epsilon, delta)-private.

    Parameters
    ----------
    noise_multiplier : float
        z; 0 gives infinity.
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
    loss = 0.5 / noise_multiplier / noise_multiplier

    def bound(above: float | np.ndarray) -> np.ndarray:  # at order 1 + above, each of which is valid
        spent = (1 + above) * loss + np.log(above / (1 + above))
        return np.asarray(spent - (math.log(delta) + np.log1p(above)) / above)

    # The best order is near sqrt(log(1 / delta) / loss); a grid around it is within 1e-6 of the least bound.
    center = math.sqrt(math.log(1 / delta) / loss) if loss > 0 else _MOST
    near = np.clip(center * np.geomspace(0.1, 10, 2000), _LEAST, _MOST)
    return max(0.0, float(min(bound(near).min(), bound(_GRID).min())))


def concentrated_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier, to 1e-9, that keeps `concentrated_epsilon` within a budget.

    Raises
    ------
    ValueError
        If epsilon is not positive and finite, or delta is not in (0, 1).
    """
    check_budget(epsilon, delta)
    high = 1.0
    while concentrated_epsilon(high, delta) > epsilon:
        high *= 2
    low = high / 2
    while concentrated_epsilon(low, delta) <= epsilon:
        low, high = low / 2, low
    return lowest(lambda z: concentrated_epsilon(z, delta) <= epsilon, low, high, 1e-9 * high)
