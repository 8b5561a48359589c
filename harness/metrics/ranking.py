"""Scores in ascending order, and the exact areas under ROC curves that follow from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Ranking(NamedTuple):
    """Samples in the order of their scores; sorting is expensive, so that all measures of ranks share one.

    Attributes
    ----------
    order : NDArray
        Number of each sample, ``(n,)``, from the lowest score to the highest.
    score, positive : NDArray
        Score of each, and whether it is of class 1, in this order.
    """

    order: Ints
    score: Floats
    positive: Bools

    def auroc(self) -> Floats:
        """Return the area under the curve of all samples, ``(1,)``; NaN without both classes."""
        return aurocs(self.score, self.positive, np.array([len(self.score)]))

    def aurocs(self, segment: Ints, sizes: Ints) -> Floats:
        """Return the area under the curve of the samples of every segment; see `aurocs`."""
        small = segment.astype(np.min_scalar_type(len(sizes)))  # up to 16 bits are sorted by counting
        within = np.argsort(small[self.order], kind="stable")
        return aurocs(self.score[within], self.positive[within], sizes)


def ranking(score: Floats, positive: Bools) -> Ranking | None:
    """Sort samples by their scores; None if a score is NaN, which has no rank."""
    if np.isnan(score).any():
        return None
    order = np.argsort(score)
    return Ranking(order, score[order], positive[order])


def aurocs(score: Floats, positive: Bools, sizes: Ints) -> Floats:
    """Return the exact AUROC of consecutive segments of these sizes; ties count one half, NaN without both classes.

    Scores ascend within a segment. With ``below`` and ``above`` the numbers of samples up to the beginning and the
    end of a sample's tie, their sum over the positives is twice the pairs won, and the square of the number of
    positives, which is what they win among themselves: all in integers.
    """
    begins = np.cumsum(sizes) - sizes
    nonempty = sizes > 0
    new = np.empty(len(score), np.bool_)  # whether a tie begins
    np.not_equal(score[1:], score[:-1], out=new[1:])
    new[begins[nonempty]] = True
    below = np.flatnonzero(new)
    length = np.diff(below, append=len(score))
    both = np.repeat(2 * below + length, length)
    both *= positive
    sums, number = np.zeros_like(sizes), np.zeros_like(sizes)
    sums[nonempty] = np.add.reduceat(both, begins[nonempty])
    number[nonempty] = np.add.reduceat(positive, begins[nonempty], dtype=np.int64)
    twice = sums - 2 * begins * number - number**2
    return hit_rates(twice / 2, number * (sizes - number))


def hit_rates(hits: NDArray[np.int64] | Floats, totals: Ints) -> Floats:
    """Return ``hits / totals`` elementwise; NaN where the total is zero."""
    shares = np.full(totals.shape, np.nan)
    np.divide(hits, totals, out=shares, where=totals > 0)
    return shares
