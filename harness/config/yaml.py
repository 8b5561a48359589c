"""What users write: YAML read safely, and known to be of a bearable size before anything else looks at it."""

from __future__ import annotations

import math
from typing import Any

import yaml

from harness.core.registry import UserError

DEEPEST = 30  # levels of lists and sections
MOST = 200_000  # values in all; YAML's aliases make a great many of a short file
LARGEST_BITS = 1_000  # of an integer: what floats hold
SHOWN = 200  # characters of a value in a message


def read(where: str, text: str) -> Any:
    """Return what a YAML text holds.

    Parameters
    ----------
    where : str
        Where the text is from, for messages.
    text : str
        The text. Tags that would make Python objects are refused.

    Raises
    ------
    UserError
        If it is not valid, or too deep or too large.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {cut(str(error))}") from None
    except RecursionError:
        raise UserError(f"{where}: at most {DEEPEST} levels of lists and sections") from None
    # A value that is not what its tag or its looks promise, as the date 2001-13-45 or "!!bool perhaps".
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise UserError(f"{where} is not valid YAML: {cut(f'{type(error).__name__}: {error}')}") from None
    bounded(where, content)
    return content


def bounded(where: str, content: Any, *, finite: bool = False) -> None:
    """Refuse content that is too deep or too large to be worked with, or holds what is no (or no finite) number."""
    left: list[tuple[Any, int]] = [(content, 0)]
    count = 0
    while left:
        value, depth = left.pop()
        count += 1
        if depth > DEEPEST:
            raise UserError(f"{where}: at most {DEEPEST} levels of lists and sections")
        if count > MOST:
            raise UserError(f"{where}: at most {MOST:,} values, where an alias counts as what it stands for")
        if isinstance(value, dict):
            left.extend((part, depth + 1) for pair in value.items() for part in pair)
        elif isinstance(value, list | tuple | set):
            left.extend((part, depth + 1) for part in value)
        elif isinstance(value, int) and value.bit_length() > LARGEST_BITS:
            raise UserError(f"{where}: an integer has at most {LARGEST_BITS} bits")
        elif isinstance(value, float) and math.isnan(value):
            raise UserError(f"{where}: a number is needed, given nan")
        elif finite and isinstance(value, float) and math.isinf(value):
            raise UserError(f"{where}: a finite number is needed, given {value}")


def cut(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def shown(value: object) -> str:
    """Return how a value is written in a message."""
    return cut(repr(value))
