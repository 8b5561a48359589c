"""Tensors without memory: a run is gone through by the shapes of its models, and what it would take is counted.

Vectors of model size lie on torch's meta device, which has shapes and no values. Everything else is real: samples,
who takes part, where something lies and how much of it there is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from harness.core.clients.row_table import RowTable
from harness.core.execution.memory import KEPT
from harness.simulation.build import Setup

T = TypeVar("T")

META = torch.device("meta")
LARGE = 2**22  # entries of the models of all clients
LEAST = 2**10  # bytes of a tensor that is counted
COPIES = torch.ops.aten._to_copy.default
COUNTS = (torch.ops.aten.arange, torch.ops.aten.full)  # of whole numbers if given such
NORM = torch.ops.aten.linalg_vector_norm.default
INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
VALUES = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class Valued(RuntimeError):
    """A computation depends on values, which hollow tensors do not have."""


class Hollow(TorchDispatchMode):
    """Lets hollow tensors meet real ones: the result is hollow. Whole numbers and truth values stay real.

    Attributes
    ----------
    live, peak : int
        Bytes of the tensors that are alive, and the most there were; hollow ones with the bytes they would take.
    brief : int
        Bytes at the peak that `needs` was told of.
    heap : int
        The most bytes there were in blocks that the C library keeps when they are freed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.brief = self.heap = self._in_heap = 0
        self._known: dict[int, weakref.ref[Any]] = {}

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
        if func is NORM and (wider := options.get("dtype")) is not None and wider != args[0].dtype:
            self.needs(args[0].numel() * wider.itemsize)  # torch converts all entries first
        result = self._by_shapes(func, args, options) if hollow else func(*args, **options)
        for part in tree_leaves(result):
            if isinstance(part, Tensor):
                self._count(part)
        return result

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

    def _count(self, part: Tensor) -> None:
        if isinstance(part, RowTable) or torch._C._functorch.is_functorch_wrapped_tensor(part):
            return
        storage = part.untyped_storage()
        size, key = storage.nbytes(), id(storage)
        if size < LEAST or key in self._known:
            return
        kept = size <= KEPT

        def freed(_: object) -> None:
            del self._known[key]
            self.live -= size
            self._in_heap -= size * kept

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self._in_heap += size * kept
        self.heap = max(self.heap, self._in_heap)
        self.needs(0)

    def needs(self, brief: int) -> None:
        """Note that so many bytes beside those that are alive are needed for a moment."""
        if self.live + brief > self.peak:
            self.peak, self.brief = self.live + brief, brief

    def alone(self, go: Callable[[], object]) -> int:
        """Return the bytes that something takes at its peak, beside those that are alive; they are not noted."""
        before, noted = self.live, (self.peak, self.brief)
        self.peak = before
        go()
        most = self.peak - before
        self.peak, self.brief = noted
        return most


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
    for part in index:
        masks = part is not None and part.dtype == torch.bool and not part.is_meta
        numbers += part.nonzero().unbind(-1) if part is not None and masks else [part]
    return numbers


def as_hollow(part: Tensor) -> Tensor:
    """Return a tensor of the same kind without memory."""
    return part if part.is_meta and not isinstance(part, RowTable) else torch.empty_like(part, device=META)


def by_shapes(setup: Setup, go: Callable[[Setup, Hollow | None], T], *, counted: bool = False) -> T:
    """Return ``go(setup, mode)`` for a setup with hollow start values if its models are large.

    Those of small ones are real, which is faster, and so are all where values are looked at: how a model is pruned
    depends on them. Then there is a mode only if tensors are to be ``counted``.
    """
    entries = setup.training.clients * sum(value.numel() for value in setup.start.values())
    if entries >= LARGE and setup.federation.pool.x.device.type == "cpu":
        hollow = replace(setup, start={name: as_hollow(value) for name, value in setup.start.items()})
        try:
            with Hollow() as mode:
                return go(hollow, mode)
        except (Valued, TypeError):  # values as arrays are a TypeError
            pass
    if not counted:
        return go(setup, None)
    with Hollow() as mode:
        return go(setup, mode)
