"""Estimates of what a tuned suite will run, before it is known what its searches find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from harness.config.ranges import WHOLE, Range
from harness.config.run import RunSpec
from harness.config.searches import Search, families, searches, with_settings
from harness.config.sweep import Combination
from harness.config.tune import ADDED, MOST_SETTINGS, STEPS, WIDENINGS, SurfaceTune, TuneSpec
from harness.core.errors import UserError

ROUNDS, LOCAL_STEPS = "rounds", "algorithm.local_steps"
SHARES = 60  # of a range, of which a mean is taken
#: Why there may be further runs, as they follow each other.
OTHER_BUDGETS = "of settings that another budget prefers"
WIDENED = "in widened ranges"
FINALISTS = "of other finalists"
FURTHER = "with further seeds"


class Further(NamedTuple):
    """Runs that may be made besides.

    Attributes
    ----------
    why : str
        What for.
    cell : Combination
        One of them.
    most : int
        How many there are at most.
    """

    why: str
    cell: Combination
    most: int


class Estimate(NamedTuple):
    """The runs of a suite; settings that are tuned have the mean of their ranges.

    Attributes
    ----------
    reported : list of Combination
        Those of the suite, in their order.
    searched : list of Combination
        One for each run that the searches make at least.
    further : list of Further
        What may come on top.
    """

    reported: list[Combination]
    searched: list[Combination]
    further: list[Further]


def estimate(cells: Sequence[Combination], tune: TuneSpec | None) -> Estimate:
    """Return the runs that a suite and its searches will make.

    Raises
    ------
    UserError
        As `searches`.
    """
    if tune is None:
        return Estimate(list(cells), [], [])
    found = searches(cells, tune)
    means = {cell: _at_means(cell, search, tune) for search in found for cell in search.cells}
    result = Estimate([means.get(cell, cell) for cell in cells], [], [])
    if not isinstance(tune, SurfaceTune):
        for search in found:
            result.searched.extend([means[search.cells[0]]] * sum(tune.sizes()))
        return result
    for family in families(found):
        least, most, widened = _rungs(tune, family.searches[0].paths, len(family.searches))
        for search in family.searches:
            cell = means[search.cells[0]]
            result.searched.extend([cell] * least.runs(tune))
            others, seeds, further = most.runs(tune) - least.runs(tune), *_seeds(search, tune)
            finalists = (widened.finalists - 1) * seeds
            for why, number in (
                (OTHER_BUDGETS, others),
                (WIDENED, widened.runs(tune) - most.runs(tune)),
                (FINALISTS, finalists),
                (FURTHER, further),
            ):
                if number:
                    result.further.append(Further(why, cell, number))
    return result


class _Rungs(NamedTuple):
    """Numbers of settings that a search tries on each rung, at each budget."""

    settings: int
    better: int
    finalists: int

    def runs(self, tune: SurfaceTune) -> int:
        """Return how many runs they are."""
        first, second, third = tune.repeats
        return self.settings * first + self.better * (second - first) + self.finalists * (third - second)


def _rungs(tune: SurfaceTune, paths: Sequence[str], budgets: int) -> tuple[_Rungs, _Rungs, _Rungs]:
    """Return the rungs of a search: at least, if budgets choose differently, and if all ranges are widened."""
    ranges = [tune.settings[path] for path in paths]
    values = math.prod(map(_values, ranges))
    settings = min(tune.budget, values)
    least = _second(tune, _Rungs(settings, 0, 0), 1, values)
    most = _second(tune, _Rungs(settings, 0, 0), budgets, values)
    widened, ends = most, 2 * sum(over.kind != "choice" and not over.fixed for over in ranges)
    for _ in range(WIDENINGS if ends else 0):
        added = ends * math.ceil(tune.budget * ADDED)
        widened = _second(tune, widened._replace(settings=widened.settings + added), budgets, values)
    return least, most, widened


def _second(tune: SurfaceTune, rungs: _Rungs, budgets: int, values: int) -> _Rungs:
    """Return the rungs after the second and the third, if some budgets choose differently."""
    settings, better, finalists = rungs
    for _ in range(STEPS):
        again, new = tune.step(settings, max(0, values - settings))
        again = min(budgets * again, settings - better)
        new = min(budgets * new, max(0, values - settings))
        settings, better = settings + new, better + again + new
    return _Rungs(settings, better, min(finalists + budgets * tune.finalists, better))


def _values(over: Range) -> int:
    """Return how many values a range has; of real numbers more than any search tries."""
    if over.kind == "choice":
        return len(over.bounds)
    low, high = over.bounds
    return high - low + 1 if over.kind in WHOLE else 1 if low == high else MOST_SETTINGS


def _seeds(search: Search, tune: SurfaceTune) -> tuple[int, int]:
    """Return the seeds at which finalists are reported, and how many further runs are reported, both at most.

    Finalists of cells that share a search are not reported.
    """
    counts: dict[str, int] = {}
    for cell in search.cells:
        assert cell.spec is not None
        rest = cell.spec.model_copy(update={"seed": 0}).model_dump_json()
        counts[rest] = counts.get(rest, 0) + 1
    most = 0 if tune.standard_error is None else tune.most_seeds
    further = sum(max(most - count, 0) for count in counts.values())
    return max(most, *counts.values()) if len(counts) == 1 else 0, further


def _at_means(cell: Combination, search: Search, tune: TuneSpec) -> Combination:
    """Return a combination at the means of its ranges; unchanged if these do not go together."""
    assert cell.spec is not None
    try:
        settings = {path: tune.settings[path].mean() for path in search.paths}
        if isinstance(tune, SurfaceTune) and tune.most_steps is not None and ROUNDS in settings:
            settings[ROUNDS] = _rounds(cell.spec, settings, tune, tune.most_steps)
        return replace(cell, spec=with_settings(cell.spec, settings))
    except UserError:
        return cell


def _rounds(spec: RunSpec, settings: Mapping[str, Any], tune: SurfaceTune, most: int) -> int:
    """Return the rounds of a run of mean length, of the runs that a search may try (`SurfaceTune.most_steps`)."""
    steps = spec.algorithm.get("local_steps", 1)
    rounds, of_round = (
        [tune.settings[path].at((number + 0.5) / SHARES) for number in range(SHARES)]
        if path in settings
        else [fixed]
        for path, fixed in ((ROUNDS, spec.rounds), (LOCAL_STEPS, steps))
    )
    lengths = [one * other for one in rounds for other in of_round if one * other <= most]
    mean = settings.get(LOCAL_STEPS, steps)
    return max(1, round(fmean(lengths) / mean)) if lengths else int(settings[ROUNDS])
