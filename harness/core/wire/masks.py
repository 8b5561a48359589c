"""Which entries of a message travel at all. All of it is public: sender and receiver know it without a byte.

An entry is missing because it belongs to no unit of the pruned model, or because a common lot left it out. What a
sender chooses by magnitude is no mask; its positions travel along with the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from compression import random_k, ratio_at
from harness.core import rng
from harness.core.cohort import Cohort
from harness.core.registry import Incompatible
from harness.core.wire.settings import Compression


def shared(
    clients: Cohort,
    compression: Compression,
    slot: int,
    parts: Sequence[Tensor],
    real: Tensor | None = None,
) -> Tensor | None:
    """Return the mask of a message with these parts: ``(n,)``, ``(R, 1, n)`` or ``(..., C, n)``; None: whole.

    Of a message that is not made of models ``real`` says which entries there are, ``(n,)``.
    """
    model = of_model(clients, parts) if real is None else real
    if not compression.sparsifies or compression.select != "random_k":
        return model
    if per_client_mask(clients, model) is not None:
        raise Incompatible("compression: random_k uses one mask for all clients, alpha is one for each")
    return _lot(clients, compression, slot, parts, model)


def of_model(clients: Cohort, parts: Sequence[Tensor], ids: Tensor | None = None) -> Tensor | None:
    """Return which entries belong to the pruned model: ``(n,)``, or ``(..., C, n)`` where each client has its own.

    With ``ids``, of these clients in place of the cohort.
    """
    model = clients.pruned
    if model is None or model.own or not any(model.inside(part) for part in parts):
        return None
    return model.mask_of(parts, clients.ids if ids is None else ids)


def of_everybody(clients: Cohort, parts: Sequence[Tensor]) -> Tensor:
    """Return the masks of all clients of the federation, ``(total, n)``, where each has its own model."""
    found = of_model(clients, parts, torch.arange(clients.total))
    assert found is not None
    return found


def per_client_mask(clients: Cohort, mask: Tensor | None) -> Tensor | None:
    """Return a message's mask if it differs from client to client."""
    model = clients.pruned
    return None if model is None or model.own or model.which is None else mask


def ratio(clients: Cohort, compression: Compression) -> float | Tensor:
    """Return the share of entries that is dropped in this round: one for all, or one for each of the cohort."""
    found = ratio_at(compression.beta, max(0, clients.round))
    if not isinstance(found, Tensor):
        return found
    if len(found) != clients.total:
        raise Incompatible(f"compression.beta: {len(found)} ratios for {clients.total} clients")
    return found[clients.ids.cpu()]


def _lot(
    clients: Cohort, compression: Compression, slot: int, parts: Sequence[Tensor], among: Tensor | None
) -> Tensor:
    """Draw the entries, of those in play, that all clients send this round, from the seed that all know."""
    share = ratio(clients, compression)
    if isinstance(share, Tensor):
        raise Incompatible("compression: random_k uses one ratio for all clients, its mask is common")
    n = sum(part.shape[-1] for part in parts)
    play = torch.arange(n) if among is None else among.nonzero()[:, 0].cpu()
    mask = torch.zeros(len(clients.seeds), n, dtype=torch.bool)
    for row, seed in zip(mask, clients.seeds, strict=True):
        row[play] = random_k(len(play), share, rng.stream(seed, "random-k", clients.round, slot))
    mask = mask.to(parts[0].device)
    return mask.unsqueeze(-2) if clients.axes > 1 else mask[0]
