"""Console output: results on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from harness.cli.visible import CONTROL, visible
from harness.core.units import size

for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:  # closed by the caller: what is written goes nowhere
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


class _Screen(Console):
    """A console on which the text of others has no effect but to be read."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich text."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the parts of something to print."""
        if isinstance(renderable, Text) and CONTROL.search(renderable.plain):
            renderable = Text(visible(renderable.plain), renderable.style, justify=renderable.justify)
        return super().render(renderable, options)


class _Output(_Screen):
    """Standard output, whose reader may leave early, as ``head`` does."""

    def on_broken_pipe(self) -> None:
        """Leave it to the command line; rich would end with exit code 1."""
        raise BrokenPipeError


# As standard error does: ± is no error where only ASCII goes.
if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
    sys.stdout.reconfigure(errors="backslashreplace")

# A terminal without a size says 0 columns, and rich would print nothing.
if not os.environ.get("COLUMNS", "80").strip("0"):
    del os.environ["COLUMNS"]

# Names, reasons and settings may have brackets, which are no markup.
out = _Output(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())
log = _Screen(stderr=True, highlight=False, markup=False, soft_wrap=True)  # wrapped paths cannot be copied


def show(rows: Sequence[dict[str, Any]], as_json: bool, title: str) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print_rows(rows, title)


LEAST_WIDTH = 16  # of a column that is cut


def print_rows(
    rows: Sequence[dict[str, Any]], title: str, expendable: Sequence[str] = (), cut: str | None = None
) -> None:
    """Print rows as a table with a column for every key; without rows, print the title.

    Parameters
    ----------
    rows : sequence of dict
        The rows.
    title : str
        Title of the table.
    expendable : sequence of str
        Columns to leave out where the terminal is too narrow, the most dispensable first.
    cut : str, optional
        A column whose texts are cut where it still is.
    """
    if not rows:
        out.print(title, markup=False)
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    widths = {
        key: 2 + max(len(key), *(len(str(row.get(key) if row.get(key) is not None else "")) for row in rows))
        for key in columns
    }
    left_out = []
    for key in expendable:
        if sum(widths.values()) > out.width and widths.pop(key, None) is not None:
            left_out.append(key.replace("_", " "))
    columns = [key for key in columns if key in widths]
    if left_out:
        title += f". Omitted for lack of width: {', '.join(left_out)}; COLUMNS=200 or --json show more"
    heads = [Column(key.replace("_", " "), overflow="fold") for key in columns]  # do not truncate
    if cut in widths and (excess := sum(widths.values()) + 1 - out.width) > 0:
        width = max(LEAST_WIDTH, widths[cut] - 2 - excess)
        heads[columns.index(cut)] = Column(cut, overflow="ellipsis", no_wrap=True, width=width)
    else:
        for head, width in zip(heads, _whole_words(rows, columns, out.width - 1), strict=False):
            head.width = width
    table = Table(*heads, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*("" if row.get(key) is None else str(row.get(key)) for key in columns))
    out.print(table)


def _whole_words(rows: Sequence[dict[str, Any]], columns: Sequence[str], width: int) -> list[int]:
    """Return widths of columns in which no word is broken; empty if all fit anyway, or cannot."""
    texts = [
        [key.replace("_", " "), *("" if row.get(key) is None else str(row[key]) for row in rows)]
        for key in columns
    ]
    whole = [max(map(len, column)) for column in texts]
    least = [max(len(word) for text in column for word in text.split(" ")) for column in texts]
    spare = width - sum(least) - 2 * len(columns)
    if spare < 0 or sum(whole) + 2 * len(columns) <= width:
        return []
    for left, place in enumerate(sorted(range(len(columns)), key=lambda n: whole[n] - least[n])):
        more = min(whole[place] - least[place], spare // (len(columns) - left))
        least[place], spare = least[place] + more, spare - more
    return least


def short(value: Any) -> str | None:
    """Format a number with three digits and a unit prefix."""
    if not isinstance(value, int | float) or abs(value) < 10_000:
        return f"{value:z.3g}" if isinstance(value, float) else None if value is None else str(value)
    step = min(4, (len(str(int(value))) - 1) // 3)
    return f"{value / 1000**step:.3g}{'kMGT'[step - 1]}"


def progress_bar() -> Progress:
    """Return a progress bar with the time left and a field ``status``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[status]}", markup=False), console=log, transient=True)


def figures(line: dict[str, Any]) -> str:
    """Format an evaluation in one line."""
    preferred = ("accuracy", "auroc", "eqopp", "mae", "r2", "loss", "stationarity")
    metrics = line.get("metrics", {})
    numbers = [name for name, value in metrics.items() if isinstance(value, int | float)]
    names = [name for name in preferred if name in numbers] or numbers[:3]
    text = [f"{name} {metrics[name]:z.4f}" for name in names]
    sent = [f"{size(line['bytes_up'] + line['bytes_down'])} both ways"] if "bytes_up" in line else []
    return ", ".join([*text, *sent])


def amount(epsilon: float | str | None) -> str | None:
    """Format an epsilon, which may be ``inf``, with three digits."""
    return f"{epsilon:.3g}" if isinstance(epsilon, int | float) else epsilon


def ago(seconds: float) -> str:
    """Format the age of something."""
    return f"{timedelta(seconds=round(seconds))} ago"
