"""Public numbers: what a message may be scaled by.

A clipped message is multiplied by its scale when it arrives, and the noise with it. A scale that depends on
the data, or on who takes part in a secret cohort, would release what it depends on. So `Channel` accepts
scales of this type only, which are made of settings and of facts about the whole federation, such as
`Clients.most_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.core.per_run import PerRun


@dataclass(frozen=True)
class Public:
    """A number that depends on settings and public facts only; arithmetic with settings keeps it public.

    Attributes
    ----------
    value : float, PerRun or Tensor
        The number, or that of each stacked run, ``(R,)``.
    """

    value: Any

    def of(self, rows: Tensor) -> float | Tensor:
        """Return the number in a form that broadcasts against rows ``(..., P)``.

        Multiply by it, or divide by it. What torch computes from a number over a tensor is the reciprocal times the
        number, which rounds otherwise than the tensor that stacked runs have over a tensor.
        """
        value: float | PerRun | Tensor = self.value
        if isinstance(value, PerRun):
            return value.of(rows)
        if not isinstance(value, Tensor):
            return value
        return value.to(rows).view(-1, *[1] * (rows.ndim - 1))

    def __mul__(self, other: float | PerRun | Public) -> Public:
        return Public(self.value * _value(other))

    def __add__(self, other: float | PerRun | Public) -> Public:
        return Public(self.value + _value(other))

    def __truediv__(self, other: float | PerRun | Public) -> Public:
        return Public(self.value / _value(other))

    def __rtruediv__(self, other: float | PerRun | Public) -> Public:
        return Public(_value(other) / self.value)

    __rmul__ = __mul__
    __radd__ = __add__


def _value(number: float | PerRun | Public) -> Any:
    if isinstance(number, Public):
        return number.value
    if not isinstance(number, int | float | PerRun):
        raise TypeError(
            f"public numbers are combined with settings, which are numbers; got {type(number).__name__}"
        )
    return number
