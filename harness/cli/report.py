"""Commands ``leaderboard``, ``report`` and ``export``."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from harness.cli.console import log, out, print_rows
from harness.config.conditions import read_conditions
from harness.config.recorded import results_folder
from harness.config.report import ReportSpec, known, read_pivot, read_target, report_settings
from harness.config.system import read_system
from harness.core.errors import UserError
from harness.core.units import counted
from harness.report.data.best import best_of
from harness.report.data.columns import LEADERBOARD
from harness.report.data.evidence import Evidence
from harness.report.data.export import export, write_parquet
from harness.report.data.leaderboard import leaderboard
from harness.report.data.recommendation import rated_rows, within_bounds
from harness.report.data.results import Results
from harness.report.folder import report_folder
from harness.report.html.page import report_tables
from harness.report.paper.folder import write_paper
from harness.report.tables.columns import ShownColumn, measures_of, narrow_columns
from harness.report.tables.named_columns import column_names, columns_named
from harness.report.tables.rows import Board
from harness.report.tables.summary import print_summary
from harness.report.tables.write import csv_text, latex_text, markdown_text, print_table
from harness.storage.files import make_own_folder, output_text
from harness.storage.store import SEARCH, Store


def leaderboard_command(args: argparse.Namespace) -> int:
    """Print and write the leaderboard."""
    if args.dir is None:
        if args.columns != "help":
            raise UserError("leaderboard: the results folder DIR is missing; --columns help alone needs none")
        _print_columns(pd.DataFrame(columns=list(LEADERBOARD)))
        return 0
    results, spec, frame = ranked(args)
    if conditions := read_conditions(args.where, frame.columns):
        rows = rated_rows(Evidence(frame, spec.by, results.cells), conditions)
        cells = {rated.key for rated in within_bounds(rows, conditions)}
        frame = frame[frame["cell"].isin(cells)].reset_index(drop=True)
        if frame.empty:
            log.print(
                f"no row is within {' and '.join(map(str, conditions))}; recommend says why", markup=False
            )
    if args.columns == "help":
        _print_columns(frame)
        return 0
    board = Board(frame, results.cells)
    chosen = [] if args.columns is None else columns_named(board, args.columns.split(","))
    columns = [one.column for one in chosen] or None
    names_of_columns = list(dict.fromkeys(name for one in chosen for name in one.names))
    part = frame[names_of_columns] if chosen else frame
    best = _in_bold(results, narrow_columns(board) if columns is None else columns, args)
    if spec.baseline is None and "paired_p_holm" in names_of_columns:
        log.print("--columns: difference is empty without a baseline; give --baseline NAME", markup=False)
    _write(args.csv, partial(csv_text, part))
    _write(args.markdown, partial(markdown_text, board, columns, best))
    _write(args.latex, partial(latex_text, board, columns, best))
    if args.parquet is not None:
        write_parquet(part, args.parquet)
        log.print(f"wrote {args.parquet}", markup=False)
    if args.json:
        print(part.to_json(orient="records", indent=1))
    elif frame.empty and conditions:
        pass  # why has been said
    elif columns is None:
        print_table(board, out)
    else:
        texts = [{column.heading: column.text(row) for column in columns} for row in board.rows]
        print_rows(texts, counted(len(texts), "row"))
    return 0


def _print_columns(frame: pd.DataFrame) -> None:
    """Print the names that ``--columns`` takes of a leaderboard, and their meanings."""
    lines = [{"name": name, "meaning": about} for name, about in column_names(frame).items()]
    print_rows(lines, "Columns")


def _in_bold(
    results: Results, columns: Sequence[ShownColumn], args: argparse.Namespace
) -> set[tuple[str, str]]:
    """Return the cells and measures to print in bold."""
    if not args.bold_best:
        return set()
    if args.markdown is args.latex is None:
        raise UserError("--bold-best: needs --markdown or --latex")
    best = best_of(results.cells, measures_of(columns))
    if not best:
        log.print(
            "--bold-best: nothing is in bold: no shown measure has two rows with the same data, partition, privacy "
            "and compression and the same purpose (a model for everybody, or one for each client) to compare",
            markup=False,
        )
    return best


def report_command(args: argparse.Namespace) -> int:
    """Write the tables, figures and page."""
    options, store = report_options(args), results_folder(args.dir)
    write_all(store, args.suite, options, paper=args.paper, statement=args.statement)
    return 0


def export_command(args: argparse.Namespace) -> int:
    """Export every evaluation for other tools."""
    if args.parquet is args.csv is args.clients is args.tensorboard is None:
        raise UserError("export: give --parquet FILE, --csv FILE, --clients FILE or --tensorboard FOLDER")
    records = results_folder(args.dir).some_records(args.suite)
    places = {name: getattr(args, name) for name in ("parquet", "csv", "clients", "tensorboard")}
    for line in export(records, **places):
        log.print(line, markup=False)
    return 0


def _write(path: Path | None, text: Callable[[], str]) -> None:
    """Write a text to a file, if one is asked for."""
    if path is not None:
        output_text(path, text())
        log.print(f"wrote {path}", markup=False)


def report_options(args: argparse.Namespace) -> ReportSpec:
    """Return the report settings of the suite, overridden by the options given."""
    target = read_target(getattr(args, "target", None))
    _refuse_unloaded(args.dir, [args.by, target and target.measure])
    return report_settings(
        results_folder(args.dir),
        args.suite,
        by=args.by,
        baseline=getattr(args, "baseline", None),
        target=getattr(args, "target", None),
        pivots=tuple(read_pivot(text.split(",")) for text in getattr(args, "pivot", ())),
        system=read_system(getattr(args, "network", None), getattr(args, "device", None)),
        figures=tuple(name for name in (getattr(args, "figures", None) or "").split(",") if name),
        style=getattr(args, "style", None),
    )


def _refuse_unloaded(folder: Path, measures: Sequence[str | None]) -> None:
    """Refuse measures that are on record and that only a plugin explains."""
    for measure in measures:
        if (
            measure
            and not known(measure)
            and measure in Results(results_folder(folder).some_records()).metrics
        ):
            raise UserError(
                f"metric {measure!r} belongs to a plugin that is not loaded, so it is not known whether higher is "
                "better; give --plugin FILE.py"
            )


def ranked(args: argparse.Namespace) -> tuple[Results, ReportSpec, pd.DataFrame]:
    """Return the results of a folder or a suite, the settings of its report, and its leaderboard."""
    results = Results(results_folder(args.dir).some_records(args.suite))
    spec = results.ranked(report_options(args))
    return results, spec, leaderboard(results, spec.by, spec.baseline, spec.target, spec.system)


def write_all(
    store: Store,
    name: str | None,
    spec: ReportSpec,
    *,
    paper: bool = False,
    statement: bool = False,
    as_json: bool = False,
) -> int:
    """Write the report of a suite or a folder, with a folder for a paper and a statement if asked for.

    Print summary and paths, or the leaderboard as JSON. Return the number of runs that it lacks, as their files are
    damaged.
    """
    spec = replace(spec, figures=(*spec.figures, "pdf")) if paper else spec
    report = report_folder(store, name, spec, statement=statement)
    damaged = sum(record.status == "damaged" for record in report.results.records)
    if as_json:
        print(report.leaderboard().to_json(orient="records", indent=1))
        return damaged
    print_summary(report.results, report.board, report.spec.by, report.spec.baseline, out)
    others = ", ".join(name for name in report.files if name != "index.html" and not name.endswith(".svg"))
    out.print(f"\nPage: {report.page}", markup=False)
    out.print(f"Also in {report.folder}: {others}", markup=False, soft_wrap=False)
    if statement:
        last = report.files.get("statement.pdf", report.files["statement.html"])
        out.print(f"Statement: {last}", markup=False)
    if step := next_step(store, name, report.board.frame):
        log.print(step, markup=False)
    if paper:
        pictures = [path for path in report.files.values() if path.suffix == ".pdf"]
        tables = report_tables(report.results, report.spec)
        folder = make_own_folder(report.folder, "paper")
        paper_files = write_paper(report.results, folder, report.spec, tables, pictures)
        out.print(f"Paper: {paper_files['paper.tex']}", markup=False)
    return damaged


def next_step(store: Store, name: str | None, frame: pd.DataFrame) -> str:
    """Return what to do after a report, as a command; empty where the report is the end."""
    of = f"{shlex.quote(str(store.root))}{f' --suite {shlex.quote(name)}' if name else ''}"
    counts = {status: int(frame[status].sum()) for status in ("missing", "failed")}
    budgets = frame["epsilon_total"].replace(math.inf, math.nan).dropna()
    if counts["missing"]:
        return f"Next: python -m harness resume {of} makes the missing {counted(counts['missing'], 'run')}."
    if counts["failed"]:
        return f"Next: python -m harness retry {of} repeats the failed {counted(counts['failed'], 'run')}."
    if budgets.empty or (name or "").endswith(SEARCH):  # the best of a search has looked too good
        return ""
    epsilon = float(f"{budgets.quantile(0.5, interpolation='lower'):.3g}")
    return f"Next: python -m harness recommend {of} --epsilon {epsilon:g} says which method to take."
