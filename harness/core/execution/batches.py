"""The batches of a round, and the local work that they are drawn for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from datasets.federation import Batch


class LocalWork(Protocol):
    """How much local work a client does in a round: an algorithm is one."""

    @property
    def local_steps(self) -> int | None:
        """Steps a round; None: counted in epochs."""

    @property
    def local_epochs(self) -> int | None:
        """Passes over the client's data; None: counted in steps, or one."""

    @property
    def batch_size(self) -> int | None:
        """Samples a batch; None: all."""


@dataclass(frozen=True)
class Batches:
    """The batches of a round, one after the other.

    Attributes
    ----------
    num_steps : Tensor
        Steps each client takes, ``(..., C, 1)``: clients with little data finish early when the round is
        measured in epochs; their rows then see padding only (`Batch.active` is 0).
    """

    pool: Batch
    positions: Tensor  # (S, ..., C, B) in the pool, -1 = padding
    num_steps: Tensor
    same: bool  # every step sees the same samples
    redact: Callable[[int, Batch], Batch]  # step and batch -> the batch without what is protected

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Batch]:
        # All but the features at once: they are small, and every look-up costs its call.
        small = self.pool._replace(x=self.pool.y).at(self.positions[:1] if self.same else self.positions)
        shape, where = self.positions.shape[1:], self.positions.clamp(min=0).flatten(1)
        for step in range(len(self)):
            if step == 0 or not self.same:
                x = self.pool.x.index_select(0, where[step]).unflatten(0, shape)
                batch = Batch(x, small.y[step], small.group[step], small.weight[step])
            yield self.redact(step, batch)


def unchanged(step: int, batch: Batch) -> Batch:
    """Return the batch as it is: nothing is protected."""
    return batch


def shorten(order: Tensor, num_steps: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Give rows no more steps than their limits ``(rows,)``; sample numbers are ``(S, rows, B)``, -1 = padding."""
    num_steps = num_steps.minimum(limits)
    return torch.where(torch.arange(len(order))[:, None, None] < num_steps[:, None], order, -1), num_steps


def look_up(order: Tensor, held: Tensor) -> Tensor:
    """Return the positions in the pool, ``(S, ..., C, B)``, of sample numbers.

    Parameters
    ----------
    order : Tensor
        Numbers of samples within their client's data, ``(S, rows, B)``; -1 = padding.
    held : Tensor
        Positions of each client's samples, ``(..., C, N)``; their leading axes laid flat are the rows.
    """
    numbers = order.clamp(min=0).transpose(0, 1).flatten(1)
    found = held.flatten(0, -2).gather(1, numbers).unflatten(1, order.shape[::2])
    positions: Tensor = torch.where(order >= 0, found.transpose(0, 1), -1).unflatten(1, held.shape[:-1])
    return positions


def mismatched_batches(counts: Tensor, here: Tensor, batch_size: int | None) -> bool:
    """Whether stacking runs changes the shapes of their batches.

    Wider batches are summed, and counted, in another way; and only who holds more than a batch is shuffled.

    Parameters
    ----------
    counts, here : Tensor
        Samples of each client of a cohort, and whether it is there, ``(R, C)``.
    batch_size : int or None
        Samples a batch; None: all that the largest of them has.
    """
    largest = torch.where(here, counts, 0).amax(-1)
    largest = torch.cat([largest[here.any(-1)], counts.max()[None]])
    size = int(largest.max()) if batch_size is None else batch_size
    return len({(min(size, most), most <= size) for most in largest.tolist()}) > 1
