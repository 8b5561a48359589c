"""Ranges of a setting, from which sweeps and tuning draw values.

One of ``uniform``, ``log_uniform``, ``integer`` and ``log_integer``, with two inclusive bounds, or ``choice`` with
a list of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.config.yaml import mapping, shown
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import UserError, unknown

KINDS = ("uniform", "log_uniform", "integer", "log_integer", "choice")
TUNED = "tune.settings"  # ranges there may name algorithms
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
    algorithms : tuple of str
        The algorithms that search the setting, where not all that have it do.
    """

    kind: str
    bounds: tuple[Any, ...]
    algorithms: tuple[str, ...] = ()

    def stored(self) -> dict[str, Any]:
        """Return it as files hold it."""
        named = {"algorithms": list(self.algorithms)} if self.algorithms else {}
        return {self.kind: list(self.bounds), **named}

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
            return _round(low + (high - low) * share)
        if self.kind == "log_integer":
            bottom, top = math.log(low), math.log(high + 1)
            return min(int(math.exp(bottom + (top - bottom) * share)), high)
        bottom, top = math.log(low), math.log(high)
        return _round(math.exp(bottom + (top - bottom) * share))


def read_ranges(where: str, content: Any) -> dict[str, Range]:
    """Read ``{algorithm.lr: {log_uniform: [0.001, 1]}, ...}``.

    Raises
    ------
    UserError
        If a range is not one kind with its bounds, in order.
    """
    return {path: _range(where, path, bounds) for path, bounds in mapping(where, content).items()}


def _range(where: str, path: str, content: Any) -> Range:
    """Read one range, and the algorithms that search it."""
    fields = dict(mapping(f"{where}.{path}", content))
    algorithms = fields.pop("algorithms", None) if where == TUNED else None
    (kind, bounds), *more = fields.items() or [("", None)]
    if more or kind not in KINDS:
        raise unknown(f"way to draw {path}", more[0][0] if more else kind, KINDS)
    if not isinstance(bounds, list) or not bounds or (kind != "choice" and not _ordered(bounds, kind)):
        form = "a list of values" if kind == "choice" else "[lowest, highest]"
        low = ", above 0" if kind.startswith("log") else ""
        low += ", whole numbers" if kind in WHOLE else ""
        raise UserError(f"{where}.{path}: {kind} takes {form}{low}; given {shown(bounds)}")
    return Range(kind, tuple(bounds), () if algorithms is None else _algorithms(where, path, algorithms))


def _algorithms(where: str, path: str, names: Any) -> tuple[str, ...]:
    """Read the algorithms that search a setting."""
    if not isinstance(names, list) or not names:
        raise UserError(f"{where}.{path}.algorithms: a list of algorithms, given {shown(names)}")
    for name in names:
        if name not in ALGORITHMS:
            raise unknown("algorithm", str(name), ALGORITHMS)
    return tuple(names)


def _ordered(bounds: list[Any], kind: str) -> bool:
    """Return whether the bounds are two finite numbers of the kind, in order."""
    numbers = int if kind in WHOLE else int | float
    if len(bounds) != 2 or any(isinstance(b, bool) or not isinstance(b, numbers) for b in bounds):
        return False
    low, high = bounds
    positive = low > 0 or not kind.startswith("log")
    return math.isfinite(low) and math.isfinite(high) and low <= high and positive


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
