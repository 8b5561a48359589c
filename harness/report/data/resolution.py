"""The resolution of a table: what it cannot tell apart.

A suite may run one method under two names (``report.same``), as FedAvg and FedNova where all clients take equally
many steps. Each name is searched and reported by itself, so what their rows differ by is the error of all that was
done. A smaller difference between other rows is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.metrics import better_is_higher
from harness.report.data.comparison import METHOD, RIVALS
from harness.report.data.procedure import Interval, Procedures, searches
from harness.report.data.results import Cell, grouped
from harness.report.data.statistics import paired_statistics
from harness.report.data.tested import seed_pairs

#: Sections in which a row may differ from namesakes and still have their resolution, the nearest first: the task at
#: the row's budget; other models and problems at that budget; all budgets on these data. Last comes the suite.
NEAREST = (tuple(name for name in RIVALS if name not in ("model", "problem")), RIVALS, METHOD)
USUAL = 0.9  # share of a suite's namesakes that differ by no more than its resolution


class Namesakes(NamedTuple):
    """Two rows that are one method under two names.

    Attributes
    ----------
    cells : tuple of Cell
        The two rows.
    difference : float
        Mean of the first less mean of the second.
    interval : tuple of float, or None
        The 95 % interval of the difference, see `difference_interval`.
    """

    cells: tuple[Cell, Cell]
    difference: float
    interval: Interval | None


class Resolution:
    """The difference above which the rows of a table are told apart.

    Parameters
    ----------
    cells : sequence of Cell
        The table.
    measure : str
        What the rows are compared by.

    Attributes
    ----------
    measure : str
        As above.
    namesakes : list of Namesakes
        All pairs with values.
    procedures : Procedures
        Of the cells.
    """

    def __init__(self, cells: Sequence[Cell], measure: str) -> None:
        self.measure = measure
        self.procedures = Procedures(measure)
        self.namesakes = list(_namesakes(cells, self.procedures, measure))
        # The difference itself, not an end of its interval: the interval of a difference that is judged holds the
        # luck of searches and seeds already, as far as resampling shows it. The resolution is for what it does not
        # show. The largest where several pairs are as near, as none of them has a reason to be smaller.
        self._largest: dict[tuple[int, str], float] = {}
        for pair in self.namesakes:
            for place in _places(pair.cells[0]):
                self._largest[place] = max(abs(pair.difference), self._largest.get(place, 0.0))
        self._of_suites = {
            suite: float(np.quantile([abs(pair.difference) for pair in pairs], USUAL))
            for suite, pairs in grouped(self.namesakes, lambda pair: pair.cells[0].suite).items()
        }

    def of(self, *cells: Cell) -> float:
        """Return what such rows must differ by, the largest of the cells; 0 in suites without namesakes."""
        return max(map(self._of, cells))

    def _of(self, cell: Cell) -> float:
        if cell.suite not in self._of_suites:
            return 0.0
        known = (self._largest[place] for place in _places(cell) if place in self._largest)
        return next(known, self._of_suites[cell.suite])

    def of_suite(self, suite: str) -> float:
        """Return the difference that nine in ten namesakes of a suite do not exceed; 0 without any."""
        return self._of_suites.get(suite, 0.0)

    def apart(self, cell: Cell, other: Cell) -> bool:
        """Return whether two cells differ by more than namesakes, and would after other searches."""
        difference = cell.mean(self.measure) - other.mean(self.measure)
        return abs(difference) > self.of(cell, other) and not self._may_be_luck(cell, other)

    def ranks(self, cells: Sequence[Cell], means: Sequence[float]) -> NDArray[np.int64]:
        """Return the ranks of cells by their means: one more than the number of cells that are better and `apart`.

        Cells of a coarser resolution are told from fewer, so a rank is also none behind that of a worse mean.
        """
        sign = 1 if better_is_higher(self.measure) else -1
        values, least = sign * np.array(means), np.array([self._of(cell) for cell in cells])
        with np.errstate(invalid="ignore"):  # of two infinite values neither is better
            better: NDArray[np.bool_] = values[:, None] - values > np.maximum(least[:, None], least)
        for i, j in np.argwhere(better):
            better[i, j] = not self._may_be_luck(cells[i], cells[j])
        ranks = 1 + better.sum(0)
        least_behind: NDArray[np.int64] = np.where(values <= values[:, None], ranks, len(cells)).min(1)
        return least_behind

    def _may_be_luck(self, cell: Cell, other: Cell) -> bool:
        """Whether other searches could have turned a difference around."""
        if not (searches(cell) or searches(other)):
            return False
        interval = self.procedures.difference(cell, other)
        return interval is not None and interval[0] <= 0 <= interval[1]


def difference_interval(cell: Cell, other: Cell, procedures: Procedures, measure: str) -> Interval | None:
    """Return the 95 % interval of the difference of means: over searches and seeds if it is known.

    Else that of the paired difference over seeds; None with too few for either.
    """
    if (interval := procedures.of_means(cell, other)) is not None:
        return interval
    differences = list(seed_pairs(cell, other, measure).differences.values())
    if not differences:
        return None
    (paired,) = paired_statistics([differences])
    return None if paired.low is None or paired.high is None else (paired.low, paired.high)


def _namesakes(cells: Iterable[Cell], procedures: Procedures, measure: str) -> Iterator[Namesakes]:
    """Yield the pairs; of several settings of a name the best counts, as of a baseline."""
    named = (cell for cell in cells if cell.records[0].same and cell.values(measure))
    for members in grouped(named, lambda cell: cell.shared_key(("algorithm",))).values():
        for names in members[0].records[0].same:
            best = [
                max(own, key=lambda cell: cell.score(measure))
                for name in names
                if (own := [cell for cell in members if cell.algorithm == name])
            ]
            for one, other in combinations(best, 2):
                interval = difference_interval(one, other, procedures, measure)
                yield Namesakes((one, other), one.mean(measure) - other.mean(measure), interval)


def _places(cell: Cell) -> Iterator[tuple[int, str]]:
    """Yield where a cell's resolution may be found, the nearest first."""
    for level, sections in enumerate(NEAREST):
        yield level, cell.shared_key(sections)
