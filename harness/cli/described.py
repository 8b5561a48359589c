"""Command ``data describe``, and what a run on a user's table says first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from datasets.description import ColumnDescription, summary
from datasets.errors import DataError
from datasets.files import Roles
from datasets.formats import SUFFIXES
from harness.cli.console import log, out, print_rows
from harness.config.describing import describe
from harness.config.run import RunSpec
from harness.simulation.federations import load_once, task


def describe_command(args: argparse.Namespace) -> int:
    """Print how a table is read; return 1 if something must be set before it can be used."""
    source = Path(args.data) if Path(args.data).suffix in (".yaml", ".yml") else args.data
    found = describe(source, task="regression" if args.numbers else None)
    if args.json:
        print(json.dumps(asdict(found), indent=1))
        return int(bool(found.problems))
    for line in found.summary:
        out.print(line, markup=False)
    if not found.columns:
        return 0
    rows = [_row(column) for column in found.columns]
    if not any(row["missing"] for row in rows):
        rows = [{key: value for key, value in row.items() if key != "missing"} for row in rows]
    print_rows(rows, f"columns of {found.source}", ("why",), cut="values")
    for column in found.columns:
        if column.codes:
            codes = ", ".join(f"{value} in {count}" for value, count in column.codes.items())
            out.print(f"missing codes in {column.name}? {codes}", markup=False)
    for heading, lines in (("to be set", found.problems), ("to look at", found.warnings)):
        for line in lines:
            out.print(f"{heading}: {line}", markup=False)
    if not found.problems:
        out.print("nothing has to be set; a run reads the table like this", markup=False)
    return int(bool(found.problems))


def _row(column: ColumnDescription) -> dict[str, str | int | None]:
    return {
        "column": column.name,
        "becomes": column.role + (f" ({column.features})" if column.features > 1 else ""),
        "read as": column.kind,
        "why": column.why,
        "missing": column.missing or None,
        "values": column.values,
    }


def say_tables(specs: Iterable[RunSpec]) -> None:
    """Print what the runs of some specs read of the user's tables, in short; runs say why one cannot be read."""
    tables = dict.fromkeys((spec.data, task(spec)) for spec in specs if spec.data is not None)
    for data, kind in tables:
        if data.name not in SUFFIXES:
            continue
        named = {name: value for name in ROLES if (value := getattr(data, name)) is not None}
        with suppress(DataError):
            for line in summary(load_once(data, kind), Roles(**named)):
                log.print(line, markup=False)


#: Fields of the data that a summary names.
ROLES = ("label", "sensitive", "keep_sensitive", "client", "user", "input", "drop", "encode")
