"""Intervals of a whole procedure: the search for settings, and the seeds of what it has chosen.

A search might have chosen otherwise. How often resampled searches choose each of their finalists is on record, and
so are reported runs of all finalists. A draw takes a finalist by its share and resamples the seeds of its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from harness.core import rng
from harness.report.data.results import Cell
from harness.report.data.statistics import FEWEST, RESAMPLES, Array, expanded_reach, resamples

Values = Mapping[int, float]  # by seed
Interval = tuple[float, float]


@dataclass(frozen=True)
class WeightedFinalist:
    """A setting that a search chooses with some probability.

    Attributes
    ----------
    share : float
        The share of resampled searches that choose it.
    values : Mapping
        Seed of the reported runs -> value.
    """

    share: float
    values: Values


def finalists_of(cell: Cell, measure: str) -> list[WeightedFinalist]:
    """Return what the search of a cell could have chosen; of a cell without one the cell alone.

    Empty if the cell, or a finalist, has no reported runs with the measure, as where cells share a search.
    """
    reported = cell.values(measure)
    search = cell.records[0].search
    finalists = []
    for recorded in search.get("finalists") or [{"trial": None, "share": 1.0}]:
        if recorded["trial"] in (None, search.get("chosen")):
            values: Values = reported
        else:
            values = {
                int(seed): metrics[measure]
                for seed, metrics in recorded["metrics"].items()
                if measure in metrics
            }
        if not values:
            return []
        finalists.append(WeightedFinalist(recorded["share"], values))
    return finalists


class Procedures:
    """Means of the cells of a table, drawn over searches and seeds; the draws of a cell are made once.

    Two cells choose independently. Seeds that both have are resampled together, as their runs are paired.

    Parameters
    ----------
    measure : str
        What is averaged.
    """

    def __init__(self, measure: str) -> None:
        self._measure = measure
        self._finalists: dict[str, list[WeightedFinalist]] = {}
        self._draws: dict[tuple[str, tuple[int, ...]], Array] = {}

    def seeds(self, *cells: Cell) -> tuple[int, ...]:
        """Return the seeds that all settings have that the searches of the cells could have chosen."""
        finalists = [self._finalists_of(cell) for cell in cells]
        if not all(finalists):
            return ()
        return tuple(
            sorted(set.intersection(*(set(finalist.values) for own in finalists for finalist in own)))
        )

    def draws(self, cell: Cell, seeds: tuple[int, ...]) -> Array:
        """Return means of resampled seeds of settings drawn by their shares, ``(RESAMPLES,)``."""
        key = cell.key, seeds
        if key not in self._draws:
            self._draws[key] = draw_means(self._finalists_of(cell), seeds, cell.key)
        return self._draws[key]

    def mean(self, cell: Cell) -> Interval | None:
        """Return the interval of the mean of a cell; None without a search with finalists, or with few seeds."""
        seeds = self.seeds(cell) if searches(cell) else ()
        return interval_of(self.draws(cell, seeds), len(seeds)) if len(seeds) >= FEWEST else None

    def of_means(self, cell: Cell, other: Cell) -> Interval | None:
        """Return the interval of the difference of two cells' means, each over all of its seeds.

        Seeds are resampled together; a setting has the mean of those drawn that it has. None as in `difference`.
        """
        own, others = self._finalists_of(cell), self._finalists_of(other)
        if not own or not others or not (searches(cell) or searches(other)):
            return None
        finalists = [*own, *others]
        fewest = min(len(finalist.values) for finalist in finalists)
        if fewest < FEWEST:
            return None
        seeds = tuple(sorted({seed for finalist in finalists for seed in finalist.values}))
        return interval_of(self.draws(cell, seeds) - self.draws(other, seeds), fewest)

    def difference(self, cell: Cell, other: Cell) -> Interval | None:
        """Return the 95 % interval of the paired difference of two cells.

        None if neither has a search with finalists, or values are missing.
        """
        seeds = self.seeds(cell, other) if searches(cell) or searches(other) else ()
        if len(seeds) < FEWEST:
            return None
        return interval_of(self.draws(cell, seeds) - self.draws(other, seeds), len(seeds))

    def _finalists_of(self, cell: Cell) -> list[WeightedFinalist]:
        if cell.key not in self._finalists:
            self._finalists[cell.key] = finalists_of(cell, self._measure)
        return self._finalists[cell.key]


def searches(cell: Cell) -> bool:
    """Return whether it is on record what else the search of a cell could have chosen."""
    return bool(cell.records[0].search.get("finalists"))


def procedure_interval(
    finalists: Sequence[WeightedFinalist], baseline: Sequence[WeightedFinalist] = (), *, key: str = ""
) -> Interval | None:
    """Return the 95 % interval of a mean over searches and seeds; with a baseline, of the paired difference.

    The bootstrap's percentiles, expanded for few seeds as an interval of t is (Hesterberg 2015,
    https://doi.org/10.1080/00031305.2015.1089789). Only seeds that all settings have count.

    Parameters
    ----------
    finalists : sequence of WeightedFinalist
        What the search could have chosen.
    baseline : sequence of WeightedFinalist, optional
        The same of another row.
    key : str
        Of the draws; rows with different keys choose independently.

    Returns
    -------
    tuple of float or None
        The ends; None with fewer seeds than `FEWEST`.
    """
    known = [set(finalist.values) for finalist in (*finalists, *baseline)]
    seeds = sorted(set.intersection(*known)) if known else []
    if len(seeds) < FEWEST:
        return None
    draws = draw_means(finalists, seeds, f"{key} row")
    if baseline:
        draws = draws - draw_means(baseline, seeds, f"{key} baseline")
    return interval_of(draws, len(seeds))


def interval_of(draws: Array, seeds: int) -> Interval:
    """Return the ends of the 95 % interval of draws that resample some seeds."""
    reach = expanded_reach(seeds)
    low, high = np.quantile(draws, scipy.special.ndtr([-reach, reach]))
    return float(low), float(high)


def draw_means(finalists: Sequence[WeightedFinalist], seeds: Sequence[int], key: str) -> Array:
    """Return means of resampled seeds of settings drawn by their shares, ``(RESAMPLES,)``.

    Of a setting that has not all of the seeds, those count that it has; all of them where none is drawn.
    """
    shares = np.array([finalist.share for finalist in finalists])
    which = rng.numpy_stream(0, "procedure", key).choice(len(finalists), RESAMPLES, p=shares / shares.sum())
    values = np.array([[finalist.values.get(seed, np.nan) for seed in seeds] for finalist in finalists])
    known = np.isfinite(values)
    weights = resamples(len(seeds))
    if known.all():
        means: Array = (weights * values[which]).sum(-1)
        return means
    drawn = weights * known[which]
    drawn = np.where(drawn.any(-1, keepdims=True), drawn, known[which])
    means = (drawn * np.nan_to_num(values)[which]).sum(-1) / drawn.sum(-1)
    return means
