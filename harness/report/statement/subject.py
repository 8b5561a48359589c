"""The runs that a statement is about, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from harness.core.units import counted
from harness.report.data.clients import client_rows
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results
from harness.report.tables.costs import method_table
from harness.report.tables.pivot import Grid
from harness.report.tables.protection import Comparison

MISSED = "sensitivity_95"


@dataclass(frozen=True)
class Subject:
    """Private cells of a method on one data set, and the cell without privacy.

    Attributes
    ----------
    comparison : Comparison
        They themselves; all that are protected are private.
    results : Results
        All runs of the report.
    frame : pd.DataFrame
        The rows of the leaderboard about these data, also of other partitions.
    resolution : Resolution
        Tells two rows apart.
    apart : str
        How the guarantee differs from those of other statements on these data; empty if there are none.
    more : int
        How many budgets are in the report and not here.
    """

    comparison: Comparison
    results: Results
    frame: pd.DataFrame
    resolution: Resolution
    apart: str = ""
    more: int = 0

    @property
    def plain(self) -> Cell:
        """The cell without privacy."""
        return self.comparison.plain

    @property
    def private(self) -> tuple[Cell, ...]:
        """The cells with privacy, the largest budget first."""
        return self.comparison.protected

    @cached_property
    def claims(self) -> list[Mapping[str, Any]]:
        """Their privacy statements."""
        return [claim for cell in self.private if (claim := cell.privacy()) is not None]

    @cached_property
    def budgets(self) -> list[str]:
        """Their budgets in words."""
        return [text.replace("ε = ", "ε ") for text in self.comparison.texts]

    @cached_property
    def methods(self) -> Grid | None:
        """The table of all methods; None for a single one."""
        return method_table(self.comparison, self.results, self.resolution)

    @property
    def measure(self) -> str:
        """The measure in which costs are told."""
        return self.comparison.measure

    @cached_property
    def site(self) -> str:
        """Word for a client: the name of its column, if that is a word."""
        return _word(self._data.get("client"), "site")

    @cached_property
    def unit(self) -> str:
        """Word for the protected unit."""
        unit = str(self.claims[0].get("unit"))
        user = self._data.get("user") or self.private[0].spec["privacy"].get("user")
        words = {"client": self.site, "user": _word(user, "person")}
        return "person" if "protects" in self.claims[0] else words.get(unit, unit)

    @cached_property
    def cases(self) -> str:
        """Words for the positive class."""
        positive = self.plain.records[0].tested.get("positive")
        return f"cases ({positive})" if positive else "cases"

    @property
    def task(self) -> str:
        """The sentence that says what is predicted, by which model, and from whose records."""
        record = self.plain.records[0]
        held = {
            name: [int(n) for n in str(row).split()] for name, row in record.held.get("classes", {}).items()
        }
        column = f" ({self._data['label']})" if self._data.get("label") else ""
        positive = record.tested.get("positive")
        others = [name for name in held if name != positive]
        aim = (
            f"to tell {positive} from {joined(others)}{column}"
            if positive
            else f"to predict {joined(held)}{column}"
        )
        sites, records = max(map(len, held.values()), default=0), sum(map(sum, held.values()))
        model = str(self.plain.spec["model"]["name"])
        if not records:
            return ""
        return f"A model ({model}) learns {aim}, from {counted(records, 'record')} at {counted(sites, self.site)}."

    @property
    def sensitive(self) -> str | None:
        """The column of groups to be treated alike."""
        return self._data.get("sensitive")

    @property
    def _data(self) -> Mapping[str, Any]:
        return self.plain.spec.get("data") or {}

    def has(self, measure: str) -> bool:
        """Return whether all cells have a measure."""
        return all(cell.values(measure) for cell in (self.plain, *self.private))

    def by_budget(self, values: Iterable[str]) -> str:
        """Return a text for each budget as ``0.9 (ε 8) and 3.1 (ε 1)``."""
        return joined(f"{value} ({budget})" for value, budget in zip(values, self.budgets, strict=True))


def by_seed(cell: Cell, measure: str) -> pd.DataFrame:
    """Return a measure of clients (rows) by seeds, NaN where it does not apply; empty if clients have no names."""
    table = client_rows(cell.done)
    return table.pivot(index="client", columns="seed", values=measure).astype("float64")


def client_means(table: pd.DataFrame) -> dict[str, float]:
    """Return the mean over seeds of each client that has one."""
    means = table.mean(axis=1).to_dict()
    return {str(client): mean for client, mean in means.items() if not math.isnan(mean)}


def joined(texts: Iterable[str]) -> str:
    """Return texts as ``a, b and c``, each once."""
    *most, last = dict.fromkeys(texts) or ["not recorded"]
    return f"{', '.join(most)} and {last}" if most else last


def _word(column: object, otherwise: str) -> str:
    return column.lower() if isinstance(column, str) and column.isalpha() else otherwise
