"""The client, or all, whose epsilon is the largest of a privacy statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.data.results import Cell
from harness.report.data.specs import clients


class MostExposed(NamedTuple):
    """The clients, or persons of a vertical run, with the largest epsilon.

    Attributes
    ----------
    unit : str
        What units are numbered by: ``client``, or ``person`` in vertical runs.
    number : int or None
        Number of the first of them; None if it is all clients.
    others : int
        How many more have its history of draws, rates and noise.
    """

    unit: str
    number: int | None
    others: int

    def text(self, names: Sequence[str] = ()) -> str:
        """Return ``client 7 and 2 more``, or ``all clients``; a client has its name, if clients have names."""
        if self.number is None:
            return f"all {self.unit}s"
        first = self.first(names)
        return f"{first} and {self.others} more" if self.others else first

    def first(self, names: Sequence[str] = ()) -> str:
        """Return ``client 7``, or its name."""
        if names and self.unit == "client" and self.number is not None:
            return str(names[self.number])
        return f"{self.unit} {self.number}"


def most_exposed(claim: Mapping[str, Any], total: int | None = None) -> MostExposed | None:
    """Return whose the largest epsilon of a privacy statement is; None in records of earlier versions.

    Parameters
    ----------
    claim : Mapping
        The privacy statement.
    total : int, optional
        Number of clients.
    """
    if "unit_most" not in claim:
        return None
    unit, others = person_or_client(claim), claim["units_most"] - 1
    number = None if unit == "client" and others + 1 == total else claim["unit_most"]
    return MostExposed(unit, number, others)


def most_exposed_of(cell: Cell) -> MostExposed | None:
    """Return whose the largest epsilon of a cell is, by the statement of the seed with the largest epsilon."""
    return most_exposed(cell.privacy() or {}, clients_of(cell))


def clients_of(cell: Cell) -> int | None:
    """Return the number of clients of a cell's runs."""
    return next((r.final["clients"] for r in cell.records if "clients" in r.final), clients(cell.spec))


def person_or_client(claim: Mapping[str, Any]) -> str:
    """Return what the units of a statement are numbered by: people in vertical runs, clients in others."""
    return "person" if "protects" in claim else "client"
