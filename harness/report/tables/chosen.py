"""The settings that searches chose: a row of values, and a file to run them with, for every cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.config.recorded import essential
from harness.core.units import counted
from harness.report.data.procedure import Interval, finalists_of, procedure_interval
from harness.report.data.results import Cell, Results
from harness.report.data.statistics import paired_statistics
from harness.report.data.tuning import Searched, searched
from harness.report.tables.pivot import value_text
from harness.report.tables.text import possible, words
from harness.report.tables.tuning import chosen_text, names_of
from harness.storage.files import safe_name, write_text

OVER_SEEDS, OVER_SEARCHES = "95 % over seeds", "over searches too"


@dataclass(frozen=True)
class TunedCell:
    """A cell with the settings that a search chose.

    Attributes
    ----------
    name : str
        Its algorithm, and what tells it from other cells.
    search : Searched
        The search.
    """

    name: str
    search: Searched

    @property
    def cell(self) -> Cell:
        """The cell."""
        return self.search.cells[0]

    def row(self) -> dict[str, str]:
        """Return what was chosen, the mean over reported seeds, and its two intervals."""
        metric = self.search.tune["metric"]
        values = self.cell.values(metric)
        row = {"": self.name, "chosen": chosen_text(self.search)}
        if not values:
            return row
        (sample,) = paired_statistics([list(values.values())])
        over_searches = procedure_interval(finalists_of(self.cell, metric), key=self.cell.key)
        return row | {
            words(metric): value_text(sample.mean, metric),
            OVER_SEEDS: _interval(sample.interval, metric),
            OVER_SEARCHES: _interval(over_searches, metric),
            "seeds": str(len(values)),
        }

    def run_file(self) -> str | None:
        """Return the run file of the first reported seed; None if nothing was chosen."""
        record = self.cell.records[0]
        if record.id is None or self.search.chosen is None:
            return None
        tune, row = self.search.tune, self.row()
        heading = [f"{name} {text}" for name, text in row.items() if name not in ("", "chosen", "seeds")]
        number = counted(len(self.search.found["trials"]), "setting")
        comment = [
            f"{self.name}: the best of {number} by {words(tune['metric'])} on the selection samples.",
            f"Over {row.get('seeds', '0')} seeds: {', '.join(heading)}.",
            "partition.selection holds these samples out of training and test; without it, figures differ.",
        ]
        spec = yaml.safe_dump(essential(record.spec), sort_keys=False, allow_unicode=True)
        return "".join(f"# {line}\n" for line in comment) + spec


def tuned_cells(results: Results) -> list[TunedCell]:
    """Return every cell of tuned suites with what its search chose."""
    each = [Searched((cell,), search.found) for search in searched(results) for cell in search.cells]
    return [TunedCell(name, search) for name, search in zip(names_of(each), each, strict=True)]


def write_run_files(cells: Iterable[TunedCell], folder: Path) -> dict[str, Path]:
    """Write a run file for each cell that has chosen, and return them by the names of the cells."""
    files = {}
    for cell in cells:
        if (content := cell.run_file()) is not None:
            name = safe_name(cell.name.replace("ε = ", "epsilon-").replace(", ", " "))
            files[cell.name] = folder / f"chosen-{name}.yaml"
            write_text(files[cell.name], content)
    return files


def _interval(ends: Interval | None, metric: str) -> str:
    """Return an interval in the format of a metric; empty where it is not known."""
    return f"[{', '.join(value_text(possible(end, metric), metric) for end in ends)}]" if ends else ""
