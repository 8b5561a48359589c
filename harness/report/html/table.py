"""The leaderboard of the page: results first, then what they cost and what describes the runs; and its filters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.metrics import better_is_higher
from harness.report.data.evidence import Row
from harness.report.tables.columns import UNDONE, ShownColumn, diagnostics, narrow_columns, results_first
from harness.report.tables.pivot import ordered
from harness.report.tables.rows import Board, epsilon_text, plain, protection
from harness.report.tables.text import EXTRAPOLATED, is_empty, quantity, words

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
}  # lists to choose from
MOST_CHOICES = 40  # per list
LONG = 34  # letters that need a wide column
SHORT = {"epsilon_total": "epsilon"}  # names in filters, as `--where` also understands them


class Bound(NamedTuple):
    """A number that the reader may bound.

    Attributes
    ----------
    name : str
        Name of the measure in filters.
    heading : str
        What it is called.
    upper : bool
        Whether the bound is an upper one.
    """

    name: str
    heading: str
    upper: bool


class Field(NamedTuple):
    """A field of the table.

    Attributes
    ----------
    pinned : int
        Place of its column among those that stay in sight, 0 for the others.
    classes : str
        How it looks, as classes of CSS.
    order : Any
        Value to sort by.
    text, also : str
        What it says; what follows ±, or what tells the row from others of its name.
    """

    pinned: int
    classes: str
    order: Any
    text: str
    also: str


class TaskTable(NamedTuple):
    """The rows of one task, with the columns in which they differ.

    Attributes
    ----------
    title : str
        Data, and what else tells the task from others.
    columns : list[dict]
        Heading, description, name in filters (empty if it is no number) and place among the columns that stay in
        sight (0 for the others).
    rows : list[dict]
        Cell, entries and values to filter by.
    """

    title: str
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]


class PageTable(NamedTuple):
    """A leaderboard as the page shows it.

    Attributes
    ----------
    tables : list[TaskTable]
        A table for every task.
    choices : list[tuple]
        Name, heading and entries of the lists to choose from.
    bounds : list[Bound]
        Numbers with a field of their own.
    names : list[str]
        Measures that a filter may name.
    """

    tables: list[TaskTable]
    choices: list[tuple[str, str, list[str]]]
    bounds: list[Bound]
    names: list[str]


def table_of(board: Board, beside: Sequence[ShownColumn] = ()) -> PageTable:
    """Return the tables of a leaderboard with further columns beside its own, and its filters."""
    rows, titles = board.rows, _titles(board)
    tables = [_task_table(part, beside, titles) for part in board.parts()]
    names = {str(head["name"]): None for table in tables for head in table.columns if head["name"]}
    facets = [row["facets"] for table in tables for row in table.rows]
    return PageTable(
        tables, _choices(facets), _bounds(rows, board.by), [*names, *["bytes_relative"] * bool(rows)]
    )


def _titles(board: Board) -> dict[str, str]:
    """Return cell -> title of its task: the data, and other parts in which tasks differ."""
    parts = ("dataset", "partition", "problem")
    differs = {part: len({names[part] for names in board.tasks.values()}) > 1 for part in parts}
    return {
        cell: " · ".join(
            names[part] for part in parts if names[part] and (part == "dataset" or differs[part])
        )
        or names["problem"]
        for cell, names in board.tasks.items()
    }


def _task_table(board: Board, beside: Sequence[ShownColumn], titles: Mapping[str, str]) -> TaskTable:
    """Return the table of one task."""
    every = results_first([*narrow_columns(board), *diagnostics(board.frame), *beside], board.by)
    page_columns = [column for column in every if column.key != "settings"]  # they stand below the name
    pinned = {"Algorithm": 1, "ε total": 2, words(board.by): 3}
    heads = [
        {
            "heading": column.heading,
            "about": column.about,
            "number": column.number,
            "name": filter_name(column.key) if column.number else "",
            "pinned": pinned.get(column.heading, 0),
        }
        for column in page_columns
    ]
    names, own_names = board.variants(), _below_names(board)
    rows = [
        _row(row, page_columns, pinned, own_names) | {"facets": _facets(row), "measures": _beside(row, names)}
        for row in board.rows
    ]
    return TaskTable(titles[board.rows[0]["cell"]], heads, rows)


def _below_names(board: Board) -> dict[str, str]:
    """Return cell -> what stands below its algorithm where name and epsilon do not tell rows apart.

    That is the model, if it does; else all traits.
    """
    traits = board.variants(("epsilon",))
    shown = Counter((row["algorithm"], epsilon_text(row)) for row in board.rows)
    models = Counter((row["algorithm"], epsilon_text(row), plain("model")(row)) for row in board.rows)
    below = {}
    for row in board.rows:
        name, model = (row["algorithm"], epsilon_text(row)), plain("model")(row)
        below[row["cell"]] = (
            "" if shown[name] == 1 else model if models[*name, model] == 1 else traits[row["cell"]]
        )
    return below


def filter_name(key: str) -> str:
    """Return the name of a column of the leaderboard in filters: ``accuracy``, ``epsilon``, ``bytes_up``."""
    return SHORT.get(key, key.removesuffix("_mean"))


def _facets(row: Row) -> dict[str, str]:
    """Return a row's entries in the lists to choose from."""
    texts = {name: "" if is_empty(row[name]) else str(row[name]) for name in FACETS if name in row}
    texts |= {name: quantity(row[name]) for name in ("alpha", "beta")}
    texts["protection"] = protection(row) or "none"
    epsilon = row["epsilon_total"] if is_empty(row["epsilon_asked"]) else row["epsilon_asked"]
    texts["epsilon"] = "none" if is_empty(row["dp_unit"]) else quantity(epsilon, 3) or "unknown"
    texts["epsilon"] += "" if is_empty(row["noise_cohort"]) else EXTRAPOLATED
    undone = [status for status in UNDONE if row[status]]
    texts["status"] = "complete" if not undone else "some " + undone[0] if row["done"] else undone[0]
    return texts


def _choices(facets: Sequence[Mapping[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Return name, heading and entries of the lists that distinguish rows, in the order of their kind."""
    choices = []
    for name, heading in FACETS.items():
        values = ordered(name, (row_facets[name] for row_facets in facets))
        if 1 < len(values) <= MOST_CHOICES:
            choices.append((name, heading, list(values)))
    return choices


def _bounds(rows: Sequence[Row], by: str) -> list[Bound]:
    """Return the numbers with a field of their own: those in which rows differ."""
    bounds = {
        "epsilon_total": Bound("epsilon", "ε", True),
        "bytes_relative": Bound("bytes_relative", "Bytes over plain", True),
        f"{by}_mean": Bound(by, words(by), not better_is_higher(by)),
        "worst_client_mean": Bound("worst_client", "Worst client", False),
    }
    values = {name: {_number(row.get(name)) for row in rows} for name in bounds}
    return [bound for name, bound in bounds.items() if len(values[name] - {None}) > 1]


def _beside(row: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what filters need besides the row's fields: bytes over plain, the ranking measure and the name."""
    by = str(row["ranked_by"])
    mean, relative = _number(row.get(f"{by}_mean")), _number(row.get("bytes_relative"))
    return {
        "bytes_relative": None if relative is None else float(f"{relative:.4g}"),
        "score": mean if mean is None or better_is_higher(by) else -mean,
        "name": f"{row['algorithm']} {names[row['cell']]}".strip(),
    }


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    return None if is_empty(value) or not math.isfinite(value) else float(value)


def _row(
    row: Row, page_columns: Sequence[ShownColumn], pinned: Mapping[str, int], below: Mapping[str, str]
) -> dict[str, Any]:
    """Return a cell's row of the table."""
    refused = not row["done"] and bool(row["skipped"] or row["failed"])
    values = []
    for column in page_columns:
        raw = row.get(column.key)
        order = "" if is_empty(raw) else raw
        text, _, also = column.text(row).partition(" ± ")
        place = pinned.get(column.heading, 0)
        also = below[row["cell"]] if place == 1 else also
        classes = "number" if column.number else "long" if len(text) > LONG else ""
        classes += f" pinned pinned-{place}" if place else ""
        classes += " crossed" if place == 3 and refused else ""
        values.append(Field(place, classes, order, text, also))
    reason = "" if is_empty(row["reasons"]) else row["reasons"]
    kind = "undone" if not row["done"] else "best" if row["rank"] == 1 else ""
    return {"cell": row["cell"], "values": values, "kind": kind, "reason": reason}
