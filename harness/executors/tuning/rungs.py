"""The search by a surface, in three rungs, for all privacy budgets of a method on a federation together.

1. Every setting, points of a scrambled Sobol sequence, is tried with a seed.
2. The best third at each budget, by the mean of the surface and its deviation, is tried with further seeds. It is
   chosen in steps, between which the surface is fitted anew and proposes settings that were not tried before.
3. The finalists of each budget, by the mean of the surface, are tried with more; the surface that includes them
   decides.

Whatever is tried is tried at all budgets, with the same noise in their scale, so that what wins at a small budget
competes at the larger ones. A range at whose end a chosen setting lies is widened, and the rungs are climbed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.config.ranges import Range
from harness.config.searches import LENGTHS, Family, Finalist, Trial
from harness.config.tune import ADDED, STEPS, WIDENINGS, SurfaceTune
from harness.core import rng
from harness.core.errors import UserError
from harness.core.units import counted
from harness.executors.tuning.attempt import Attempt, Carry
from harness.executors.tuning.surface import Surface
from harness.metrics import better_is_higher

END = 0.1  # of a range: a setting in its first or last tenth lies at an end
POOL = 1000  # points of a Sobol sequence, from which the surface proposes settings
RESAMPLED = 200  # searches, for what else could have been chosen
DOUBLINGS = 8  # of a Sobol sequence, in search of settings that are short enough
RARE = 0.02  # share of resampled searches below which a setting is no finalist

Interval = tuple[float, float]


def climb(families: Sequence[Family], tune: SurfaceTune, carry_out: Carry) -> None:
    """Carry out the searches of families side by side; their trials are then complete, and their best is known."""
    left = [Climb(family, tune) for family in families]
    for widening in range(WIDENINGS + 1):
        for rung in (Climb.first, *[Climb.second] * STEPS, Climb.third):
            carry_out([attempt for search in left for attempt in rung(search)])
        for search in left:
            search.choose()
        wider = [search for search in left if widening < WIDENINGS and search.widen()]
        for search in left:
            if search not in wider:
                search.weigh()
        left = wider


@dataclass
class Climb:
    """A family on its way through the rungs.

    Attributes
    ----------
    family, tune : Family, SurfaceTune
        What is searched, and how.
    ranges : dict
        Setting -> its range, which may be wider by now than the section has it.
    last : Surface or None
        The surface by which it has chosen.
    """

    family: Family
    tune: SurfaceTune
    ranges: dict[str, Range] = field(init=False)
    last: Surface | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        first = self.family.searches[0]
        self.ranges = {path: self.tune.settings[path] for path in first.paths}
        self.seeds = self.tune.seeds_of(first.algorithm)
        self._try(self._points({path: (0.0, 1.0) for path in self.ranges}, self.tune.budget))
        if not self.trials:
            raise UserError(
                f"tune.most_steps: no run in these ranges of {first.algorithm} has at most "
                f"{counted(self.tune.most_steps or 0, 'local step')}"
            )

    @property
    def trials(self) -> list[Trial]:
        """Those of the largest budget; those of the others have the same settings and seeds."""
        return self.family.searches[0].trials

    def first(self) -> Iterator[Attempt]:
        """Yield the runs of the first rung; settings have different seeds, of those of the second."""
        each, several, _ = self.tune.repeats
        for number in range(len(self.trials)):
            yield from self._attempts(number, [self.seeds[(number + k) % several] for k in range(each)])

    def second(self) -> Iterator[Attempt]:
        """Yield the runs of a step of the second rung; none where nothing has a value."""
        if not self._measured():
            return
        surface, untried = self._surface(), self._untried()
        again, new = self.tune.step(len(self.trials), len(untried))
        others = [
            number for number, trial in enumerate(self.trials) if len(trial.seeds) < self.tune.repeats[1]
        ]
        best = _best(self._ranked(surface.mean + surface.deviation), others, again)
        first = len(self.trials)
        if new:
            coordinates = np.array([self._coordinates(Trial(settings)) for settings in untried])
            self._try([untried[number] for number in surface.promising(coordinates, new)])
        for number in (*best, *range(first, len(self.trials))):
            yield from self._attempts(number, self.seeds[: self.tune.repeats[1]])

    def third(self) -> Iterator[Attempt]:
        """Yield the runs of the third rung; none where nothing has a value."""
        if not self._measured():
            return
        means = self._ranked(self._surface().mean)
        for number in _best(means, self._tried(self.tune.repeats[1]), self.tune.finalists):
            yield from self._attempts(number, self.seeds)

    def choose(self) -> None:
        """Choose a setting for every budget that has values, among those tried with all seeds."""
        measured = self._measured()
        if not measured:
            return
        self.last = self._surface()
        best = np.where(self._candidates(), self.last.mean, -np.inf).argmax(0)
        for budget, number in zip(measured, best.tolist(), strict=True):
            self.family.searches[budget].best = number

    def weigh(self) -> None:
        """Find how often resampled searches choose each setting; those that they choose become finalists."""
        measured = self._measured()
        if not measured:
            return
        assert self.last is not None
        candidates = self._candidates()
        draws = rng.numpy_stream(self.tune.seed, "tune", "resampled", self.family.searches[0].algorithm)
        resampled = self.last.choices(candidates, RESAMPLED, draws)
        for place, budget in enumerate(measured):
            search = self.family.searches[budget]
            shares = {
                number: float(np.mean(resampled[:, place] == number))
                for number in candidates[:, place].nonzero()[0].tolist()
            }
            search.finalists = [
                Finalist(number, share)
                for number, share in shares.items()
                if share >= RARE or number == search.best
            ]

    def widen(self) -> bool:
        """Widen ranges if a chosen setting lies at their end, and return whether there are new settings to try."""
        before, bound = len(self.trials), list[tuple[str, Range, bool]]()
        chosen = [search.trials[search.best] for search in self.family.searches if search.best is not None]
        if not chosen:
            return False
        for path, over in list(self.ranges.items()):
            if over.fixed or over.kind == "choice":
                continue
            shares = [over.coordinates(trial.settings[path])[0] for trial in chosen]
            for upward in (False, True):
                wider = self.ranges[path].widened(ADDED, upward=upward)
                at_end = max(shares) > 1 - END if upward else min(shares) < END
                if (
                    at_end
                    and wider != self.ranges[path]
                    and self._allows({**chosen[0].settings, path: wider.bounds[upward]})
                ):
                    self.ranges[path] = wider
                    bound.append((path, over, upward))
        for path, over, upward in bound:  # a range may bind at both ends, for different budgets
            end = self.ranges[path].coordinates(over.bounds[upward])[0]
            slab = (end, 1.0) if upward else (0.0, end)
            within = {name: slab if name == path else (0.0, 1.0) for name in self.ranges}
            self._try(self._points(within, math.ceil(self.tune.budget * ADDED)))
        return len(self.trials) > before

    def _untried(self) -> list[dict[str, Any]]:
        """Return settings from all of the ranges that have not been tried."""
        tried = {str(trial.settings) for trial in self.trials}
        pool = self._points({path: (0.0, 1.0) for path in self.ranges}, POOL)
        return list({str(settings): settings for settings in pool if str(settings) not in tried}.values())

    def _try(self, points: Sequence[dict[str, Any]]) -> None:
        """Add settings that have not been tried."""
        known = {str(trial.settings) for trial in self.trials}
        for settings in points:
            if str(settings) not in known:
                known.add(str(settings))
                for search in self.family.searches:
                    search.trials.append(Trial(settings))

    def _points(self, within: Mapping[str, Interval], number: int) -> list[dict[str, Any]]:
        """Return settings in shares of their ranges."""
        from scipy.stats import qmc  # slow to import

        if not within:
            return [{}]
        draws = rng.numpy_stream(
            self.tune.seed, "tune", "points", self.family.searches[0].algorithm, len(self.trials)
        )
        low, high = np.array(list(within.values())).T
        sequence, size = qmc.Sobol(len(within), rng=draws), number.bit_length()
        points: list[dict[str, Any]] = []
        for more in (0, *range(DOUBLINGS)):  # the sequence goes on by as many points as it has
            for point in low + (high - low) * sequence.random_base2(size + more):
                shares = zip(within, point, strict=True)
                settings = {path: self.ranges[path].at(float(share)) for path, share in shares}
                if self._is_short(settings):
                    points.append(settings)
            if len(points) >= number:
                break
        return points[:number]

    def _attempts(self, number: int, seeds: Sequence[int]) -> Iterator[Attempt]:
        """Yield the runs of a setting with seeds that it has not been tried with, at all budgets."""
        for search in self.family.searches:
            trial = search.trials[number]
            for seed in seeds:
                if seed not in trial.seeds:
                    yield Attempt(search, trial, seed, paired=True)

    def _tried(self, seeds: int) -> list[int]:
        """Return the numbers of the settings that have been tried with as many seeds."""
        return [number for number, trial in enumerate(self.trials) if len(trial.seeds) >= seeds]

    def _candidates(self) -> np.ndarray:
        """Return which settings may be chosen at the budgets at which something has a value, ``(S, B)``."""
        tried = np.zeros(len(self.trials), dtype=bool)
        tried[self._tried(self.tune.repeats[2])] = True
        candidates: np.ndarray = tried[:, None] & self._known()
        return candidates

    def _measured(self) -> list[int]:
        """Return the numbers of the budgets at which something has a value."""
        return [
            number
            for number, search in enumerate(self.family.searches)
            if any(value is not None for trial in search.trials for value in trial.values)
        ]

    def _known(self) -> np.ndarray:
        """Return which settings have a value at the budgets at which something has one, ``(S, B)``."""
        budgets = [self.family.searches[number].trials for number in self._measured()]
        known = [[any(value is not None for value in trial.values) for trial in trials] for trials in budgets]
        return np.array(known).T

    def _ranked(self, scores: np.ndarray) -> np.ndarray:
        """Return scores by which settings without a value at a budget come last there."""
        ranked: np.ndarray = np.where(self._known(), scores, -np.inf)
        return ranked

    def _surface(self) -> Surface:
        """Fit the surface to all values so far; what has none is as bad as the worst."""
        higher = better_is_higher(self.tune.measure)
        columns = []
        for budget in self._measured():
            trials = self.family.searches[budget].trials
            given = [[np.nan if value is None else value for value in trial.values] for trial in trials]
            signed = [np.array(values) if higher else -np.array(values) for values in given]
            worst = min(np.nanmin(values) for values in signed if not np.isnan(values).all())
            columns.append([np.nan_to_num(values, nan=worst) for values in signed])
        budgets = np.array([self.family.budgets[number] for number in self._measured()])
        return Surface(
            np.array([self._coordinates(trial) for trial in self.trials]),
            _spread(budgets),
            [np.stack(rows, axis=1) for rows in zip(*columns, strict=True)],
        )

    def _coordinates(self, trial: Trial) -> list[float]:
        """Return where a setting lies in the ranges that the section names."""
        values = ((self.tune.settings[path], value) for path, value in trial.settings.items())
        return [place for over, value in values for place in over.coordinates(value)]

    def _is_short(self, settings: Mapping[str, Any]) -> bool:
        """Return whether clients take no more local steps in a run than the search allows."""
        if self.tune.most_steps is None:
            return True
        run = self.family.searches[0].run
        steps = settings.get(LENGTHS[0], run.algorithm["local_steps"])
        return bool(settings.get("rounds", run.rounds) * steps <= self.tune.most_steps)

    def _allows(self, settings: Mapping[str, Any]) -> bool:
        """Whether a run may have some settings."""
        try:
            self.family.searches[0].spec(settings, self.seeds[0])
        except UserError:
            return False
        return True


def _best(scores: np.ndarray, among: Sequence[int], most: int) -> list[int]:
    """Return the numbers of the settings with the highest scores at some budget, of which each has as many."""
    chosen: dict[int, None] = {}
    for column in scores.T:
        chosen |= dict.fromkeys(sorted(among, key=lambda number: -float(column[number]))[:most])
    return list(chosen)


def _spread(budgets: np.ndarray) -> np.ndarray:
    """Return coordinates of budgets: their logarithms, from 0 to 1."""
    if len(budgets) < 2:
        return np.zeros(len(budgets))
    logs = np.log(budgets)
    spread: np.ndarray = (logs - logs.min()) / (logs.max() - logs.min())
    return spread
