"""q-FedAvg: larger weights for clients with a large loss.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2.
https://arxiv.org/abs/1905.10497

===================  =========================================================
paper                here
===================  =========================================================
w                    ``state.x``
q                    ``q``
L                    ``1 / lr``
eta                  ``lr``
E                    ``local_steps`` or ``local_epochs``
Delta_k, h_k         ``push``, ``mass``, both times ``lr``
===================  =========================================================

Travels: x down; Delta_k and h_k up; 2 P + 1 scalars per client and round.

Deviations: F_k is the loss of all training data at the received model. Both sums are divided by the number of
clients, which preserves their ratio. The divisor is at least its value at a loss of 1e-3; if noise makes it
nonpositive, the model stays. Clients are sampled uniformly; the paper samples in proportion to their data.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from harness.core import Channel, Clients, Meta, not_negative, register, step_size
from harness.core.execution.exact.functions import power
from harness.core.methods.averaging import Averaging, Model

LEAST = 1e-3  # loss below which the divisor stops falling


@register
@dataclass(frozen=True, kw_only=True)
class QFedAvg(Averaging):
    """Increments weighted by a power of the loss, divided by a bound on the curvature of that power.

    Attributes
    ----------
    lr : float
        Local step size; its inverse estimates the loss's Lipschitz constant.
    q : float
        Power of the loss; 0 is federated averaging with equal weights.
    """

    meta: ClassVar = Meta(
        "q_fedavg",
        "fairness",
        ("erm",),
        "Li et al. 2020",
        "https://arxiv.org/abs/1905.10497",
        version=2,
        apart=("q",),
    )

    lr: float = step_size(0.1)
    q: float = not_negative(1.0)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Run local SGD, then apply the ratio of two averages."""
        x_t = channel.down(state.x)
        risk = clients.each(clients.problem.loss, x_t, clients.data()).unsqueeze(-1).clamp(min=1e-10)
        x = self.descend(x_t, clients.batches(self), clients.grad, lr=self.lr)
        weight, length = power(risk, self.q), (x - x_t).square().sum(-1, keepdim=True)
        mass = self.q * power(risk, self.q - 1) * length / self.lr + weight
        push, mass = channel.mean(weight * (x - x_t), mass, weighting="uniform", stateless=True)
        # A mass that is not finite must not become a step of zero.
        step = push / mass.clamp(min=LEAST ** max(self.q, 1.0))
        return self.server_step(state, x=torch.where(mass <= 0, 0.0, step + 0 * mass))
