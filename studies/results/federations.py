"""Federations of the suites ``natural`` and ``frontier``, and the rows that answer for each.

A federation is data among a number of clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from studies.results.boards import UNITS, Board, Boards, Row

SUITES = ("natural", "frontier")


@dataclass(frozen=True)
class Federation:
    """Data among clients, as a suite has them; horizontal ones only.

    Attributes
    ----------
    board : Board
        The leaderboard.
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
        """What its clients are, and whether they add the noise, in words."""
        noise = ", own noise" if self.own_noise else ""
        return f"{self.clients} {UNITS.get(self.data, 'clients')}{noise}"

    def rows(self, **settings: Any) -> list[Row]:
        """Return its rows without compression."""
        alike = {"dataset": self.data, "clients": (self.clients, None), "beta": (0.0, None), "alpha": (0.0, None)}
        return [row for row in self.board.rows(**alike, **settings) if row["partition"] != "columns"]

    def row(self, algorithm: str, epsilon: float | None, model: str = "logistic") -> Row | None:
        """Return the row of a method under a budget; None if there is none."""
        rows = self.rows(algorithm=algorithm, epsilon_asked=epsilon, model=model)
        return rows[0] if rows else None

    @property
    def budgets(self) -> list[float]:
        """Its budgets, the largest first."""
        return sorted({row["epsilon_asked"] for row in self.rows()} - {None}, reverse=True)


def federations(boards: Boards) -> list[Federation]:
    """Return the federations of both suites, each once: real clients first, and of these the largest first."""
    found: list[Federation] = []
    for each in both(boards):
        if all(other.data != each.data or other.board is each.board for other in found):
            found.append(each)
    return found


def both(boards: Boards) -> list[Federation]:
    """Return the federations of both suites; those of ``natural`` first, and the largest first."""
    found = []
    for suite in SUITES:
        board = boards[suite]
        free = board.rows(algorithm="fedavg", model="logistic", epsilon_asked=None, beta=0.0, problem="classify")
        for row in free:
            data, clients = row["dataset"], int(row["clients"])
            private = board.rows(dataset=data, clients=clients, algorithm="fedavg", dp_placement=("local", "central"))
            own = any(other["dp_placement"] == "local" for other in private)
            found.append(Federation(board, data, clients, own))
    return sorted(found, key=lambda each: (SUITES.index(each.board.suite), each.own_noise, -each.clients))
