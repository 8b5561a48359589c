"""Errors and warnings about data, and how they name what is allowed."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

log = logging.getLogger(__name__)


class DataError(ValueError):
    """Unavailable or unusable data; the message gives the reason and a remedy."""


class FederationError(ValueError):
    """Invalid settings of a federation, or data that do not fit them."""


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


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, if any, and all allowed names."""
    allowed = list(allowed)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(allowed) if allowed else 'none'}"
