"""What the bilevel methods share: the batches of a step, the hypergradient they ask for, their second stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch import Tensor

from datasets.federation import Batch
from harness.core.algorithm import Algorithm
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.methods.derivatives import (
    OneClient,
    exact_hypergradient,
    inner_gradient,
    neumann_hypergradient,
)
from harness.core.problem import Problem


def hypergradient(problem: Problem, terms: int | None, step: float) -> OneClient:
    """Return the hypergradient by a series of so many Hessian products; None: with the Hessian solved exactly."""
    return exact_hypergradient(problem) if terms is None else neumann_hypergradient(problem, step)


def draws(work: Algorithm, clients: Clients, terms: int | None) -> Iterator[tuple[Batch, list[Batch]]]:
    """Yield every local step's batch of the inner gradient, and those of the hypergradient.

    Three streams give the latter: one of the validation data for the outer gradient; of the training data one for
    the cross derivative and one for the Hessian products, which take its batches one after the other.
    """
    terms, steps = terms or 0, work.local_steps or 1
    upper = clients.batches(work, stream="upper", split="validation")
    cross = clients.batches(work, stream="cross")
    hessian = iter(clients.batches(work, steps=steps * terms, stream="hessian") if terms else ())
    for lower, *outer in zip(clients.batches(work), upper, cross, strict=True):
        yield lower, [*outer, *islice(hessian, terms)]


def train(work: Algorithm, lr: float, x: Tensor, theta: Tensor, clients: Clients, channel: Channel) -> Tensor:
    """Return one common model after a round of federated averaging on the inner objective, x fixed.

    Travels: (theta, x) down, theta up (its increment). x comes along in every round, so that a client needs no
    memory of the first stage.
    """
    theta_t, weights = channel.down(theta, x)
    omega, y = inner_gradient(clients.problem), theta_t
    for batch in clients.batches(work):
        y = y - lr * clients.each(omega, weights, y, batch)
    moved: Tensor = channel.mean(y, base=theta_t)
    return theta + moved
