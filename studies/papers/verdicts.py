"""Verdicts on the claims of papers: intervals over seeds, what they decide, and what they could have seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from harness.core.registry import UserError
from harness.report.data.statistics import FEWEST, detectable, paired
from studies.papers.claims import Claim, Expectation
from studies.papers.figures import Figure

HELD, NOT_SEEN, REFUTED, OPEN = "held", "not seen", "refuted", "cannot be judged"


class Finding(NamedTuple):
    """What the runs say about a claim.

    Attributes
    ----------
    claim : Claim
        The claim.
    mean : float or None
        Mean over seeds, in units of the value; on a log scale of its logarithm. None if no seed has a value.
    low, high : float or None
        The 95 % interval: the outer ends of those of t and, from five seeds on, of the BCa bootstrap.
    seeds : int
        Number of seeds with a value.
    failed : int
        Number of seeds without one, because a run of theirs has none.
    unpaired : int
        Number of seeds that not all sides of the claim have.
    bounds : int
        Number of runs that did not reach the target.
    detectable : float or None
        Smallest true distance from the one bound that so many seeds find four times in five.
    verdict : str
        held, not seen, refuted or cannot be judged.
    """

    claim: Claim
    mean: float | None
    low: float | None
    high: float | None
    seeds: int
    failed: int
    unpaired: int
    bounds: int
    detectable: float | None
    verdict: str

    @property
    def size(self) -> str:
        """Whether an effect that is held may be too small to matter, in words; else empty.

        Held against a margin, such as ``above: -0.01``, is not an effect.
        """
        expect = self.claim.expect
        if self.verdict != HELD or not expect.least or self.low is None or self.high is None:
            return ""
        ends = [self.low - expect.low, self.high - expect.low] if expect.low is not None else []
        if expect.high is not None:
            ends = [expect.high - self.high, expect.high - self.low]
        near, far = ends
        margin = (expect.low is not None and expect.low < 0) or (expect.high is not None and expect.high > 0)
        if margin or near >= expect.least:
            return ""
        sure = far < expect.least and not self.bounds  # a bound hides a larger effect
        return f"{'is' if sure else 'may be'} smaller than what would matter"


def judge(claim: Claim, figures: Sequence[Figure]) -> Finding:
    """Return the statistics of a claim's figures, and the verdict.

    Fewer than five seeds, seeds that not all sides have, and seeds that agree exactly decide nothing: a rare bad
    run has not been seen. Only ``within`` may be held by differences that are all 0, as of a control that has to be
    the same run.

    Raises
    ------
    UserError
        If the sides of the claim have no seed in common.
    """
    own = [figure for figure in figures if figure.claim == claim.id]
    weights = _weights(claim, own)
    seeds: dict[str, dict[tuple[str, float | None], Figure]] = {}
    for figure in own:
        seeds.setdefault(figure.repetition, {})[figure.arm, figure.point] = figure
    whole = {seed: of for seed, of in seeds.items() if of.keys() == weights.keys()}
    if not whole:
        raise UserError(f"{claim.id}: its sides have no {claim.over} in common")
    values: list[float] = []
    up = down = False
    for of in whole.values():
        if any(figure.value is None for figure in of.values()):
            continue
        values.append(sum(weights[key] * _scaled(claim, figure) for key, figure in of.items()))
        up |= any(figure.bound and weights[key] > 0 for key, figure in of.items())
        down |= any(figure.bound and weights[key] < 0 for key, figure in of.items())
    failed, unpaired = len(whole) - len(values), len(seeds) - len(whole)
    bounds = sum(figure.bound for of in whole.values() for figure in of.values())
    if not values:
        return Finding(claim, None, None, None, 0, failed, unpaired, bounds, None, OPEN)
    (found,) = paired([values])
    if found.half is None or found.std is None:
        return Finding(claim, found.mean, None, None, 1, failed, unpaired, bounds, None, OPEN)
    low, high = found.mean - found.half, found.mean + found.half
    if found.low is not None and found.high is not None:
        low, high = min(low, found.low), max(high, found.high)
    within = claim.expect.low is not None and claim.expect.high is not None
    seen = None if within else detectable(found.seeds) * found.std
    same = within and "than" in claim.arms and not any(values)
    enough = found.seeds >= FEWEST and (found.std > 0 or same)
    told = verdict(claim.expect, low, high, up, down) if enough and not failed and not unpaired else OPEN
    return Finding(claim, found.mean, low, high, found.seeds, failed, unpaired, bounds, seen, told)


def verdict(expect: Expectation, low: float, high: float, up: bool = False, down: bool = False) -> str:
    """Return what an interval decides.

    A run that did not reach a target counts with what it had spent. The mean of such values bounds the true mean
    from one side, and decides only what holds for every mean beyond it.

    Parameters
    ----------
    expect : Expectation
        What is expected.
    low, high : float
        The interval.
    up, down : bool
        Whether the true values may be larger, or smaller, than those counted.
    """
    if expect.low is not None and expect.high is not None:
        if expect.low <= low and high <= expect.high:
            return OPEN if up or down else HELD
        if high < expect.low:
            return OPEN if up else REFUTED
        if low > expect.high:
            return OPEN if down else REFUTED
        return OPEN
    if expect.low is None:  # the mirror image
        assert expect.high is not None
        mirrored = expect._replace(low=-expect.high, high=None)
        return verdict(mirrored, -high, -low, down, up)
    if low > expect.low:
        return OPEN if down else HELD
    if up:
        return OPEN
    return REFUTED if high < expect.low else NOT_SEEN if high < expect.low + expect.least else OPEN


def _weights(claim: Claim, figures: Sequence[Figure]) -> dict[tuple[str, float | None], float]:
    """Return the weight of every arm and point in the value of a seed.

    A slope is the sum of values times the distances of their points from the mean, over the sum of squares.
    """
    found: dict[tuple[str, float | None], float] = {}
    for arm in claim.arms:
        sign = 1.0 if arm == "of" else -1.0
        points = sorted(
            {figure.point for figure in figures if figure.arm == arm and figure.point is not None}
        )
        if claim.along is None:
            found[arm, None] = sign
            continue
        logs = [math.log(point) for point in points]
        mean = fmean(logs) if logs else 0.0
        squares = sum((x - mean) ** 2 for x in logs)
        if not squares:
            raise UserError(f"{claim.id}: a slope needs two values of {claim.along}, {arm} has {len(points)}")
        found |= {(arm, p): sign * (x - mean) / squares for p, x in zip(points, logs, strict=True)}
    return found


def _scaled(claim: Claim, figure: Figure) -> float:
    assert figure.value is not None
    return math.log(figure.value) if claim.scale == "log" else figure.value
