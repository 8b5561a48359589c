"""ROC of attack scores: areas and rates, with intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, rankdata

Array = NDArray[np.float64]

FALSE = {"1": 0.01, "01": 0.001}  # false positive rates, by their name in percent
Z = 1.959963984540054


class Estimate(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


def area(inside: Array, outside: Array) -> Estimate:
    """Return the area under the ROC curve with the interval of DeLong et al. (1988)."""
    m, n = len(inside), len(outside)
    both = rankdata(np.concatenate([inside, outside]))
    above = (both[:m] - rankdata(inside)) / n  # share of the others that a member exceeds
    below = 1 - (both[m:] - rankdata(outside)) / m
    value = float(above.mean())
    variance = above.var(ddof=1) / m + below.var(ddof=1) / n if min(m, n) > 1 else math.inf
    half = Z * math.sqrt(variance)
    return Estimate(value, max(0.0, value - half), min(1.0, value + half))


def detection(inside: Array, outside: Array, false: float) -> Estimate:
    """Return the share of members found when at most a share of the others is accused, with its exact interval.

    The threshold is above all but ``floor(false * others)`` of the others, so with few of them none is accused. The
    interval (Clopper, Pearson) takes the threshold as given.
    """
    accused = math.floor(false * len(outside) + 1e-9)
    threshold = np.sort(outside)[::-1][accused]
    hits, m = int((inside > threshold).sum()), len(inside)
    low = float(beta.ppf(0.025, hits, m - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, m - hits)) if hits < m else 1.0
    return Estimate(hits / m, low, high)


def largest_rate(others: int, false: float) -> float:
    """Return the largest false positive rate, at 97.5 %, of a threshold by `detection`."""
    accused = math.floor(false * others + 1e-9)
    return float(beta.ppf(0.975, accused + 1, others - accused)) if accused < others else 1.0
