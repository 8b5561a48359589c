"""Shapes of batches: a sum over a wider batch rounds otherwise, even if what is added is zero."""

from __future__ import annotations

import torch
from torch import Tensor


def uneven_batches(counts: Tensor, batch_size: int | None) -> bool:
    """Whether the shapes of the batches of a cohort depend on who is in it.

    Parameters
    ----------
    counts : Tensor
        Samples of all clients, any shape.
    batch_size : int or None
        Samples per batch; None: as many as the largest client has.
    """
    size = int(counts.max()) if batch_size is None else batch_size
    return len({(min(size, held), held <= size) for held in counts.unique().tolist()}) > 1


def mismatched_batches(counts: Tensor, participation_mask: Tensor, batch_size: int | None) -> bool:
    """Whether stacking runs changes the shapes of their batches, and so the rounding of their sums.

    Parameters
    ----------
    counts, participation_mask : Tensor
        Samples of each client of a cohort, and whether it takes part, ``(R, C)``.
    batch_size : int or None
        Samples per batch; None: as many as the largest client has.
    """
    largest = torch.where(participation_mask, counts, 0).amax(-1)
    largest = torch.cat([largest[participation_mask.any(-1)], counts.max()[None]])
    size = int(largest.max()) if batch_size is None else batch_size
    return len({(min(size, most), most <= size) for most in largest.tolist()}) > 1
