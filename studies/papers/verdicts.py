"""Verdicts on paper claims: the value of every seed, and what these values decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from harness.core.errors import UserError
from harness.report import verdict as verdicts
from harness.report.data.procedure import Interval, WeightedFinalist, draw_means, interval_of
from harness.report.data.statistics import FEWEST, RESAMPLES
from harness.report.verdict import HELD, OPEN, Decision
from studies.papers.claims import PaperClaim
from studies.papers.observations import Observation


@dataclass(frozen=True)
class Finding:
    """A verdict on a paper claim, and the runs that it rests on.

    Attributes
    ----------
    claim : PaperClaim
        The claim.
    decision : Decision
        Interval and verdict, in units of the value; on a log scale of its logarithm.
    failed : int
        Number of seeds without a value, because a run of theirs has none.
    unpaired : int
        Number of seeds that not all sides of the claim have.
    bounds : int
        Number of runs that did not reach the target.
    """

    claim: PaperClaim
    decision: Decision
    failed: int
    unpaired: int
    bounds: int

    @property
    def size(self) -> str:
        """Whether an effect that is held may be too small to matter, in words; else empty.

        Held against a margin, such as ``above: -0.01``, is not an effect.
        """
        expect, decision = self.claim.expect, self.decision
        if decision.verdict != HELD or expect.within or decision.low is None or decision.high is None:
            return ""
        if expect.low is not None:
            near, far, margin = decision.low - expect.low, decision.high - expect.low, expect.low < 0
        else:
            assert expect.high is not None
            near, far, margin = expect.high - decision.high, expect.high - decision.low, expect.high > 0
        if margin or near >= expect.least:
            return ""
        sure = far < expect.least and not self.bounds  # a bound hides a larger effect
        return f"{'is' if sure else 'may be'} smaller than what would matter"


def judge(claim: PaperClaim, observations: Sequence[Observation]) -> Finding:
    """Return the statistics of a claim's observations, and the verdict.

    Of tuned suites the interval is over searches and seeds where it is known, and no verdict of a difference rests
    on less than rows of one method under two names differ by.

    Seeds that not all sides have, or that have no value, leave a claim open, and so does a comparison that is known
    to be confounded; see `harness.report.verdict.judge` for what else does.

    Raises
    ------
    UserError
        If the sides of the claim have no seed in common.
    """
    evidence = [observation for observation in observations if observation.claim == claim.id]
    weights = _weights(claim, evidence)
    seeds: dict[str, dict[tuple[str, float | None], Observation]] = {}
    for observation in evidence:
        seeds.setdefault(observation.repetition, {})[observation.arm, observation.point] = observation
    complete = [by_arm for by_arm in seeds.values() if by_arm.keys() == weights.keys()]
    if not complete:
        raise UserError(f"{claim.id}: its sides have no {claim.over} in common")
    counted = [
        by_arm for by_arm in complete if all(observation.value is not None for observation in by_arm.values())
    ]
    values = [
        sum(weights[key] * _on_scale(claim, observation.value) for key, observation in by_arm.items())
        for by_arm in counted
    ]
    bounded = [weights[key] for by_arm in counted for key, observation in by_arm.items() if observation.bound]
    decision = verdicts.judge(
        values,
        claim.expect,
        differences="than" in claim.arms,
        up=any(weight > 0 for weight in bounded),
        down=any(weight < 0 for weight in bounded),
        interval=_over_searches(claim, counted, weights),
        resolution=max((each.resolution or 0.0 for each in evidence), default=0.0)
        if "than" in claim.arms
        else 0.0,
    )
    failed, unpaired = len(complete) - len(counted), len(seeds) - len(complete)
    if failed or unpaired or claim.confounded:
        decision = decision._replace(verdict=OPEN)
    bounds = sum(observation.bound for by_arm in complete for observation in by_arm.values())
    return Finding(claim, decision, failed, unpaired, bounds)


def _over_searches(
    claim: PaperClaim,
    seeds: Sequence[Mapping[tuple[str, float | None], Observation]],
    weights: Mapping[tuple[str, float | None], float],
) -> Interval | None:
    """Return the interval of the value over searches and seeds; None where nothing else could have been chosen."""
    if len(seeds) < FEWEST or not any(each.others for by_arm in seeds for each in by_arm.values()):
        return None
    numbers, drawn = range(len(seeds)), np.zeros(RESAMPLES)
    for key, weight in weights.items():
        by_seed = [by_arm[key].choices for by_arm in seeds]
        if len({len(choices) for choices in by_seed}) > 1:  # a run of another choice has no value
            return None
        choices = [
            WeightedFinalist(share, {n: _on_scale(claim, by_seed[n][place][1]) for n in numbers})
            for place, (share, _) in enumerate(by_seed[0])
        ]
        drawn = drawn + weight * draw_means(choices, numbers, f"{claim.id} {key}")
    return interval_of(drawn, len(seeds))


def _weights(claim: PaperClaim, observations: Sequence[Observation]) -> dict[tuple[str, float | None], float]:
    """Return the weight of every arm and point in the value of a seed.

    A slope is the sum of values times the distances of their points from the mean, over the sum of squares.
    """
    weights: dict[tuple[str, float | None], float] = {}
    for arm in claim.arms:
        sign = 1.0 if arm == "of" else -1.0
        if claim.along is None:
            weights[arm, None] = sign
            continue
        points = sorted(
            {
                observation.point
                for observation in observations
                if observation.arm == arm and observation.point is not None
            }
        )
        logs = [math.log(point) for point in points]
        mean = fmean(logs) if logs else 0.0
        squares = sum((x - mean) ** 2 for x in logs)
        if not squares:
            raise UserError(f"{claim.id}: a slope needs two values of {claim.along}, {arm} has {len(points)}")
        weights |= {(arm, p): sign * (x - mean) / squares for p, x in zip(points, logs, strict=True)}
    return weights


def _on_scale(claim: PaperClaim, value: float | None) -> float:
    assert value is not None
    return math.log(value) if claim.scale == "log" else value
