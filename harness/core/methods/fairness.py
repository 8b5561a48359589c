"""One-client functions of sensitive groups, for fair learning."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients.parties import OneClient
from harness.core.errors import Incompatible
from harness.core.execution.exact.functions import sigmoid
from harness.core.flat_model import loops_of
from harness.core.losses import weighted_mean
from harness.core.problem import PerSample, Problem


def members(batch: Batch, groups: int) -> Tensor:
    """Return the group membership of samples, ``(B, K)`` of ones and zeros; zeros for padding."""
    inside = batch.group.unsqueeze(-1) == torch.arange(groups, device=batch.group.device)
    return inside.to(batch.weight.dtype) * batch.weight.unsqueeze(-1)


@lru_cache(maxsize=64)
def group_shares(groups: int) -> OneClient:
    """Return the share of each group among a batch's samples, ``(K,)``, as a function of the batch."""

    def shares(batch: Batch) -> Tensor:
        return members(batch, groups).sum(0) / batch.weight.sum().clamp(min=1.0)

    return shares


@lru_cache(maxsize=64)
def group_weighted_loss(problem: Problem) -> OneClient:
    """Return the mean loss with every sample weighted by its group, of ``(x, weights (K,), batch)``.

    Its gradient by the weights is the contribution of each group to the mean loss.
    """
    losses = _losses(problem)

    @PerSample
    def loss(x: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        return weighted_mean(losses(x, batch) * (members(batch, weights.shape[-1]) @ weights), batch.weight)

    return loss


@lru_cache(maxsize=64)
def soft_gap(problem: Problem, groups: int, slope: float = 1.0) -> OneClient:
    """Return a smooth equal-opportunity gap, of ``(x, batch)``.

    A group's soft true positive rate is the mean of ``sigmoid(slope * logit)`` over its positive samples; the
    gap is the largest minus the smallest rate of groups with positive samples, and 0 for fewer than two groups.
    """

    def gap(x: Tensor, batch: Batch) -> Tensor:
        logit = _logits(problem, x, batch)
        positive = members(batch, groups) * (batch.y == 1).unsqueeze(-1)
        count = positive.sum(0)
        rates = sigmoid(slope * logit) @ positive / count.clamp(min=1.0)
        high, low = torch.where(count > 0, rates, -1.0).amax(-1), torch.where(count > 0, rates, 2.0).amin(-1)
        return torch.where((count > 0).sum() > 1, high - low, 0.0)

    return gap


@lru_cache(maxsize=64)
def penalized_loss(problem: Problem, groups: int, weight: float, slope: float) -> OneClient:
    """Return the loss plus ``weight`` times the `soft_gap`, of ``(x, batch)``."""
    gap = soft_gap(problem, groups, slope)

    def loss(x: Tensor, batch: Batch) -> Tensor:
        value: Tensor = problem.loss(x, batch)
        return value + weight * gap(x, batch)

    return loss


@lru_cache(maxsize=64)
def decisions(problem: Problem, groups: int) -> OneClient:
    """Return statistics of a model's decisions, ``(2 K + 1,)``, of ``(x, batch)``.

    They are shares of all samples: each group's true positives, each group's positives, and the correct decisions.
    """

    def shares(x: Tensor, batch: Batch) -> Tensor:
        decided = (_logits(problem, x, batch) > 0).to(batch.weight.dtype)
        positive = members(batch, groups) * (batch.y == 1).unsqueeze(-1)
        right = ((decided == batch.y) * batch.weight).sum(-1, keepdim=True)
        every = torch.cat([decided @ positive, positive.sum(0), right])
        return every / batch.weight.sum().clamp(min=1.0)

    return shares


def _losses(problem: Problem) -> OneClient:
    """Return every sample's loss, ``(B,)``, of ``(x, batch)``."""
    if not problem.per_sample:
        raise Incompatible(
            f"the algorithm weights samples, but in problem {problem.name} a sample's loss depends on others"
        )

    def losses(x: Tensor, batch: Batch) -> Tensor:
        def one(*sample: Tensor) -> Tensor:
            value: Tensor = problem.loss(x, Batch(*(column.unsqueeze(0) for column in sample)))
            return value

        batch = batch._replace(weight=torch.ones_like(batch.weight))
        if loops_of(problem.module) == "samples":
            return torch.stack([one(*sample) for sample in zip(*batch, strict=True)])
        each: Tensor = torch.func.vmap(one)(*batch)
        return each

    return losses


def _logits(problem: Problem, x: Tensor, batch: Batch) -> Tensor:
    """Return the log odds of class 1, ``(B,)``."""
    if problem.predict is None:
        raise Incompatible(f"the algorithm compares decisions, but problem {problem.name} makes none")
    scores: Tensor = problem.predict(x, batch.x)
    if scores.ndim != 2 or scores.shape[-1] != 2:
        raise Incompatible(
            "the algorithm compares true positive rates, which need two classes; data.binary makes two"
        )
    return scores[:, 1] - scores[:, 0]
