"""Apply a one-client function to many rows: vectorized, or in a loop.

Dense models vectorize; convolutions on a CPU are faster in a loop (docs/design.md, section 8). The results differ
by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from harness.core.execution.exact.row_product import exact_sizes
from harness.core.execution.exact.sharing import (
    Arranged,
    Flags,
    Shared,
    arranged,
    leaves_of,
    once,
    over_rows,
    without_sharing,
)
from harness.core.execution.ghost import Layout
from harness.core.execution.ghost import clipped_sums as ghost_sums
from harness.core.execution.ghost_layout import layout
from harness.core.execution.memory import keep_freed_memory
from harness.core.execution.tracing import Recorded
from privacy.clipping import clipped_sum

T = TypeVar("T")
Mode = Literal["vmap", "loop"]

MOST_FUNCTIONS = 256  # functions in a cache

Points = tuple[int, ...]  # numbers of a function's arguments; empty: all


class Measured(NamedTuple):
    """Floating-point operations of a function for one row, and its result for the first row."""

    flops: int
    result: Any


class ClientExecutor:
    """Executor of one-client functions over the rows of their arguments.

    Parameters
    ----------
    mode : {"vmap", "loop"}
        Vectorize, or loop over the rows.
    threads : int
        Worker threads of the loop, one torch thread each; 1 means the calling thread.
    singly : bool
        Whether to loop over samples too where gradients of single samples are needed.
    """

    def __init__(self, mode: Mode, threads: int = 1, *, singly: bool = False) -> None:
        self.mode = mode
        self.singly = singly
        self.threads = threads
        keep_freed_memory()
        self._ahead = 0.0
        self._measured: dict[object, Measured] = {}
        self._layouts: dict[object, tuple[Layout | None]] = {}
        self._recorded: dict[object, Any] = {}  # function and kind of its arguments -> how it is called
        self._pool = (
            ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )

    def expecting(self, ahead: float) -> Self:
        """Return the executor, with all that it remembers, for work that has a future.

        Parameters
        ----------
        ahead : float
            Expected number of future rounds per past round, 0 if unknown. If it is large, functions are recorded
            early.
        """
        executor = copy(self)
        executor._ahead = ahead
        return executor

    def map(self, fn: Callable[..., Any], axes: int, *arguments: Any) -> Any:
        """Apply ``fn`` to every row.

        Parameters
        ----------
        fn : Callable
            Function of one client.
        axes : int
            Number of leading axes that index rows (1: clients; 2: runs and clients).
        *arguments : Tensor, tuple of tensors or Shared
            Arguments with these leading axes, of which stacked runs may share some.

        Returns
        -------
        Tensor or tuple of tensors
            Results with the same leading axes.
        """
        if self.mode != "vmap" or all(isinstance(argument, Shared) for argument in arguments):
            arguments = tuple(map(without_sharing, arguments))
        leaves, structure, shared = leaves_of(arguments)
        rows = arranged(leaves, shared, axes)
        if self.mode == "vmap":
            result = self._vectorized(fn, rows, structure)
        else:

            def one(i: int) -> Any:
                return fn(*tree_unflatten([leaf[i] for leaf in rows.leaves], structure))

            each = self.each(one, range(len(rows.leaves[0])))
            result = tree_map(lambda *values: torch.stack(values), each[0], *each[1:])
        return tree_map(rows.restored, result)

    def _vectorized(self, fn: Callable[..., Any], rows: Arranged, structure: TreeSpec) -> Any:
        """Apply ``fn`` to all rows at once, as a recording after many calls."""

        def make() -> tuple[Recorded, list[TreeSpec]]:
            shape: list[TreeSpec] = []  # structure of the result, set by the first call

            def one(*leaves: Tensor) -> tuple[Tensor, ...]:
                result = fn(*tree_unflatten(leaves, structure))
                flat, spec = tree_flatten(result)
                shape[:] = [spec]
                return tuple(flat)

            return Recorded(over_rows(one, rows.shared)), shape

        recorded, shape = _kept(self._recorded, (fn, structure, rows.shared), make)
        return tree_unflatten(recorded(*rows.leaves, ahead=self._ahead), shape[0])

    def gradient(
        self, loss: Callable[..., Tensor], axes: int, points: Sequence[Tensor], batch: Any, by: Points = ()
    ) -> list[Tensor]:
        """Return each row's gradients of ``loss(*points, batch)`` by the points numbered ``by`` (empty: all).

        Rows do not interact, so the gradients of all rows are the gradient of the sum of their losses: one backward
        pass over a vectorized forward pass. The batch may be `Shared`.
        """
        batch = batch if self.mode == "vmap" else without_sharing(batch)
        count, samples, shared = len(points), once(batch), isinstance(batch, Shared)
        leaves, kind = [*(point.detach() for point in points), *samples], type(samples)
        flags = (False,) * count + (True,) * len(samples) if shared else ()
        rows = arranged(leaves, flags, axes)
        if self.mode == "vmap":
            key = (loss, kind, count, by or tuple(range(count)), rows.shared)
            recorded = _kept(self._recorded, key, lambda: Recorded(_gradients(*key)))
            return [rows.restored(slope) for slope in recorded(*rows.leaves, ahead=self._ahead)]

        def one(i: int) -> tuple[Tensor, ...]:
            row = [leaf[i] for leaf in rows.leaves]
            return _gradient(loss, row[:count], kind(*row[count:]), by)

        columns = zip(*self.each(one, range(len(rows.leaves[0]))), strict=True)
        return [rows.restored(_stack(column)) for column in columns]

    def clipped_sums(
        self,
        loss: Callable[..., Tensor],
        axes: int,
        points: Sequence[Tensor],
        batch: Any,
        by: Points = (),
        *,
        norm: float,
        ghost: bool = False,
        group: int = 1,
    ) -> tuple[Tensor, ...]:
        """Return each row's sum of per-sample gradients, each clipped to a joint norm.

        Parameters
        ----------
        loss, axes, points, batch, by
            As in `gradient`; samples of weight below 1/2 are padding.
        norm : float
            Bound on the joint L2 norm of one sample's gradients by these points.
        ghost : bool
            Whether to do it without a gradient for each sample (`harness.core.execution.ghost`). The sums differ by
            rounding, and in samples whose derivatives are not finite.
        group : int
            Number of neighboring samples whose mean gradient is clipped as one.
        """
        places = by or tuple(range(len(points)))
        points = [point.detach() for point in points]
        plan = self.layout(loss, axes, points, batch, places) if ghost else None
        if plan is not None:
            clipped = self._ghost_sums(
                (loss, type(batch), len(points), places, plan, norm), axes, points, batch
            )
            if all(bool(total.isfinite().all()) for total in clipped):  # else leave out samples that are not
                return clipped
        one = _clipped_sum(loss, places, norm, group, self.singly)
        sums: tuple[Tensor, ...] = self.map(one, axes, tuple(points), batch)
        return sums

    def _ghost_sums(
        self, key: tuple[Any, ...], axes: int, points: Sequence[Tensor], batch: Any
    ) -> tuple[Tensor, ...]:
        rows = arranged([*points, *batch], (), axes)
        recorded = _kept(self._recorded, key, lambda: Recorded(ghost_sums(*key)))

        def of(first: int, last: int | None) -> tuple[Tensor, ...]:
            sums: tuple[Tensor, ...] = recorded(
                *(leaf[first:last] for leaf in rows.leaves), ahead=self._ahead
            )
            return sums

        if self.mode == "vmap":
            clipped = of(0, None)
        else:
            each = self.each(lambda i: of(i, i + 1), range(len(rows.leaves[0])))
            clipped = tuple(torch.cat(column) for column in zip(*each, strict=True))
        return tuple(map(rows.restored, clipped))

    def layout(
        self, loss: Callable[..., Tensor], axes: int, points: Sequence[Tensor], batch: Any, places: Points
    ) -> Layout | None:
        """Return the layers of networks of a loss; see `harness.core.execution.ghost_layout.layout`."""

        def found() -> tuple[Layout | None]:
            first = [_valued(point[(0,) * axes].detach()) for point in points]
            sample = type(batch)(*(column[(0,) * axes][:1] for column in batch))
            return (layout(loss, first, sample, places),)

        key = loss, places, _shapes(points, axes), _shapes(tuple(batch), axes + 1), batch.weight.dtype
        return _kept(self._layouts, key, found)[0]

    def each(self, fn: Callable[[int], Any], items: Sequence[int]) -> list[Any]:
        """Apply ``fn`` to each item in order, on the worker threads if there are any."""
        if self._pool is None or len(items) == 1:
            return [fn(item) for item in items]
        return list(self._pool.map(fn, items))

    def flops(
        self, fn: Callable[..., Any], axes: int, *arguments: Any, gradient: bool = False, by: Points = ()
    ) -> int:
        """Return the floating-point operations of one row; arguments as of `measured`."""
        return self.measured(fn, axes, *arguments, gradient=gradient, by=by).flops

    def measured(
        self, fn: Callable[..., Any], axes: int, *arguments: Any, gradient: bool = False, by: Points = ()
    ) -> Measured:
        """Compute the first row, once per function and shapes; a gradient's result is not kept.

        Only matrix products and convolutions count, as in torch's counter.
        """
        arguments = tuple(map(once, arguments))

        def one() -> Measured:
            first = tree_map(lambda t: t[(0,) * axes], arguments)
            operations = _OperationCounter()
            with operations, exact_sizes():
                if gradient:
                    _gradient(fn, [point.detach() for point in first[:-1]], first[-1], by)
                    return Measured(operations.count, None)
                result = fn(*first)
            return Measured(operations.count, result)

        hollow = not gradient and _leaf(arguments).is_meta  # as its result is, which is of no use to others
        return _kept(self._measured, (fn, gradient, by, _shapes(arguments, axes), hollow), one)


class _OperationCounter(TorchDispatchMode):
    """Counter of operations by torch's formulas.

    torch's own counter imports the compiler, which takes most of a second.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _kept(cache: dict[object, T], key: object, make: Callable[[], T]) -> T:
    """Get or create a value in a bounded cache, so that functions used only once do not fill memory."""
    if (value := cache.get(key)) is None:
        if len(cache) >= MOST_FUNCTIONS:
            cache.clear()
        cache[key] = value = make()
    return value


@lru_cache(maxsize=64)  # the same object every time, because it may be recorded
def _clipped_sum(
    loss: Callable[..., Tensor], places: Points, norm: float, group: int, singly: bool
) -> Callable[..., Any]:
    """Return one client's sum of clipped gradients as a function of ``(points, batch)``."""

    def one(points: Sequence[Tensor], batch: Any) -> tuple[Tensor, ...]:
        def single(moving: Sequence[Tensor], samples: Any) -> Tensor:
            return loss(*_with(points, places, moving), samples)

        moving = tuple(points[place] for place in places)
        groups = type(batch)(*(column.unflatten(0, (-1, group)) for column in batch))
        real = groups.weight > 0.5
        if group > 1:  # an empty slot holds the group's first sample, or a stranger's would be in the mean
            filled = (
                torch.where(real.view(*real.shape, *[1] * (column.ndim - 2)), column, column[:, :1])
                for column in (groups.x, groups.y, groups.group)
            )
            groups = type(batch)(*filled, *groups[3:])
        slope = torch.func.grad(single)
        if singly:
            each = [slope(moving, type(batch)(*(column[i] for column in groups))) for i in range(len(real))]
            every = tuple(torch.stack(column) for column in zip(*each, strict=True))
        else:
            every = torch.func.vmap(slope, in_dims=(None, 0))(moving, groups)
        return clipped_sum(every, norm, real.any(-1))

    return one


def _gradients(
    loss: Callable[..., Tensor], kind: Any, points: int, by: Points, shared: Flags
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the gradients of many rows as a function of the points and the batch's fields."""

    def one(*tensors: Tensor) -> Tensor:
        return loss(*tensors[:points], kind(*tensors[points:]))

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [tensors[place].detach().requires_grad_() for place in by]
        losses = over_rows(one, shared)(*_with(tensors[:points], by, leaves), *tensors[points:])
        return torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)

    return gradients


def _gradient(
    loss: Callable[..., Tensor], points: Sequence[Tensor], batch: Any, by: Points
) -> tuple[Tensor, ...]:
    leaves = [points[place].requires_grad_() for place in by or range(len(points))]
    return torch.autograd.grad(loss(*points, batch), leaves, materialize_grads=True)


def _with(points: Sequence[Tensor], places: Points, others: Sequence[Tensor]) -> list[Tensor]:
    """Return the points with some of them replaced."""
    changed = list(points)
    for place, other in zip(places, others, strict=True):
        changed[place] = other
    return changed


def _shapes(arguments: Any, axes: int) -> object:
    """Return the shapes of tensors, and of tensors in tuples, without their leading axes."""
    return tuple(
        [each.shape[axes:] if isinstance(each, Tensor) else _shapes(each, axes) for each in arguments]
    )


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _valued(point: Tensor) -> Tensor:
    """Return a vector of the same shape with some values, if it has none."""
    return torch.linspace(-1, 1, len(point), dtype=point.dtype) if point.is_meta else point


def _leaf(arguments: Any) -> Tensor:
    while not isinstance(arguments, Tensor):
        arguments = arguments[0]
    return arguments
