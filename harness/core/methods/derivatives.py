"""What algorithms need of bilevel, vertical and halved problems, written for one client; simplices."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.problem import Problem, per_sample, weighted_mean

OneClient = Callable[..., Tensor]


@lru_cache(maxsize=64)
def inner_gradient(problem: Problem) -> OneClient:
    """Return ``grad_y g(x, y, batch)`` as a function of ``(x, y, batch)``, shape ``(Q,)``."""
    gradient: OneClient = torch.func.grad(_inner(problem), argnums=1)
    return gradient


@lru_cache(maxsize=64)
def neumann_hypergradient(problem: Problem, step: float) -> OneClient:
    """Return the hypergradient with a truncated Neumann series for the inverse Hessian.

    FedBiO (Li, Pei, Huang 2022), equation 4 with Q + 1 terms.

    Parameters
    ----------
    problem : Problem
        Of kind bilevel.
    step : float
        Step of the series, below 1 / (largest eigenvalue of the inner Hessian).

    Returns
    -------
    Callable
        Of ``(x, y, upper, cross, *hessian)``: one batch for the outer gradient, one for the cross derivative
        and Q for the Hessian products; gives ``(P,)``.
    """
    gradient = inner_gradient(problem)

    def hypergradient(x: Tensor, y: Tensor, upper: Batch, cross: Batch, *hessian: Batch) -> Tensor:
        direct, p = torch.func.grad(problem.loss, argnums=(0, 1))(x, y, upper)
        total = p
        for batch in reversed(hessian):
            p = p - step * _hessian_product(gradient, x, y, batch, p)
            total = total + p
        value: Tensor = direct - step * _cross_product(gradient, x, y, cross, total)
        return value

    return hypergradient


@lru_cache(maxsize=64)
def exact_hypergradient(problem: Problem) -> OneClient:
    """Return the hypergradient with the inner Hessian solved exactly (FedBiO, equation 3); small y only."""
    gradient = inner_gradient(problem)

    def hypergradient(x: Tensor, y: Tensor, upper: Batch, cross: Batch, *hessian: Batch) -> Tensor:
        direct, outer = torch.func.grad(problem.loss, argnums=(0, 1))(x, y, upper)
        matrix = torch.func.jacrev(gradient, argnums=1)(x, y, cross)
        value: Tensor = direct - _cross_product(gradient, x, y, cross, torch.linalg.solve(matrix, outer))
        return value

    return hypergradient


def embedding(problem: Problem) -> OneClient:
    """Return a party's embedding ``(B, d)`` as a function of ``(y, batch)``."""
    if problem.embed is None:
        raise ValueError(f"problem {problem.name} has no embeddings")
    return problem.embed


class PartyBatch(NamedTuple):
    """A batch of a vertical problem with what a party has been told of its samples.

    Attributes
    ----------
    x, y, group, weight : Tensor
        As in `Batch`.
    told : Tensor
        For each sample all parties' embeddings ``(..., B, K, d)``, or the gradient by this party's ``(..., B, d)``.
    own : Tensor
        True at the party's own number, ``(..., B, K)``.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    weight: Tensor
    told: Tensor
    own: Tensor


def told_embeddings(batch: Batch, seen: Tensor) -> PartyBatch:
    """Return the batch of every party with the embeddings ``(K, B, d)`` that all parties have sent."""
    parties, samples = batch.weight.shape
    own = torch.eye(parties, dtype=torch.bool, device=seen.device)[:, None].expand(-1, samples, -1)
    return PartyBatch(
        *batch, told=seen.movedim(-3, -2).expand(parties, *seen.shape[-2::-1], seen.shape[-1]), own=own
    )


def told_gradients(batch: Batch, gradients: Tensor) -> PartyBatch:
    """Return the batch of every party with the gradient ``(K, B, d)`` of the mean loss by its embeddings."""
    number = batch.weight.sum(-1)[..., None, None]
    return PartyBatch(*batch, told=gradients * number, own=torch.zeros_like(batch.weight, dtype=torch.bool))


@lru_cache(maxsize=64)
def party_loss(problem: Problem) -> OneClient:
    """Return the loss of a party's fresh embeddings beside those it was told of, of ``(x, y, told)``."""
    embed = embedding(problem)

    @per_sample
    def loss(x: Tensor, y: Tensor, batch: PartyBatch) -> Tensor:
        fresh = embed(y, Batch(*batch[:4]))
        joined = torch.where(batch.own.unsqueeze(-1), fresh.unsqueeze(-2), batch.told)
        value: Tensor = problem.loss(x, joined.movedim(-2, -3), Batch(*batch[:4]))
        return value

    return loss


@lru_cache(maxsize=64)
def linearized_loss(problem: Problem) -> OneClient:
    """Return the loss of a party's embeddings, linear in them by the gradient it was told, of ``(y, told)``."""
    embed = embedding(problem)

    @per_sample
    def loss(y: Tensor, batch: PartyBatch) -> Tensor:
        return weighted_mean((embed(y, Batch(*batch[:4])) * batch.told).sum(-1), batch.weight)

    return loss


@lru_cache(maxsize=64)
def feature_distance(problem: Problem, total: bool = False) -> OneClient:
    """Return ``H(u, u_0, batch)``, the mean over samples of the squared distance of two extractors' features.

    Parameters
    ----------
    problem : Problem
        In two halves.
    total : bool
        The sum over samples instead.
    """
    features = _features(problem)

    def distance(u: Tensor, u_0: Tensor, batch: Batch) -> Tensor:
        apart = (features(u, batch.x) - features(u_0, batch.x)).square().sum(-1)
        return (apart * batch.weight).sum() if total else weighted_mean(apart, batch.weight)

    return distance if total else per_sample(distance)


@lru_cache(maxsize=64)
def tied_loss(problem: Problem, weight: float, total: bool = False) -> OneClient:
    """Return ``f(u, v, batch) + weight H(u, u_0, batch)`` of ``(u, v, u_0, batch)``; see `feature_distance`."""
    features, head = _features(problem), problem.head
    assert head is not None

    def loss(u: Tensor, v: Tensor, u_0: Tensor, batch: Batch) -> Tensor:
        mine = features(u, batch.x)
        apart = (mine - features(u_0, batch.x)).square().sum(-1)
        tie = (apart * batch.weight).sum() if total else weighted_mean(apart, batch.weight)
        return head(v, batch._replace(x=mine)) + weight * tie

    return loss if total else per_sample(loss)


@lru_cache(maxsize=64)
def aligned_loss(problem: Problem) -> OneClient:
    """Return ``f(u, v, batch) + pull R`` of ``(u, v, target, pull, batch)``.

    R is the mean over samples and coordinates of the squared distance of a sample's features from the row of
    ``target``, ``(K d,)``, that is its class's.
    """
    features, head = _features(problem), problem.head
    assert head is not None

    @per_sample
    def loss(u: Tensor, v: Tensor, target: Tensor, pull: Tensor, batch: Batch) -> Tensor:
        mine = features(u, batch.x)
        apart = mine - by_class(problem, batch) @ target.view(problem.classes, problem.width)
        distance = weighted_mean(apart.square().mean(-1), batch.weight)
        return head(v, batch._replace(x=mine)) + pull[0] * distance

    return loss


@lru_cache(maxsize=64)
def class_statistics(problem: Problem) -> Callable[[Tensor, Batch], tuple[Tensor, Tensor, Tensor]]:
    """Return a function of ``(u, batch)`` that describes the classes of a client's features.

    It gives each class's share ``(K,)``, mean feature ``(K d,)`` and mean squared norm ``(K,)``; zeros for a class
    without a sample.
    """
    features = _features(problem)

    def statistics(u: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        member, found = by_class(problem, batch), features(u, batch.x)
        count = member.sum(0)
        mean = (member.T @ found) / count.clamp(min=1)[:, None]
        square = (found.square().sum(-1) @ member) / count.clamp(min=1)
        return count / count.sum().clamp(min=1), mean.flatten(), square

    return statistics


def by_class(problem: Problem, batch: Batch) -> Tensor:
    """Return which sample is of which class, ``(B, K)``; padding is of none."""
    classes = torch.arange(problem.classes, device=batch.y.device)
    return (batch.y.unsqueeze(-1) == classes).to(batch.x.dtype) * batch.weight.unsqueeze(-1)


def least_on_simplex(matrices: Tensor) -> Tensor:
    """Minimize ``a' M a`` over the probability simplex for positive semidefinite matrices ``(..., n, n)``.

    With ``M = A'A`` the minimizer is that of ``||A x||^2 + (1 - sum x)^2`` over ``x >= 0``, divided by its sum
    (both have the same optimality conditions), which is solved exactly by Lawson and Hanson's method.

    Returns
    -------
    Tensor
        ``(..., n)``. Where a matrix is not finite, the same weight for all.
    """
    from scipy.optimize import nnls  # here: slow to import

    n = matrices.shape[-1]
    found = []
    for matrix in matrices.double().cpu().reshape(-1, n, n):
        x = np.full(n, 1.0)
        if bool(matrix.isfinite().all()) and bool(matrix.any()):
            values, vectors = torch.linalg.eigh(matrix / matrix.diagonal().max().clamp(min=1e-300))
            root = values.clamp(min=0).sqrt()[:, None] * vectors.T
            system = np.vstack([root.numpy(), np.ones((1, n))])
            x, _ = nnls(system, np.append(np.zeros(n), 1.0), maxiter=30 * n)
        found.append(torch.from_numpy(x / x.sum()))
    return torch.stack(found).view(matrices.shape[:-1]).to(matrices)


def project_simplex(y: Tensor) -> Tensor:
    """Project onto the probability simplex in the Euclidean sense, along the last axis.

    Held, Wolfe, Crowder 1974; the sorting method.
    """
    y = y - y.amax(-1, keepdim=True)  # changes nothing, and 1 is not lost beside entries of a billion
    ordered = y.sort(-1, descending=True).values
    excess = (ordered.cumsum(-1) - 1) / torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    support = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # NaN stays NaN, for the run to end by
    return (y - excess.gather(-1, support - 1)).clamp(min=0)


def _hessian_product(gradient: OneClient, x: Tensor, y: Tensor, batch: Batch, p: Tensor) -> Tensor:
    """Return ``grad_yy g p``, the gradient by y of ``<grad_y g(x, y), p>``; forward mode knows one thread."""
    product: Tensor = torch.func.grad(lambda at: (gradient(x, at, batch) * p).sum())(y)
    return product


def _cross_product(gradient: OneClient, x: Tensor, y: Tensor, batch: Batch, p: Tensor) -> Tensor:
    """Return ``grad_xy g p``: the gradient by x of ``<grad_y g(x, y), p>``."""
    product: Tensor = torch.func.grad(lambda at: (gradient(at, y, batch) * p).sum())(x)
    return product


def _inner(problem: Problem) -> OneClient:
    if problem.inner is None:
        raise ValueError(f"problem {problem.name} has no inner objective")
    return problem.inner


def _features(problem: Problem) -> OneClient:
    if problem.features is None:
        raise ValueError(f"problem {problem.name} is not in two halves")
    return problem.features
