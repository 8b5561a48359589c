"""Dataclasses that hold the settings of a part: made of given values, and taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from datasets.errors import DataError
from harness.config.yaml import bounded, shown
from harness.core.errors import UserError, unknown
from harness.core.settings.section import NO_NUMBER, UnknownField, counts_truth, plainly

T = TypeVar("T")


def construct(
    where: str, cls: type[T], settings: Mapping[str, Any], also: Mapping[str, Any] | None = None
) -> T:
    """Make a dataclass of settings, converting types ("1e-3" is a number).

    Parameters
    ----------
    where : str
        Path of the section, for messages.
    cls : type
        The dataclass.
    settings : Mapping
        The given settings.
    also : Mapping, optional
        Further names for the message about an unknown one.

    Raises
    ------
    UserError
        If a name is unknown or a value is not valid.
    """
    allowed = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in settings:
        if key not in allowed:
            raise unknown(f"setting of {where}", key, [*allowed, *(also or ())])
    instance: T = checked(where, lambda: _adapter(cls).validate_python(dict(settings)))  # type: ignore[arg-type]
    for name, value in settings.items():
        if counts_truth(value, getattr(instance, name)):
            raise UserError(f"{where}.{name}: {NO_NUMBER}, given {shown(value)}")
    for name in allowed:
        # pydantic reads the text "inf" as a float
        bounded(f"{where}.{name}", getattr(instance, name), finite=True)
    return instance


@cache
def _adapter(cls: type[T]) -> TypeAdapter[T]:
    """Return what validates a class; making it takes as long as twenty validations."""
    return TypeAdapter(cls)


def checked(where: str, make: Callable[[], T]) -> T:
    """Call ``make`` and turn an error of pydantic into a `UserError` of one line; ``where`` is the section."""
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        path = ".".join([part for part in (where, *map(str, first["loc"])) if part])
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, UnknownField):
            raise unknown(f"field of {path or 'a run'}", cause.name, cause.allowed) from None
        complete = first["type"] == "missing" or isinstance(cause, DataError)  # which says what was given
        ending = "" if complete else f", given {shown(first['input'])}"
        message = str(cause) if cause is not None else plainly(first)
        raise UserError(f"{path}: {message[0].lower()}{message[1:]}{ending}") from None


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a dataclass, without its required fields."""
    values = {}
    for field in fields(cls):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    return values


def settings_of(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and their values."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
