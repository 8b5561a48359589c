"""Ranges of a setting, from which sweeps and tuning draw values.

One of ``uniform``, ``log_uniform``, ``integer`` and ``log_integer``, with two inclusive bounds, or ``choice`` with
a list of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from harness.config.yaml import mapping, shown
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError, unknown

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
    fixed : bool
        Whether a search may not widen it.
    """

    kind: str
    bounds: tuple[Any, ...]
    algorithms: tuple[str, ...] = ()
    fixed: bool = False

    def stored(self) -> dict[str, Any]:
        """Return it as files hold it."""
        named = {"algorithms": list(self.algorithms)} if self.algorithms else {}
        return {self.kind: list(self.bounds), **named, **({"fixed": True} if self.fixed else {})}

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

    def mean(self) -> Any:
        """Return the expected value of a draw; of a choice of other things than numbers the one in the middle."""
        if self.kind == "choice":
            if not all(type(bound) in (int, float) for bound in self.bounds):
                return self.bounds[len(self.bounds) // 2]
            mean, whole = fmean(self.bounds), all(type(bound) is int for bound in self.bounds)
            return round(mean) if whole else _round(mean)
        low, high = self.bounds
        if low == high:
            return low
        if self.kind == "log_integer":  # which rounds down
            return round((high + 1 - low) / math.log((high + 1) / low) - 0.5)
        log_uniform = self.kind == "log_uniform"
        mean = (high - low) / math.log(high / low) if log_uniform else (low + high) / 2
        return round(mean) if self.kind == "integer" else _round(mean)

    def coordinates(self, value: Any) -> tuple[float, ...]:
        """Return where a value lies: 0 at the lowest, 1 at the highest, beyond them outside of the range.

        Choices of numbers are as far apart as their places in order; others have a coordinate each.
        """
        if self.kind == "choice":
            if all(type(bound) in (int, float) for bound in self.bounds):
                return (sorted(self.bounds).index(value) / max(len(self.bounds) - 1, 1),)
            return tuple(float(value == bound) for bound in self.bounds)
        low, high = self.bounds
        if low == high:
            return (0.0,)
        if self.kind.startswith("log"):
            return (math.log(value / low) / math.log(high / low),)
        return ((value - low) / (high - low),)

    def widened(self, share: float, *, upward: bool) -> Range:
        """Return the range with a share of its length added at one end."""
        low, high = self.bounds
        if self.kind.startswith("log"):
            factor = (high / low) ** share
            low, high = (low, high * factor) if upward else (low / factor, high)
        else:
            more = (high - low) * share
            low, high = (low, high + more) if upward else (low - more, high)
        if self.kind in WHOLE:
            lowest, highest = self.bounds
            low, high = (lowest, math.ceil(high)) if upward else (min(lowest, max(1, round(low))), highest)
        return replace(self, bounds=(low, high) if self.kind in WHOLE else (_round(low), _round(high)))


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
    fixed = fields.pop("fixed", False) if where == TUNED else False
    if not isinstance(fixed, bool):
        raise UserError(f"{where}.{path}.fixed: true or false, given {shown(fixed)}")
    (kind, bounds), *more = fields.items() or [("", None)]
    if more or kind not in KINDS:
        raise unknown(f"way to draw {path}", more[0][0] if more else kind, KINDS)
    if not isinstance(bounds, list) or not bounds or (kind != "choice" and not _ordered(bounds, kind)):
        form = "a list of values" if kind == "choice" else "[lowest, highest]"
        low = ", above 0" if kind.startswith("log") else ""
        low += ", whole numbers" if kind in WHOLE else ""
        raise UserError(f"{where}.{path}: {kind} takes {form}{low}; given {shown(bounds)}")
    named = () if algorithms is None else _algorithms(where, path, algorithms)
    return Range(kind, tuple(bounds), named, fixed)


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
