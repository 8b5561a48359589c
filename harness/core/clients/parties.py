"""One-client functions of vertical problems: embeddings of the parties, and losses at given embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients.local_batch import LocalBatch, PartyBatch
from harness.core.losses import weighted_mean
from harness.core.problem import PerSample, Problem

OneClient = Callable[..., Tensor]


def embedding(problem: Problem) -> OneClient:
    """Return a party's embedding ``(B, d)`` as a function of ``(y, batch)``."""
    if problem.embed is None:
        raise ValueError(f"problem {problem.name} has no embeddings")
    return problem.embed


def with_embeddings(batch: LocalBatch, embeddings: Tensor) -> LocalBatch:
    """Add the embeddings of all parties, ``(K, B, d)``, to the batch of every party."""
    parties, samples = batch.weight.shape
    own = torch.eye(parties, dtype=torch.bool, device=embeddings.device)[:, None].expand(-1, samples, -1)
    received = embeddings.movedim(-3, -2).expand(parties, *embeddings.shape[-2::-1], embeddings.shape[-1])
    return batch.with_received(received, own)


def with_gradients(batch: LocalBatch, gradients: Tensor) -> LocalBatch:
    """Add the gradients of the mean loss by its embeddings, ``(K, B, d)``, to the batch of every party."""
    received = gradients * batch.weight.sum(-1)[..., None, None]
    return batch.with_received(received, torch.zeros_like(batch.weight, dtype=torch.bool))


@lru_cache(maxsize=64)
def party_loss(problem: Problem) -> OneClient:
    """Return the loss of a party's new embeddings and the others' received ones, of ``(x, y, batch)``."""
    embed = embedding(problem)

    @PerSample
    def loss(x: Tensor, y: Tensor, batch: PartyBatch) -> Tensor:
        fresh = embed(y, Batch(*batch[:4]))
        joined = torch.where(batch.own.unsqueeze(-1), fresh.unsqueeze(-2), batch.received)
        value: Tensor = problem.loss(x, joined.movedim(-2, -3), Batch(*batch[:4]))
        return value

    return loss


@lru_cache(maxsize=64)
def linearized_loss(problem: Problem) -> OneClient:
    """Return the loss linearized in a party's embeddings by the received gradient, of ``(y, batch)``."""
    embed = embedding(problem)

    @PerSample
    def loss(y: Tensor, batch: PartyBatch) -> Tensor:
        return weighted_mean((embed(y, Batch(*batch[:4])) * batch.received).sum(-1), batch.weight)

    return loss
