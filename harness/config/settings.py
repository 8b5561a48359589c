"""Dataclasses that hold the settings of a part: made of given values, and taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from datasets.errors import DataError, together
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
    known = {key: value for key, value in settings.items() if key in allowed}
    errors = [
        unknown(f"setting of {where}", key, [*allowed, *(also or ())]) for key in settings if key not in known
    ]
    try:
        instance: T = checked(where, _adapter(cls).validate_python, known)  # type: ignore[arg-type]
    except UserError as error:
        errors.append(error)
    if errors:
        raise together(errors)
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


def checked(where: str, validate: Callable[[Any], T], given: object) -> T:
    """Validate content, and turn the errors of pydantic into one `UserError` that names all.

    Parameters
    ----------
    where : str
        Path of the section, for messages.
    validate : Callable
        Makes a section of its content.
    given : object
        The content of the section.

    Raises
    ------
    UserError
        If it is not valid.
    """
    try:
        return validate(given)
    except ValidationError as error:
        raise together([_in_words(where, one) for one in _one_a_place(error.errors(), given)]) from None


def _one_a_place(errors: Iterable[Any], given: object) -> list[Any]:
    """Return the first error of each value: one that may be of several types has an error for each of them.

    A list or mapping has none of its own where what it holds has one.
    """
    found: dict[tuple[Any, ...], Any] = {}
    for error in errors:
        cause, place = error.get("ctx", {}).get("error"), []
        inside: Any = given
        for step in error["loc"]:
            if not isinstance(inside, Mapping | list | tuple):
                break
            try:
                inside = inside[step]
            except (LookupError, TypeError):  # a field that is missing, or the name of a type
                break
            place.append(step)
        missing = error["loc"] if error["type"] == "missing" else None
        found.setdefault((*place, cause.name if isinstance(cause, UnknownField) else missing), error)
    inner = [key[:-1] for key in found]
    return [error for key, error in found.items() if not any(_is_inside(place, key) for place in inner)]


def _is_inside(place: tuple[Any, ...], key: tuple[Any, ...]) -> bool:
    """Return whether a place is inside the value that an error without a field of its own is about."""
    return key[-1] is None and len(place) > len(key) - 1 and place[: len(key) - 1] == key[:-1]


def _in_words(where: str, error: Any) -> UserError:
    """Return an error of pydantic in our words, with its path."""
    cause = error.get("ctx", {}).get("error")
    path = ".".join([part for part in (where, *map(str, error["loc"])) if part])
    if isinstance(cause, UserError):
        return cause
    if isinstance(cause, UnknownField):
        return unknown(f"field of {path or 'a run'}", cause.name, cause.allowed)
    # These say what was given.
    complete = error["type"] == "missing" or isinstance(cause, DataError) or "; got " in str(cause)
    ending = "" if complete else f", given {shown(error['input'])}"
    message = str(cause) if cause is not None else plainly(error)
    return UserError(f"{path}: {message[0].lower()}{message[1:]}{ending}")


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
