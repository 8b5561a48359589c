"""Verdicts on hypotheses: what values over seeds decide about an expectation that was written down before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.core.errors import UserError
from harness.report.data.statistics import FEWEST, detectable, paired_statistics

HELD, NOT_SEEN, REFUTED, OPEN = VERDICTS = "held", "not seen", "refuted", "cannot be judged"


@dataclass(frozen=True)
class Hypothesis:
    """An expected mean: above a bound, below a bound, or between two.

    Attributes
    ----------
    low, high : float, optional
        The bounds; at least one.
    least : float
        With one bound: the smallest distance from it that would matter, on either side.

    Raises
    ------
    UserError
        If there is no bound, an interval is empty, or one bound comes without `least`.
    """

    low: float | None = None
    high: float | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) for number in (self.low or 0.0, self.high or 0.0, self.least)):
            raise UserError("hypothesis: bounds and least are finite numbers")
        if self.low is None and self.high is None:
            raise UserError("hypothesis: needs low, high or both")
        if self.low is not None and self.high is not None:
            if self.low >= self.high:
                raise UserError(f"hypothesis: low must be below high, given {self.low:g} and {self.high:g}")
        elif self.least <= 0:
            raise UserError(f"hypothesis: one bound needs least, a number above 0; given {self.least:g}")

    @property
    def within(self) -> bool:
        """Whether the mean is expected between two bounds."""
        return self.low is not None and self.high is not None


class Decision(NamedTuple):
    """The interval of a mean over seeds, and the verdict on a hypothesis.

    Attributes
    ----------
    mean : float or None
        Mean over seeds; None if no seed has a value.
    low, high : float or None
        The 95 % interval: the one given, or the outer ends of those of t and, from five seeds on, of the BCa
        bootstrap; no end is nearer to the mean than the resolution.
    seeds : int
        Number of values.
    detectable : float or None
        Smallest true distance from the one bound that so many seeds find four times in five.
    verdict : str
        held, not seen, refuted or cannot be judged.
    """

    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    detectable: float | None
    verdict: str


def judge(
    values: Sequence[float],
    hypothesis: Hypothesis,
    *,
    differences: bool = False,
    up: bool = False,
    down: bool = False,
    interval: tuple[float, float] | None = None,
    resolution: float = 0.0,
) -> Decision:
    """Return what values, one a seed, decide about a hypothesis.

    Fewer than five seeds, and seeds that agree exactly, decide nothing: a rare bad run has not been seen.

    Of settings that a search has chosen the interval over seeds is too short: give that over searches and seeds,
    and what one method under two names differs by. Columns of the leaderboard have both.

    Parameters
    ----------
    values : sequence of float
        A value of every seed, or a difference of two.
    hypothesis : Hypothesis
        What is expected of their mean.
    differences : bool
        Whether values are differences, which hold a hypothesis of two bounds also if all are 0, as of a control
        that has to be the same run.
    up, down : bool
        Whether true values may be larger, or smaller, than those given; see `verdict`.
    interval : tuple of float, optional
        The 95 % interval of the mean, where it is known better than from values over seeds: `paired_procedure_low`
        and `paired_procedure_high`.
    resolution : float
        Difference that means no difference: `resolution`.

    Raises
    ------
    UserError
        If the ends of the interval are not in order, or the resolution is not a number from 0.

    Examples
    --------
    >>> judge([0.02, 0.03, 0.02, 0.04, 0.03], Hypothesis(low=0, least=0.01)).verdict
    'held'
    """
    _check(interval, resolution)
    if not values:
        return Decision(None, None, None, 0, None, OPEN)
    (sample,) = paired_statistics([values])
    if sample.half is None or sample.std is None:
        return Decision(sample.mean, None, None, sample.seeds, None, OPEN)
    low, high = sample.mean - sample.half, sample.mean + sample.half
    if sample.low is not None and sample.high is not None:
        low, high = min(low, sample.low), max(high, sample.high)
    low, high = interval or (low, high)
    low, high = min(low, sample.mean - resolution), max(high, sample.mean + resolution)
    power = None if hypothesis.within else detectable(sample.seeds) * sample.std
    same = differences and hypothesis.within and not any(values)
    enough = sample.seeds >= FEWEST and (sample.std > 0 or same)
    decided = verdict(hypothesis, low, high, up=up, down=down) if enough else OPEN
    return Decision(sample.mean, low, high, sample.seeds, power, decided)


def _check(interval: tuple[float, float] | None, resolution: float) -> None:
    """Refuse an interval whose ends are not in order, and a resolution that is not a number from 0."""
    if interval is not None and not interval[0] <= interval[1]:
        raise UserError(
            f"interval: a low and a high end are needed, given {interval[0]:g} and {interval[1]:g}"
        )
    if not 0 <= resolution < math.inf:
        raise UserError(f"resolution: a number from 0 is needed, given {resolution:g}")


def verdict(hypothesis: Hypothesis, low: float, high: float, *, up: bool = False, down: bool = False) -> str:
    """Return what an interval decides.

    With one bound, only an effect in the other direction that matters refutes: the interval lies beyond the bound
    by more than `least`. A smaller one is not seen.

    A run that did not reach a target counts with what it had spent. The mean of such values bounds the true mean
    from one side, and decides only what holds for every mean beyond it.

    Parameters
    ----------
    hypothesis : Hypothesis
        What is expected.
    low, high : float
        The interval.
    up, down : bool
        Whether the true values may be larger, or smaller, than those counted.
    """
    if hypothesis.low is None:  # the mirror image
        assert hypothesis.high is not None
        mirrored = Hypothesis(low=-hypothesis.high, least=hypothesis.least)
        return verdict(mirrored, -high, -low, up=down, down=up)
    if hypothesis.high is not None:
        if hypothesis.low <= low and high <= hypothesis.high:
            return OPEN if up or down else HELD
        if high < hypothesis.low:
            return OPEN if up else REFUTED
        if low > hypothesis.high:
            return OPEN if down else REFUTED
        return OPEN
    if low > hypothesis.low:
        return OPEN if down else HELD
    if up:
        return OPEN
    if high < hypothesis.low - hypothesis.least:
        return REFUTED
    return NOT_SEEN if high < hypothesis.low + hypothesis.least else OPEN
