"""Budgets that cells ask for."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.report.data.results import Cell

ASKED = ("epsilon_nominal", "epsilon", "epsilon_release")  # kinds of budgets in a spec


class Budget(NamedTuple):
    """A requested budget: the kind of epsilon and its value, infinite without privacy."""

    kind: str
    epsilon: float


def budget_of(cell: Cell) -> Budget:
    """Return a cell's requested budget."""
    privacy = cell.spec.get("privacy") or {}
    for kind in ASKED:
        if privacy.get(kind) is not None:
            return Budget(kind, float(privacy[kind]))
    return Budget("", math.inf)


def protection_of(cell: Cell) -> tuple[str, ...]:
    """Return how a cell is protected, apart from how much; empty without privacy."""
    privacy = cell.spec.get("privacy") or {}
    names = ("unit", "placement", "sampling", "adjacency", "mechanism", "noise_cohort")
    return tuple(f"privacy.{name}={privacy[name]}" for name in names if privacy.get(name) is not None)
