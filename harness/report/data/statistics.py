"""Statistics of paired seeds: intervals, tests, effect sizes, power; and of rates of groups.

The functions work on many rows at once, because a leaderboard has thousands. Resampling is keyed, so equal values
give equal statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import
from numpy.typing import NDArray

from harness.core import rng

Array = NDArray[np.float64]

RESAMPLES = 5000
FEWEST = 5  # seeds of a bootstrap; fewer have an interval of t alone
MOST_EXACT = 12  # seeds whose signs are all tried
ROWS = 500  # at once
ALPHA, POWER = 0.05, 0.8


class Paired(NamedTuple):
    """Statistics of paired differences; None where there are too few of them.

    Attributes
    ----------
    mean : float
        Mean difference.
    half : float or None
        Half width of the 95 % t interval.
    low, high : float or None
        The 95 % bootstrap interval, bias-corrected and accelerated (Efron 1987,
        https://doi.org/10.1080/01621459.1987.10478410) and expanded for few seeds as an interval of t is
        (Hesterberg 2015, https://doi.org/10.1080/00031305.2015.1089789).
    p : float or None
        Two-sided sign-flip permutation test of a mean of 0: exact up to 12 seeds. With n seeds at least 2^(1 - n).
    effect : float or None
        Mean over standard deviation of the differences (Cohen's d of pairs).
    std : float or None
        Sample standard deviation of the differences.
    seeds : int
        Number of pairs.
    """

    mean: float
    half: float | None
    low: float | None
    high: float | None
    p: float | None
    effect: float | None
    std: float | None
    seeds: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bootstrap interval, or that of t where seeds are few; None for one seed."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)


def paired_statistics(differences: Sequence[Sequence[float]]) -> list[Paired]:
    """Return the statistics of rows of paired differences, each of at least one seed."""
    lengths: dict[int, list[int]] = {}
    for number, row in enumerate(differences):
        lengths.setdefault(len(row), []).append(number)
    statistics: dict[int, Paired] = {}
    for length, numbers in lengths.items():
        for first in range(0, len(numbers), ROWS):
            piece = numbers[first : first + ROWS]
            results = _piece_statistics(
                np.array([differences[number] for number in piece], dtype=np.float64).reshape(-1, length)
            )
            statistics |= dict(zip(piece, results, strict=True))
    return [statistics[number] for number in range(len(differences))]


def t_half(std: float, seeds: int) -> float:
    """Return the half width of the 95 % t interval of a mean over two seeds or more."""
    return float(scipy.special.stdtrit(seeds - 1, 1 - ALPHA / 2)) * std / math.sqrt(seeds)


def expanded_reach(seeds: int) -> float:
    """Return how many standard errors a bootstrap interval reaches, expanded for few seeds as one of t is."""
    return float(scipy.special.stdtrit(seeds - 1, 1 - ALPHA / 2)) * math.sqrt(seeds / (seeds - 1))


def _piece_statistics(data: Array) -> list[Paired]:
    count, seeds = data.shape
    mean = data.mean(-1)
    columns: list[Sequence[float | None]] = [[None] * count for _ in range(6)]
    if seeds > 1:
        std = data.std(-1, ddof=1)
        std[np.ptp(data, axis=-1) <= 1e-12 * np.abs(data).max(-1)] = 0.0  # rounding of equal differences
        half = float(scipy.special.stdtrit(seeds - 1, 1 - ALPHA / 2)) * std / math.sqrt(seeds)
        effect = np.divide(mean, std, out=np.full(count, np.nan), where=std > 0)
        columns[0] = half.tolist()
        columns[3] = sign_flip(data).tolist()
        columns[4] = [None if value != value else value for value in effect.tolist()]
        columns[5] = std.tolist()
    if seeds >= FEWEST:
        low, high = bca(data)
        columns[1], columns[2] = low.tolist(), high.tolist()
    fields: Iterator[tuple[Any, ...]] = zip(mean.tolist(), *columns, [seeds] * count, strict=True)
    return [Paired(*row) for row in fields]


def bca(data: Array, expand: bool = True) -> tuple[Array, Array]:
    """Return the ends of the 95 % BCa intervals of the means of rows ``(m, n)``; `expand` for few seeds."""
    count, seeds = data.shape
    reach = expanded_reach(seeds) if expand else float(scipy.special.ndtri(1 - ALPHA / 2))
    mean = data.mean(-1)
    draws = data @ resamples(seeds).T
    draws.sort(-1)
    off = 1e-12 * np.abs(data).max(-1, keepdims=True)  # products round differently from means
    below = (draws < mean[:, None] - off).mean(-1)
    equal = (draws <= mean[:, None] + off).mean(-1)
    shift = scipy.special.ndtri(np.clip((below + equal) / 2, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    left_out = (data.sum(-1, keepdims=True) - data) / (seeds - 1)
    u = left_out.mean(-1, keepdims=True) - left_out
    squares = (u**2).sum(-1)
    bend = np.divide((u**3).sum(-1), 6 * squares**1.5, out=np.zeros(count), where=squares > 0)
    ends = []
    for z in (-reach, reach):
        # Beyond the pole of the correction the end is the extreme resample.
        bent = 1 - bend * (shift + z)
        off = np.divide(shift + z, bent, out=np.full(count, math.copysign(math.inf, z)), where=bent > 0)
        at = scipy.special.ndtr(shift + off) * (RESAMPLES - 1)
        first = np.floor(at).astype(np.int64)
        part = at - first
        numbers = np.arange(count)
        ends.append(
            (1 - part) * draws[numbers, first] + part * draws[numbers, np.minimum(first + 1, RESAMPLES - 1)]
        )
    return ends[0], ends[1]


@functools.cache
def resamples(seeds: int) -> Array:
    """Return the shares of every seed in every resample, ``(RESAMPLES, seeds)``."""
    counts = rng.numpy_stream(0, "bootstrap", seeds).multinomial(seeds, [1 / seeds] * seeds, RESAMPLES)
    return counts / seeds


def sign_flip(data: Array) -> Array:
    """Return the two-sided p of rows ``(m, n)``: the share of signs with a sum at least as far from 0."""
    signs, extra = _signs(data.shape[-1])
    sums = np.abs(data @ signs.T)
    observed = np.abs(data.sum(-1, keepdims=True))
    reached = (sums >= observed * (1 - 1e-12) - 1e-300).sum(-1)
    p: Array = (reached + extra) / (len(signs) + extra)
    return p


@functools.cache
def _signs(seeds: int) -> tuple[Array, int]:
    """Return signs, and how many to add for the given ones: all that differ, or a keyed draw."""
    if seeds <= MOST_EXACT:  # the mirror image of each has the same sum
        return np.array([[1.0, *rest] for rest in product((1.0, -1.0), repeat=seeds - 1)]), 0
    return rng.numpy_stream(0, "sign flips", seeds).choice([-1.0, 1.0], (2**MOST_EXACT, seeds)), 1


def undecidable(seeds: int, tests: int) -> bool:
    """Return whether a sign-flip test of these seeds can never be below 5 % after Holm over these tests."""
    return tests * 2.0 ** (1 - seeds) >= ALPHA


@functools.cache
def detectable(seeds: int, tests: int = 1) -> float:
    """Return the mean difference that a t test finds with probability 80 %, the first of several by Holm.

    In standard deviations of a difference. The sign-flip test needs about as much where it can decide at all.
    """
    critical, free = float(scipy.special.stdtrit(seeds - 1, 1 - ALPHA / 2 / tests)), seeds - 1
    about = (critical + float(scipy.special.stdtrit(free, POWER))) / math.sqrt(seeds)
    low, high = about / 2, about * 1.5
    for _ in range(60):  # scipy.stats and scipy.optimize, which do this, are slow to import
        size = (low + high) / 2
        missed = scipy.special.nctdtr(free, size * math.sqrt(seeds), critical)  # the other tail: below 1e-4
        low, high = (size, high) if missed > 1 - POWER else (low, size)
    return low


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p values of several tests, adjusted so that the chance of any false one keeps (Holm 1979)."""
    order = sorted(range(len(ps)), key=lambda number: ps[number])
    adjusted, largest = [1.0] * len(ps), 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[number]))
        adjusted[number] = largest
    return adjusted


class GroupGap(NamedTuple):
    """The gap of true positive rates in one run.

    Attributes
    ----------
    groups : int
        Number of groups with positive test samples, of which the two extremes are taken.
    error : float
        Standard error of the gap, from the numbers of test samples; one success and one failure are added to each
        of the two groups (Agresti and Caffo 2000, https://doi.org/10.1080/00031305.2000.10474560).
    positives : int
        Positive test samples of the smaller of the two groups.
    """

    groups: int
    error: float
    positives: int


@functools.cache
def largest_of(groups: int) -> float:
    """Return the bound, in standard errors, on the largest gap of equal groups, 95 times in 100."""
    if groups == 2:  # a normal difference
        return float(scipy.special.ndtri(1 - ALPHA / 2))
    from scipy.stats import studentized_range  # slow to import

    return float(studentized_range.ppf(1 - ALPHA, groups, np.inf)) / math.sqrt(2)


def gap_of(groups: Sequence[Mapping[str, Any]]) -> GroupGap | None:
    """Return the sampling error of the gap between the groups with the highest and the lowest rate.

    ``groups`` has a row per group with its true positive rate ``tpr`` and its number of ``positives``; None if
    fewer than two groups have any.
    """
    rates = [(row["tpr"], row["positives"]) for row in groups if row["tpr"] is not None and row["positives"]]
    if len(rates) < 2:
        return None
    extremes = max(rates), min(rates)
    smoothed = [((rate * n + 1) / (n + 2), n + 2) for rate, n in extremes]
    error = math.sqrt(sum(p * (1 - p) / n for p, n in smoothed))
    return GroupGap(len(rates), error, int(min(n for _, n in extremes)))
