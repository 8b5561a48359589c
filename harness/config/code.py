"""What code of a notebook consists of and refers to, and the packages and files that other code is of."""

from __future__ import annotations

import dis
import functools
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

Parts = Iterator[object]

MAIN = "__main__"
#: Our packages, which have one version.
OURS = ("algorithms", "compression", "datasets", "harness", "privacy")
#: Functions, modules and attributes by which code reaches what it does not name.
REACHING = ("globals", "eval", "exec", "compile", "vars", "__import__", "breakpoint", "input")
MODULES = (MAIN, "builtins", "gc", "importlib", "inspect", "sys", "runpy", "ctypes")
ATTRIBUTES = ("__globals__", "__builtins__", "f_globals", "f_locals", "f_back")
#: Members of every class, which its other members determine.
GENERATED = (
    "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "__parameters__", "__match_args__", "__hash__", "__slots__", "_abc_impl",
)  # fmt: skip
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


class NotIdentified(Exception):
    """Something that a digest cannot cover; the message says what it is."""


class Plain(str):
    """Text that stands for itself in a digest."""


def function_parts(thing: types.FunctionType) -> Parts:
    """Return the source of a function, its defaults, and what it names; of a package's its name and version."""
    if thing.__globals__.get("__name__") == MAIN:
        if (source := _source(thing)) is None:
            raise NotIdentified("code without a source")
        yield Plain(source)
        if thing.__name__ == "<lambda>":  # several may be in one line
            yield from _code(thing.__code__)
        yield thing.__annotations__
        yield from _named(thing.__code__, thing.__globals__)
    else:
        yield Plain(thing.__code__.co_qualname)
        yield from module_parts(str(thing.__globals__.get("__name__")))
        if _resolved(thing):
            return
    yield from (thing.__defaults__, thing.__kwdefaults__, vars(thing))
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
        yield Plain(name)
        try:
            content = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
        yield content


def _named(code: types.CodeType, scope: dict[str, Any]) -> Parts:
    """Return the globals and modules that code names."""
    for name in sorted(_arguments(code, "LOAD_GLOBAL", "LOAD_NAME")):
        if name in scope:
            yield Plain(name)
            yield scope[name]
        elif name in REACHING:
            raise NotIdentified(f"a call of {name}")
    for name in sorted(_arguments(code, "LOAD_ATTR", "LOAD_METHOD") & set(ATTRIBUTES)):
        raise NotIdentified(f"a use of {name}")
    for name in sorted(_arguments(code, "IMPORT_NAME")):
        yield from module_parts(name)


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """Return code and the functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _inner(const)


def _arguments(code: types.CodeType, *operations: str) -> set[str]:
    """Return the arguments of some operations of code."""
    every = (one for part in _inner(code) for one in dis.get_instructions(part))
    return {str(one.argval) for one in every if one.opname in operations}


def _code(code: types.CodeType) -> Parts:
    for part in _inner(code):
        yield from (part.co_code, part.co_names, part.co_freevars)
        yield from (const for const in part.co_consts if not isinstance(const, types.CodeType))


@functools.cache  # so that a script that is edited while it runs keeps its version
def _source(thing: types.FunctionType) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError, SyntaxError):
        return None


def class_parts(thing: type) -> Parts:
    """Return what a class of a notebook consists of; of one of a package its name and version."""
    if thing.__module__ != MAIN:
        yield from foreign_parts(thing)
        return
    yield from (Plain(thing.__qualname__), type(thing), *thing.__bases__)
    for name, member in sorted(vars(thing).items()):
        if (
            name not in GENERATED
            and not isinstance(member, DESCRIPTORS)
            and not _generated(thing, name, member)
        ):
            yield Plain(name)
            yield member


def _generated(cls: type, name: str, member: Any) -> bool:
    """Whether `dataclasses` or `namedtuple` made a member, by what else is in the class."""
    if type(member).__name__ == "_tuplegetter":
        return True
    function = inspect.unwrap(getattr(member, "__func__", member))
    if not isinstance(function, types.FunctionType):
        return False
    made = "__dataclass_fields__" in vars(cls) or "_fields" in vars(cls)
    return made and (
        (name.startswith("__") and function.__code__.co_filename.startswith("<string"))
        or function.__module__ == "collections"
        or function.__globals__.get("__name__") == "collections"
    )


def foreign_parts(thing: Any) -> Parts:
    """Return the name of a class or function, and the version of the package or file that it is of."""
    module = getattr(thing, "__module__", None) or getattr(
        getattr(thing, "__self__", None), "__module__", None
    )
    yield Plain(getattr(thing, "__qualname__", "") or getattr(thing, "__name__", ""))
    if module is not None and module != "builtins":
        yield from module_parts(module)


def _resolved(thing: types.FunctionType) -> bool:
    """Whether a function is what its module knows under its name, and not made by another."""
    found: Any = sys.modules.get(str(thing.__globals__.get("__name__")))
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing or getattr(found, "__func__", None) is thing


def module_parts(name: str) -> Parts:
    """Return a module's name and the version of its package; the content of a file that is of none."""
    top = name.partition(".")[0]
    if top in MODULES:
        raise NotIdentified(f"the module {top}, by which code reaches all others")
    yield Plain(name)
    if top in sys.stdlib_module_names:
        return
    if (found := _version(top)) is not None:
        yield Plain(found)
    else:
        yield from _file(name)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


@functools.cache
def _version(top: str) -> str | None:
    """Return names and versions of the distributions that a package is of; None if it is of none."""
    names = sorted(set(_distributions().get(top, ["fedfrontier"] if top in OURS else [])))
    try:
        return " ".join(f"{name} {version(name)}" for name in names) or None
    except PackageNotFoundError:  # ours, from a folder
        return "0"


def _file(name: str) -> Parts:
    """Return the bytes of a module's file, and the modules of other files that it refers to."""
    module = sys.modules.get(name)
    try:
        found = (
            module.__file__ if module is not None else getattr(importlib.util.find_spec(name), "origin", None)
        )
        yield Path(found or "").read_bytes()
    except (OSError, ImportError, ValueError, AttributeError):
        raise NotIdentified(f"the module {name}, whose file is not known") from None
    for value in [] if module is None else list(vars(module).values()):
        other = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        top = other.partition(".")[0] if isinstance(other, str) else ""
        local = top not in (*MODULES, "") and top not in sys.stdlib_module_names and _version(top) is None
        if local and other != name and other in sys.modules:
            yield sys.modules[other]


def known_to_package(thing: Any) -> list[object] | None:
    """Return the name of an object that is in a module of the package that its class is of, and the version."""
    top = type(thing).__module__.partition(".")[0]
    if top in sys.stdlib_module_names or (found := _version(top)) is None:
        return None
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == top]
    names = [name for scope in modules for name, value in list(scope.items()) if value is thing]
    return [min(names), found] if names else None
