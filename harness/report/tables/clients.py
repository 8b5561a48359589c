"""Results of clients that have names, means over seeds, for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from harness.report.data.results import Cell, Results
from harness.report.tables.rows import Board, Row
from harness.report.tables.text import EXTRAPOLATED, is_empty, quantity

MOST = 1000  # rows
MEASURES = ("accuracy", "auroc", "loss")


class ClientRow(NamedTuple):
    """A client under a method.

    Attributes
    ----------
    client, algorithm, data : str
        Whose result it is, by which algorithm, on which data.
    epsilon : float or None
        Privacy loss of the run; None without privacy.
    epsilon_text : str
        The same as text.
    n : str
        Its test samples, as ``40`` or ``38 to 42`` where seeds differ.
    fewest : int
        Their number in the seed with the fewest.
    means : dict[str, float or None]
        Means over seeds of `MEASURES` on these samples; None where it does not apply.
    """

    client: str
    algorithm: str
    data: str
    epsilon: float | None
    epsilon_text: str
    n: str
    fewest: int
    means: dict[str, float | None]


class ClientTable(NamedTuple):
    """Rows for clients, how many are left out, and whether some are private and on several data sets."""

    rows: list[ClientRow]
    left: int
    private: bool
    several: bool


def by_client(results: Results, board: Board) -> ClientTable:
    """Return the values of every named client under the best setting of each algorithm and budget.

    Rows stand in the order of the leaderboard. Beyond `MOST` rows, methods far down in their task are left out.

    Parameters
    ----------
    results : Results
        Run records.
    board : Board
        Their leaderboard.
    """
    cells = {cell.key: cell for cell in results.cells}
    chosen: dict[tuple[Any, ...], list[ClientRow]] = {}
    places: dict[str, int] = {}
    for row in board.rows:
        budget = None if is_empty(row["dp_unit"]) else row["epsilon_asked"]
        key = row["task"], row["algorithm"], row["dp_unit"], budget
        if key not in chosen and (runs_by_client := _clients(cells[row["cell"]])):
            data = board.tasks[row["cell"]]["dataset"]
            chosen[key] = [_client_row(row, data, name, columns) for name, columns in runs_by_client.items()]
    order: list[tuple[int, tuple[Any, ...]]] = []
    for key in chosen:
        places[key[0]] = places.get(key[0], 0) + 1
        order.append((places[key[0]], key))
    included: set[tuple[Any, ...]] = set()
    room = MOST
    for _, key in sorted(order, key=lambda place: place[0]):  # the best of every task, then the second best
        if len(chosen[key]) <= room or not included:
            included.add(key)
            room -= len(chosen[key])
    rows = [row for key, client_rows in chosen.items() if key in included for row in client_rows]
    omitted = sum(map(len, chosen.values())) - len(rows)
    private = any(row.epsilon is not None for row in rows)
    return ClientTable(rows, omitted, private, len({row.data for row in rows}) > 1)


def _clients(cell: Cell) -> dict[str, list[Mapping[str, Any]]]:
    """Return client -> its columns in every finished run."""
    runs_by_client: dict[str, list[Mapping[str, Any]]] = {}
    for run in cell.done:
        columns: Mapping[str, Sequence[Any]] = run.record.final.get("by_client") or {}
        for values in zip(*columns.values(), strict=True):
            fields = dict(zip(columns, values, strict=True))
            runs_by_client.setdefault(str(fields["client"]), []).append(fields)
    return runs_by_client


def _client_row(row: Row, data: str, client: str, runs: Sequence[Mapping[str, Any]]) -> ClientRow:
    counts = [int(run["n"]) for run in runs]
    few, many = min(counts), max(counts)
    means: dict[str, float | None] = {}
    for name in MEASURES:
        values = [run[name] for run in runs if run.get(name) is not None]
        means[name] = fmean(values) if values else None
    epsilon = None if is_empty(row["epsilon_total"]) else float(row["epsilon_total"])
    text = quantity(epsilon, 3) + ("" if is_empty(row["noise_cohort"]) else EXTRAPOLATED)
    counted = f"{few}" if few == many else f"{few} to {many}"
    return ClientRow(client, row["algorithm"], data, epsilon, text, counted, few, means)
