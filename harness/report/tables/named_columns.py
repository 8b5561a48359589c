"""Columns that a user names, for tables and files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import pandas as pd

from harness.core.errors import unknown
from harness.core.units import size
from harness.metrics import described
from harness.report.data.columns import describe
from harness.report.data.evidence import Row
from harness.report.tables.columns import (
    ShownColumn,
    difference_column,
    measure_column,
    narrow_columns,
    runs_column,
    shown_column,
)
from harness.report.tables.rows import Board, protection
from harness.report.tables.text import is_empty, quantity, words

#: Short names -> columns of the leaderboard that they stand for, and their description.
SHORT = {
    "epsilon": (("epsilon_total",), "Privacy loss of the whole run as composed"),
    "dp": (("dp_unit", "dp_placement", "dp_mechanism"), "Unit of privacy / where noise is added"),
    "bytes": (("bytes_up", "bytes_down"), "Bytes both ways"),
    "runs": (("done", "seeds"), "Finished runs of all runs of the row"),
    "difference": (
        ("paired_difference", "paired_low", "paired_high", "paired_ci95", "paired_p_holm"),
        "Difference to the baseline over common seeds, its interval, * where p < .05 after Holm",
    ),
}

# fmt: off
#: Columns whose text in the narrow table says what the file has, in readable units.
PLAIN = (
    "rank", "settings", "alpha", "beta", "bytes_up", "bytes_down", "flops", "oracle_calls", "seconds",
    "spectral_gap", "pareto", "bytes_to_target", "oracle_calls_to_target", "system_seconds", "seconds_to_target",
    "system_joules", "waiting", "epsilon_total",
)
# fmt: on


class NamedColumn(NamedTuple):
    """A column of a table, and the columns of the leaderboard that files have in its place."""

    column: ShownColumn
    names: tuple[str, ...]


def columns_named(board: Board, names: Iterable[str]) -> list[NamedColumn]:
    """Return the columns that a user names.

    Parameters
    ----------
    board : Board
        A leaderboard.
    names : iterable of str
        Columns of the leaderboard; measures, which stand for mean and deviation; or names of `SHORT`.

    Raises
    ------
    UserError
        If a name is none of them; it names the nearest.
    """
    narrow = {column.key: column for column in narrow_columns(board)}
    return [_named(board, name.strip(), narrow) for name in names]


def column_names(frame: pd.DataFrame) -> dict[str, str]:
    """Return every name that `columns_named` takes, the short ones first, with its meaning."""
    measures = {name: _about(name) for name in sorted(_measures(frame))}
    short = {name: about for name, (_, about) in SHORT.items()}
    return short | measures | {name: _about(name) for name in map(str, frame.columns)}


def _named(board: Board, name: str, narrow: dict[str, ShownColumn]) -> NamedColumn:
    frame = board.frame
    if name in SHORT:
        return NamedColumn(_short(board, name, narrow), SHORT[name][0])
    if name in _measures(frame):
        return NamedColumn(measure_column(name), (f"{name}_mean", f"{name}_std"))
    if name not in frame.columns:
        raise unknown("column of the leaderboard", name, column_names(frame))
    if name in narrow and name in PLAIN:
        return NamedColumn(narrow[name], (name,))
    number = pd.api.types.is_numeric_dtype(frame[name])
    return NamedColumn(ShownColumn(words(name), name, number, partial(_plain, name), _about(name)), (name,))


def _short(board: Board, name: str, narrow: dict[str, ShownColumn]) -> ShownColumn:
    about = SHORT[name][1]
    if name == "difference":
        return difference_column(board.by if board.rows else "")
    if name == "epsilon":
        return narrow.get("epsilon_total", shown_column("epsilon_total", lambda row: "", about))
    if name == "bytes":
        return shown_column("bytes_up", _both_ways, about)._replace(heading="Bytes")
    return runs_column() if name == "runs" else shown_column("dp_unit", protection, about)


def _both_ways(row: Row) -> str:
    up, down = row["bytes_up"], row["bytes_down"]
    return "" if is_empty(up) or is_empty(down) else size(up + down)


def _plain(name: str, row: Row) -> str:
    """Return a field as text: values of a measure in its format, other numbers with four digits."""
    value = row[name]
    if is_empty(value) or isinstance(value, str | bool | int):
        return "" if is_empty(value) else str(value)
    measure, _, part = name.rpartition("_")
    metric = described(measure) if part in ("mean", "std") else None
    return quantity(value) if metric is None else format(value, metric.format)


def _measures(frame: pd.DataFrame) -> list[str]:
    return [name.removesuffix("_mean") for name in map(str, frame.columns) if name.endswith("_mean")]


def _about(name: str) -> str:
    column = describe(name)
    return f"{words(name)}, of a plugin that is not loaded" if column is None else column.sentence
