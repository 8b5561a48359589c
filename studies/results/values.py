"""Values on the results pages: numbers with intervals, and the rows that they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from harness.report.tables.columns import NO_DIFFERENCE

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Value:
    """A number, its 95 % interval, how it is written, and its rows.

    Attributes
    ----------
    number : float
        The number itself.
    low, high : float or None
        Its interval; None where there is none.
    rows : tuple of str
        Rows that it follows from, as ``SUITE:CELL``.
    text : str
        The number as pages write it, with its interval.
    """

    number: float
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()
    text: str = ""

    def __sub__(self, other: Value) -> Value:
        """Return the difference of two means.

        Its interval follows from theirs (MOVER; Zou and Donner 2008, https://doi.org/10.1002/sim.3095). It takes
        them as independent, so it is too wide where they have seeds in common.
        """
        number, rows = self.number - other.number, (*self.rows, *other.rows)
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Value(number, rows=rows)
        return Value(
            number,
            number - math.hypot(self.number - self.low, other.high - other.number),
            number + math.hypot(self.high - self.number, other.number - other.low),
            rows,
        )

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def forms(self) -> tuple[str, ...]:
        """The ways in which a sentence may write it: with interval, without, and without its sign."""
        short = self.text.partition(" [")[0]
        return self.text, short, short.lstrip(f"{NO_DIFFERENCE} +{MINUS}")

    def without_interval(self) -> Value:
        """Write it without its interval."""
        return replace(self, text=self.forms[1])

    def share(self) -> Value:
        """Write a share, such as AUROC or accuracy, as ``.912 [.905, .919]``."""
        return self._written(lambda value: f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.3f}")

    def points(self) -> Value:
        """Write a difference of shares in percentage points, as ``−2.9 [−3.5, −2.3]``."""
        return self._written(lambda value: signed(100 * value))

    def _written(self, form: Callable[[float], str]) -> Value:
        ends = "" if self.low is None or self.high is None else f" [{form(self.low)}, {form(self.high)}]"
        return replace(self, text=form(self.number) + ends)


def signed(value: float) -> str:
    """Return a number with one decimal and its sign; what rounds to 0 has none."""
    text = f"{value:+.1f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}") != "0.0" else "0.0"


def count(value: float, rows: Iterable[str] = ()) -> Value:
    """Return a whole number without an interval."""
    return Value(value, rows=tuple(rows), text=f"{value:,.0f}")


def span(values: Collection[float]) -> Value:
    """Return the ends of some whole numbers, as ``10 to 20``."""
    low, high = min(values), max(values)
    return Value(high, text=f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}")


def extremes(values: Collection[Value]) -> Value:
    """Return the least and the largest of some values, as ``.668 to .733``."""
    low, high = (end(values, key=lambda one: one.number) for end in (min, max))
    return Value(high.number, rows=(*low.rows, *high.rows), text=f"{low.forms[1]} to {high.forms[1]}")
