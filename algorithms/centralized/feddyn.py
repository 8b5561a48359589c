"""FedDyn: dynamic regularization that makes local optima agree with the common one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: "Federated Learning Based on Dynamic Regularization",
ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2111.04263

=======================  =========================================================
paper                    here
=======================  =========================================================
theta^t                  ``state.x``
h^t                      ``state.h``, the mean of all clients' gradients
nabla L_k(theta_k^t)     ``state.gi``, one row per client
alpha                    ``mu``
exact minimization       ``local_steps`` or ``local_epochs`` of SGD with step ``lr``
=======================  =========================================================

Travels: x down, theta_k up (its increment); 2 P scalars per client and round. With ``release: value`` the share of
the increment that follows from a client's old gradient, which is known from its earlier messages, does not pass the
privacy mechanism (docs/releases.md).

Deviations: written from general knowledge of the paper. A client's gradient is updated by the increment as the
server has received it. Under central privacy the server takes h as the mean of the cohort's gradients.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, Release, positive, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class FedDyn(Descent, Release):
    """Local SGD on the loss plus ``mu / 2 ||x - x_t||^2 - <g_i, x>``, whose optima agree with the common one.

    Attributes
    ----------
    lr : float
        Local step size.
    mu : float
        Weight of the regularization.
    """

    meta: ClassVar = Meta(
        "feddyn", "centralized", ("erm",), "Acar et al. 2021", "https://arxiv.org/abs/2111.04263"
    )

    lr: float = step_size(0.1)
    mu: float = positive(0.1)

    class State(NamedTuple):
        """Model and mean gradient ``(..., P)``; the clients' gradients ``(..., total, P)``."""

        x: Tensor
        h: Tensor
        gi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and zero gradients."""
        x = start["x"]
        return self.State(x, torch.zeros_like(x), clients.rows(torch.zeros_like(x)))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Run regularized local SGD, average, and correct by the mean gradient."""
        x = x_t = channel.down(state.x)
        m, gi = None, clients.take(state.gi, mean=state.h)
        for batch in clients.batches(self):
            pull = self.mu * (x - x_t) - gi
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr, correction=pull)
        dx, sent = channel.mean_and_sent(Increment(x, of=x_t), weighting="uniform")
        h = state.h - self.mu * clients.n / clients.total * dx
        return self.State(state.x + dx - h / self.mu, h, clients.put(state.gi, gi - self.mu * sent))
