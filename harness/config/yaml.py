"""Safe YAML reading with limits on depth and size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from harness.core.registry import UserError

MAX_DEPTH = 30  # levels of lists and sections
MAX_VALUES = 200_000  # in total, as YAML aliases can expand a short file
TOO_MANY = f"{{}}: at most {MAX_VALUES:,} values, counting what aliases expand to"
MAX_BITS = 1_000  # of an integer, about the range of floats
PLAIN = (str, bool, type(None))  # values without parts or bounds
MAX_SHOWN = 200  # characters of a value in a message


def read(where: str, text: str) -> Any:
    """Parse a YAML text.

    Parameters
    ----------
    where : str
        Source of the text, for messages.
    text : str
        The text. Tags that construct Python objects are refused.

    Raises
    ------
    UserError
        If the text is not valid, too deep or too large.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            count = _expanded(node, {})
            # Merges of merges would grow before the values they make can be counted.
            content = None if node is None or count > MAX_VALUES else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:  # its text repeats what was given
        mark = error.problem_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UserError(f"{where} is not valid YAML: {at}{cut(str(error.problem or error))}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {cut(str(error))}") from None
    except RecursionError:
        raise UserError(f"{where}: at most {MAX_DEPTH} levels of lists and sections") from None
    # A value that does not fit its tag or form, such as the date 2001-13-45 or "!!bool perhaps".
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise UserError(f"{where} is not valid YAML: {cut(f'{type(error).__name__}: {error}')}") from None
    if count > MAX_VALUES:
        raise UserError(TOO_MANY.format(where))
    bounded(where, content)
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        content = read(str(path), path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path} must hold named fields, such as 'data: adult'")
    return content


def _expanded(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Return the number of values that a node stands for, with those of its aliases each time."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0  # if it holds itself, which `bounded` refuses
        parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


def bounded(where: str, content: Any, *, finite: bool = False) -> None:
    """Raise UserError if content is too deep or too large, or holds NaN or, with ``finite``, infinity."""
    left = [] if _small(content) else [(content, 0)]
    count = 1
    while left:
        value, depth = left.pop()
        if isinstance(value, dict | list | tuple | set):
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            count += len(parts)
            if parts and depth == MAX_DEPTH:
                raise UserError(f"{where}: at most {MAX_DEPTH} levels of lists and sections")
            if count > MAX_VALUES:
                raise UserError(TOO_MANY.format(where))
            left += [(part, depth + 1) for part in parts if type(part) not in PLAIN and not _small(part)]
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise UserError(f"{where}: an integer has at most {MAX_BITS} bits")
        elif isinstance(value, float) and math.isnan(value):
            raise UserError(f"{where}: a number is needed, given nan")
        elif finite and isinstance(value, float) and math.isinf(value):
            raise UserError(f"{where}: a finite number is needed, given {value}")


def _small(value: Any) -> bool:
    """Whether a value has neither parts nor bounds, as most do."""
    kind = type(value)
    return (
        kind in PLAIN or (kind is float and math.isfinite(value)) or (kind is int and value.bit_length() < 64)
    )


def cut(text: str) -> str:
    """Shorten a long text for a message."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def shown(value: object) -> str:
    """Return a value's text in a message."""
    return cut(repr(value))


def mapping(where: str, value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping with text keys; raise UserError otherwise."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{where}: named fields are needed, given {shown(value)}")
    return value
