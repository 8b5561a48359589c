"""One-client functions of bilevel, vertical and split problems, and optimization over simplices."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients.parties import OneClient
from harness.core.errors import Incompatible
from harness.core.execution.exact.functions import softplus
from harness.core.losses import cross_entropy, weighted_mean
from harness.core.problem import PerSample, Problem


@lru_cache(maxsize=64)
def inner_gradient(problem: Problem) -> OneClient:
    """Return ``grad_y g(x, y, batch)`` as a function of ``(x, y, batch)``, shape ``(Q,)``."""
    gradient: OneClient = torch.func.grad(_inner(problem), argnums=1)
    return gradient


@lru_cache(maxsize=64)
def neumann_hypergradient(problem: Problem, step: float) -> OneClient:
    """Return the hypergradient with a truncated Neumann series for the inverse Hessian.

    FedBiO (Li, Pei, Huang 2022), equation 4, with Q + 1 terms.

    Parameters
    ----------
    problem : Problem
        Of kind bilevel.
    step : float
        Step of the series, below 1 / (largest eigenvalue of the inner Hessian).

    Returns
    -------
    Callable
        Function of ``(x, y, upper, cross, *hessian)``, a batch for the outer gradient, one for the cross
        derivative and Q for the Hessian products; returns ``(P,)``.
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
    """Return the hypergradient with an exact solve of the inner Hessian (FedBiO, equation 3), for small y."""
    gradient = inner_gradient(problem)

    def hypergradient(x: Tensor, y: Tensor, upper: Batch, cross: Batch, *hessian: Batch) -> Tensor:
        direct, outer = torch.func.grad(problem.loss, argnums=(0, 1))(x, y, upper)
        matrix = torch.func.jacrev(gradient, argnums=1)(x, y, cross)
        value: Tensor = direct - _cross_product(gradient, x, y, cross, torch.linalg.solve(matrix, outer))
        return value

    return hypergradient


@lru_cache(maxsize=64)
def feature_distance(problem: Problem, total: bool = False) -> OneClient:
    """Return ``H(u, u_0, batch)``, the mean over samples of the squared distance of two extractors' features.

    Parameters
    ----------
    problem : Problem
        A split problem.
    total : bool
        Whether to sum over samples instead.
    """
    features = _features(problem)

    def distance(u: Tensor, u_0: Tensor, batch: Batch) -> Tensor:
        apart = (features(u, batch.x) - features(u_0, batch.x)).square().sum(-1)
        return (apart * batch.weight).sum() if total else weighted_mean(apart, batch.weight)

    return distance if total else PerSample(distance)


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

    return loss if total else PerSample(loss)


@lru_cache(maxsize=64)
def aligned_loss(problem: Problem) -> OneClient:
    """Return ``f(u, v, batch) + R`` of ``(u, v, target, pull, batch)``.

    R is the mean over samples of the mean squared difference between a sample's features and its class's row of
    ``target``, ``(K, d)``, times ``pull``: of that class, ``(K,)``, or of all, ``(1,)``.
    """
    features, head = _features(problem), problem.head
    assert head is not None

    @PerSample
    def loss(u: Tensor, v: Tensor, target: Tensor, pull: Tensor, batch: Batch) -> Tensor:
        mine, member = features(u, batch.x), by_class(problem, batch)
        apart = mine - member @ target.view(problem.classes, problem.width)
        pulled = (member @ pull.expand(problem.classes)) * apart.square().mean(-1)
        return head(v, batch._replace(x=mine)) + weighted_mean(pulled, batch.weight)

    return loss


@lru_cache(maxsize=64)
def contrastive_loss(problem: Problem, weight: float, temperature: float) -> OneClient:
    """Return ``f(u, v, batch) + weight L`` of ``(u, v, near, far, batch)`` with a contrast L of features.

    L is the mean over samples of the cross-entropy of choosing ``near`` from the extractors ``near`` and ``far`` by
    the cosine of their features with those of ``u``, divided by the temperature.
    """
    features, head = _features(problem), problem.head
    assert head is not None

    @PerSample
    def loss(u: Tensor, v: Tensor, near: Tensor, far: Tensor, batch: Batch) -> Tensor:
        mine = features(u, batch.x)
        toward, away = (_cosine(mine, features(other, batch.x)) for other in (near, far))
        contrast = weighted_mean(softplus((away - toward) / temperature), batch.weight)
        return head(v, batch._replace(x=mine)) + weight * contrast

    return loss


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine of the angle between rows ``(B, d)``; 0 if one of them is zero, with a finite gradient."""
    lengths = one.square().sum(-1) * other.square().sum(-1)
    return (one * other).sum(-1) / lengths.clamp(min=1e-24).sqrt()


@lru_cache(maxsize=64)
def balanced_loss(problem: Problem) -> OneClient:
    """Return the cross-entropy of ``(u, v, prior, batch)`` with ``prior (K,)`` added to every sample's scores."""
    features, scores = _features(problem), problem.scores
    assert scores is not None

    @PerSample
    def loss(u: Tensor, v: Tensor, prior: Tensor, batch: Batch) -> Tensor:
        errors = cross_entropy(scores(v, features(u, batch.x)) + prior, batch.y)
        return weighted_mean(errors, batch.weight)

    return loss


@lru_cache(maxsize=64)
def class_shares(problem: Problem) -> OneClient:
    """Return the shares of the classes ``(K,)`` among the samples of a batch; zeros if it has none."""

    def shares(batch: Batch) -> Tensor:
        count = by_class(problem, batch).sum(0)
        return count / count.sum().clamp(min=1)

    return shares


@lru_cache(maxsize=64)
def class_statistics(problem: Problem) -> Callable[[Tensor, Batch], tuple[Tensor, Tensor, Tensor]]:
    """Return a function of ``(u, batch)`` that computes statistics of the features of each class.

    They are the class's share ``(K,)``, mean feature ``(K d,)`` and mean squared norm ``(K,)``; zeros for a class
    without samples.
    """
    features = _features(problem)

    def statistics(u: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        member, values = by_class(problem, batch), features(u, batch.x)
        count = member.sum(0)
        mean = (member.T @ values) / count.clamp(min=1)[:, None]
        square = (values.square().sum(-1) @ member) / count.clamp(min=1)
        return count / count.sum().clamp(min=1), mean.flatten(), square

    return statistics


def by_class(problem: Problem, batch: Batch) -> Tensor:
    """Return the class membership of samples, ``(B, K)`` of ones and zeros; zeros for padding."""
    classes = torch.arange(problem.classes, device=batch.y.device)
    return (batch.y.unsqueeze(-1) == classes).to(batch.x.dtype) * batch.weight.unsqueeze(-1)


def minimize_on_simplex(matrices: Tensor) -> Tensor:
    """Minimize ``a' M a`` over the probability simplex for positive semidefinite matrices ``(..., n, n)``.

    With ``M = A'A`` the minimizer is that of ``||A x||^2 + (1 - sum x)^2`` over ``x >= 0``, divided by its sum
    (the optimality conditions are equal). Lawson and Hanson's method solves it exactly.

    Returns
    -------
    Tensor
        ``(..., n)``; equal weights where a matrix is zero or not finite.
    """
    from scipy.optimize import nnls  # here: slow to import

    n = matrices.shape[-1]
    minimizers = []
    for matrix in matrices.double().cpu().reshape(-1, n, n):
        x = np.full(n, 1.0)
        if bool(matrix.isfinite().all()) and bool(matrix.any()):
            values, vectors = torch.linalg.eigh(matrix / matrix.diagonal().max().clamp(min=1e-300))
            root = values.clamp(min=0).sqrt()[:, None] * vectors.T
            system = np.vstack([root.numpy(), np.ones((1, n))])
            x, _ = nnls(system, np.append(np.zeros(n), 1.0), maxiter=30 * n)
        minimizers.append(torch.from_numpy(x / x.sum()))
    return torch.stack(minimizers).view(matrices.shape[:-1]).to(matrices)


def project_simplex(y: Tensor) -> Tensor:
    """Project onto the probability simplex along the last axis (Held, Wolfe, Crowder 1974, by sorting)."""
    y = y - y.amax(-1, keepdim=True)  # the same projection, without cancellation of large entries
    ordered = y.sort(-1, descending=True).values
    excess = (ordered.cumsum(-1) - 1) / torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    support = (ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # NaN stays NaN and ends the run
    return (y - excess.gather(-1, support - 1)).clamp(min=0)


def _hessian_product(gradient: OneClient, x: Tensor, y: Tensor, batch: Batch, p: Tensor) -> Tensor:
    """Return ``grad_yy g p`` as the gradient by y of ``<grad_y g(x, y), p>``; forward mode is not thread-safe."""
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


def feature_entries(problem: Problem) -> int:
    """Return how many entries a feature vector for every class has, with the features of a problem."""
    _features(problem)
    return problem.classes * problem.width


def _features(problem: Problem) -> OneClient:
    if problem.features is None:
        raise Incompatible(
            f"the algorithm reads features, and problem {problem.name} is not split into extractor and head: an "
            "algorithm needs split_model, and a model with adapters kind lora"
        )
    return problem.features
