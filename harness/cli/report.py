"""``leaderboard``, ``report``, ``export``: what the runs of a folder show."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.cli.arguments import SECTIONS
from harness.cli.console import log, out
from harness.core.registry import UserError, unknown
from harness.metrics import METRICS, described, recall
from harness.report import (
    Pivot,
    ReportSpec,
    cell_key,
    leaderboard,
    print_summary,
    print_table,
    read_choice,
    read_target,
    tidy,
    write_csv,
    write_latex,
    write_markdown,
    write_parquet,
    write_report,
    write_tensorboard,
    write_tidy,
)
from harness.report.data.leaderboard import COSTS
from harness.storage.store import RunRecord, Store


def leaderboard_command(given: argparse.Namespace) -> int:
    """Print and write the comparison table."""
    records, look = Store(given.dir).some_records(given.suite), given_look(given)
    frame = leaderboard(records, look.by, look.baseline, look.target)
    _write(frame, given.csv, write_csv)
    _write(frame, given.markdown, write_markdown)
    _write(frame, given.latex, write_latex)
    _write(frame, given.parquet, write_parquet)
    if given.json:
        print(frame.to_json(orient="records", indent=1))
    else:
        print_table(frame, out)
    return 0


def report_command(given: argparse.Namespace) -> int:
    """Write table, pictures and page."""
    if not given.dir.exists():
        raise UserError(f"no results folder {given.dir}")
    pivots = [text.split(",") for text in given.pivot]
    if any(not 2 <= len(pivot) <= 3 for pivot in pivots):
        raise UserError(f"--pivot needs ROWS,COLUMNS or ROWS,COLUMNS,MEASURE, given {' '.join(given.pivot)}")
    write_all(Store(given.dir), given.suite, given_look(given, pivots))
    return 0


def export_command(given: argparse.Namespace) -> int:
    """Write every evaluation for other tools."""
    if given.parquet is given.csv is given.tensorboard is None:
        raise UserError("export: say what to write, with --parquet FILE, --csv FILE or --tensorboard FOLDER")
    records = Store(given.dir).some_records(given.suite)
    frame = tidy(records)
    _write(frame, given.parquet, write_parquet)
    _write(frame, given.csv, write_tidy)
    if given.tensorboard is not None:
        written = write_tensorboard(records, given.tensorboard)
        skipped = (
            f"; {len(records) - written} skipped combinations have none" if written < len(records) else ""
        )
        log.print(f"wrote {written} TensorBoard runs to {given.tensorboard}{skipped}", markup=False)
    return 0


def _write(frame: pd.DataFrame, path: Path | None, write: Callable[[pd.DataFrame, Path], None]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(frame, path)
        log.print(f"wrote {path}", markup=False)


def given_look(given: argparse.Namespace, pivots: Sequence[Sequence[str]] = ()) -> ReportSpec:
    """Return how to report: as the suite's file says, where the options do not say otherwise."""
    asked = {name: getattr(given, name) for name in ("by", "baseline", "target")} | {"pivot": pivots}
    settings = Store(given.dir).report_settings(given.suite) if given.suite else {}
    return read_look(settings | {name: value for name, value in asked.items() if value})


def read_look(wanted: Mapping[str, Any]) -> ReportSpec:
    """Return how to report, from what a suite's file says."""
    for measure in [*wanted.get("overview", ()), *(measure for measure, _ in wanted.get("curves", ()))]:
        if described(measure) is None and measure not in COSTS:
            raise unknown("measure to draw", measure, [*METRICS, *COSTS])
    recall(wanted.get("metrics", {}))
    return ReportSpec(
        wanted.get("by") or "accuracy",
        wanted.get("baseline"),
        read_target(wanted.get("target")),
        tuple(Pivot(*pivot) for pivot in wanted.get("pivot", ())),
        read_choice(wanted.get("select")),
        tuple((measure, against) for measure, against in wanted.get("curves", ())),
        wanted.get("along"),
        tuple(wanted.get("overview", ())),
    )


def write_all(store: Store, name: str | None, look: ReportSpec) -> None:
    """Write the report of a suite or of a whole folder, print what it shows in short, and where it is."""
    records = store.some_records(name)
    commands = {cell_key(record): command_of(record) for record in records if record.id}
    folder = store.root / (name or "all")
    folder.mkdir(parents=True, exist_ok=True)
    whole = store.report_settings(name).get("command") if name else None
    provenance = {"the whole suite": whole} if whole else {}
    paths = write_report(records, folder, look, commands=commands, provenance=provenance)
    frame = leaderboard(records, look.by, look.baseline, look.target)
    print_summary(records, frame, look.by, look.baseline, out)
    others = ", ".join(name for name in paths if name != "index.html" and not name.endswith(".svg"))
    out.print(f"\nPage: {paths['index.html']}", markup=False)
    out.print(f"Also in {folder}: {others}", markup=False, soft_wrap=False)


def command_of(record: RunRecord) -> str:
    """Return the command that makes a run's cell again (one seed of it)."""
    parts = ["python -m harness run"]
    for name in SECTIONS:
        value = record.spec.get(name)
        if value is not None:
            short = {k: v for k, v in value.items() if v is not None and v != [] and v != {}}
            settings = short.pop("settings", {})
            parts.append(f"--{name} {shlex.quote(json.dumps(short | settings))}")
    for name in ("rounds", "eval_every", "seed"):
        parts.append(f"--{name.replace('_', '-')} {record.spec[name]}")
    for name in ("privacy", "compression", "precision"):
        if record.spec.get(name) is not None:
            parts.append(f"--set {shlex.quote(name + '=' + json.dumps(record.spec[name]))}")
    return " ".join(parts)
