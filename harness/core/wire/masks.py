"""Public masks of messages: entries that sender and receiver both know not to be sent, at no cost.

An entry is masked if the pruned model lacks it, or if the common random choice (random-k) excludes it. The entries
that a sender selects by magnitude are not public; their positions are sent with the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compression.select import random_k, ratio_at
from harness.core import rng
from harness.core.clients.cohort import Cohort
from harness.core.clients.pruning import Shaped
from harness.core.errors import Incompatible
from harness.core.per_run import PerRun
from harness.core.settings.compression import Compression


def shared(
    clients: Cohort,
    compression: Compression,
    slot: int,
    parts: Sequence[Shaped],
    real: Tensor | None = None,
) -> Tensor | None:
    """Return the mask of a message with these parts: ``(n,)``, ``(R, 1, n)`` or ``(..., C, n)``; None: no mask.

    For a message about samples ``real (n,)`` replaces the mask of the pruned model.
    """
    model = of_model(clients, parts) if real is None else real
    if not compression.sparsifies or compression.select != "random_k":
        return model
    if per_client_mask(clients, model) is not None:
        raise Incompatible(
            "compression: random_k uses one mask for all clients, so alpha must be equal for all"
        )
    return _random_mask(clients, compression, slot, parts, model)


def of_model(clients: Cohort, parts: Sequence[Shaped]) -> Tensor | None:
    """Return the entries of the pruned model: ``(n,)``, or ``(..., C, n)`` if clients have different models."""
    model = clients.pruned
    if model is None or model.own or not any(model.inside(part) for part in parts):
        return None
    return model.mask_of(parts, clients.ids)


def holders(clients: Cohort, parts: Sequence[Shaped]) -> Tensor:
    """Return the share of all clients that have an entry in their model, ``(n,)``, if models differ."""
    assert clients.pruned is not None
    return clients.pruned.holders(parts) / clients.federation.clients


def per_client_mask(clients: Cohort, mask: Tensor | None) -> Tensor | None:
    """Return a message's mask if it differs between clients, else None."""
    model = clients.pruned
    return None if model is None or model.own or model.which is None else mask


def ratio(clients: Cohort, compression: Compression) -> float | Tensor:
    """Return the share of dropped entries in this round, for all or for each member of the cohort."""
    if isinstance(compression.beta, PerRun):
        each = torch.tensor(compression.beta.values, dtype=torch.float64)
        return each.view(-1, 1).expand(clients.ids.shape)
    ratios = ratio_at(compression.beta, max(0, clients.round))
    if not isinstance(ratios, Tensor):
        return ratios
    if len(ratios) != (number := clients.federation.clients):
        raise Incompatible(f"compression.beta: {len(ratios)} ratios for {number} clients")
    return ratios[clients.ids.cpu()]


def _random_mask(
    clients: Cohort, compression: Compression, slot: int, parts: Sequence[Shaped], among: Tensor | None
) -> Tensor:
    """Draw the entries that all clients send in this round, among those of a mask, from the public seed."""
    share = ratio(clients, compression)
    if isinstance(share, Tensor):
        raise Incompatible(
            "compression: random_k uses one ratio for all clients, because they share its mask"
        )
    n = sum(part.shape[-1] for part in parts)
    allowed = torch.arange(n) if among is None else among.nonzero()[:, 0].cpu()
    mask = torch.zeros(len(clients.seeds), n, dtype=torch.bool)
    for row, seed in zip(mask, clients.seeds, strict=True):
        row[allowed] = random_k(len(allowed), share, rng.stream(seed, "random-k", clients.round, slot))
    mask = mask.to(clients.federation.pool.x.device)
    return mask.unsqueeze(-2) if clients.axes > 1 else mask[0]
