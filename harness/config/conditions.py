"""Conditions on rows of a leaderboard, as ``--where`` takes them: ``epsilon_total <= 2``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from harness.config.report import known
from harness.core.errors import UserError, unknown
from harness.metrics import METRICS

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "=": operator.eq,
}  # fmt: skip
FORM = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|==|!=|<|>|=)\s*([^\s<>=!].*?)\s*")
#: Columns whose empty field means that there is no bound: without privacy nothing limits what is told.
UNBOUNDED = ("epsilon_total", "epsilon_release", "epsilon_median", "epsilon_with_search", "epsilon")


class Condition(NamedTuple):
    """A bound on a measure or a column.

    Attributes
    ----------
    name : str
        A measure, of single seeds, or a column of the leaderboard.
    sign : str
        One of `OPERATORS`.
    value : float or str
        What is compared with.
    """

    name: str
    sign: str
    value: float | str

    def __str__(self) -> str:
        """Return it as it is written."""
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.name} {self.sign} {value}"

    @property
    def upper(self) -> bool | None:
        """Whether the bound is an upper one; None if the condition is not a bound."""
        return {"<": True, "<=": True, ">": False, ">=": False}.get(self.sign)

    def holds(self, value: Any) -> bool:
        """Return whether a value satisfies the condition; a missing one does not, but for `UNBOUNDED`."""
        if value is None or value != value:
            if self.name not in UNBOUNDED:
                return False
            value = math.inf
        if isinstance(self.value, str) or isinstance(value, str):
            return bool(OPERATORS[self.sign](str(value), str(self.value)))
        return bool(OPERATORS[self.sign](float(value), self.value))


def read_conditions(texts: Sequence[str], columns: Collection[str]) -> list[Condition]:
    """Read conditions.

    Parameters
    ----------
    texts : sequence of str
        As ``auroc >= 0.8`` or ``algorithm == fedavg``.
    columns : collection of str
        Columns of the leaderboard.

    Raises
    ------
    UserError
        If one has another form, or names neither a measure nor a column.
    """
    conditions = []
    for text in texts:
        match = FORM.fullmatch(text)
        if match is None:
            raise UserError(
                f"--where: a name, one of {', '.join(OPERATORS)}, and a value, as 'epsilon_total <= 2'; "
                f"given {text!r}"
            )
        name, sign, text_value = match.groups()
        if not known(name) and name not in columns:
            raise unknown("measure or column", name, [*METRICS, *columns])
        try:
            value: float | str = float(text_value)
        except ValueError:
            value = text_value.strip("'\"")
            if sign not in ("=", "==", "!="):
                raise UserError(f"--where: {sign} needs a number, given {text!r}") from None
        if isinstance(value, float) and math.isnan(value):
            raise UserError(f"--where: a number is needed, given {text!r}")
        conditions.append(Condition(name, sign, value))
    return conditions
