"""Mathematics that bilevel methods share: batches of a step, the hypergradient, and the second stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch

from harness.core.algorithm import Algorithm
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.parties import OneClient
from harness.core.declarations import not_negative, positive, step_size
from harness.core.methods.derivatives import exact_hypergradient, inner_gradient, neumann_hypergradient
from harness.core.problem import Problem
from harness.core.wire.channel import Channel
from harness.core.wire.message import Increment

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Bilevel(Algorithm):
    """An algorithm for an outer variable x and inner variables y of the clients; a second stage trains one model.

    Its state has the outer variable ``x``, the clients' ``y``, the common model ``theta``, and ``trained``, 0 or 1:
    whether there was a second stage.

    Attributes
    ----------
    neumann_terms : int or None
        Hessian products in the Neumann series; None solves with the exact Hessian (small inner problems).
    neumann_step : float
        Step of the series.
    outer_rounds : int or None
        Rounds of the first stage, which evaluates each client's own y; None: all rounds.
    lr_train : float
        Step size of the second stage, which evaluates the common model.
    """

    local_steps: int | None = 10
    neumann_terms: int | None = not_negative(10)
    neumann_step: float = positive(0.1)
    outer_rounds: int | None = positive(None)
    lr_train: float = step_size(0.1)

    def stage(self, round: int) -> int:
        """Return 1 for the rounds that train the common model."""
        return int(self.outer_rounds is not None and round >= self.outer_rounds)

    def model(self, state: Any) -> Any:
        """Return the clients' models; in the second stage, the common model."""
        return state.theta if bool(state.trained.all()) else state.y

    def hypergradient(self, problem: Problem) -> OneClient:
        """Return the hypergradient by the Neumann series, or with the exact Hessian."""
        exact = self.neumann_terms is None
        return exact_hypergradient(problem) if exact else neumann_hypergradient(problem, self.neumann_step)

    def draws(self, clients: Clients) -> Iterator[tuple[LocalBatch, list[LocalBatch]]]:
        """Yield for every local step the batch of the inner gradient, and the batches of the hypergradient.

        The latter come from three streams: validation data for the outer gradient, training data for the cross
        derivative, and training data for the Hessian products, one batch each.
        """
        terms, steps = self.neumann_terms or 0, self.local_steps or 1
        upper = clients.batches(self, stream="upper", split="validation")
        cross = clients.batches(self, stream="cross")
        hessian = iter(clients.batches(self, steps=steps * terms, stream="hessian") if terms else ())
        for lower, *outer in zip(clients.batches(self), upper, cross, strict=True):
            yield lower, [*outer, *islice(hessian, terms)]

    def train(self, state: S, clients: Clients, channel: Channel) -> S:
        """Return the state after a round of federated averaging of the common model, for fixed x.

        Messages: (theta, x) down, the increment of theta up. x is sent in every round, so that clients need no
        memory of the first stage.
        """
        old: Any = state
        theta_t, weights = channel.down(old.theta, old.x)
        omega, y = inner_gradient(clients.problem), theta_t
        for batch in clients.batches(self):
            y = y - self.lr_train * clients.each(omega, weights, y, batch)
        theta = old.theta + channel.mean(Increment(y, of=theta_t))
        new: S = old._replace(theta=theta, trained=torch.ones_like(old.trained))
        return new
