"""How commands talk: results to the standard output, everything else to the standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())


log = Console(stderr=True, highlight=False, soft_wrap=True)  # a path that is cut in two cannot be copied


def show(rows: Sequence[dict[str, Any]], as_json: bool, title: str) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print_rows(rows, title)


def print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print rows as a table, with a column for every key that one of them has; without rows the title."""
    if not rows:
        out.print(title, markup=False)
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    heads = [Column(key.replace("_", " "), overflow="fold") for key in columns]  # nothing is cut off
    table = Table(*heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*("" if row.get(key) is None else str(row.get(key)) for key in columns))
    out.print(table)


def short(value: Any) -> str | None:
    """Write a number with three figures and a letter for its thousands."""
    if not isinstance(value, int | float) or abs(value) < 10_000:
        return f"{value:.3g}" if isinstance(value, float) else None if value is None else str(value)
    step = min(4, (len(str(int(value))) - 1) // 3)
    return f"{value / 1000**step:.3g}{'kMGT'[step - 1]}"


def progress_bar() -> Progress:
    """Return a bar with the time left and a text, ``status``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[status]}", markup=False), console=log, transient=True)


def figures(line: dict[str, Any]) -> str:
    """Say an evaluation in one line."""
    shown = ("accuracy", "auroc", "eqopp", "loss", "stationarity")
    found = line.get("metrics", {})
    told = [name for name, value in found.items() if isinstance(value, int | float)]
    some = [name for name in shown if name in told] or told[:3]
    text = [f"{name} {found[name]:.4f}" for name in some]
    sent = [f"{line['bytes_up'] + line['bytes_down']:,} bytes"] if "bytes_up" in line else []
    return ", ".join([*text, *sent])
