"""The report of a results folder."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.config.report import ReportSpec
from harness.report.data.results import Results
from harness.report.html.page import write_report
from harness.report.statement.page import write_statement
from harness.report.tables.rows import Board, board_of
from harness.storage.files import make_own_folder
from harness.storage.store import RunRecord, Store

#: Sections with options of their own.
SECTIONS = ("algorithm", "data", "partition", "problem", "model", "topology", "cohort")


@dataclass(frozen=True)
class Report:
    """Contents of a report.

    Attributes
    ----------
    results : Results
        The runs.
    spec : ReportSpec
        Its settings, completed.
    folder : Path
        Where it was written.
    files : dict[str, Path]
        File name to path, as `write_report` returns them.
    """

    results: Results
    spec: ReportSpec
    folder: Path
    files: dict[str, Path]

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.files["index.html"]

    @property
    def board(self) -> Board:
        """The leaderboard as it was written."""
        return board_of(self.results, self.spec)

    def leaderboard(self) -> pd.DataFrame:
        """Return the leaderboard, one row per cell."""
        return self.board.frame.copy()

    def _repr_html_(self) -> str:
        """Show the pictures in a notebook."""
        pictures = [path for name, path in self.files.items() if name.endswith(".svg")]
        return "".join(f"<figure>{path.read_text(encoding='utf-8')}</figure>" for path in pictures)


def report_folder(store: Store, suite: str | None, spec: ReportSpec, *, statement: bool = False) -> Report:
    """Write the report of a suite, or of all runs of a folder into its folder ``all``.

    ``statement`` also writes that for a data protection officer (`harness.report.statement`).

    Raises
    ------
    UserError
        If there are no runs, or a setting is unknown.
    """
    results = Results(store.some_records(suite))
    spec = results.ranked(spec)
    first = {cell.key: next((run for run in cell.runs if run.record.id), None) for cell in results.cells}
    commands = {key: command_of(run.record) for key, run in first.items() if run is not None}
    folder = make_own_folder(store.root, suite or "all")
    files = write_report(results, folder, spec, commands=commands)
    files |= write_statement(results, folder, spec) if statement else {}
    return Report(results, spec, folder, files)


def command_of(record: RunRecord) -> str:
    """Return the command that reproduces a run."""
    parts = ["python -m harness run"]
    for name in SECTIONS:
        value = record.spec.get(name)
        if value is not None:
            short = {k: v for k, v in value.items() if v is not None and v != [] and v != {}}
            settings = short.pop("settings", {})
            parts.append(f"--{name} {shlex.quote(json.dumps(short | settings))}")
    for name in (name for name in ("rounds", "eval_every", "seed") if name in record.spec):
        parts.append(f"--{name.replace('_', '-')} {record.spec[name]}")
    for name in ("privacy", "compression", "precision", "attacks"):
        if record.spec.get(name) is not None:
            parts.append(f"--set {shlex.quote(name + '=' + json.dumps(record.spec[name]))}")
    return " ".join(parts)
