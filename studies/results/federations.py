"""Federations of the suites ``natural`` and ``frontier``, and their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from studies.results.boards import UNITS, Board, Boards, Row

SUITES = ("natural", "frontier")


@dataclass(frozen=True)
class Federation:
    """Data among a number of clients, as a suite has them.

    Attributes
    ----------
    board : Board
        The leaderboard of the suite.
    data : str
        Name of the data.
    clients : int
        Number of clients.
    own_noise : bool
        Whether clients add the noise themselves.
    """

    board: Board
    data: str
    clients: int
    own_noise: bool

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.data} {self.clients}" if self.data == "adult" else self.data

    @property
    def units(self) -> str:
        """Number and kind of its clients, and whether they add the noise."""
        noise = ", own noise" if self.own_noise else ""
        return f"{self.clients:,} {UNITS.get(self.data, 'clients')}{noise}"

    @cached_property
    def whole(self) -> list[Row]:
        """Its rows without compression."""
        rows = self.board.rows(dataset=self.data, clients=(self.clients, None))
        return [
            row for row in rows if not row["beta"] and not row["alpha"] and row["partition"] != "columns"
        ]

    def rows(self, **settings: Any) -> list[Row]:
        """Return its rows without compression that have these settings."""
        return [row for row in self.whole if row.has(settings)]

    def row(self, algorithm: str, epsilon: float | None, model: str = "logistic") -> Row | None:
        """Return the row of a method under a budget; None if there is none."""
        rows = self.rows(algorithm=algorithm, epsilon_asked=epsilon, model=model)
        return rows[0] if rows else None

    @cached_property
    def free(self) -> Row:
        """The row of FedAvg without privacy."""
        return self.rows(algorithm="fedavg", epsilon_asked=None, model="logistic")[0]

    @cached_property
    def budgets(self) -> list[float]:
        """Its budgets, the largest first."""
        return sorted({row["epsilon_asked"] for row in self.whole} - {None}, reverse=True)


def both(boards: Boards) -> list[Federation]:
    """Return the federations of both suites; those of ``natural`` first, and the largest first."""
    found: dict[tuple[str, str, int], Federation] = {}
    for suite in SUITES:
        for row in boards[suite].rows(algorithm="fedavg", model="logistic", epsilon_asked=None):
            data, clients = row["dataset"], int(row["clients"])
            places = boards[suite].values("dp_placement", dataset=data, clients=clients, algorithm="fedavg")
            found[suite, data, clients] = Federation(boards[suite], data, clients, "local" in places)
    return sorted(found.values(), key=lambda each: (each.board.suite != "natural", each.own_noise, -each.clients))


def federations(boards: Boards) -> list[Federation]:
    """Return the federations of both suites, each once."""
    found: list[Federation] = []
    for each in both(boards):
        if all(other.data != each.data or other.board is each.board for other in found):
            found.append(each)
    return found
