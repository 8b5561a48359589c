"""Tensors without memory: a run is gone through by the shapes of its models.

Vectors of model size lie on torch's meta device, which has shapes and no values. Everything else is real: samples,
who takes part, where something lies and how much of it there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from harness.core.clients.row_table import RowTable
from harness.simulation.setup import Setup

T = TypeVar("T")

META = torch.device("meta")
LARGE = 2**22  # entries of the models of all clients
COPIES = torch.ops.aten._to_copy.default
COUNTS = (torch.ops.aten.arange, torch.ops.aten.full)  # of whole numbers if given such
INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
VALUES = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class Valued(RuntimeError):
    """A computation depends on values, which hollow tensors do not have."""


class Hollow(TorchDispatchMode):
    """Lets hollow tensors meet real ones: the result is hollow. Whole numbers and truth values stay real."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options: dict[str, Any] = dict(kwargs or {})
        if any(issubclass(kind, RowTable) for kind in types):
            with self:
                return RowTable.__torch_dispatch__(func, types, args, options)
        leaves = tree_leaves((args, options))
        hollow = any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves)
        if options.get("device") == META and _whole(options.get("dtype"), leaves, func):
            options["device"] = torch.device("cpu")
            if func is COPIES and not hollow and options.get("dtype") in (None, args[0].dtype):
                return args[0]
        return self._by_shapes(func, args, options) if hollow else func(*args, **options)

    def _by_shapes(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """Return the hollow result of an operation on hollow and real tensors."""
        if func in VALUES or (func is COPIES and options.get("device", META) != META):
            raise Valued(str(func))
        if func.overloadpacket in INDEXED:
            args = (args[0], _as_numbers(args[1]), *args[2:])
        moved, others = tree_map_only(Tensor, as_hollow, (args, options))
        try:
            result = func(*moved, **others)  # torch's rules by shapes
        except (NotImplementedError, RuntimeError) as error:
            raise Valued(str(error)) from error
        return args[0] if func._schema.is_mutable and result is moved[0] else result


def _whole(kind: torch.dtype | None, leaves: list[Any], func: Any) -> bool:
    """Whether the result of an operation that makes a tensor holds whole numbers or truth values."""
    if kind is None:
        kinds = [leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = [leaf for leaf in leaves if isinstance(leaf, int | float)]
        if not kinds:
            return func.overloadpacket in COUNTS and not any(isinstance(number, float) for number in numbers)
        kind = kinds[0]
    return not (kind.is_floating_point or kind.is_complex)


def _as_numbers(index: list[Tensor | None]) -> list[Tensor | None]:
    """Return an index with real masks as the numbers of the entries that they select: shapes depend on them."""
    numbers: list[Tensor | None] = []
    for axis in index:
        masks = axis is not None and axis.dtype == torch.bool and not axis.is_meta
        numbers += axis.nonzero().unbind(-1) if axis is not None and masks else [axis]
    return numbers


def as_hollow(x: Tensor) -> Tensor:
    """Return a tensor of the same kind without memory."""
    return x if x.is_meta and not isinstance(x, RowTable) else torch.empty_like(x, device=META)


def by_shapes(setup: Setup, go: Callable[[Setup], T]) -> T:
    """Return ``go(setup)`` for a setup with hollow start values if its models are large.

    Those of small ones are real, which is faster, and so are all where values are looked at: how a model is pruned
    depends on them.
    """
    entries = setup.training.clients * sum(value.numel() for value in setup.start.values())
    if entries >= LARGE and setup.federation.pool.x.device.type == "cpu":
        hollow = replace(setup, start={name: as_hollow(value) for name, value in setup.start.items()})
        try:
            with Hollow():  # type: ignore[no-untyped-call]
                return go(hollow)
        except (Valued, TypeError):  # values as arrays are a TypeError
            pass
    return go(setup)
