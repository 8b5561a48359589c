"""Run a one-client function over many rows: vectorized, or as a loop of plain calls.

Dense models vectorize; convolutions on a CPU are faster as a loop (docs/design.md, section 8). Which of
the two is used never shows in the result beyond rounding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from harness.core.execution.tracing import Recorded
from privacy import clipped_sum

T = TypeVar("T")
Mode = Literal["vmap", "loop"]

MOST = 256  # functions that are known at a time
KEPT = 2**25  # bytes of a piece, and eight times as much in all; larger ones go back to the system

Points = tuple[int, ...]  # numbers of a function's arguments; none stands for all


class Rows:
    """Executes one-client functions over the rows of their arguments.

    Parameters
    ----------
    mode : {"vmap", "loop"}
        How.
    threads : int
        Worker threads of the loop, one torch thread each; 1 means the calling thread.

    Attributes
    ----------
    ahead : float
        How many rounds are to come for each that has been made, if somebody knows; else 0. Where many are, it pays
        to record functions early.
    """

    def __init__(self, mode: Mode, threads: int = 1) -> None:
        self.mode = mode
        self.threads = threads
        self.ahead = 0.0
        _keep_freed_memory()
        self._flops: dict[object, int] = {}
        self._recorded: dict[object, Any] = {}  # function and kind of its arguments -> how it is called
        self._pool = (
            ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )

    def _to_come(self) -> float:
        return self.ahead

    def map(self, fn: Callable[..., Any], axes: int, *arguments: Any) -> Any:
        """Apply ``fn`` to every row.

        Parameters
        ----------
        fn : Callable
            Function of one client.
        axes : int
            How many leading axes of the arguments count rows (1: clients; 2: runs and clients).
        *arguments : Tensor or tuple of tensors
            Each with those leading axes.

        Returns
        -------
        Tensor or tuple of tensors
            Results with the same leading axes.
        """
        lead = _leaf(arguments).shape[:axes]
        flat = _flat(arguments, axes)
        if self.mode == "vmap":
            result = self._vectorized(fn, flat)
        else:
            rows = range(len(_leaf(flat)))
            one = lambda i: fn(*tree_map(lambda t: t[i], flat))  # noqa: E731
            results = self.each(one, rows)
            result = tree_map(lambda *values: torch.stack(values), results[0], *results[1:])
        return tree_map(lambda t: t.unflatten(0, lead), result)

    def _vectorized(self, fn: Callable[..., Any], arguments: Any) -> Any:
        """Apply ``fn`` to all rows at once; from some calls on as a recording."""
        leaves, structure = tree_flatten(arguments)

        def made() -> tuple[Recorded, list[TreeSpec]]:
            shape: list[TreeSpec] = []  # of the result, known once it has been computed

            def vectorized(*parts: Tensor) -> tuple[Tensor, ...]:
                found = torch.func.vmap(fn, randomness="error")(*tree_unflatten(parts, structure))
                flat, shape[:] = tree_flatten(found)[0], [tree_flatten(found)[1]]
                return tuple(flat)

            return Recorded(vectorized, self._to_come), shape

        recorded, shape = _kept(self._recorded, (fn, structure), made)
        return tree_unflatten(recorded(*leaves), shape[0])

    def gradient(
        self, loss: Callable[..., Tensor], axes: int, points: Sequence[Tensor], batch: Any, by: Points = ()
    ) -> list[Tensor]:
        """Return the gradients of ``loss(*points, batch)`` by the points numbered ``by`` (none: all), row by row.

        Rows do not interact, so the gradient of the sum of their losses is all their gradients at once: one
        backward pass over a vectorized forward pass.
        """
        lead = points[0].shape[:axes]
        flat = [_flat(point.detach(), axes) for point in points]
        batch = _flat(batch, axes)
        if self.mode == "vmap":
            what = (loss, type(batch), len(flat), by or tuple(range(len(flat))))
            recorded = _kept(self._recorded, what, lambda: Recorded(_gradients(*what), self._to_come))
            gradients = recorded(*flat, *batch)
        else:
            one = lambda i: _gradient(loss, [point[i] for point in flat], tree_map(lambda t: t[i], batch), by)  # noqa: E731
            columns = zip(*self.each(one, range(len(flat[0]))), strict=True)
            gradients = tuple(_stack(column) for column in columns)
        return [gradient.unflatten(0, lead) for gradient in gradients]

    def clipped_sums(
        self,
        loss: Callable[..., Tensor],
        axes: int,
        points: Sequence[Tensor],
        batch: Any,
        by: Points = (),
        *,
        norm: float,
    ) -> tuple[Tensor, ...]:
        """Return, row by row, the sum over samples of their gradients, each clipped to a joint norm.

        Parameters
        ----------
        loss, axes, points, batch, by
            As in `gradient`; samples of weight below 1/2 are padding.
        norm : float
            Bound on the L2 norm of one sample's gradients by all those points together.
        """
        one = _clipped_sum(loss, by or tuple(range(len(points))), norm)
        found: tuple[Tensor, ...] = self.map(one, axes, tuple(point.detach() for point in points), batch)
        return found

    def each(self, fn: Callable[[int], Any], items: Sequence[int]) -> list[Any]:
        """Apply ``fn`` to each item in order, on the worker threads if there are any."""
        if self._pool is None or len(items) == 1:
            return [fn(item) for item in items]
        return list(self._pool.map(fn, items))

    def flops(
        self, fn: Callable[..., Any], axes: int, *arguments: Any, gradient: bool = False, by: Points = ()
    ) -> int:
        """Return the floating-point operations of one row, measured once per function and shapes.

        Matrix products and convolutions only, as torch's counter counts them.
        """

        def counted() -> int:
            first = tree_map(lambda t: t[0], _flat(arguments, axes))
            operations = _Operations()
            with operations:
                if gradient:
                    _gradient(fn, [point.detach() for point in first[:-1]], first[-1], by)
                else:
                    fn(*first)
            return operations.count

        return _kept(self._flops, (fn, gradient, by, _shapes(arguments, axes)), counted)


class _Operations(TorchDispatchMode):
    """Counts operations by torch's formulas.

    torch's own counter wants torch's compiler not to look inside it, and imports all of that to say so: most of a
    second at the start of every command that runs something.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=found)
        return found


def _keep_freed_memory() -> None:
    """Tell the C library to keep what is freed: a model-sized vector is asked for many times a step.

    Otherwise each comes as fresh pages from the system, which is 6 % of a step of a 3-million-parameter network
    (benchmarks, W1), and 5 % of a round of FedBiOAcc with ten runs side by side. Where the library has no such
    call, nothing changes.
    """
    trim_threshold, mmap_threshold = -1, -3
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None and adjust(mmap_threshold, KEPT):  # a library may refuse
        adjust(trim_threshold, 8 * KEPT)


def _kept(cache: dict[object, T], key: object, make: Callable[[], T]) -> T:
    """Get or create a value in a bounded cache, so that functions used only once do not fill memory."""
    if (found := cache.get(key)) is None:
        if len(cache) >= MOST:
            cache.clear()
        cache[key] = found = make()
    return found


@lru_cache(maxsize=64)  # the same object every time: it may be recorded
def _clipped_sum(loss: Callable[..., Tensor], places: Points, norm: float) -> Callable[..., Any]:
    """Return one client's sum of clipped gradients as a function of ``(points, batch)``."""

    def one(points: Sequence[Tensor], batch: Any) -> tuple[Tensor, ...]:
        def single(moving: Sequence[Tensor], sample: Any) -> Tensor:
            every = _with(points, places, moving)
            return loss(*every, type(sample)(*(part.unsqueeze(0) for part in sample)))

        moving = tuple(points[place] for place in places)
        every = torch.func.vmap(torch.func.grad(single), in_dims=(None, 0))(moving, batch)
        return clipped_sum(every, norm, batch.weight > 0.5)

    return one


def _gradients(
    loss: Callable[..., Tensor], kind: Any, points: int, by: Points
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the gradients of many rows as a function of the points' and the batch's parts, one by one."""

    def one(*parts: Tensor) -> Tensor:
        return loss(*parts[:points], kind(*parts[points:]))

    def gradients(*parts: Tensor) -> tuple[Tensor, ...]:
        leaves = [parts[place].detach().requires_grad_() for place in by]
        losses = torch.func.vmap(one)(*_with(parts[:points], by, leaves), *parts[points:])
        return torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)

    return gradients


def _gradient(
    loss: Callable[..., Tensor], points: Sequence[Tensor], batch: Any, by: Points
) -> tuple[Tensor, ...]:
    leaves = [points[place].requires_grad_() for place in by or range(len(points))]
    return torch.autograd.grad(loss(*points, batch), leaves, materialize_grads=True)


def _with(points: Sequence[Tensor], places: Points, others: Sequence[Tensor]) -> list[Tensor]:
    """Return the points with others in some places."""
    changed = list(points)
    for place, other in zip(places, others, strict=True):
        changed[place] = other
    return changed


def _shapes(arguments: Any, axes: int) -> object:
    if isinstance(arguments, Tensor):
        return arguments.shape[axes:]
    return tuple(_shapes(part, axes) for part in arguments)


def _flat(arguments: Any, axes: int) -> Any:
    """Lay the rows of all leading axes end to end; one axis is that already."""
    return arguments if axes == 1 else tree_map(lambda t: t.flatten(0, axes - 1), arguments)


def _stack(rows: Sequence[Tensor]) -> Tensor:
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


def _leaf(arguments: Any) -> Tensor:
    while not isinstance(arguments, Tensor):
        arguments = arguments[0]
    return arguments
