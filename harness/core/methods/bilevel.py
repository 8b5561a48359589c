"""Shared parts of bilevel methods: batches of a step, the hypergradient, and the second stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch import Tensor

from harness.core.algorithm import Algorithm
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.parties import OneClient
from harness.core.methods.derivatives import exact_hypergradient, inner_gradient, neumann_hypergradient
from harness.core.problem import Problem
from harness.core.wire.channel import Channel
from harness.core.wire.message import Increment


def hypergradient(problem: Problem, terms: int | None, step: float) -> OneClient:
    """Return the hypergradient by a Neumann series of ``terms`` products; None: with an exact Hessian solve."""
    return exact_hypergradient(problem) if terms is None else neumann_hypergradient(problem, step)


def draws(
    work: Algorithm, clients: Clients, terms: int | None
) -> Iterator[tuple[LocalBatch, list[LocalBatch]]]:
    """Yield for every local step the batch of the inner gradient, and the batches of the hypergradient.

    The latter come from three streams: validation data for the outer gradient, training data for the cross
    derivative, and training data for the Hessian products, one batch each.
    """
    terms, steps = terms or 0, work.local_steps or 1
    upper = clients.batches(work, stream="upper", split="validation")
    cross = clients.batches(work, stream="cross")
    hessian = iter(clients.batches(work, steps=steps * terms, stream="hessian") if terms else ())
    for lower, *outer in zip(clients.batches(work), upper, cross, strict=True):
        yield lower, [*outer, *islice(hessian, terms)]


def train(work: Algorithm, lr: float, x: Tensor, theta: Tensor, clients: Clients, channel: Channel) -> Tensor:
    """Return the common model after a round of federated averaging on the inner objective, for fixed x.

    Messages: (theta, x) down, the increment of theta up. x is sent in every round, so that clients need no memory
    of the first stage.
    """
    theta_t, weights = channel.down(theta, x)
    omega, y = inner_gradient(clients.problem), theta_t
    for batch in clients.batches(work):
        y = y - lr * clients.each(omega, weights, y, batch)
    moved: Tensor = channel.mean(Increment(y, of=theta_t))
    return theta + moved
