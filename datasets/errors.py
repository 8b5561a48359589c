"""Errors and warnings about data, and how they name what is allowed."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class Mistake(ValueError):
    """An error that a user can mend; the message says how.

    Where it names several mistakes, ``errors`` has one error for each.
    """

    errors: tuple[Mistake, ...] = ()


class DataError(Mistake):
    """Unavailable or unusable data; the message gives the reason and a remedy."""


class FederationError(ValueError):
    """Invalid settings of a federation, or data that do not fit them."""


def together(errors: Sequence[Mistake]) -> Mistake:
    """Return one error that names all of some, of which there must be one; its class is one that all are of."""
    every = {str(one): one for error in errors for one in (error.errors or (error,))}
    first = next(iter(every.values()))
    if len(every) == 1:
        return first
    kind = next(cls for cls in type(first).__mro__ if all(isinstance(one, cls) for one in every.values()))
    whole: Mistake = kind(" ".join(f"({number}) {message}" for number, message in enumerate(every, 1)))
    whole.errors = tuple(every.values())
    return whole


def tried(checks: Iterable[Callable[[], T]]) -> list[T]:
    """Return what some checks return; raise the errors of all of them together."""
    values: list[T] = []
    errors: list[Mistake] = []
    for check in checks:
        try:
            values.append(check())
        except Mistake as error:
            errors.append(error)
    if errors:
        raise together(errors)
    return values


@cache
def warn_once(message: str) -> None:
    """Log a warning once, although many runs may use the same data."""
    log.warning(message)


_gathering: ContextVar[list[str] | None] = ContextVar("gathering", default=None)
MOST_LINES = 10  # that are logged about one file


@contextmanager
def gathered() -> Iterator[list[str]]:
    """Collect all that `warn` is given in a list; nothing is logged, and nothing counts as said."""
    messages: list[str] = []
    token = _gathering.set(messages)
    try:
        yield messages
    finally:
        _gathering.reset(token)


def warn(where: object, lines: Sequence[str]) -> None:
    """Log lines about a file once each, the first ten and how many more there are; see `gathered`."""
    if (messages := _gathering.get()) is not None:
        known = {*messages}
        messages += [line for line in dict.fromkeys(lines) if line not in known]
        return
    for line in lines[:MOST_LINES]:
        warn_once(f"{where}: {line}")
    if len(lines) > MOST_LINES:
        warn_once(f"{where}: {len(lines) - MOST_LINES} more columns are like these")


def nearest(name: str | Sequence[str], allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name of each, if any, and all allowed names."""
    allowed, names = list(allowed), [name] if isinstance(name, str) else name
    near = {name: found[0] for name in names if (found := difflib.get_close_matches(name, allowed, n=1))}
    hints = [f"{found!r}" + (f" for {name!r}" if len(names) > 1 else "") for name, found in near.items()]
    hint = f"did you mean {', '.join(hints)}? " if near else ""
    shown = [repr(name) if "," in name else name for name in allowed]
    return f"{hint}allowed: {', '.join(shown) if shown else 'none'}"
