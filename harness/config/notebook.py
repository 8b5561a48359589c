"""Parts of runs that a notebook or a script defines, in the module ``__main__``.

Their version is a digest of their source and of all that it names in ``__main__``: functions, classes, and numbers,
texts and their collections. Imported modules are no part of it, but of the
key of a run's noise (`harness.config.code`).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from harness.config.plugins import REGISTRIES
from harness.core.registry import Registry, UserError

MAIN = "__main__"
METRICS = REGISTRIES["metric"]
WORDS = {
    "compression": "codec",
    "data": "data set",
    "privacy": "mechanism",
}  # what a section names, if its name is another word


def version(section: str, name: str) -> str | None:
    """Return the version of a part that a notebook or a script defines; None for others.

    Raises
    ------
    UserError
        If its source is not known.
    """
    found = sources(section, name)
    if found is None:
        return None
    text = "\x1f".join(f"{key}\x1f{source}" for key, source in sorted(found.items()))
    return f"source:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def sources(section: str, name: str) -> dict[str, str] | None:
    """Return what a part of a notebook or a script consists of, as `version`; None for others."""
    part = _defined(section, name)
    if getattr(part, "__module__", None) != MAIN:
        return None
    found: dict[str, str] = {}
    try:
        _collect(part, found)
    except (OSError, TypeError, SyntaxError):
        raise UserError(
            f"{WORDS.get(section, section)} {name!r}: the source of what it consists of is not known, so a "
            "change would go unnoticed; define it in a notebook or in a file for --plugin"
        ) from None
    return found


def require_files(plugged: Iterable[Mapping[str, str]]) -> None:
    """Raise UserError if runs need parts that worker processes cannot load.

    Parameters
    ----------
    plugged : Iterable[Mapping[str, str]]
        Sections and names of the parts of each run.
    """
    needed = {(section, name) for parts in plugged for section, name in parts.items()}
    for section, name in sorted(needed | {("metric", name) for name in METRICS}):
        if getattr(_defined(section, name), "__module__", None) == MAIN:
            raise UserError(
                f"{WORDS.get(section, section)} {name!r} is defined in a notebook or a script, which worker "
                "processes do not run; put it in a file that is loaded as a plugin, or run with one job"
            )


def _defined(section: str, name: str) -> object:
    """Return the class or function that somebody wrote for a name; None if there is none."""
    things = REGISTRIES.get(section, {})
    if name not in things:
        return None
    if isinstance(things, Registry):
        return things.defined(name)
    thing = things[name]
    return getattr(thing, "defined", None) or getattr(thing, "fn", None) or thing


def _collect(thing: object, found: dict[str, str]) -> None:
    """Add the source of a class or a function of ``__main__``, and of all that it names there."""
    if isinstance(thing, type):
        key, functions = thing.__qualname__, list(_functions(thing))
        named: dict[str, object] = {base.__name__: base for base in thing.__bases__}
    elif isinstance(thing, FunctionType):
        key, functions, named = thing.__qualname__, [thing], {}
    else:
        raise TypeError(f"{thing!r} is neither a class nor a function")
    if key in found:
        return
    found[key] = _source(thing)
    for function in functions:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        named |= {name: cell.cell_contents for name, cell in cells}
        scope = function.__globals__
        named |= {name: scope[name] for name in _names(function.__code__) if name in scope}
    for name, value in named.items():
        if isinstance(value, type | FunctionType) and value.__module__ == MAIN:
            _collect(value, found)
        elif _plain(value):
            found[f"{key}.{name}"] = repr(value)


def _functions(cls: type) -> Iterator[FunctionType]:
    """Return the functions that a class of ``__main__`` defines, without those that dataclasses generate."""
    for member in vars(cls).values():
        function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
        own = isinstance(function, FunctionType) and function.__globals__.get("__name__") == MAIN
        if own and function.__code__.co_filename != "<string>":
            yield function


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the functions inside it look up."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _plain(value: object) -> bool:
    """Whether a value is made of numbers and texts, so that its text identifies it."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(_plain(part) for pair in value.items() for part in pair)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


@cache  # so that a script that is edited while it runs keeps its version
def _source(thing: Any) -> str:
    """Return the source of a function or a class; raise OSError if it is not known.

    `inspect.getsource` finds no class of a notebook: the module has no file. A method of it knows its cell.
    """
    if isinstance(thing, FunctionType):
        return inspect.getsource(thing)
    files = (function.__code__.co_filename for function in _functions(thing))
    for file in dict.fromkeys(files):
        lines = linecache.getlines(file)
        wanted = thing.__qualname__.rpartition(".")[2]
        for node in reversed(list(ast.walk(ast.parse("".join(lines))))):
            if isinstance(node, ast.ClassDef) and node.name == wanted:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    raise OSError(f"no source of {thing}")
