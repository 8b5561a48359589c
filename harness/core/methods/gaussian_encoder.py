"""One-client functions of Gaussian encoders: losses on draws of a latent vector, and products of Gaussians.

An encoder's features are latent means and, before a softplus, standard deviations (`Problem.halves`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core import rng
from harness.core.clients.parties import OneClient
from harness.core.execution.exact.functions import softplus
from harness.core.losses import weighted_mean
from harness.core.methods.derivatives import by_class
from harness.core.problem import Problem

NARROWEST = 1e-4  # lower bound of standard deviations


def encode(problem: Problem, u: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations, ``(B, latent)`` each."""
    assert problem.features is not None
    mean, spread = problem.features(u, inputs).chunk(2, -1)
    return mean, softplus(spread)


def divergence(mean: Tensor, std: Tensor, of_mean: Tensor, of_std: Tensor) -> Tensor:
    """Return ``KL(N(mean, std^2) || N(of_mean, of_std^2))``, summed over the last axis."""
    std, of_std = std.clamp(min=NARROWEST), of_std.clamp(min=NARROWEST)
    ratio = (std.square() + (mean - of_mean).square()) / (2 * of_std.square())
    return ((of_std / std).log() + ratio - 0.5).sum(-1)


@lru_cache(maxsize=64)
def variational_loss(problem: Problem, *, draws: int, beta: float, forward: bool) -> OneClient:
    """Return the loss of ``(u, v, m, s, noise, batch)``: mean error over draws plus ``beta`` times a divergence.

    Parameters
    ----------
    problem : Problem
        A split problem with an encoder.
    draws : int
        Latent vectors per sample; ``noise`` is ``(draws, B, latent)``.
    beta : float
        Weight of the divergence from the class's prior, with means ``m`` and standard deviations ``s``,
        ``(K, latent)`` each.
    forward : bool
        Whether the divergence is KL(encoder || prior) or KL(prior || encoder).
    """
    head = problem.head
    assert head is not None

    def loss(u: Tensor, v: Tensor, m: Tensor, s: Tensor, noise: Tensor, batch: Batch) -> Tensor:
        mean, std = encode(problem, u, batch.x)
        latent = (mean + std * noise).flatten(0, 1)
        many = Batch(latent, batch.y.repeat(draws), batch.group.repeat(draws), batch.weight.repeat(draws))
        member = by_class(problem, batch)
        of_mean, of_std = (member @ vector.view(problem.classes, -1) for vector in (m, s))
        encoder, prior = (mean, std), (of_mean, of_std)
        apart = divergence(*encoder, *prior) if forward else divergence(*prior, *encoder)
        return head(v, many) + beta * weighted_mean(apart, batch.weight)

    return loss


@lru_cache(maxsize=64)
def class_posteriors(problem: Problem) -> Callable[[Tensor, Batch], tuple[Tensor, Tensor]]:
    """Return a function of ``(u, batch)``: the product of the Gaussians of each class's samples.

    It returns precisions and precisions times means, ``(K latent,)`` each, which are additive over products; zeros
    for a class without samples.
    """

    def posteriors(u: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        mean, std = encode(problem, u, batch.x)
        precision = std.clamp(min=NARROWEST) ** -2
        member = by_class(problem, batch).T
        return (member @ precision).flatten(), (member @ (precision * mean)).flatten()

    return posteriors


@lru_cache(maxsize=4)
def mean_scores(problem: Problem, draws: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return scores of ``(model, inputs)``, averaged over draws of the latent vector, equal for all inputs."""
    assert problem.scores is not None and problem.cut is not None
    scores, cut = problem.scores, problem.cut
    noise = torch.randn(draws, problem.width, generator=rng.stream(0, "prediction"))

    def predict(x: Tensor, inputs: Tensor) -> Tensor:
        mean, std = encode(problem, x[:cut], inputs)
        drawn = mean + std * noise.to(mean)[:, None]  # (L, B, latent)
        mean_score: Tensor = scores(x[cut:], drawn.flatten(0, 1)).unflatten(0, drawn.shape[:2]).mean(0)
        return mean_score

    return predict
