"""Larger budgets with worse results.

A setting that is good at a budget is good at a larger one, which adds less noise: this is a failure of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.report.data.budgets import budget_of, protection_of
from harness.report.data.procedure import Interval, Procedures
from harness.report.data.resolution import difference_interval
from harness.report.data.results import Cell, grouped


class Inversion(NamedTuple):
    """A cell that is worse than one that differs in nothing but a smaller budget.

    Attributes
    ----------
    cell, smaller : Cell
        The cell with the larger budget, or without privacy, and the better one.
    measure : str
        The measure that the search optimizes.
    difference : float
        Mean of the cell less mean of the other.
    interval : tuple of float
        Its 95 % interval, see `harness.report.data.resolution.difference_interval`; without 0.
    """

    cell: Cell
    smaller: Cell
    measure: str
    difference: float
    interval: Interval


def inversions(cells: Iterable[Cell]) -> list[Inversion] | None:
    """Return the tuned cells that are worse than at a smaller budget, beyond the interval of the difference.

    Of several smaller budgets the best one is named. None if no two budgets can be compared.
    """
    tuned = (cell for cell in cells if "tune" in cell.records[0].search)
    ladders = [
        ladder
        for members in grouped(tuned, lambda cell: cell.shared_key(("privacy",))).values()
        for ladder in _ladders(members)
    ]
    if not ladders:
        return None
    # A cell without privacy is at the end of a ladder for every kind of privacy.
    found = {inversion.cell.key: inversion for ladder in ladders for inversion in _inversions(ladder)}
    return list(found.values())


def _ladders(members: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Yield the cells with values of every kind of privacy and without it, by budget; two or more."""
    kinds = grouped((cell for cell in members if cell.values(_measure(cell))), protection_of)
    plain = kinds.pop((), [])
    for cells in kinds.values():
        for private in grouped(cells, lambda cell: budget_of(cell).kind).values():
            ladder = sorted([*private, *plain], key=lambda cell: budget_of(cell).epsilon)
            if len({budget_of(cell).epsilon for cell in ladder}) > 1:
                yield ladder


def _inversions(ladder: list[Cell]) -> Iterator[Inversion]:
    measure = _measure(ladder[0])
    scores = [cell.score(measure) for cell in ladder]
    procedures = Procedures(measure)
    for number, cell in enumerate(ladder):
        better = [place for place in range(number) if scores[place] > scores[number]]
        for place in sorted(better, key=lambda place: -scores[place]):
            smaller = ladder[place]
            interval = difference_interval(cell, smaller, procedures, measure)
            if budget_of(smaller) == budget_of(cell) or interval is None or interval[0] <= 0 <= interval[1]:
                continue
            yield Inversion(cell, smaller, measure, cell.mean(measure) - smaller.mean(measure), interval)
            break


def _measure(cell: Cell) -> str:
    return str(cell.records[0].search["tune"]["metric"])
