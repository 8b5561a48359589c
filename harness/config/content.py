"""Digests of what code of a notebook refers to: values by their content, code by its source, packages by version.

What has no content that a digest could cover, such as an open file, a network or an object that makes random
numbers, is refused: a change of it would go unnoticed.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib.util
import inspect
import logging
import pathlib
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

Parts = Iterator[object]

MAIN = "__main__"
#: Our packages, which have one version.
OURS = ("algorithms", "compression", "datasets", "harness", "privacy")
#: Values that their text identifies.
TEXTS = (
    type(None), bool, int, float, complex, str, bytes, type(...), range, slice, torch.dtype, torch.device,
    torch.Size,
    decimal.Decimal, fractions.Fraction, datetime.date, datetime.datetime, datetime.timedelta, re.Pattern,
    pathlib.PosixPath, pathlib.PurePosixPath, typing.TypeVar, typing.ForwardRef,
)  # fmt: skip
#: Functions, modules and attributes by which code reaches what it does not name.
REACHING = ("globals", "eval", "exec", "compile", "vars", "__import__", "breakpoint", "input")
MODULES = (MAIN, "builtins", "gc", "importlib", "inspect", "sys", "runpy", "ctypes")
ATTRIBUTES = ("__globals__", "__builtins__", "f_globals", "f_locals", "f_back")
#: Members of every class, which its other members determine.
GENERATED = (
    "__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "__parameters__", "__match_args__", "__hash__", "__slots__", "_abc_impl",
)  # fmt: skip
HEAP = 1 << 9  # flag of types that are made while Python runs; others may hold more than their attributes
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


class NotIdentified(Exception):
    """Something that a digest cannot cover; the message says what it is."""


def digest(thing: object) -> str:
    """Return a digest of a thing and of all that it refers to.

    Raises
    ------
    NotIdentified
        If a part of it has no content that can be read.
    """
    try:
        return _Content().of(thing)
    except RecursionError:
        raise NotIdentified("values that are nested too deep") from None


class _Content:
    """What has been read so far. What refers to itself is named by its kind where it is met again."""

    def __init__(self) -> None:
        self._found: dict[int, str] = {}
        self._kept: list[object] = []  # so that no two things have one identity

    def of(self, thing: Any) -> str:
        """Return the digest of a thing."""
        kind: Any = type(thing)
        if kind in TEXTS:
            return _hashed("text", kind.__name__, repr(thing))
        if id(thing) not in self._found:
            self._kept.append(thing)
            self._found[id(thing)] = f"cycle {getattr(thing, '__qualname__', kind.__qualname__)}"
            parts = [str(part) if isinstance(part, _Plain) else self.of(part) for part in _parts(thing)]
            self._found[id(thing)] = _hashed(kind.__name__, *parts)
        return self._found[id(thing)]


class _Plain(str):
    """Text that stands for itself in a digest."""


def _parts(thing: Any) -> Parts:
    """Return what a thing consists of."""
    for fits, parts in READERS:
        if isinstance(thing, fits) if isinstance(fits, type | tuple) else fits(thing):
            return parts(thing)
    raise NotIdentified(f"an object of {type(thing).__module__}.{type(thing).__qualname__}")


def _hashed(*parts: str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:{part}".encode())
    return sha.hexdigest()


def _function(thing: types.FunctionType) -> Parts:
    """Return the source of a function, its defaults, and what it names; of a package's its name and version."""
    if thing.__globals__.get("__name__") == MAIN:
        if (source := _source(thing)) is None:
            raise NotIdentified("code without a source")
        yield _Plain(source)
        if thing.__name__ == "<lambda>":  # several may be in one line
            yield from _code(thing.__code__)
        yield thing.__annotations__
        yield from _named(thing.__code__, thing.__globals__)
    else:
        yield _Plain(thing.__code__.co_qualname)
        yield from _imported(str(thing.__globals__.get("__name__")))
        if _resolved(thing):
            return
    yield from (thing.__defaults__, thing.__kwdefaults__, vars(thing))
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
        yield _Plain(name)
        try:
            content = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
        yield content


def _named(code: types.CodeType, scope: dict[str, Any]) -> Parts:
    """Return the globals and modules that code names."""
    for name in sorted(_arguments(code, "LOAD_GLOBAL", "LOAD_NAME")):
        if name in scope:
            yield _Plain(name)
            yield scope[name]
        elif name in REACHING:
            raise NotIdentified(f"a call of {name}")
    for name in sorted(_arguments(code, "LOAD_ATTR", "LOAD_METHOD") & set(ATTRIBUTES)):
        raise NotIdentified(f"a use of {name}")
    for name in sorted(_arguments(code, "IMPORT_NAME")):
        yield from _imported(name)


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


def _class(thing: type) -> Parts:
    """Return what a class of a notebook consists of; of one of a package its name and version."""
    if thing.__module__ != MAIN:
        yield from _foreign(thing)
        return
    yield from (_Plain(thing.__qualname__), type(thing), *thing.__bases__)
    for name, member in sorted(vars(thing).items()):
        if (
            name not in GENERATED
            and not isinstance(member, DESCRIPTORS)
            and not _generated(thing, name, member)
        ):
            yield _Plain(name)
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


def _foreign(thing: Any) -> Parts:
    """Return the name of a class or function, and the version of the package or file that it is of."""
    module = getattr(thing, "__module__", None) or getattr(
        getattr(thing, "__self__", None), "__module__", None
    )
    yield _Plain(getattr(thing, "__qualname__", "") or getattr(thing, "__name__", ""))
    if module is not None and module != "builtins":
        yield from _imported(module)


def _resolved(thing: types.FunctionType) -> bool:
    """Whether a function is what its module knows under its name, and not made by another."""
    found: Any = sys.modules.get(str(thing.__globals__.get("__name__")))
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing or getattr(found, "__func__", None) is thing


def _imported(name: str) -> Parts:
    """Return a module's name and the version of its package; the content of a file that is of none."""
    top = name.partition(".")[0]
    if top in MODULES:
        raise NotIdentified(f"the module {top}, by which code reaches all others")
    yield _Plain(name)
    if top in sys.stdlib_module_names:
        return
    if (found := _version(top)) is not None:
        yield _Plain(found)
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


def _builtin(thing: Any) -> Parts:
    """Return the name of a function without Python code, and what it is bound to."""
    owner = getattr(thing, "__self__", None)
    if thing.__name__ in REACHING and getattr(owner, "__name__", None) == "builtins":
        raise NotIdentified(f"the function {thing.__name__}")
    yield from _foreign(thing)
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        yield owner


def _array(thing: np.ndarray[Any, Any] | np.generic) -> Parts:
    if thing.dtype.hasobject or type(thing) in (np.ma.MaskedArray, np.memmap):
        raise NotIdentified("an array of objects, masked or in a file")
    yield from (_Plain(repr(thing.dtype)), thing.shape, np.ascontiguousarray(thing).tobytes())


def _tensor(thing: torch.Tensor) -> Parts:
    if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout != torch.strided:
        raise NotIdentified(f"an object of torch.{type(thing).__name__}")
    whole = thing.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    yield from (thing.dtype, thing.shape, thing.requires_grad, whole.view(torch.uint8).numpy().tobytes())


def _mapping(thing: Any) -> Parts:
    yield getattr(thing, "default_factory", None)
    for pair in thing.items():
        yield from pair


def _set(thing: Any) -> Parts:
    yield from map(_Plain, sorted(digest(part) for part in thing))


def _instance(thing: Any) -> Parts:
    """Return the class of an instance and its attributes, also those in slots."""
    yield type(thing)
    found = dict(getattr(thing, "__dict__", {}))
    for cls in type(thing).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            own = f"_{cls.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name
            if hasattr(thing, own):
                found[own] = getattr(thing, own)
    found.pop("__weakref__", None)
    yield dict(sorted(found.items()))


def _readable(thing: Any) -> bool:
    """Whether all of an instance is in its attributes."""
    kind = type(thing)
    known = kind in (types.SimpleNamespace, dataclasses.Field) or dataclasses.is_dataclass(kind)
    return all(
        cls in (object, types.SimpleNamespace) or (cls.__flags__ & HEAP and (known or cls.__module__ == MAIN))
        for cls in kind.__mro__
    )


def _alias(thing: Any) -> bool:
    """Whether a thing is a type with arguments."""
    return isinstance(thing, types.GenericAlias) or (
        type(thing).__module__ == "typing" and hasattr(thing, "__args__")
    )


def _kind_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda thing: type(thing) in kinds


def _called(*names: str) -> Callable[[Any], bool]:
    return lambda thing: type(thing).__name__ in names


#: How things are read, by their type or a test; the first that fits.
READERS: tuple[tuple[Any, Callable[[Any], Parts]], ...] = (
    (types.FunctionType, _function),
    (enum.Enum, lambda t: iter((type(t), t.name, t.value))),
    (_alias, lambda t: iter((t.__origin__, *t.__args__))),
    (types.UnionType, lambda t: iter(t.__args__)),
    (type, _class),
    (types.ModuleType, lambda t: _imported(t.__name__)),
    ((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType), _builtin),
    (np.ufunc, lambda t: iter((_Plain(t.__name__), _Plain(np.__version__)))),
    (types.MethodType, lambda t: iter((t.__func__, t.__self__))),
    (functools.partial, lambda t: iter((t.func, t.args, t.keywords))),
    (_kind_of(staticmethod, classmethod), lambda t: iter((t.__func__,))),
    (_kind_of(property), lambda t: iter((t.fget, t.fset, t.fdel))),
    (_kind_of(functools.cached_property), lambda t: iter((t.func,))),
    (_called("_lru_cache_wrapper"), lambda t: iter((t.__wrapped__,))),
    ((np.ndarray, np.generic), _array),
    (np.dtype, lambda t: iter((_Plain(repr(t)),))),
    (torch.Tensor, _tensor),
    (_kind_of(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType), _mapping),
    (_kind_of(list, tuple), iter),
    (_kind_of(bytearray), lambda t: iter((bytes(t),))),
    (_kind_of(set, frozenset), _set),
    (lambda t: isinstance(t, tuple) and hasattr(t, "_fields"), lambda t: iter((type(t), *t))),
    (logging.Logger, lambda t: iter((_Plain(t.name),))),
    (lambda t: type(t).__module__ == "typing", lambda t: iter((_Plain(repr(t)),))),
    (
        _called("_MISSING_TYPE", "_KW_ONLY_TYPE", "_DataclassParams", "_FIELD_BASE"),
        lambda t: iter((_Plain(repr(t)),)),
    ),
    (_readable, _instance),
)
