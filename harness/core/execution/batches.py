"""The batches of a round: samples as they are dealt, one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from datasets.federation import Batch


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
    shown: Callable[[int, Batch], Batch]  # of a step's batch: as it is handed out

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
            yield self.shown(step, batch)


def mismatched_batches(counts: Tensor, here: Tensor, batch_size: int | None) -> bool:
    """Whether runs side by side draw otherwise than apart.

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
