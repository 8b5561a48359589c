"""Settings that differ between stacked runs.

A run alone computes with numbers; a stack computes with a `PerRun` in place of every number in which its runs
differ. Between numbers it computes in double precision, as Python does, and beside a tensor it is rounded to the
tensor's type, as torch does with a number. So every run of a stack gets the bits that it gets alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.core.execution.exact.functions import quotient

T = TypeVar("T")
Number = int | float


def is_one(factor: Number | PerRun) -> bool:
    """Return whether a factor is 1 in all runs, so that it may be left out."""
    values = factor.values if isinstance(factor, PerRun) else (factor,)
    return all(value == 1 for value in values)


class Mixed(TypeError):
    """The runs of a stack differ where one decision is needed for all of them."""


class PerRun:
    """A number with one value for each stacked run.

    Parameters
    ----------
    values : sequence of float
        One per run.

    Raises
    ------
    Mixed
        Where a decision depends on it and the runs do not agree, and where it meets a tensor without an axis of
        runs, as in functions of one client.
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Number]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        return f"PerRun({', '.join(map(str, self.values))})"

    def __hash__(self) -> int:
        return hash(self.values)

    def of(self, rows: Tensor) -> Tensor:
        """Return the values in the type of rows ``(R, ...)``, with axes to broadcast against them."""
        batched: bool = torch._C._functorch.is_functorch_wrapped_tensor(rows)
        if batched or rows.shape[:1] != (len(self.values),):
            raise Mixed(f"a tensor {tuple(rows.shape)} has no axis of {len(self.values)} runs")
        dtype = rows.dtype if rows.is_floating_point() else torch.get_default_dtype()
        values = torch.tensor(self.values, dtype=torch.float64).to(rows.device, dtype)
        return values.view(-1, *[1] * (rows.ndim - 1))

    def each(self, function: Callable[[float], Any]) -> PerRun:
        """Apply a function to every value."""
        return PerRun([function(value) for value in self.values])

    def __bool__(self) -> bool:
        return self._agreed([bool(value) for value in self.values], "whether they are zero")

    def __neg__(self) -> PerRun:
        return self.each(operator.neg)

    def __pow__(self, power: Number) -> PerRun:
        return self.each(lambda value: value**power)

    def _agreed(self, answers: Sequence[bool], what: str) -> bool:
        if len(set(answers)) > 1:
            raise Mixed(f"{self} differ in {what}")
        return answers[0]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Apply a function of torch, with tensors in place of the values."""
        if function in _POWERS:
            raise TypeError("torch rounds powers by numbers and by tensors differently")
        if function is torch.full_like:
            return args[1].of(args[0]).expand_as(args[0]).clone()
        arguments = [*args, *(kwargs or {}).values()]
        widest = max((one for one in arguments if isinstance(one, Tensor)), key=lambda one: one.ndim)

        def convert(argument: Any) -> Any:
            return argument.of(widest) if isinstance(argument, PerRun) else argument

        return function(*map(convert, args), **{name: convert(one) for name, one in (kwargs or {}).items()})


def _arithmetic(name: str, *, reflected: bool = False) -> Callable[[PerRun, Any], Any]:
    function = getattr(operator, name)

    def ordered(mine: Any, other: Any) -> Any:
        return function(other, mine) if reflected else function(mine, other)

    def method(self: PerRun, other: Any) -> Any:
        if isinstance(other, Tensor):
            exact = quotient if name == "truediv" and not reflected else ordered
            return exact(self.of(other), other)
        if isinstance(other, PerRun):
            return PerRun(list(map(ordered, self.values, other.values)))
        return self.each(lambda value: ordered(value, other)) if _number(other) else NotImplemented

    return method


def _comparison(name: str) -> Callable[[PerRun, Any], Any]:
    function = getattr(operator, name)

    def method(self: PerRun, other: Any) -> Any:
        if isinstance(other, Tensor):
            return function(self.of(other), other)
        others = other.values if isinstance(other, PerRun) else [other] * len(self.values)
        if name in ("eq", "ne") and not (_number(other) or isinstance(other, PerRun)):
            return NotImplemented
        answers = list(map(function, self.values, others))
        return self._agreed(answers, f"the comparison with {other}")

    return method


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_POWERS = (torch.pow, Tensor.pow, Tensor.__pow__, Tensor.__rpow__)
for _name in ("add", "sub", "mul", "truediv"):
    setattr(PerRun, f"__{_name}__", _arithmetic(_name))
    setattr(PerRun, f"__r{_name}__", _arithmetic(_name, reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(PerRun, f"__{_name}__", _comparison(_name))


def apply(function: Callable[[float], float], number: Any) -> Any:
    """Apply a function to a number, or to that of each run."""
    return number.each(function) if isinstance(number, PerRun) else function(number)


def for_each(settings: T | Sequence[T], runs: int) -> list[T]:
    """Return settings of every run of a stack, given as one object for all or as one per run."""
    return list(settings) if isinstance(settings, Sequence) else [settings] * runs


def side_by_side(things: Sequence[T]) -> T:
    """Return settings of all runs of a stack: the first's, with a `PerRun` for each number in which they differ.

    Parameters
    ----------
    things : sequence
        Settings objects of one class: dataclasses, or models of pydantic.

    Raises
    ------
    Mixed
        If they differ in something other than a number.
    """
    first = things[0]
    if all(thing is first or thing == first for thing in things[1:]):
        return first
    cls: Any = type(first)
    names = [field.name for field in fields(cls)] if is_dataclass(cls) else list(cls.model_fields)
    joined = copy(first)
    for name in names:
        values = [getattr(thing, name) for thing in things]
        if all(value == values[0] for value in values):
            continue
        if all(map(_number, values)):
            object.__setattr__(joined, name, PerRun(values))
        elif hasattr(type(values[0]), "model_fields"):
            object.__setattr__(joined, name, side_by_side(values))
        else:
            raise Mixed(f"{name} differs: {', '.join(map(str, dict.fromkeys(map(str, values))))}")
    return joined


def kind(value: object) -> object:
    """Return what runs must share in a setting in which they may differ: its sign. What is no number stays."""
    if not isinstance(value, float) or value == 0 or math.isinf(value):
        return value
    return "above 0" if value > 0 else "below 0"
