"""Errors and warnings about data, and how they name what is allowed."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
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


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the nearest allowed name, if any, and all allowed names."""
    allowed = list(allowed)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(allowed) if allowed else 'none'}"
