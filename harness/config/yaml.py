"""Safe YAML reading with limits on depth and size, which refuses what people and parsers read differently.

A key has one value: a second one is an error wherever it is, as parsers silently take the last. Integers with a
leading zero are octal to some parsers and decimal to others, and 1:30 is 90 to some; both are refused. Dates are
text. 1e-3 is a number, which YAML 1.1 takes for text, and a field may be called on, which it takes for true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UserError

MAX_DEPTH = 30  # levels of lists and sections
MAX_VALUES = 200_000  # in total, as YAML aliases can expand a short file
TOO_MANY = f"{{}}: at most {MAX_VALUES:,} values, counting what aliases expand to"
MAX_BITS = 1_000  # of an integer, about the range of floats
MAX_SHOWN = 200  # characters of a value in a message
MERGE = "tag:yaml.org,2002:merge"
DIGITS = r"[0-9]+(?:_[0-9]+)*"
NUMBERS = {  # of YAML 1.2 and Python; in this order, as what is an integer has the form of a float too
    "int": rf"[-+]?(?:{DIGITS}(?:(?::[0-5]?[0-9])+(?:\.[0-9]*)?)?|0x[0-9a-fA-F]+|0b[01]+)",
    "float": rf"[-+]?(?:(?:{DIGITS}\.?(?:{DIGITS})?|\.{DIGITS})(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)",
}
LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")


class _Loader(yaml.SafeLoader):
    """YAML's types without dates, and with the numbers of `NUMBERS`; the name ``on`` of a field is a text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping in whose keys the word ``on`` is not true, as it is in YAML 1.1."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == "on" and key.tag.endswith(":bool"):
                key.tag = "tag:yaml.org,2002:str"
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number; refuse those that mean different numbers to different readers."""
        text = str(self.construct_scalar(node))
        if LEADING_ZERO.fullmatch(text):
            plain = re.sub(r"0[0_]*(?=[0-9])", "", text, count=1)
            why = (
                f"{text} is octal to some readers and decimal to others; write {plain}, or '{text}' for text"
            )
        elif ":" in text:
            why = f"{text} is a number to the base of 60 to some readers; write the number, or '{text}' for text"
        elif node.tag.endswith("int"):
            return int(self.construct_yaml_int(node))
        else:
            return float(self.construct_yaml_float(node))
        raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [way for way in ways if way[0].rpartition(":")[2] not in (*NUMBERS, "timestamp")]
    for first, ways in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _form in NUMBERS.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_form})\Z"), list("-+.0123456789"))
    _Loader.add_constructor(_tag, _Loader.construct_number)


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
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            _refuse_repeated(where, node, loader)
            count = _count_values(node, {})
            # Merges of merges would grow before the values they make can be counted.
            content = None if node is None or count > MAX_VALUES else loader.construct_document(node)
        finally:
            loader.dispose()
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:  # its text repeats what was given
        mark = error.problem_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        if "'\\t'" in (problem := str(error.problem or error)):
            problem = "a tab; indent with spaces"
        raise UserError(f"{where} is not valid YAML: {at}{cut(problem)}") from None
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


def _refuse_repeated(where: str, node: yaml.Node | None, loader: _Loader) -> None:
    """Raise UserError if a mapping has a key twice; what a merge (``<<``) brings may be given anew."""
    pending, visited = [node], set()
    while pending:
        node = pending.pop()
        if not isinstance(node, yaml.CollectionNode) or node in visited:
            continue
        visited.add(node)
        pending += node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
        if not isinstance(node, yaml.MappingNode):
            continue
        first: dict[object, yaml.Node] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            forms = [key.value]  # 1 and '1' are one name, and 1 and 1.0 one key of a dictionary
            if key.tag.endswith((":int", ":float", ":bool")):
                forms.append(loader.construct_object(key))
            for earlier in (first[form] for form in forms if form in first):
                raise UserError(f"{where}: {_twice(earlier, key)}")
            first |= dict.fromkeys(forms, key)


def _twice(earlier: yaml.Node, key: yaml.ScalarNode) -> str:
    first, second = earlier.start_mark, key.start_mark
    at = f"in lines {first.line + 1} and {second.line + 1}"
    if first.line == second.line:
        at = f"in line {first.line + 1}, columns {first.column + 1} and {second.column + 1}"
    mend = "merge a list, <<: [*one, *other]" if key.tag == MERGE else "remove one of them"
    return f"{cut(key.value)} is given twice, {at}; {mend}"


def _count_values(node: yaml.Node | None, sizes: dict[yaml.Node, float]) -> float:
    """Return the number of values that a node stands for, with those of its aliases each time."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in sizes:
        sizes[node] = 0  # if it holds itself, which `bounded` refuses
        parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
        sizes[node] = 1 + sum(_count_values(part, sizes) for part in parts)
    return sizes[node]


def bounded(where: str, content: Any, *, finite: bool = False) -> None:
    """Raise UserError if content is too deep or too large, or holds NaN or, with ``finite``, infinity."""
    pending, count = [(content, 0)], 1
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict | list | tuple | set):
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            count += len(parts)
            if parts and depth == MAX_DEPTH:
                raise UserError(f"{where}: at most {MAX_DEPTH} levels of lists and sections")
            if count > MAX_VALUES:
                raise UserError(TOO_MANY.format(where))
            pending += [(part, depth + 1) for part in parts]
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise UserError(f"{where}: an integer has at most {MAX_BITS} bits")
        elif isinstance(value, float) and math.isnan(value):
            raise UserError(f"{where}: a number is needed, given nan")
        elif finite and isinstance(value, float) and math.isinf(value):
            raise UserError(f"{where}: a finite number is needed, given {value}")


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
