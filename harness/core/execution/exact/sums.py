"""Weighted sums over clients."""

from __future__ import annotations

import torch
from torch import Tensor


def combined(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``weights @ rows``, ``(..., A, C)`` by ``(..., C, P)``, with equal rounding for one run and a stack.

    torch uses different routines for one product and for several, which round differently for some shapes (three by
    nine by 62), so every run's is computed by itself.
    """
    lead = rows.shape[:-2]
    weights = weights.expand(*lead, *weights.shape[-2:])  # runs may share one matrix
    shape = (*lead, weights.shape[-2], rows.shape[-1])
    each = (tensor.reshape(lead.numel(), *tensor.shape[-2:]).split(1) for tensor in (weights, rows))
    return torch.cat([torch.bmm(weight, row) for weight, row in zip(*each, strict=True)]).view(shape)


def summed(weights: Tensor, rows: Tensor, members: Tensor) -> Tensor:
    """Return the sums of rows ``(..., C, P)`` with weights ``(..., C)``, over members ``(..., C)`` only.

    Stacked cohorts of different sizes are summed run by run, because padding rows would change the rounding.
    """
    weights = weights.to(rows).unsqueeze(-2)
    if rows.ndim == 2 or bool(members.all()):
        return combined(weights, rows).squeeze(-2)
    each = zip(weights, rows, members.to(rows.device), strict=True)
    return torch.stack(
        [combined(weight[:, clients], row[clients]).squeeze(-2) for weight, row, clients in each]
    )
