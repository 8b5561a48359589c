"""Declarations of hyper-parameters: how they are bounded, and which are step sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

_DECLARED = "declaration"  # the key in the metadata of fields


class Declaration(NamedTuple):
    """A hyper-parameter's bound, and whether it is a step size.

    Attributes
    ----------
    holds : Callable
        Whether a number is allowed.
    words : str
        What it must be.
    step_size : bool
        Whether the schedule changes it.
    """

    holds: Callable[[float], bool]
    words: str
    step_size: bool = False


POSITIVE = Declaration(lambda value: bool(np.isfinite(value)) and value > 0, "above 0")
NOT_NEGATIVE = Declaration(lambda value: bool(np.isfinite(value)) and value >= 0, "at least 0")
BELOW_ONE = Declaration(lambda value: 0 <= value < 1, "at least 0 and below 1")
AT_MOST_ONE = Declaration(lambda value: 0 < value <= 1, "above 0 and at most 1")
PROBABILITY = Declaration(lambda value: 0 <= value <= 1, "from 0 to 1")


def positive(default: float | tuple[float, ...] | None) -> Any:
    """Declare a field that is a finite number above 0, some of them, or None: ``mu: float = positive(0.1)``."""
    return _declared(default, POSITIVE)


def not_negative(default: float | None) -> Any:
    """Declare a field that is a finite number of at least 0, or None."""
    return _declared(default, NOT_NEGATIVE)


def below_one(default: float) -> Any:
    """Declare a field that is at least 0 and below 1."""
    return _declared(default, BELOW_ONE)


def at_most_one(default: float) -> Any:
    """Declare a field that is above 0 and at most 1."""
    return _declared(default, AT_MOST_ONE)


def probability(default: float) -> Any:
    """Declare a field that is from 0 to 1."""
    return _declared(default, PROBABILITY)


def step_size(default: float, *, zero: bool = False) -> Any:
    """Declare a field as a step size, which `Algorithm.lr_schedule` changes from round to round.

    It is above 0, or at least 0 with ``zero``.
    """
    return _declared(default, (NOT_NEGATIVE if zero else POSITIVE)._replace(step_size=True))


def _declared(default: Any, declaration: Declaration) -> Any:
    return field(default=default, metadata={_DECLARED: declaration})


def declarations(cls: type) -> dict[str, Declaration]:
    """Return what fields are declared to be; a subclass that changes a default only keeps the declaration."""
    return {
        name: own.metadata[_DECLARED]
        for base in reversed(cls.__mro__)
        for name, own in vars(base).get("__dataclass_fields__", {}).items()
        if _DECLARED in own.metadata
    }
