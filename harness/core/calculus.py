"""Derivatives of bilevel and vertical problems, written for one client; projections."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.problem import Problem

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


@lru_cache(maxsize=64)
def embedding_gradient(problem: Problem) -> OneClient:
    """Return the gradient of a party's network, of ``(y, batch, gradient of its embeddings)``."""
    embed = embedding(problem)

    def gradient(y: Tensor, batch: Batch, upstream: Tensor) -> Tensor:
        product: Tensor = torch.func.grad(lambda at: (embed(at, batch) * upstream).sum())(y)
        return product

    return gradient


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
