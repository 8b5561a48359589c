"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, Algorithm 1 with option II.
https://arxiv.org/abs/1910.06378

===================  =========================================================
paper                here
===================  =========================================================
x, c                 ``state.x``, ``state.c``
c_i                  ``state.ci``, one row per client
eta_l, eta_g         ``lr``, ``server_lr``
K                    the client's own number of local steps (with momentum, their `reach`)
|S| / N              ``clients.share``
===================  =========================================================

Travels: (x, c) down, (x, c_i) up (their increments); 4 P scalars per client and round. With ``release: value``
only the sum of a client's gradients and its new c_i pass the privacy mechanism, as the rest follows from earlier
messages; with ``change`` the increments do (docs/releases.md).

Deviations: the average over the cohort is uniform, as in the paper. Under ``value`` c_i is what the server has
received. Under central privacy the server takes c as the mean of the cohort's c_i.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    Release,
    ServerUpdate,
    Value,
    register,
    step_size,
)


@register
@dataclass(frozen=True, kw_only=True)
class Scaffold(Descent, Release, ServerUpdate):
    """Local SGD corrected by control variates.

    Attributes
    ----------
    lr : float
        Local step size.
    """

    meta: ClassVar = Meta(
        "scaffold",
        "centralized",
        ("erm",),
        "Karimireddy et al. 2020",
        "https://arxiv.org/abs/1910.06378",
        version=3,
    )

    lr: float = step_size(0.1)

    class State(NamedTuple):
        """Model and control variate ``(..., P)``; the clients' control variates ``(..., total, P)``."""

        x: Tensor
        c: Tensor
        ci: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and zero control variates."""
        x = start["x"]
        return self.server_init(self.State(x, torch.zeros_like(x), clients.rows(torch.zeros_like(x))), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Run corrected local SGD, then apply the mean increments of model and control variate."""
        x_t, c = channel.down(state.x, state.c)
        ci = clients.take(state.ci, mean=state.c)
        batches = clients.batches(self)
        x = self.descend(x_t, batches, clients.grad, lr=self.lr, correction=c - ci)
        ci_new = ci - c + (x_t - x) / (self.reach(batches) * self.lr)
        size = 1 / (clients.most_steps(self) * self.lr)
        (dx, dc), (_, ci) = channel.mean_and_sent(
            Increment(x, of=x_t), Value(ci_new, of=ci, scale=size), weighting="uniform"
        )
        c_new = state.c + clients.share * dc
        return self.server_step(state, x=dx)._replace(c=c_new, ci=clients.put(state.ci, ci))
