"""Results of clients that have names, means over seeds, for readers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from harness.report.data.clients import GAINS, MEASURES, client_changes, client_rows
from harness.report.data.evidence import Row
from harness.report.data.results import Cell, Results
from harness.report.tables.rows import Board
from harness.report.tables.text import EXTRAPOLATED, in_sentence, is_empty, quantity, signed, span

MOST = 1000  # rows
PROTECTION = ("privacy", "compression")


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
    change : float or None
        Points that privacy and compression change of the client's result under this algorithm; None of what has
        neither, and without such a cell.
    """

    client: str
    algorithm: str
    data: str
    epsilon: float | None
    epsilon_text: str
    n: str
    fewest: int
    means: dict[str, float | None]
    change: float | None

    @property
    def change_text(self) -> str:
        """The change as text."""
        return "" if self.change is None else signed(self.change, "+.1f")


class ClientTable(NamedTuple):
    """Rows for clients, how many are left out, and whether some are private and on several data sets.

    ``changed`` is the measure of the changes; empty if there are none.
    """

    rows: list[ClientRow]
    left: int
    private: bool
    several: bool
    changed: str


def by_client(results: Results, board: Board) -> ClientTable:
    """Return the values of every named client under the best setting of each algorithm and budget.

    Rows of a client stand together, the best first. Beyond `MOST` rows, methods far down in their task are left
    out.

    Parameters
    ----------
    results : Results
        Runs.
    board : Board
        Their leaderboard.
    """
    cells = {cell.key: cell for cell in results.cells}
    plain = {
        cell.shared_key(PROTECTION): cell for cell in results.cells if cell.done and not cell.is_protected
    }
    measure = board.by if board.by in GAINS else "accuracy"
    methods: dict[tuple[Any, ...], list[ClientRow]] = {}
    tasks: dict[str, list[tuple[Any, ...]]] = {}
    for row in board.rows:
        budget = None if is_empty(row["dp_unit"]) else row["epsilon_asked"]
        key = row["task"], row["algorithm"], row["dp_unit"], budget
        if key not in methods and not (table := client_rows(cells[row["cell"]].done)).empty:
            cell, data = cells[row["cell"]], board.tasks[row["cell"]]["dataset"]
            changes = _changes(cell, plain.get(cell.shared_key(PROTECTION)), measure)
            methods[key] = _client_rows(row, data, table, changes)
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
    changed = in_sentence(measure) if any(row.change is not None for row in rows) else ""
    return ClientTable(rows, omitted, private, len({row.data for row in rows}) > 1, changed)


def _changes(cell: Cell, plain: Cell | None, measure: str) -> dict[Any, float]:
    """Return by client the change to the same cell without protection, in points."""
    if plain is None or not cell.is_protected:
        return {}
    return (100 * client_changes(cell, plain, measure)).dropna().to_dict()


def _client_rows(row: Row, data: str, table: pd.DataFrame, changes: Mapping[Any, float]) -> list[ClientRow]:
    """Return the rows of a setting, from the table of its runs."""
    epsilon = None if is_empty(row["epsilon_total"]) else float(row["epsilon_total"])
    text = quantity(epsilon, 3) + ("" if is_empty(row["noise_cohort"]) else EXTRAPOLATED)
    clients = table.astype(dict.fromkeys(MEASURES, "float64")).groupby("client", sort=False)
    means = clients[list(MEASURES)].mean().astype(object)
    values: dict[Any, Any] = means.where(means.notna(), None).to_dict("index")
    return [
        ClientRow(
            str(client),
            row["algorithm"],
            data,
            epsilon,
            text,
            span(few, many),
            int(few),
            values[client],
            changes.get(client),
        )
        for client, few, many in clients["n"].agg(["min", "max"]).itertuples()
    ]
