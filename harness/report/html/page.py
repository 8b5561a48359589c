"""Report of a suite: tables, figures and a self-contained HTML page."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.report import ReportSpec
from harness.report.data.clients import client_names
from harness.report.data.exposed import most_exposed
from harness.report.data.provenance import command_for_seeds, differing_provenance, provenance
from harness.report.data.results import Results
from harness.report.html.table import table_of
from harness.report.html.templates import template
from harness.report.plots.every import PICTURES, draw_all
from harness.report.plots.figure import Pictures
from harness.report.tables.certainty import Certainty, certainty
from harness.report.tables.clients import by_client
from harness.report.tables.columns import UNDONE, ShownColumn, diagnostics, runs
from harness.report.tables.costs import cost_tables
from harness.report.tables.model_selection import chosen_tables
from harness.report.tables.pivot import Grid, grids_csv, grids_latex, grids_markdown, tabulate
from harness.report.tables.privacy import (
    describe_draws,
    exposure,
    in_words,
    meaning,
    uncovered_by,
    uncovered_sentence,
)
from harness.report.tables.rows import Board, board_of
from harness.report.tables.text import quantity, words
from harness.report.tables.together import together
from harness.report.tables.tuning import tuning_tables
from harness.report.tables.write import csv_text, markdown_text, reasons, summary
from harness.storage.files import write_text

SUFFIXES = (".svg", ".png", ".pdf")


class Picture(NamedTuple):
    """A figure of the page.

    Attributes
    ----------
    title : str
        Heading.
    file : Path
        An SVG.
    note : str
        Caveat printed below the title.
    plain : bool
        Whether its colors are a scale, which a dark page must not invert.
    """

    title: str
    file: Path
    note: str = ""
    plain: bool = False


DEFAULT = ReportSpec()


def write_report(
    results: Results,
    folder: Path,
    spec: ReportSpec = DEFAULT,
    *,
    commands: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """Write tables, figures and page, every file atomically.

    Parameters
    ----------
    results : Results
        Runs of the suite.
    folder : Path
        Output folder; created if missing.
    spec : ReportSpec
        Settings of ranking, comparison, tables and figures.
    commands
        See `write_page`.

    Returns
    -------
    dict[str, Path]
        File name to path: ``leaderboard.csv``, ``leaderboard.md``, ``index.html`` and, if they have content,
        ``overview``, ``pareto``, ``curves``, ``accuracy-bytes``, ``accuracy-epsilon``, ``attacks``, ``fairness``,
        ``ranks``, ``tuning``, ``clients`` and ``partition`` as ``.svg`` and in the formats of `spec`, ``pivot``,
        ``chosen`` and ``tuned`` as ``.md``, ``.tex`` and ``.csv``, and figures ``MEASURE-AGAINST``.

    Raises
    ------
    UserError
        If a measure, the baseline or a setting of a pivot is unknown.
    OSError
        If the folder cannot be written.
    """
    spec = results.ranked(spec)
    board = board_of(results, spec)
    tables, certain = report_tables(results, spec), certainty(results, board)
    folder.mkdir(parents=True, exist_ok=True)
    files_by_name = {name: folder / name for name in ("leaderboard.csv", "leaderboard.md", "index.html")}
    write_text(files_by_name["leaderboard.csv"], csv_text(board.frame))
    write_text(files_by_name["leaderboard.md"], markdown_text(board, **certain._asdict()))
    files_by_picture = draw_all(results, folder, spec)
    files_by_name |= _write_grids(tables, folder)
    for stem, files in files_by_picture.items():
        files_by_name |= {file.name: file for file in files or ()}
        for suffix in SUFFIXES:  # remove those of an earlier report
            if f"{stem}{suffix}" not in files_by_name:
                (folder / f"{stem}{suffix}").unlink(missing_ok=True)
    pictures, page = _captioned(files_by_picture, spec), files_by_name["index.html"]
    grids = [grid for stem in tables for grid in tables[stem]]
    write_page(results, board, pictures, page, certain=certain, grids=grids, commands=commands)
    return files_by_name


def _captioned(files_by_picture: Mapping[str, Pictures | None], spec: ReportSpec) -> list[Picture]:
    """Return the figures that were drawn, with their titles and notes."""
    titles = PICTURES | {f"{y}-{x}": (f"{words(y)} by {x}", "") for y, x in spec.curves}
    return [
        Picture(titles[stem][0], files[-1], titles[stem][1], plain=stem in ("partition", "overview"))
        for stem, files in files_by_picture.items()
        if files is not None
    ]


def _write_grids(tables: Mapping[str, Sequence[Grid]], folder: Path) -> dict[str, Path]:
    """Write the tables beside the leaderboard, and remove those of an earlier report."""
    paths = {}
    for stem, grids in tables.items():
        for ending, write in (("md", grids_markdown), ("tex", grids_latex), ("csv", grids_csv)):
            name = f"{stem}.{ending}"
            (folder / name).unlink(missing_ok=True)
            if grids:
                paths[name] = folder / name
                write_text(paths[name], write(grids))
    return paths


def report_tables(results: Results, spec: ReportSpec) -> dict[str, list[Grid]]:
    """Return the tables beside the leaderboard by the names of their files."""
    spec = results.ranked(spec)
    return {
        "tuned": list(tuning_tables(results)),
        "chosen": [] if spec.choice is None else list(chosen_tables(results, spec.choice, spec.baseline)),
        "pivot": [grid for pivot in spec.pivots for grid in tabulate(results, pivot, spec.by, spec.target)],
    }


def write_page(
    results: Results,
    board: Board,
    pictures: Sequence[Picture],
    path: Path,
    *,
    certain: Certainty | None = None,
    grids: Sequence[Grid] = (),
    commands: Mapping[str, str] | None = None,
    title: str = "",
    links: Mapping[str, str] | None = None,
    beside: Sequence[ShownColumn] = (),
) -> None:
    """Write the page, which is self-contained and escapes all text.

    Parameters
    ----------
    results : Results
        The runs behind the leaderboard.
    board : Board
        Their leaderboard.
    pictures, path
        Figures to embed; the HTML file to write.
    certain, grids : optional
        What is certain of the leaderboard, by default computed; tables of chosen settings and by two settings.
    commands : Mapping[str, str], optional
        Cell key (column ``cell``) to the command that repeats its first run.
    title, links : optional
        Title (default: the suites), and text to address of links at the top.
    beside : Sequence[ShownColumn], optional
        Further columns, which every row's provenance lists too.
    """
    frame = board.frame
    shared = provenance(results.records)
    html = template("page.html").render(
        title=title or ", ".join(sorted(set(frame["suite"]))) or "nothing yet",
        links=links or {},
        summary=summary(frame),
        meaning=meaning(frame),
        costs=cost_tables(results, board.by, board.baseline),
        certain=certainty(results, board) if certain is None else certain,
        reasons=reasons(frame),
        exposed=exposure(board),
        together=together(frame),
        counts={name: int(frame[name].sum()) for name in ("done", *UNDONE)},
        board=table_of(board, beside),
        clients=by_client(results, board),
        pictures=[(picture, *_packed(picture.file)) for picture in pictures],
        grids=grids,
        undone=UNDONE,
        cells=_cells(results, board, commands or {}, shared, beside),
        private=bool(frame["dp_unit"].notna().any()),
        diagnostics=[column.heading for column in diagnostics(frame)],
        provenance=shared,
    )
    write_text(path, html)


def _cells(
    results: Results,
    board: Board,
    commands: Mapping[str, str],
    shared: Mapping[str, str],
    beside: Sequence[ShownColumn],
) -> list[dict[str, Any]]:
    """Return the entries of the provenance section, in the order of the leaderboard."""
    entries, names = [], board.variants()
    cells = {cell.key: cell for cell in results.cells}
    for row in board.rows:
        cell, task = cells[row["cell"]], board.tasks[row["cell"]]
        claim, called = cell.privacy(), client_names(cell.records[0].final)
        entries.append(
            {
                "key": cell.key,
                "name": f"{row['algorithm']} {names[cell.key]}".strip(),
                "task": " · ".join(
                    filter(None, (task[part] for part in ("dataset", "partition", "problem")))
                ),
                "runs": runs(row),
                "unfinished": row["done"] < row["seeds"],
                "settings": row["settings"],
                "command": command_for_seeds(cell.records, commands.get(cell.key, "")),
                "privacy": claim and _readable(claim, called),
                "in_words": f"{uncovered_sentence(uncovered_by([cell]))} {in_words(claim, called)}"
                if claim
                else "",
                "made_with": {column.heading: column.text(row) for column in beside}
                | differing_provenance(cell.records, shared),
                "records": [(r, quantity(r.final.get("timing", {}).get("seconds"), 3)) for r in cell.records],
                "spec": _without_nulls({name: value for name, value in cell.spec.items() if name != "seed"}),
            }
        )
    return entries


def _readable(claim: Mapping[str, Any], called: Sequence[str]) -> dict[str, Any]:
    """Return a privacy statement with its draws in words and the name of the client with the largest epsilon."""
    exposed = most_exposed(claim)
    who = {} if exposed is None else {"unit_most": exposed.first(called)}
    return {**claim, **who, "composition": describe_draws(claim)}


def _without_nulls(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec without the settings that are null."""
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in part.items()
        if value is not None
    }


def _packed(file: Path) -> tuple[str, int, int]:
    """Return an SVG, compressed and in base64, with its width and height in pixels.

    Pictures were most of a page and are an eighteenth as long; the page unpacks them.
    """
    svg = file.read_bytes()
    width, height = (
        float(re.search(rf'<svg[^>]* {side}="([\d.]+)pt"'.encode(), svg)[1])  # type: ignore[index]
        for side in ("width", "height")
    )
    return base64.b64encode(gzip.compress(svg, mtime=0)).decode(), round(width / 0.75), round(height / 0.75)
