"""Committed leaderboards, and the names by which people know what is in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.report.data.statistics import t_half
from harness.report.tables.text import in_points
from studies.results.values import Value, count, span

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
NAMES = {"scaffold": "SCAFFOLD", "q_fedavg": "q-FedAvg", "per_fedavg": "Per-FedAvg", "pfedme": "pFedMe"}
UNITS = {
    "adult": "clients",
    "chemistry": "authorities",
    "covid": "clinics",
    "doctor": "persons",
    "flights": "aircraft",
    "heart": "hospitals",
    "insurance": "communes",
    "lending": "states",
    "stops": "neighborhoods",
    "thyroid": "sources",
    "union": "women",
    "vote": "states",
}  #: data -> what its clients are
#: Suite -> folders with rows of it that were made later, and take the place of earlier ones.
COMPLETED_BY = {"natural": ("natural-ditto",)}
#: What two rows of a suite have in common if one takes the place of the other.
PLACE = ["dataset", "clients", "model", "algorithm", "dp_unit", "epsilon_asked"]


def method_name(algorithm: str) -> str:
    """Return the name by which people know an algorithm."""
    return NAMES.get(algorithm, ALGORITHMS[algorithm].__name__)


class Row:
    """A row of a leaderboard."""

    def __init__(self, folder: str, fields: Mapping[Hashable, Any]) -> None:
        self.folder = folder
        self.fields = {name: None if pd.isna(value) else value for name, value in fields.items()}
        self.id = f"{folder}:{self['cell']}"

    def __getitem__(self, column: str) -> Any:
        """Return a field, or by its path a setting, as ``compression.beta``; None where it is empty or missing."""
        if "." not in column:
            return self.fields.get(column)
        value: Any = self.spec
        for name in column.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The settings of its runs; empty in tables made before rows held them."""
        settings: dict[str, Any] = json.loads(self["spec"] or "{}")
        return settings

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Return whether its fields have these values; None is an empty field, a tuple any of several."""
        return all(
            self[name] in value if isinstance(value, tuple) else self[name] == value
            for name, value in settings.items()
        )

    def mean(self, measure: str) -> Value:
        """Return the mean of a measure over seeds.

        Its interval covers the search where the table has that of the procedure, and test samples where it has that
        of a gap between groups; else it is that of t over seeds.
        """
        mean, low, high = self[f"{measure}_mean"], self[f"{measure}_low"], self[f"{measure}_high"]
        if mean is None:
            raise UserError(f"{self.id} has no {measure}")
        if measure == self["ranked_by"]:
            low, high = self["procedure_low"], self["procedure_high"]
        if low is None or high is None:
            spread, seeds = self[f"{measure}_std"], self["seeds"]
            if spread is None or seeds < 2:
                return Value(mean, rows=(self.id,))
            half, most = t_half(spread, seeds), 1.0 if in_points(measure) else math.inf
            low, high = max(mean - half, 0.0), min(mean + half, most)
        return Value(mean, low, high, (self.id,))

    def paired(self) -> Value | None:
        """Return the difference to the baseline in the same setting, by the measure that ranks; None without.

        Its interval covers both searches where the table has that of the procedure.
        """
        if self["paired_difference"] is None:
            return None
        kind = "paired_procedure" if self["paired_procedure_low"] is not None else "paired"
        ends = self[f"{kind}_low"], self[f"{kind}_high"]
        return Value(self["paired_difference"], *ends, (self.id,))

    def of_privacy(self, free: Row, measure: str) -> Value:
        """Return the change of a measure from a row without privacy.

        Where the table has it, it is paired, and its interval covers both searches.
        """
        return self._change("privacy_change", free, measure)

    def of_compression(self, whole: Row, measure: str) -> Value:
        """Return the change of a measure from a row without compression, as `of_privacy` does."""
        return self._change("compression_change", whole, measure)

    def _change(self, column: str, plain: Row, measure: str) -> Value:
        if self[column] is None or measure != self["ranked_by"]:
            return self.mean(measure) - plain.mean(measure)
        return Value(self[column], self[f"{column}_low"], self[f"{column}_high"], (self.id, plain.id))

    @property
    def bytes_a_round(self) -> float:
        """The bytes of a round, both ways."""
        return float((self["bytes_up"] + self["bytes_down"]) / self["rounds"])

    @property
    def name(self) -> str:
        """The name of its method; with the network where that is not the usual linear model."""
        name = method_name(self["algorithm"])
        return f"{name}, network" if self["model"] == "mlp" else name


def newest(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of some tables without those that a later table has anew."""
    whole = pd.concat(frames, ignore_index=True)
    if len(frames) == 1:
        return whole
    tables = pd.Series([place for place, frame in enumerate(frames) for _ in frame.index])
    last = tables.groupby([whole[name] for name in PLACE], dropna=False).transform("max")
    return whole[tables == last].reset_index(drop=True)


class Board:
    """The leaderboard of a suite.

    Parameters
    ----------
    folder : Path
        Its folder, named after the suite.
    completed_by : sequence of Path
        Folders with rows of the suite that take the place of earlier ones, or come beside them.
    """

    def __init__(self, folder: Path, completed_by: Sequence[Path] = ()) -> None:
        self.suite = folder.name
        self.frames = {
            place.name: pd.read_csv(place / "leaderboard.csv", low_memory=False)
            for place in (folder, *completed_by)
        }

    @cached_property
    def all(self) -> list[Row]:
        """All rows with finished runs, in the order of the tables."""
        rows = newest([frame.copy().assign(folder=folder) for folder, frame in self.frames.items()])
        made = (Row(fields["folder"], fields) for fields in rows.to_dict("records"))
        return [row for row in made if row["done"]]

    def rows(self, **settings: Any) -> list[Row]:
        """Return the rows that have these settings, as `Row.has` says."""
        return [row for row in self.all if row.has(settings)]

    def row(self, **settings: Any) -> Row:
        """Return the only row whose fields have these values."""
        found = self.rows(**settings)
        if len(found) != 1:
            raise UserError(f"{self.suite}: {len(found)} rows have {settings}; 1 is needed")
        return found[0]

    def values(self, column: str, **settings: Any) -> list[Any]:
        """Return the values of a column in these rows, each once, in ascending order."""
        return sorted({row[column] for row in self.rows(**settings)} - {None})

    def facts(self) -> Iterator[tuple[str, Value]]:
        """Yield what a page may say of the table: numbers of rows, runs, seeds and settings tried."""
        yield f"{self.suite} rows", count(len(self.all))
        yield f"{self.suite} runs", count(sum(row["done"] for row in self.all))
        yield f"{self.suite} seeds", span([row["seeds"] for row in self.all])
        tuned = (re.search(r"(?:best of|over) (\d+)", row["tuned"]) for row in self.all if row["tuned"])
        tried = [int(match[1]) for match in tuned if match]
        if tried:
            yield f"{self.suite} tried", span(tried)

    @property
    def repeat(self) -> str:
        """The commands that make its rows again, in Markdown, a line for each of its folders."""
        return "\n".join(self._repeat(folder, frame) for folder, frame in self.frames.items())

    def _repeat(self, folder: str, frame: pd.DataFrame) -> str:
        path = f"results/reference/{folder}/leaderboard.csv"
        link = f"[{folder}](../../{path})"
        first = next(row for row in self.all if row.folder == folder)
        if "spec" in frame.columns:
            example = f"`python -m harness run --cell {path}:{first['cell']} --out again`"
            return (
                f"- {link}: {example} makes a row again; the column `rows` of figures.csv has the id of each."
            )
        whole = f"`python -m harness suite {self.suite} --profile {first['profile']} --out DIR`"
        return (
            f"- {link}: {whole} carries out the suite as it is today; these rows were made before rows held their "
            "settings."
        )


class Boards:
    """The leaderboards below a folder, each read once."""

    def __init__(self, reference: Path = REFERENCE) -> None:
        self.reference = reference
        self._read: dict[str, Board] = {}

    def __getitem__(self, suite: str) -> Board:
        """Return the leaderboard of a suite."""
        if suite not in self._read:
            further = [self.reference / name for name in COMPLETED_BY.get(suite, ())]
            self._read[suite] = Board(self.reference / suite, further)
        return self._read[suite]
