"""Cells within given bounds, how surely they are, and the bound that excludes the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd
import scipy  # its parts are imported at their first use, as they are slow to import

from harness.config.conditions import Condition
from harness.config.report import known
from harness.metrics import better_is_higher
from harness.report.data.results import Cell, Results
from harness.report.data.statistics import ALPHA


@dataclass(frozen=True)
class RatedCell:
    """A cell and how it stands to the bounds.

    Attributes
    ----------
    cell : Cell
        The cell.
    values : dict
        Name of every bound, and of the measure that ranks -> mean over seeds.
    within : int
        Number of seeds that satisfy all bounds.
    seeds : int
        Number of seeds that ended; one that failed is within no bound.
    """

    cell: Cell
    values: dict[str, Any]
    within: int
    seeds: int

    @property
    def share(self) -> float:
        """Share of the seeds within all bounds."""
        return self.within / self.seeds

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of that share for a further seed (Clopper and Pearson 1934)."""
        k, n = self.within, self.seeds
        low = 0.0 if k == 0 else float(scipy.special.betaincinv(k, n - k + 1, ALPHA / 2))
        high = 1.0 if k == n else float(scipy.special.betaincinv(k + 1, n - k, 1 - ALPHA / 2))
        return low, high


@dataclass(frozen=True)
class Obstacle:
    """A bound that excludes every cell within the others.

    Attributes
    ----------
    condition : Condition
        The bound.
    nearest : RatedCell
        The cell within all other bounds that misses it by the least.
    off : float
        By how much, in units of the bound.
    """

    condition: Condition
    nearest: RatedCell
    off: float


@dataclass(frozen=True)
class Recommendation:
    """Cells within all bounds on average, the surest first; if there are none, what excludes them."""

    cells: tuple[RatedCell, ...]
    obstacles: tuple[Obstacle, ...]
    considered: int


def recommend(
    results: Results, frame: pd.DataFrame, conditions: Sequence[Condition], by: str
) -> Recommendation:
    """Return what satisfies the conditions.

    Parameters
    ----------
    results : Results
        The runs.
    frame : pd.DataFrame
        Their leaderboard.
    conditions : sequence of Condition
        Bounds, all of which must hold.
    by : str
        Measure that ranks what is equally sure.
    """
    columns = {str(key): row for key, row in frame.set_index("cell").to_dict("index").items()}
    sign = -1 if better_is_higher(by) else 1
    candidates = [
        _candidate(cell, columns[cell.key], conditions, by) for cell in results.cells if cell.values(by)
    ]

    def order(rated: RatedCell) -> tuple[float, float, str]:
        return -rated.interval[0], sign * rated.values[by], rated.cell.key

    within_bounds = [cell for cell in candidates if all(c.holds(cell.values[c.name]) for c in conditions)]
    obstacles = [] if within_bounds else _obstacles(candidates, conditions)
    return Recommendation(tuple(sorted(within_bounds, key=order)), tuple(obstacles), len(candidates))


def _candidate(cell: Cell, row: dict[Any, Any], conditions: Sequence[Condition], by: str) -> RatedCell:
    # The epsilon of a cell is that of its worst seed.
    names = {c.name for c in conditions if known(c.name) and not c.name.startswith("epsilon")}
    by_seed = {name: cell.values(name) for name in names}
    values: dict[str, Any] = {
        name: fmean(values.values()) if values else None for name, values in by_seed.items()
    }
    for condition in conditions:
        if condition.name not in by_seed:
            value = row["epsilon_total" if condition.name == "epsilon" else condition.name]
            values[condition.name] = None if pd.isna(value) else value
    values[by] = fmean(cell.values(by).values())
    seeds = [run.seed for run in cell.done]
    within = sum(
        all(c.holds(by_seed[c.name].get(seed) if c.name in by_seed else values[c.name]) for c in conditions)
        for seed in seeds
    )
    failed = sum(record.status == "failed" for record in cell.records)
    return RatedCell(cell, values, within, len(seeds) + failed)


def _obstacles(candidates: Sequence[RatedCell], conditions: Sequence[Condition]) -> list[Obstacle]:
    """Return the bounds each of which alone excludes what is within all others, the nearest miss first."""
    obstacles = []
    for condition in conditions:
        others = [c for c in conditions if c is not condition]
        if condition.upper is None:
            continue
        rest = [cell for cell in candidates if all(c.holds(cell.values[c.name]) for c in others)]
        missed = [(off, cell) for cell in rest if (off := _off(condition, cell)) is not None]
        if missed:
            off, nearest = min(missed, key=lambda entry: (entry[0], entry[1].cell.key))
            obstacles.append(Obstacle(condition, nearest, off))
    return sorted(
        obstacles, key=lambda obstacle: obstacle.off / (abs(float(obstacle.condition.value)) or 1.0)
    )


def _off(condition: Condition, rated: RatedCell) -> float | None:
    """Return by how much a cell misses a bound; None if it has no value."""
    value = rated.values[condition.name]
    if value is None or isinstance(condition.value, str) or isinstance(value, str):
        return None
    return math.inf if math.isinf(value) else abs(float(value) - condition.value)
