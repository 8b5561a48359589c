"""Digests of what code of a notebook refers to: values by their content, code by its source, packages by version.

What has no content that a digest could cover, such as an open file, a network or an object that makes random
numbers, is refused: a change of it would go unnoticed.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import logging
import pathlib
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.config.code import (
    MAIN,
    REACHING,
    NotIdentified,
    Parts,
    Plain,
    class_parts,
    foreign_parts,
    function_parts,
    known_to_package,
    module_parts,
)

#: Values that their text identifies.
TEXTS = (
    type(None), bool, int, float, complex, str, bytes, type(...), range, slice, torch.dtype, torch.device,
    torch.Size, decimal.Decimal, fractions.Fraction, datetime.date, datetime.datetime, datetime.timedelta,
    pathlib.PosixPath, pathlib.PurePosixPath, typing.TypeVar, typing.ForwardRef,
)  # fmt: skip
HEAP = 1 << 9  # flag of types that are made while Python runs; others may hold more than their attributes


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
            return _hashed("text", kind.__name__, thing if kind is str else _text(thing))
        if id(thing) not in self._found:
            self._kept.append(thing)
            self._found[id(thing)] = f"cycle {getattr(thing, '__qualname__', kind.__qualname__)}"
            parts = [str(part) if isinstance(part, Plain) else self.of(part) for part in _parts(thing)]
            self._found[id(thing)] = _hashed(kind.__name__, *parts)
        return self._found[id(thing)]


def _parts(thing: Any) -> Parts:
    """Return what a thing consists of."""
    for fits, parts in READERS:
        if isinstance(thing, fits) if isinstance(fits, type | tuple) else fits(thing):
            return parts(thing)
    if (known := known_to_package(thing)) is not None:
        return iter(known)
    raise NotIdentified(f"an object of {type(thing).__module__}.{type(thing).__qualname__}")


def _text(thing: object) -> Plain:
    """Return the text that identifies a thing, which no address in memory does."""
    text = Plain(repr(thing))
    if " at 0x" in text and not isinstance(thing, bytes):
        raise NotIdentified(f"an object of {type(thing).__module__}.{type(thing).__qualname__}")
    return text


def _hashed(*parts: str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:{part}".encode())
    return sha.hexdigest()


def _builtin(thing: Any) -> Parts:
    """Return the name of a function without Python code, and what it is bound to."""
    owner = getattr(thing, "__self__", None)
    if thing.__name__ in REACHING and getattr(owner, "__name__", None) == "builtins":
        raise NotIdentified(f"the function {thing.__name__}")
    yield from foreign_parts(thing)
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        yield owner


def _array(thing: np.ndarray[Any, Any] | np.generic) -> Parts:
    if thing.dtype.hasobject or not (type(thing) is np.ndarray or isinstance(thing, np.generic)):
        raise NotIdentified(f"an array of objects, or of numpy.{type(thing).__name__}")
    yield from (Plain(repr(thing.dtype)), thing.shape, np.ascontiguousarray(thing).tobytes())


def _tensor(thing: torch.Tensor) -> Parts:
    if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout != torch.strided:
        raise NotIdentified(f"an object of torch.{type(thing).__name__}")
    whole = thing.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    yield from (
        thing.dtype,
        thing.shape,
        thing.requires_grad,
        whole.view(torch.uint8).numpy().tobytes(),
        vars(thing),
    )


def _mapping(thing: Any) -> Parts:
    yield from (getattr(thing, "default_factory", None), getattr(thing, "__dict__", None))
    for pair in thing.items():
        yield from pair


def _set(thing: Any) -> Parts:
    yield from map(Plain, sorted(digest(part) for part in thing))


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
    (types.FunctionType, function_parts),
    (enum.Enum, lambda t: iter((type(t), t.name, t.value, vars(t)))),
    (_alias, lambda t: iter((t.__origin__, *t.__args__))),
    (types.UnionType, lambda t: iter(t.__args__)),
    (type, class_parts),
    (types.ModuleType, lambda t: module_parts(t.__name__)),
    ((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType), _builtin),
    (re.Pattern, lambda t: iter((t.pattern, t.flags))),
    (np.ufunc, lambda t: iter((Plain(t.__name__), Plain(np.__version__)))),
    (types.MethodType, lambda t: iter((t.__func__, t.__self__))),
    (functools.partial, lambda t: iter((t.func, t.args, t.keywords, vars(t)))),
    (_kind_of(staticmethod, classmethod), lambda t: iter((t.__func__,))),
    (_kind_of(property), lambda t: iter((t.fget, t.fset, t.fdel))),
    (_kind_of(functools.cached_property), lambda t: iter((t.func,))),
    (_called("_lru_cache_wrapper"), lambda t: iter((t.__wrapped__, vars(t)))),
    ((np.ndarray, np.generic), _array),
    (np.dtype, lambda t: iter((Plain(repr(t)),))),
    (torch.Tensor, _tensor),
    (_kind_of(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType), _mapping),
    (_kind_of(list, tuple), iter),
    (_kind_of(bytearray), lambda t: iter((bytes(t),))),
    (_kind_of(set, frozenset), _set),
    (
        lambda t: isinstance(t, tuple) and hasattr(t, "_fields"),
        lambda t: iter((type(t), *t, getattr(t, "__dict__", {}))),
    ),
    (logging.Logger, lambda t: iter((Plain(t.name),))),
    (lambda t: type(t).__module__ == "typing", lambda t: iter((_text(t),))),
    (_called("_MISSING_TYPE", "_KW_ONLY_TYPE"), lambda t: iter(())),
    (_called("_DataclassParams", "_FIELD_BASE"), lambda t: iter((_text(t),))),
    (_readable, _instance),
)
