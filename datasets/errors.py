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


class DataError(ValueError):
    """Unavailable or unusable data; the message gives the reason and a remedy.

    Where it names several mistakes, ``errors`` has one error for each.
    """

    errors: tuple[DataError, ...] = ()


class FederationError(ValueError):
    """Invalid settings of a federation, or data that do not fit them."""


def tried(checks: Iterable[Callable[[], T]]) -> list[T]:
    """Return what some checks return; raise one error that names all theirs."""
    values: list[T] = []
    errors: list[DataError] = []
    for check in checks:
        try:
            values.append(check())
        except DataError as error:
            errors += error.errors or [error]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        whole = DataError(" ".join(f"({number}) {error}" for number, error in enumerate(errors, 1)))
        whole.errors = tuple(errors)
        raise whole
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
