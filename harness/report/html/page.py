"""Report of a suite: tables, figures and a self-contained HTML page."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from harness.config.report import ReportSpec
from harness.metrics import better_is_higher
from harness.report.data.leaderboard import leaderboard
from harness.report.data.provenance import commands_of
from harness.report.data.provenance import own as own_of
from harness.report.data.provenance import provenance as provenance_of
from harness.report.data.results import Cell, Results
from harness.report.plots.every import PICTURES, draw_all
from harness.report.tables.columns import (
    UNDONE,
    Column,
    columns,
    diagnostics,
    protection,
    rows_of,
    runs,
    task_names,
    variants,
)
from harness.report.tables.model_selection import chosen_tables
from harness.report.tables.pivot import Grid, grids_csv, grids_latex, grids_markdown, ordered, tabulate
from harness.report.tables.privacy import exposure
from harness.report.tables.text import EXTRAPOLATED, is_empty, quantity, words
from harness.report.tables.tuning import tuning_tables
from harness.report.tables.write import reasons, summary, write_csv, write_markdown
from harness.storage.files import write_text

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

HERE = Path(__file__).parent
TYPES = {".svg": "image/svg+xml", ".png": "image/png", ".pdf": "application/pdf"}
FACETS = {
    "suite": "Suite",
    "algorithm": "Algorithm",
    "dataset": "Data",
    "partition": "Partition",
    "problem": "Problem",
    "model": "Model",
    "protection": "DP",
    "epsilon": "ε",
    "alpha": "Alpha",
    "beta": "Beta",
    "status": "Status",
}  # filters of the table
MOST_CHOICES = 40  # per filter
MOST_STEPS = 50  # of a slider


class Picture(NamedTuple):
    """A figure of the page.

    Attributes
    ----------
    title : str
        Heading.
    file : Path
        SVG or PNG.
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
    records: Iterable[RunRecord],
    folder: Path,
    spec: ReportSpec = DEFAULT,
    *,
    commands: Mapping[str, str] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """Write tables, figures and page, every file atomically.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records of the suite.
    folder : Path
        Output folder; created if missing.
    spec : ReportSpec
        Settings of ranking, comparison, tables and figures.
    commands, provenance
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
    results = Results.of(records)
    spec = results.ranked(spec)
    frame = leaderboard(results, spec.by, spec.baseline, spec.target, spec.system)
    tables = report_tables(results, spec)
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: folder / name for name in ("leaderboard.csv", "leaderboard.md", "index.html")}
    write_csv(frame, written["leaderboard.csv"])
    write_markdown(frame, written["leaderboard.md"])
    drawn = draw_all(results, folder, spec)
    titles = PICTURES | {f"{y}-{x}": (f"{words(y)} by {x}", "") for y, x in spec.curves}
    for stem, grids in tables.items():
        for ending, write in (("md", grids_markdown), ("tex", grids_latex), ("csv", grids_csv)):
            name = f"{stem}.{ending}"
            (folder / name).unlink(missing_ok=True)
            if grids:
                written[name] = folder / name
                write_text(written[name], write(grids))
    pictures = []
    for stem, files in drawn.items():
        written |= {file.name: file for file in files or ()}
        for suffix in TYPES:  # remove those of an earlier report
            if f"{stem}{suffix}" not in written:
                (folder / f"{stem}{suffix}").unlink(missing_ok=True)
        if files is not None:
            title, note = titles[stem]
            pictures.append(Picture(title, files[-1], note, plain=stem in ("partition", "overview")))
    page = written["index.html"]
    whole = [grid for grids in tables.values() for grid in grids]
    write_page(results, frame, pictures, page, grids=whole, commands=commands, provenance=provenance)
    return written


def report_tables(results: Results, spec: ReportSpec) -> dict[str, list[Grid]]:
    """Return the tables beside the leaderboard by the names of their files."""
    return {
        "tuned": list(tuning_tables(results)),
        "chosen": [] if spec.choice is None else list(chosen_tables(results, spec.choice, spec.baseline)),
        "pivot": [grid for pivot in spec.pivots for grid in tabulate(results, pivot, spec.by, spec.target)],
    }


def write_page(
    records: Iterable[RunRecord],
    frame: pd.DataFrame,
    pictures: Sequence[Picture],
    path: Path,
    *,
    grids: Sequence[Grid] = (),
    commands: Mapping[str, str] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> None:
    """Write the page, which is self-contained and escapes all text.

    Parameters
    ----------
    records : Iterable[RunRecord]
        The records behind `frame`.
    frame : pd.DataFrame
        Their leaderboard.
    pictures : Sequence[Picture]
        Figures to embed.
    path : Path
        The HTML file to write.
    grids : Sequence[Grid]
        Tables of chosen settings and by two settings.
    commands : Mapping[str, str], optional
        Cell key (column ``cell``) to the command that repeats its first run.
    provenance : Mapping[str, str], optional
        Provenance to print besides that recorded by the runs.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    results = Results.of(records)
    found = {cell.key: cell for cell in results.cells}
    known = diagnostics(frame)
    shown, rows, names = [*columns(frame), *known], rows_of(frame), variants(frame)
    tasks = task_names(rows)
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    facets = [_facets(row) for row in rows]
    whole = {**(provenance or {}), **provenance_of(results.records)}
    html = environment.get_template("page.html").render(
        title=", ".join(sorted(set(frame["suite"]))) or "nothing yet",
        summary=summary(frame),
        reasons=reasons(frame),
        exposed=exposure(frame),
        counts={name: int(frame[name].sum()) for name in ("done", *UNDONE)},
        columns=shown,
        rows=[
            _row(row, shown, names) | {"facets": own, "figures": _bounded(row, names)}
            for row, own in zip(rows, facets, strict=True)
        ],
        facets=_choices(facets),
        bounds=_bounds(rows),
        pictures=[(picture, _data_uri(picture.file)) for picture in pictures],
        grids=grids,
        cells=[
            _cell(row, found[row["cell"]], names, tasks[row["cell"]], commands or {}, whole) for row in rows
        ],
        private=bool(frame["dp_unit"].notna().any()),
        diagnostics=[column.heading for column in known],
        provenance=whole,
    )
    write_text(path, html)


def _facets(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row's values of the filters."""
    texts = {name: "" if pd.isna(row[name]) else str(row[name]) for name in FACETS if name in row}
    texts |= {name: quantity(row[name]) for name in ("alpha", "beta")}
    texts["protection"] = protection(row) or "none"
    epsilon = row["epsilon_total"] if pd.isna(row["epsilon_asked"]) else row["epsilon_asked"]
    texts["epsilon"] = "none" if pd.isna(row["dp_unit"]) else quantity(epsilon, 3) or "unknown"
    texts["epsilon"] += "" if pd.isna(row["noise_cohort"]) else EXTRAPOLATED
    undone = [status for status in UNDONE if row[status]]
    texts["status"] = "complete" if not undone else "some " + undone[0] if row["done"] else undone[0]
    return texts


def _choices(facets: Sequence[Mapping[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Return key, heading and choices of the filters that distinguish rows, numbers by size before words."""
    found = []
    for key, heading in FACETS.items():
        values = ordered(own[key] for own in facets)
        if 1 < len(values) <= MOST_CHOICES:
            found.append((key, heading, list(values)))
    return found


def _limits(row: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return column -> heading and whether the bound is an upper one, for the sliders."""
    by = str(row["ranked_by"])
    chosen = {
        "epsilon_total": ("ε", True),
        "bytes_relative": ("Bytes over plain", True),
        f"{by}_mean": (words(by), not better_is_higher(by)),
        "worst_client_mean": ("Worst client", False),
    }
    return {name: limit for name, limit in chosen.items() if name in row}


def _bounds(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, bool, list[float]]]:
    """Return name, heading, direction and steps of every slider that excludes some row; the loosest step first."""
    found = []
    for name, (heading, upper) in (_limits(rows[0]) if rows else {}).items():
        values = {
            float(f"{row[name]:.3g}") for row in rows if not is_empty(row[name]) and math.isfinite(row[name])
        }
        if len(values) > 1:
            steps = sorted(values, reverse=upper)
            every = max(1, -(-len(steps) // MOST_STEPS))
            found.append((name, heading, upper, steps[::every]))
    return found


def _bounded(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return what sliders compare, what ranks, and the name of a row."""
    by = str(row["ranked_by"])
    figures = {name: None if is_empty(row[name]) else float(f"{row[name]:.3g}") for name in _limits(row)}
    figures = {
        name: value if value is None or math.isfinite(value) else None for name, value in figures.items()
    }
    mean = row.get(f"{by}_mean")
    score = None if mean is None or is_empty(mean) else float(mean) * (1 if better_is_higher(by) else -1)
    return {**figures, "score": score, "name": f"{row['algorithm']} {names[row['cell']]}".strip()}


def _row(row: Mapping[str, Any], shown: Sequence[Column], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a cell's row of the table."""
    values = []
    for column in shown:
        raw = row.get(column.key)
        order = "" if raw is None or pd.isna(raw) else raw
        if column.heading == "Variant":
            order = names[row["cell"]]
        values.append(
            {"text": column.text(row), "order": order, "number": column.number, "heading": column.heading}
        )
    reason = "" if pd.isna(row["reasons"]) else row["reasons"]
    kind = "unfinished" if not row["done"] else "best" if row["rank"] == 1 else ""
    return {"cell": row["cell"], "values": values, "kind": kind, "reason": reason}


def _cell(
    row: Mapping[str, Any],
    cell: Cell,
    names: Mapping[str, str],
    task: Mapping[str, str],
    commands: Mapping[str, str],
    whole: Mapping[str, str],
) -> dict[str, Any]:
    """Return a cell's entry in the provenance section."""
    return {
        "key": cell.key,
        "name": f"{row['algorithm']} {names[cell.key]}".strip(),
        "task": " · ".join(filter(None, (task[part] for part in ("dataset", "partition", "problem")))),
        "runs": runs(row),
        "unfinished": row["done"] < row["seeds"],
        "settings": row["settings"],
        "commands": commands_of(cell.records, commands),
        "privacy": cell.privacy(),
        "made_with": own_of(cell.records, whole),
        "records": [
            {
                "seed": r.spec["seed"],
                "status": r.status,
                "reason": r.reason or "",
                "id": r.id or "",
                "seconds": quantity(r.final.get("timing", {}).get("seconds"), 3),
            }
            for r in cell.records
        ],
        "spec": {name: value for name, value in cell.spec.items() if name != "seed"},
    }


def _data_uri(file: Path) -> str:
    """Return a figure as a data URI; scripts inside an image do not run."""
    return f"data:{TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"
