"""The batches of a round, and the amount of local work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from datasets.federation import Batch
from harness.core.clients.local_batch import LocalBatch
from harness.core.errors import Incompatible
from harness.core.execution.exact.sharing import for_runs
from harness.core.public import Public

Split = Literal["train", "validation"]


class LocalWork(Protocol):
    """Amount of a client's local work in a round; algorithms implement it."""

    @property
    def local_steps(self) -> int | None:
        """Steps per round; None: `local_epochs` counts."""

    @property
    def local_epochs(self) -> int | None:
        """Passes over the client's data per round; None: `local_steps` counts, or one pass."""

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None: all."""


@dataclass(frozen=True)
class Batches:
    """Iterable of a round's batches.

    Attributes
    ----------
    num_steps : Tensor
        Steps of each client, ``(..., C, 1)``. In rounds measured in epochs clients with little data finish early;
        their later batches are padding (`LocalBatch.active` is 0).
    runs : int or None
        Number of stacked runs, if each of their seeds has one batch, ``(seeds, C, ...)``, for all its runs.
    shared : bool
        Whether these runs share it in memory, so that products with all their models are one; else each has a copy.
    mismatched : bool
        Whether stacking has changed the width of a run's batches, and so the rounding of its results.
    """

    pool: Batch
    positions: Tensor  # (steps, ..., C, B) in the pool, -1 = padding
    num_steps: Tensor
    same: bool  # whether all steps use the same samples
    redact: Callable[[int, LocalBatch], LocalBatch]  # (step, batch) -> the batch without protected fields
    runs: int | None = None
    shared: bool = True
    mismatched: bool = False

    def __post_init__(self) -> None:
        if self.runs is not None:
            object.__setattr__(self, "num_steps", for_runs(self.num_steps, self.runs))

    def __iter__(self) -> Iterator[LocalBatch]:
        pool, positions = self.pool, self.positions[:1] if self.same else self.positions
        where, shape = positions.clamp(min=0).flatten(1), (*positions.shape[1:], *pool.x.shape[1:])
        # One look-up for everything but the features, which are large.
        small = [each.index_select(0, where.flatten()).view(positions.shape) for each in (pool.y, pool.group)]
        small.append((positions >= 0).to(pool.weight.dtype))
        rest = list(zip(where.unbind(), *(column.unbind() for column in small), strict=True))
        for step in range(len(self.positions)):
            if step == 0 or not self.same:
                samples, *others = rest[step]
                batch = LocalBatch(Batch(pool.x.index_select(0, samples).view(shape), *others), self.runs)
                if self.runs is not None and not self.shared:
                    batch = LocalBatch(Batch(*(column.contiguous() for column in batch.of_runs)))
            yield self.redact(step, batch)


@dataclass(frozen=True)
class BatchPlan:
    """The batches that a round draws, as `Clients.batches` is asked for them.

    Attributes
    ----------
    steps : int, Tensor or None
        Local steps of all clients, or of each, ``(..., C)``; None: `epochs` counts.
    epochs : int or None
        Passes over the data; None without steps: one.
    batch_size : int or None
        Samples in a batch; None: all.
    split, stream, aligned
        As in `Clients.batches`.
    """

    steps: int | Tensor | None
    epochs: int | None
    batch_size: int | None
    split: Split = "train"
    stream: str = "main"
    aligned: bool = False

    @classmethod
    def of(cls, work: LocalWork) -> BatchPlan:
        """Return the plan that an algorithm's settings make."""
        return cls(work.local_steps, work.local_epochs, work.batch_size)

    def all_steps(self, counts: Tensor, rate: float | None = None) -> Tensor:
        """Return the numbers of local steps that clients with ``counts (...)`` samples take in a round.

        With a public rate of records, an epoch has as many steps for every client.
        """
        if isinstance(self.steps, Tensor):
            return self.steps
        if self.steps is not None:
            return torch.full_like(counts, self.steps)
        epochs = self.epochs or 1
        if rate is not None:
            return torch.full_like(counts, math.ceil(1 / rate) * epochs)
        size = counts if self.batch_size is None else counts.clamp(max=self.batch_size)
        return -(-counts // size.clamp(min=1)) * epochs


def common(numbers: Tensor) -> Public:
    """Return a public number from that of each stacked run: a plain one if all are equal."""
    first = numbers.flatten()[0]
    return Public(first.item() if bool((numbers == first).all()) else numbers.double())


def public_size(batch_size: int | None) -> int:
    """Return the number of samples that a batch counts as where counts of samples are private.

    Raises
    ------
    Incompatible
        Without a batch size.
    """
    if batch_size is None:
        raise Incompatible(
            "privacy.strict: counts of samples are private, as with cohort.rate too, so operations are counted for "
            "algorithm.batch_size samples in every batch, whatever a client holds; give it"
        )
    return batch_size


def unchanged(step: int, batch: LocalBatch) -> LocalBatch:
    """Return the batch: without record-level privacy nothing is redacted."""
    return batch


def shorten(order: Tensor, num_steps: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Limit the steps of rows to ``limits (rows,)``; sample numbers are ``(S, rows, B)``, -1 = padding."""
    num_steps = num_steps.minimum(limits)
    return torch.where(torch.arange(len(order))[:, None, None] < num_steps[:, None], order, -1), num_steps


def look_up(order: Tensor, held: Tensor) -> Tensor:
    """Return the positions of samples in the pool, ``(S, ..., C, B)``.

    Parameters
    ----------
    order : Tensor
        Sample numbers within the client's data, ``(S, rows, B)``; -1 = padding.
    held : Tensor
        Positions of each client's samples, ``(..., C, N)``; the flattened leading axes are the rows.
    """
    rows = nn.functional.pad(held.flatten(0, -2), (1, 0), value=-1)  # where padding finds itself
    first = torch.arange(len(rows)) * rows.shape[1] + 1  # sample of each client
    positions = rows.flatten().index_select(0, (order + first[:, None]).flatten())
    return positions.view(len(order), *held.shape[:-1], order.shape[-1])
