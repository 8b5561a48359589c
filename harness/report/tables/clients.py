"""Results of clients that have names, means over seeds, for readers."""

from __future__ import annotations

from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from harness.report.data.clients import client_rows
from harness.report.data.results import Results
from harness.report.tables.rows import Board, Row
from harness.report.tables.text import EXTRAPOLATED, is_empty, quantity, span

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

    Rows of a client stand together, the best first. Beyond `MOST` rows, methods far down in their task are left
    out.

    Parameters
    ----------
    results : Results
        Run records.
    board : Board
        Their leaderboard.
    """
    cells = {cell.key: cell for cell in results.cells}
    methods: dict[tuple[Any, ...], list[ClientRow]] = {}
    tasks: dict[str, list[tuple[Any, ...]]] = {}
    for row in board.rows:
        budget = None if is_empty(row["dp_unit"]) else row["epsilon_asked"]
        key = row["task"], row["algorithm"], row["dp_unit"], budget
        if key not in methods and not (table := client_rows(cells[row["cell"]].done)).empty:
            methods[key] = _client_rows(row, board.tasks[row["cell"]]["dataset"], table)
            tasks.setdefault(row["task"], []).append(key)
    # The best of every task, then the second best.
    in_turn = [key for place in zip_longest(*tasks.values()) for key in place if key is not None]
    sizes = accumulate(len(methods[key]) for key in in_turn)
    included = {key for key, size in zip(in_turn, sizes, strict=True) if size <= MOST or key == in_turn[0]}
    rows = [row for key, members in methods.items() if key in included for row in members]
    places: dict[tuple[str, str], int] = {}
    for own in rows:
        places.setdefault((own.data, own.client), len(places))
    rows.sort(key=lambda own: places[own.data, own.client])  # the best method of each first
    omitted = sum(map(len, methods.values())) - len(rows)
    private = any(row.epsilon is not None for row in rows)
    return ClientTable(rows, omitted, private, len({row.data for row in rows}) > 1)


def _client_rows(row: Row, data: str, table: pd.DataFrame) -> list[ClientRow]:
    """Return the rows of a setting, from the table of its runs."""
    epsilon = None if is_empty(row["epsilon_total"]) else float(row["epsilon_total"])
    text = quantity(epsilon, 3) + ("" if is_empty(row["noise_cohort"]) else EXTRAPOLATED)
    clients = table.astype(dict.fromkeys(MEASURES, "float64")).groupby("client", sort=False)
    means = clients[list(MEASURES)].mean().astype(object)
    values: dict[Any, Any] = means.where(means.notna(), None).to_dict("index")
    return [
        ClientRow(
            str(client), row["algorithm"], data, epsilon, text, span(few, many), int(few), values[client]
        )
        for client, few, many in clients["n"].agg(["min", "max"]).itertuples()
    ]
