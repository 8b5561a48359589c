"""Federations of the suites in which every method is tuned for every budget, and their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from harness.report.data.evidence import Evidence
from harness.report.data.references import Shape, references, shapes_of
from studies.results.boards import UNITS, Board, Boards, Row

SUITES = ("natural", "persons", "frontier")


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

    @property
    def shape(self) -> Shape:
        """Samples of a client and skew of labels, as the installed references have them."""
        return _shapes()[self.board.suite, self.data, self.clients]

    @cached_property
    def whole(self) -> list[Row]:
        """Its rows without compression."""
        rows = self.board.rows(dataset=self.data, clients=(self.clients, None))
        return [row for row in rows if not row["beta"] and not row["alpha"] and row["partition"] != "columns"]

    def rows(self, **settings: Any) -> list[Row]:
        """Return its rows without compression that have these settings."""
        return [row for row in self.whole if row.has(settings)]

    def under(self, epsilon: float | None, **settings: Any) -> list[Row]:
        """Return its rows without compression under a budget; None is no privacy at all."""
        free = {"dp_unit": None} if epsilon is None else {}
        return self.rows(epsilon_asked=epsilon, **free, **settings)

    def row(self, algorithm: str, epsilon: float | None, model: str = "logistic") -> Row | None:
        """Return the row of a method under a budget; None if there is none."""
        rows = self.under(epsilon, algorithm=algorithm, model=model)
        return rows[0] if rows else None

    @cached_property
    def free(self) -> Row:
        """The row of FedAvg without privacy."""
        return self.under(None, algorithm="fedavg", model="logistic")[0]

    @cached_property
    def equal(self) -> Row | None:
        """The row of FedAvg with equal weights and clipping, as under privacy, but without noise."""
        rows = self.rows(algorithm="fedavg", model="logistic", noise_multiplier=0)
        return rows[0] if rows else None

    @cached_property
    def budgets(self) -> list[float]:
        """Its budgets, the largest first."""
        return sorted({row["epsilon_asked"] for row in self.whole} - {None}, reverse=True)


@cache
def _shapes() -> dict[tuple[str, str, int | None], Shape]:
    found = shapes_of(Evidence.of_table(references()).rows)
    return {(each.suite, each.dataset, each.clients): shape for each, shape in found.items()}


def federations(boards: Boards) -> list[Federation]:
    """Return the federations of all suites; those whose clients trust the server first, and the largest first."""
    found = [each for suite in SUITES for each in of_suite(boards[suite])]
    return sorted(found, key=lambda each: (each.own_noise, each.board.suite != "natural", -each.clients))


def of_suite(board: Board) -> list[Federation]:
    """Return the federations of a suite."""
    found: dict[tuple[str, int], Federation] = {}
    for row in board.rows(algorithm="fedavg", model="logistic", dp_unit=None):
        data, clients = row["dataset"], int(row["clients"])
        places = board.values("dp_placement", dataset=data, clients=clients, algorithm="fedavg")
        found[data, clients] = Federation(board, data, clients, "local" in places)
    return list(found.values())
