"""Commands ``leaderboard``, ``report`` and ``export``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from harness.cli.console import log, out, print_rows
from harness.config.conditions import read_conditions
from harness.config.recorded import results_folder
from harness.config.report import Pivot, ReportSpec, known, read_stored, read_target
from harness.config.system import read_system
from harness.core.registry import UserError, counted
from harness.report import (
    Results,
    leaderboard,
    print_summary,
    print_table,
    tidy,
    write_csv,
    write_latex,
    write_markdown,
    write_parquet,
    write_tensorboard,
    write_tidy,
)
from harness.report.data.best import best_of
from harness.report.data.clients import clients_table
from harness.report.data.leaderboard import model_for
from harness.report.data.recommendation import recommend
from harness.report.folder import report_folder
from harness.report.html.page import report_tables
from harness.report.paper.folder import write_paper
from harness.report.tables import recommendation
from harness.report.tables.choice import choose, names
from harness.report.tables.columns import ShownColumn, narrow_columns
from harness.report.tables.rows import Board
from harness.storage.files import make_own_folder
from harness.storage.store import Store

Made = TypeVar("Made")


def leaderboard_command(given: argparse.Namespace) -> int:
    """Print and write the leaderboard."""
    results = Results(results_folder(given.dir).some_records(given.suite))
    spec = results.ranked(given_report(given))
    frame = leaderboard(results, spec.by, spec.baseline, spec.target, spec.system)
    if conditions := read_conditions(given.where, frame.columns):
        kept = {one.cell.key for one in recommend(results, frame, conditions, spec.by).cells}
        frame = frame[frame["cell"].isin(kept)].reset_index(drop=True)
        if frame.empty:
            log.print(
                f"no row is within {' and '.join(map(str, conditions))}; recommend says why", markup=False
            )
    if given.columns == "help":
        print_rows([{"name": name, "meaning": about} for name, about in names(frame).items()], "Columns")
        return 0
    chosen = None if given.columns is None else choose(frame, given.columns.split(","))
    shown = None if chosen is None else [choice.column for choice in chosen]
    part = (
        frame if chosen is None else frame[list(dict.fromkeys(name for one in chosen for name in one.names))]
    )
    board = Board(frame)
    best = _in_bold(results, narrow_columns(board) if shown is None else shown, given)
    if chosen is not None and spec.baseline is None and any("paired_p_holm" in one.names for one in chosen):
        log.print("--columns: difference is empty without a baseline; give --baseline NAME", markup=False)
    _write(part, given.csv, write_csv)
    _write(board, given.markdown, partial(write_markdown, columns=shown, best=best))
    _write(frame, given.latex, partial(write_latex, columns=shown, best=best))
    _write(part, given.parquet, write_parquet)
    if given.json:
        print(part.to_json(orient="records", indent=1))
    elif frame.empty and conditions:
        pass  # why has been said
    elif shown is None:
        print_table(board, out)
    else:
        texts = [{column.heading: column.text(row) for column in shown} for row in board.rows]
        print_rows(texts, counted(len(texts), "row"))
    return 0


def _in_bold(
    results: Results, shown: Sequence[ShownColumn], given: argparse.Namespace
) -> set[tuple[str, str]]:
    """Return the cells and measures to print in bold."""
    if not given.bold_best:
        return set()
    if given.markdown is given.latex is None:
        raise UserError("--bold-best: goes with --markdown or --latex")
    measures = [column.key.removesuffix("_mean") for column in shown if column.key.endswith("_mean")]
    best = best_of(results.cells, [name for name in measures if known(name)])
    if not best:
        log.print(f"--bold-best: nothing is in bold: {_why_none(results, measures)}", markup=False)
    return best


def _why_none(results: Results, measures: Sequence[str]) -> str:
    """Return why no cell is printed in bold."""
    if not measures:
        return "no shown column is a measure"
    text = (
        "no shown measure has two rows with the same data, partition, privacy and compression and the same purpose "
        "(a model for everybody, or one for each client) to compare"
    )
    unknown = sorted({cell.algorithm for cell in results.cells if cell.done and model_for(cell) is None})
    if unknown:
        text += (
            f". Of {', '.join(unknown)} it is not recorded whom the model is for, as an earlier version made the "
            "runs; run them again in another folder"
        )
    return text


def recommend_command(given: argparse.Namespace) -> int:
    """Print what satisfies bounds; 1 if nothing does."""
    results = Results(results_folder(given.dir).some_records(given.suite))
    spec = results.ranked(given_report(given))
    frame = leaderboard(results, spec.by, spec.baseline, spec.target, spec.system)
    conditions = read_conditions(given.where, frame.columns)
    if not conditions:
        raise UserError("recommend: give at least one bound, as --where 'epsilon_total <= 2'")
    answer = recommend(results, frame, conditions, spec.by)
    found = recommendation.recommendation_rows(answer, frame, conditions, spec.by)
    said = recommendation.sentences(answer, frame, conditions)
    if given.json:
        print(json.dumps({"found": found, "said": said}, indent=1, default=str))
    else:
        if found:
            shown = found[: recommendation.MOST]
            title = "Within all bounds, most certain first" + (
                f"; {len(shown)} of {len(found)}, all with --json" if len(shown) < len(found) else ""
            )
            print_rows(recommendation.readable_rows(shown), title)
        for text in said:
            out.print(text, markup=False, soft_wrap=False)
    return 0 if found else 1


def report_command(given: argparse.Namespace) -> int:
    """Write the tables, figures and page."""
    if not given.dir.exists():
        raise UserError(f"no results folder {given.dir}")
    pivots = [text.split(",") for text in given.pivot]
    if any(not 2 <= len(pivot) <= 3 for pivot in pivots):
        raise UserError(f"--pivot needs ROWS,COLUMNS or ROWS,COLUMNS,MEASURE, given {' '.join(given.pivot)}")
    write_all(results_folder(given.dir), given.suite, given_report(given, pivots), paper=given.paper)
    return 0


def export_command(given: argparse.Namespace) -> int:
    """Export every evaluation for other tools."""
    if given.parquet is given.csv is given.clients is given.tensorboard is None:
        raise UserError("export: give --parquet FILE, --csv FILE, --clients FILE or --tensorboard FOLDER")
    records = results_folder(given.dir).some_records(given.suite)
    frame = tidy(records)
    _write(frame, given.parquet, write_parquet)
    _write(frame, given.csv, write_tidy)
    if given.clients is not None:
        clients = clients_table(records)
        if clients.empty:
            raise UserError(
                "export: no finished run has clients with names; they come with the partition natural, and strict "
                "privacy tells nothing of them"
            )
        _write(clients, given.clients, write_tidy)
    if given.tensorboard is not None:
        written = write_tensorboard(records, given.tensorboard)
        skipped = (
            f"; without {counted(len(records) - written, 'skipped combination')}"
            if written < len(records)
            else ""
        )
        log.print(
            f"wrote {counted(written, 'TensorBoard run')} to {given.tensorboard}{skipped}", markup=False
        )
    return 0


def _write(what: Made, path: Path | None, write: Callable[[Made, Path], None]) -> None:
    if path is not None:
        write(what, path)
        log.print(f"wrote {path}", markup=False)


def given_report(given: argparse.Namespace, pivots: Sequence[Sequence[str]] = ()) -> ReportSpec:
    """Return the report settings of the suite, overridden by the options given."""
    stored = (
        read_stored(results_folder(given.dir).report_settings(given.suite)) if given.suite else ReportSpec()
    )
    target = read_target(getattr(given, "target", None))
    for measure in (given.by, target and target.measure):
        if (
            measure
            and not known(measure)
            and measure in Results(results_folder(given.dir).some_records()).metrics
        ):
            raise UserError(
                f"metric {measure!r} belongs to a plugin that is not loaded, so it is not known whether higher is "
                "better; give --plugin FILE.py"
            )
    options: dict[str, Any] = {
        "by": given.by,
        "baseline": getattr(given, "baseline", None),
        "target": target,
        "pivots": tuple(Pivot(*pivot) for pivot in pivots),
        "system": read_system(getattr(given, "network", None), getattr(given, "device", None)),
        "figures": tuple(name for name in (getattr(given, "figures", None) or "").split(",") if name),
        "style": getattr(given, "style", None),
    }
    return replace(stored, **{name: value for name, value in options.items() if value})


def write_all(
    store: Store, name: str | None, spec: ReportSpec, paper: bool = False, *, as_json: bool = False
) -> int:
    """Write the report of a suite or a folder, with a folder for a paper if asked for.

    Print summary and paths, or the leaderboard as JSON. Return the number of runs that it lacks, as their files are
    damaged.
    """
    made = report_folder(store, name, replace(spec, figures=(*spec.figures, "pdf")) if paper else spec)
    damaged = sum(record.status == "damaged" for record in made.results)
    if as_json:
        print(made.leaderboard().to_json(orient="records", indent=1))
        return damaged
    print_summary(made.results, made.board, made.spec.by, made.spec.baseline, out)
    others = ", ".join(name for name in made.files if name != "index.html" and not name.endswith(".svg"))
    out.print(f"\nPage: {made.page}", markup=False)
    out.print(f"Also in {made.folder}: {others}", markup=False, soft_wrap=False)
    if paper:
        pictures = [path for path in made.files.values() if path.suffix == ".pdf"]
        tables = report_tables(made.results, made.spec)
        folder = make_own_folder(made.folder, "paper")
        written = write_paper(made.results, folder, made.spec, tables, pictures)
        out.print(f"Paper: {written['paper.tex']}", markup=False)
    return damaged
