"""Evidence for recommendations: the rows of a leaderboard, with the runs behind them where they are here.

Runs are compared seed by seed. A published table only has the intervals of its rows, and their paired differences
to a baseline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from harness.config.report import COSTS
from harness.core.errors import unknown
from harness.metrics import better_is_higher
from harness.report.data.procedure import Procedures
from harness.report.data.results import Cell
from harness.report.data.statistics import paired_statistics, t_half
from harness.report.data.tested import seed_pairs

Row = Mapping[str, Any]

SEARCHES, SEEDS = "searches and seeds", "seeds"  # what an interval is over
#: Sums over all clients.
TOTALS = ("bytes", "bytes_up", "bytes_down", "flops", "oracle_calls", "bytes_to_target")


class Estimate(NamedTuple):
    """A mean with its 95 % interval; `over` says what the interval covers, and is empty where there is none."""

    mean: float
    low: float
    high: float
    over: str


class Loss(NamedTuple):
    """By how much a row is worse than the best, with the 95 % interval; negative where it is better.

    Attributes
    ----------
    mean, low, high : float
        In the unit of the measure.
    over : str
        What the interval covers; empty where there is none. Ends are then infinite, or those of an exact number.
    paired : bool
        Whether it is of differences seed by seed. If not, it is made of the two intervals and errs on the wide
        side, as the runs of a seed have the same test samples.
    """

    mean: float
    low: float
    high: float
    over: str
    paired: bool


class Federation(NamedTuple):
    """The data that rows are comparable on.

    Attributes
    ----------
    suite, dataset, partition : str
        As in the leaderboard; in place of data the problem, if that draws its own.
    clients : int or None
        Number of clients.
    settings : tuple of str
        Further settings of the data and of the partition, as ``data.sensitive=sex``.
    """

    suite: str
    dataset: str
    partition: str
    clients: int | None
    settings: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> Federation:
        """Return the federation of a row."""
        settings = (row["settings"] or "").split()
        sections = ("data.", "partition.") if row["dataset"] else ("problem.",)
        telling = tuple(text for text in settings if text.startswith(sections))
        dataset = row["dataset"] or row["problem"] or ""
        return cls(row["suite"] or "", dataset, row["partition"] or "", row["clients"], telling)


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a table as mappings from column to value, None where a field is empty."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


class Evidence:
    """A leaderboard, and the runs of its rows where they are here.

    Parameters
    ----------
    frame : pd.DataFrame
        The leaderboard.
    by : str
        Measure that ranks.
    cells : iterable of Cell
        The runs.
    clients : float, optional
        Sums over all clients are scaled to so many.
    """

    def __init__(
        self, frame: pd.DataFrame, by: str, cells: Iterable[Cell] = (), clients: float | None = None
    ) -> None:
        self.rows = rows_of(frame)
        self.by, self.clients = by, clients
        self.cells = {cell.key: cell for cell in cells}
        self._procedures = Procedures(by)

    @classmethod
    def of_table(cls, frame: pd.DataFrame, by: str | None = None, clients: float | None = None) -> Evidence:
        """Return the rows of a published table, ranked by `by`, or by the measure that ranked them.

        Raises
        ------
        UserError
            If the table does not have the measure.
        """
        by = by or next(iter(frame["ranked_by"].dropna()), "accuracy")
        measures = [name.removesuffix("_mean") for name in frame.columns if name.endswith("_mean")]
        if f"{by}_mean" not in frame and by not in ("bytes", "epsilon", *frame.columns):
            raise unknown("measure of the table", by, [*measures, *COSTS])
        return cls(frame, by, clients=clients)

    def only(self, federations: Collection[Federation]) -> Evidence:
        """Return the rows of some federations."""
        part = copy(self)
        part.rows = [row for row in self.rows if Federation.of(row) in federations]
        return part

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.rows[0]) if self.rows else []

    def value(self, row: Row, name: str) -> Any:
        """Return a measure, or a column, of a row; None where it does not apply."""
        if name == "bytes":
            parts = self.value(row, "bytes_up"), self.value(row, "bytes_down")
            return None if None in parts else sum(parts)
        name = "epsilon_total" if name == "epsilon" else name
        value = row.get(f"{name}_mean", row.get(name))
        if self.clients and name in TOTALS and value is not None and row["clients"]:
            return value * self.clients / row["clients"]
        return value

    def estimate(self, row: Row) -> Estimate:
        """Return the mean of the measure that ranks, with its interval.

        It is over searches and seeds where the row has that one; else over seeds, an interval of t.
        """
        mean, deviation, seeds = self.value(row, self.by), row.get(f"{self.by}_std"), row["done"] or 0
        tuned = re.search(r"selection_(\w+)", row.get("tuned") or "")
        if row.get("procedure_low") is not None and tuned and tuned[1] == self.by:
            return Estimate(mean, row["procedure_low"], row["procedure_high"], SEARCHES)
        if self.by in (*TOTALS, "epsilon"):  # the same for all seeds, or a mean without a deviation
            return Estimate(mean, mean, mean, "")
        if deviation is None or seeds < 2:
            return Estimate(mean, -math.inf, math.inf, "")
        half = t_half(deviation, seeds)
        return Estimate(mean, mean - half, mean + half, SEEDS)

    def loss(self, best: Row, row: Row) -> Loss:
        """Return by how much a row is worse than the best."""
        cells = self.cells.get(best["cell"]), self.cells.get(row["cell"])
        if cells[0] is None or cells[1] is None:
            more = self._published_difference(best, row)
        else:
            more = self._paired_difference(cells[0], cells[1], best, row)
        if better_is_higher(self.by):
            return more
        return more._replace(mean=-more.mean, low=-more.high, high=-more.low)

    def _paired_difference(self, best: Cell, cell: Cell, *rows: Row) -> Loss:
        differences = list(seed_pairs(best, cell, self.by).differences.values())
        if not differences:
            return self._published_difference(*rows)
        (paired,) = paired_statistics([differences])
        if interval := self._procedures.difference(best, cell):
            return Loss(paired.mean, *interval, SEARCHES, True)
        if interval := paired.interval:
            return Loss(paired.mean, *interval, SEEDS, True)
        return Loss(paired.mean, -math.inf, math.inf, "", True)

    def _published_difference(self, best: Row, row: Row) -> Loss:
        """Return a difference by the columns of two rows.

        If one of them is the baseline of the other, by its paired columns. If not, the squares of the distances of
        the intervals' ends from their means add up (MOVER: Zou and Donner 2008, https://doi.org/10.1002/sim.3095).
        """
        mean = self.value(best, self.by) - self.value(row, self.by)
        for one, baseline, sign in ((best, row, 1), (row, best, -1)):
            if interval := _to_baseline(one, baseline, sign * mean, self.by):
                low, high = sorted(sign * end for end in interval[:2])
                return Loss(mean, low, high, interval[2], True)
        first, second = self.estimate(best), self.estimate(row)
        low = mean - math.hypot(first.mean - first.low, second.high - second.mean)
        high = mean + math.hypot(first.high - first.mean, second.mean - second.low)
        covered = {first.over, second.over}
        over = "" if "" in covered else SEARCHES if covered == {SEARCHES} else SEEDS
        return Loss(mean, low, high, over, False)


def _to_baseline(row: Row, baseline: Row, mean: float, by: str) -> tuple[float, float, str] | None:
    """Return the interval of the paired difference of a row to another, if that is its baseline.

    It is if it has its name and differs by as much; there may be other rows of its name.
    """
    paired = row.get("paired_difference")
    if row.get("baseline") != baseline["algorithm"] or row.get("ranked_by") != by or paired is None:
        return None
    if not math.isclose(paired, mean, rel_tol=1e-3, abs_tol=2e-5):  # published tables may be rounded
        return None
    for columns, over in ((("paired_procedure_low", "paired_procedure_high"), SEARCHES),
                          (("paired_low", "paired_high"), SEEDS)):  # fmt: skip
        low, high = (row.get(name) for name in columns)
        if low is not None and high is not None:
            return low, high, over
    return None
