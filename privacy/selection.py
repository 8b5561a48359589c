"""Private selection: the epsilon of a search for settings if only the winner is published.

Papernot and Steinke (ICLR 2022, https://arxiv.org/abs/2110.03620) bound the privacy of the best of a random number
of runs: Theorem 6 for Poisson numbers, Theorem 2 for the truncated negative binomial family, of which the geometric
and the logarithmic distribution are members. The score that picks the best must not cost privacy itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privacy.accounting import divergence
from privacy.event import Event
from privacy.gaussian import check_delta

Array = NDArray[np.float64]

# Renyi orders from 1.01 to 1024; from 12 on integers, as in `privacy.accounting`.
ORDERS = np.array(
    [
        *(1 + 1.15**step * 0.01 for step in range(50)),
        *sorted({round(12 * 1.15**step) for step in range(32)}),
        1024,
    ]
)


class Selected(NamedTuple):
    """The epsilon of a search, and the distribution of its number of settings: the best of three."""

    epsilon: float
    distribution: str


def selection_epsilon(
    candidates: Sequence[Sequence[Event]],
    delta: float,
    mean: float,
    tries: int = 1,
    after: int = 0,
) -> Selected:
    """Return the privacy of a search, and of a release with the chosen settings.

    Parameters
    ----------
    candidates : sequence of sequence of Event
        What a run releases about a unit, for every setting that may be drawn and every kind of unit; the worst
        counts at each order. Settings are drawn independently of each other and of the data.
    delta : float
        In (0, 1).
    mean : float
        Mean number of settings that are drawn, at least 1.
    tries : int
        Runs of a setting.
    after : int
        Further runs with the chosen setting.

    Raises
    ------
    ValueError
        If delta or the mean is out of range.
    """
    check_delta(delta)
    if not mean >= 1:
        raise ValueError(f"mean number of settings: at least 1, given {mean}")
    worst = np.max([_curve(tuple(events)) for events in candidates], axis=0)
    single, extra = tries * worst, after * worst
    bounds = {"poisson": _poisson(single, mean)}
    for name, shape in (("geometric", 1), ("logarithmic", 0)):
        bounds[name] = _negative_binomial(single, mean, shape)
    options = [Selected(_epsilon(bound + extra, delta), name) for name, bound in bounds.items()]
    return min(options)


@functools.lru_cache(maxsize=256)
def _curve(events: tuple[Event, ...]) -> Array:
    """Return the Renyi divergences of events together, ``(orders,)``."""
    with np.errstate(invalid="ignore"):
        return np.array(
            [sum(event.times * divergence(event, order) for event in events) for order in ORDERS.tolist()]
        )


def _poisson(single: Array, mean: float) -> Array:
    """Theorem 6: at each order, the delta of one run at a small epsilon counts once for every setting."""
    small = np.log1p(1 / (ORDERS - 1))
    deltas = [math.exp(min(0.0, _log_delta(single, epsilon))) for epsilon in small.tolist()]
    return single + mean * np.array(deltas) + math.log(mean) / (ORDERS - 1)


def _negative_binomial(single: Array, mean: float, shape: int) -> Array:
    """Theorem 2 with shape 1 (geometric) or 0 (logarithmic)."""
    if mean == 1:
        return single
    from scipy.optimize import brentq  # slow to import

    gamma = 1 / mean if shape else brentq(lambda g: (1 / g - 1) / -math.log(g) - mean, 1e-12, 1 - 1e-12)
    constant = (1 + shape) * np.nanmin((1 - 1 / ORDERS) * single - math.log(gamma) / ORDERS)
    bound: Array = single + math.log(mean) / (ORDERS - 1) + constant
    return bound


def _log_delta(curve: Array, epsilon: float) -> float:
    """Return the logarithm of delta at an epsilon (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    logs = (ORDERS - 1) * (curve - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return float(np.nanmin(logs))


def _epsilon(curve: Array, delta: float) -> float:
    """Return epsilon at a delta, by the same conversion."""
    bounds = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    finite = bounds[~np.isnan(bounds)]
    return max(0.0, float(finite.min())) if len(finite) else math.inf
