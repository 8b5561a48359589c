"""Matrix products in which a row has the same bits, however many others are multiplied with it.

Runs of one seed see the same batches. So the products of one batch with the first layers of R runs are a single
wide product, which reads the batch once and keeps the processor's units busy: for a linear model on 32 samples it
takes a fifth of the time of R narrow products. But a library chooses its kernels, and so the order of its sums, by
the shape of a product and by where its rows lie in memory. The result of a run must not depend on the runs beside
it. So all three sides are padded with zeros, such that rows begin at multiples of some bytes and narrow products
take the kernel of the wide ones. Which padding serves is found by trying, once per shape. Mostly the number of rows
alone need be padded, and the factors are not copied: where that gives the same bits, it is done. A product of
more rows than that was tried with is tried as it is. Where a run's rows would round otherwise in it, or no padding
serves, fewer runs are multiplied at once. On accelerators nothing is padded, and runs side by side may differ from
runs alone in the last bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

# Multiples of the lengths of rows and of their number; the first serves on the x86 processor it was tried on.
PADDINGS = ((8, 4), (16, 4), (16, 8), (16, 16), (16, 32))
FEW_ROWS = 4  # rows whose products with others are summed without a library
SHORTEST_ROW = 16  # entries of a row: libraries treat small products separately
TRIED = 150  # rows up to which a padding is tried
# Rows that are tried, after all.
_RANGES = (
    (0, TRIED),
    (3, 70),
    (50, 63),
    (1, 3),
    (100, 117),
    (5, 149),
    (0, 33),
    (149, 150),
    (0, 128),
    (22, 26),
)
_here = threading.local()  # whether this thread counts operations


class _RowProduct(torch.autograd.Function):
    """``a @ b`` for rows ``(..., M, K)`` and a matrix ``(..., K, N)`` that they share.

    Where only the rows are batched by vmap, they become the rows of one wide product. Both derivatives are products
    again, so it can be differentiated repeatedly.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        """Return the product, padded where that is of use."""
        paddings = None if _exactly() else padding(b)
        return torch.matmul(a, b) if paddings is None else _padded(a, b, *paddings)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Keep both factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients by both factors."""
        a, b = ctx.saved_tensors
        (g,) = gradients
        by_rows = row_product(g, b.mT) if ctx.needs_input_grad[0] else None
        return by_rows, (_columns(a, g) if ctx.needs_input_grad[1] else None)

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        """Fold the batch into the rows, or into the columns; if both are batched, multiply pair by pair."""
        of_a, of_b = in_dims
        if of_b is None:
            rows = a.movedim(of_a, -3)
            pieces = rows.split(_runs_at_once(b, *rows.shape[-3:-1], gradient=torch.is_grad_enabled()), -3)
            products = [
                row_product(piece.flatten(-3, -2), b).unflatten(-2, piece.shape[-3:-1]) for piece in pieces
            ]
            product = products[0] if len(products) == 1 else torch.cat(products, -3)
            return product, product.ndim - 3
        if of_a is None:
            columns = b.movedim(of_b, -2)
            product = row_product(a, columns.flatten(-2)).unflatten(-1, columns.shape[-2:])
            return product, product.ndim - 2
        return row_product(a.movedim(of_a, 0), b.movedim(of_b, 0)), 0


def row_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply rows ``(..., M, K)`` by a matrix ``(..., K, N)``; see the module's description."""
    product: Tensor = _RowProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return product


class Linear(nn.Linear):
    """A linear layer that rounds alike alone and in a stack of runs.

    Rows of a product are the weights of all runs, which may share a batch. Where weights are constants, which all
    runs share, rows are samples.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs ``(B, out)`` of inputs ``(B, in)``."""
        constant = "weight" in self._buffers
        outputs = row_product(x, self.weight.mT) if constant else row_product(self.weight, x.mT).mT
        return outputs if self.bias is None else outputs + self.bias


def with_plain_layers(module: nn.Module) -> nn.Module:
    """Replace the trained layers of a model by new ones of torch, for runs that are never stacked.

    Layers with buffers are frozen, so that their values matter: they stay.
    """
    for name, layer in module.named_children():
        if isinstance(layer, Linear) and not any(True for _ in layer.buffers()):
            with torch.random.fork_rng(devices=[]):
                plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            setattr(module, name, plain)
        else:
            with_plain_layers(layer)
    return module


@lru_cache(maxsize=4)
def rounds_alike(module: nn.Module | None) -> bool:
    """Whether a model consists of layers that round alike if runs share their inputs."""
    if module is None:
        return False
    layers = [layer for layer in module.modules() if not any(True for _ in layer.children())]
    return all(isinstance(layer, Linear | nn.Flatten | nn.ReLU | nn.Tanh | nn.Identity) for layer in layers)


@contextmanager
def exact_sizes() -> Iterator[None]:
    """Multiply without padding, to count operations."""
    before, _here.exact = _exactly(), True
    try:
        yield
    finally:
        _here.exact = before


def _exactly() -> bool:
    return getattr(_here, "exact", False)


def padding(b: Tensor) -> tuple[int, int] | None:
    """Return the multiples to which products with a matrix are padded; None: not at all."""
    return _found(_kind(b)) if b.device.type == "cpu" else None


class _Kind(NamedTuple):
    """Decides, with the number of rows, which kernel multiplies them by a matrix."""

    shape: tuple[int, ...]
    by_rows: bool
    dtype: torch.dtype
    threads: int

    def drawn(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return random rows and a random matrix: which kernel is chosen does not depend on the numbers."""
        generator, (*lead, inner, columns) = np.random.default_rng(0), self.shape

        def one(*sizes: int) -> Tensor:
            return torch.from_numpy(generator.normal(size=(*lead, *sizes))).to(self.dtype)

        return one(rows, inner), one(inner, columns) if self.by_rows else one(columns, inner).mT


def _kind(b: Tensor) -> _Kind:
    # One product, or several: libraries split the former, and the latter one by one, among threads.
    threads, lead = torch.get_num_threads(), b.shape[:-2].numel()
    count = () if b.ndim == 2 else (min(lead, 2) if threads == 1 else lead,)
    return _Kind((*count, *b.shape[-2:]), b.stride(-1) == 1, b.dtype, threads)


def _runs_at_once(b: Tensor, runs: int, each: int, *, gradient: bool) -> int:
    """Return how many runs, of as many rows each, to multiply by a matrix at once.

    The ``gradient`` by their rows is a product with the transposed matrix, of as many rows.
    """
    if runs == 1 or _exactly() or b.device.type != "cpu":
        return runs
    kinds = [_kind(matrix) for matrix in (b, *([b.mT] if gradient else []))]
    if any(_found(kind) is None for kind in kinds):
        return 1
    if runs * each <= TRIED or all(_alike(kind, runs, each) for kind in kinds):
        return runs
    return max(1, TRIED // each)


@lru_cache(maxsize=4096)
def _alike(kind: _Kind, runs: int, each: int) -> bool:
    """Whether the rows of many runs round in one product as the rows of each run do in its own."""
    paddings = _found(kind)
    assert paddings is not None
    with _disable_current_modes(), torch.no_grad():
        rows, matrix = kind.drawn(runs * each)
        wide = _padded(rows, matrix, *paddings)
        return all(
            torch.equal(_padded(single, matrix, *paddings), piece)
            for single, piece in zip(rows.split(each, -2), wide.split(each, -2), strict=True)
        )


@lru_cache(maxsize=4096)
def _found(kind: _Kind) -> tuple[int, int] | None:
    """Try the paddings on random factors."""
    with _disable_current_modes(), torch.no_grad():
        rows, matrix = kind.drawn(TRIED)
        for align, step in PADDINGS:
            wide = _padded(rows, matrix, align, step)
            if all(
                torch.equal(_padded(rows[..., first:last, :], matrix, align, step), wide[..., first:last, :])
                for first, last in _RANGES[1:]
            ):
                break
        else:
            return None
        # Without copies rows begin anywhere.
        plain = all(
            torch.equal(
                _padded(_moved(rows[..., first:last, :], place), _moved(matrix, 5 * place), 1, step),
                wide[..., first:last, :],
            )
            for place in range(1, 16, 2)
            for first, last in _RANGES[place % 3 :: 3]
        )
    return (1, step) if plain else (align, step)


def _moved(values: Tensor, places: int) -> Tensor:
    """Return a copy that begins some elements after a multiple of 16."""
    upright = values if values.stride(-1) == 1 else values.mT
    places %= 16
    room = upright.new_empty(places + upright.numel())
    copy = room[places:].view(upright.shape).copy_(upright)
    return copy if upright is values else copy.mT


def _columns(a: Tensor, g: Tensor) -> Tensor:
    """Return ``a.mT @ g``, the gradient by the shared matrix; of few rows as a sum of outer products."""
    if _exactly() or a.shape[-2] > FEW_ROWS:
        return row_product(a.mT, g)
    terms = zip(a.unsqueeze(-1).unbind(-3), g.unsqueeze(-2).unbind(-3), strict=True)
    return reduce(torch.add, [column * row for column, row in terms])


def _padded(a: Tensor, b: Tensor, align: int, step: int) -> Tensor:
    """Multiply with rows of ``align`` entries, or multiples, and ``step`` rows, or multiples.

    With ``align`` 1 factors stay as they are, but for the number of rows.
    """
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    deep, wide = (max(SHORTEST_ROW, n + -n % align) - n if align > 1 else 0 for n in (inner, columns))
    missing = -rows % step
    if deep or missing:
        a = nn.functional.pad(a, (0, deep, 0, missing))
    elif align > 1 or a.stride(-1) != 1:
        a = a.clone(memory_format=torch.contiguous_format)  # rows of a model's vector begin anywhere
    by_rows = b.stride(-1) == 1
    b = b if by_rows else b.mT
    if deep or wide:
        b = nn.functional.pad(b, (0, wide, 0, deep) if by_rows else (0, deep, 0, wide))
    b = b.contiguous()
    product = torch.matmul(a, b if by_rows else b.mT)
    return product[..., :rows, :columns]
