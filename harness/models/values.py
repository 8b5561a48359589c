"""Values of settings: which types they may have, and whether a value fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from harness.core.errors import UserError

Shape = tuple[int, ...]
KINDS = "int, float, bool, str, Literal[...] or tuple[int, ...]"


def checked(what: str, value: Any, hint: object, usual: object = 1) -> Any:
    """Return ``value`` if it fits the type of a setting, else raise."""
    kind = kind_of(hint, usual)
    assert kind is not None
    expected, fits = kind
    if not fits(value):
        raise UserError(f"{what} must be {expected}, not {value!r}")
    if hint is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def kind_of(hint: object, usual: object) -> tuple[str, Callable[[object], bool]] | None:
    """Return what a type of setting allows, in words and as a test; None if it is no type of a setting.

    Numbers are positive if the default is.
    """
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint))), get_args(hint).__contains__
    if hint in (tuple, Shape):
        return "a list of positive integers", lambda v: isinstance(v, list | tuple) and all(map(_is_count, v))
    if hint is bool or hint is str:
        return "true or false" if hint is bool else "a text", lambda v: isinstance(v, hint)
    positive = isinstance(usual, int | float) and usual > 0
    if hint is int:
        return ("a positive integer", _is_count) if positive else ("an integer", lambda v: _is_number(v, int))
    if hint is float:
        expected = "a positive number" if positive else "a finite number"
        return expected, lambda v: _is_number(v, int | float) and (v > 0 or not positive)
    return None


def _is_count(value: object) -> bool:
    return _is_number(value, int) and value >= 1  # type: ignore[operator]


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
