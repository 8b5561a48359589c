"""Ranges of a setting, from which sweeps and tuning draw values.

One of ``uniform``, ``log_uniform``, ``integer`` and ``log_integer``, with two inclusive bounds, or ``choice`` with
a list of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.config.yaml import mapping, shown
from harness.core.registry import UserError, unknown

KINDS = ("uniform", "log_uniform", "integer", "log_integer", "choice")
PLACES = ("sweep.random.over.", "tune.settings.")  # where ranges are written
WHOLE = ("integer", "log_integer")
DIGITS = 4  # significant digits of a drawn number, for readable tables


@dataclass(frozen=True)
class Range:
    """Values of one setting.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    bounds : tuple
        Lowest and highest value, both possible; of a choice all values.
    """

    kind: str
    bounds: tuple[Any, ...]

    @property
    def number(self) -> int | None:
        """Number of equally likely values; None where they are not."""
        if self.kind == "choice":
            return len(self.bounds)
        return self.bounds[1] - self.bounds[0] + 1 if self.kind == "integer" else None

    def value(self, index: int) -> Any:
        """Return one of `number` values."""
        return self.bounds[index] if self.kind == "choice" else self.bounds[0] + index

    def at(self, share: float) -> Any:
        """Return the value at a share of the range, in [0, 1); numbers have `DIGITS` significant digits."""
        if self.number is not None:
            return self.value(int(share * self.number))
        low, high = self.bounds
        if self.kind == "uniform":
            return _rounded(low + (high - low) * share)
        if self.kind == "log_integer":
            bottom, top = math.log(low), math.log(high + 1)
            return min(int(math.exp(bottom + (top - bottom) * share)), high)
        bottom, top = math.log(low), math.log(high)
        return _rounded(math.exp(bottom + (top - bottom) * share))


def read_range(where: str, given: Any) -> Range:
    """Read ``{log_uniform: [0.001, 1]}``.

    Raises
    ------
    UserError
        If it is not one kind with its bounds, in order.
    """
    (kind, bounds), *more = mapping(where, given).items() or [("", None)]
    if more or kind not in KINDS:
        path = next((where.removeprefix(part) for part in PLACES if where.startswith(part)), where)
        raise unknown(f"way to draw {path}", more[0][0] if more else kind, KINDS)
    if not isinstance(bounds, list) or not bounds or (kind != "choice" and not _ordered(bounds, kind)):
        wanted = "a list of values" if kind == "choice" else "[lowest, highest]"
        low = ", above 0" if kind.startswith("log") else ""
        low += ", whole numbers" if kind in WHOLE else ""
        raise UserError(f"{where}: {kind} takes {wanted}{low}; given {shown(bounds)}")
    return Range(kind, tuple(bounds))


def _ordered(bounds: list[Any], kind: str) -> bool:
    """Whether the bounds are two finite numbers of the kind, in order."""
    numbers = int if kind in WHOLE else int | float
    if len(bounds) != 2 or any(isinstance(b, bool) or not isinstance(b, numbers) for b in bounds):
        return False
    low, high = bounds
    positive = low > 0 or not kind.startswith("log")
    return math.isfinite(low) and math.isfinite(high) and low <= high and positive


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
