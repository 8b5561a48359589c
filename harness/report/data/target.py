"""What it took to reach a stated value of a measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.core.registry import UserError
from harness.report.data.cells import Cell, better_is_higher, measured

#: Column of the leaderboard -> what is read at the first evaluation that is good enough.
COSTS_TO_TARGET = {
    "rounds_to_target": "round",
    "bytes_to_target": "bytes",
    "oracle_calls_to_target": "oracle_calls",
}


class Target(NamedTuple):
    """A value of a measure that is good enough.

    Attributes
    ----------
    measure : str
        A metric or another measure of an evaluation.
    value : float
        The least that is good enough where larger is better, else the most.
    """

    measure: str
    value: float

    def __str__(self) -> str:
        """Return it as ``stationarity <= 0.01``."""
        return f"{self.measure} {'>=' if better_is_higher(self.measure) else '<='} {self.value:g}"

    def first(self, cell: Cell, cost: str) -> dict[int, float]:
        """Return seed -> `cost` at the first evaluation that is good enough, for the finished runs with one."""
        sign = 1 if better_is_higher(self.measure) else -1
        found = {}
        for record in cell.done:
            for evaluation in record.rounds:
                value = measured(evaluation, self.measure)
                if value is not None and sign * value >= sign * self.value:
                    spent = measured(evaluation, cost)
                    if spent is not None:
                        found[int(record.spec["seed"])] = spent
                    break
        return found


def read_target(given: Mapping[str, Any] | str | None) -> Target | None:
    """Read ``{measure: value}`` or ``measure=value``.

    Raises
    ------
    UserError
        If it is neither.
    """
    if given is None:
        return None
    pairs = dict([given.partition("=")[::2]]) if isinstance(given, str) else given
    try:
        ((measure, value),) = pairs.items()
        return Target(measure, float(value))
    except (TypeError, ValueError):
        raise UserError(
            f"target: one measure and its value, as in stationarity=0.01; given {given!r}"
        ) from None


def costs(cell: Cell, target: Target, column: str) -> dict[int, float]:
    """Return seed -> what `column` says; nothing unless every run of the cell is done and good enough.

    A mean over those that made it would flatter a method that mostly does not.
    """
    found = target.first(cell, COSTS_TO_TARGET[column])
    return found if len(found) == len(cell.records) else {}
