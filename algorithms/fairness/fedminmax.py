"""FedMinMax: minimize the largest risk over mixtures of sensitive groups.

Papadaki, Martinez, Bertran, Sapiro, Rodrigues: "Minimax Demographic Group Fairness in Federated Learning",
FAccT 2022, Algorithm 1.
https://arxiv.org/abs/2201.08304

=========================  ==================================================================
paper                      here
=========================  ==================================================================
theta                      ``state.x``
mu, rho                    ``state.mu``, ``state.rho``: the adversary's and the data's mixture
w = mu / rho               ``w``
eta_theta, eta_mu          ``lr``, ``lr_mu``
n_{a,k} / n_k r_{a,k}      ``risks``, the gradient by w; their mean by samples is rho_a r_a
=========================  ==================================================================

Travels: (x, w) down, x (its increment) and risks up; 2 (P + K) scalars per client and round for K groups. Once,
before the first round, the K group shares up.

Deviations: gradient and risks use one batch; ``batch_size`` None takes all data, as in the paper. The result is the
last iterate. A group whose share is 0 under noise has weight 0.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, Public, ServerUpdate, register, step_size
from harness.core.methods.derivatives import project_simplex
from harness.core.methods.fairness import group_shares, group_weighted_loss


@register
@dataclass(frozen=True, kw_only=True)
class FedMinMax(Descent, ServerUpdate):
    """One descent step on the weighted risk, one ascent step on the mixture of groups.

    Attributes
    ----------
    lr, lr_mu : float
        Step sizes of the model and of the mixture.
    """

    meta: ClassVar = Meta(
        "fedminmax", "fairness", ("erm",), "Papadaki et al. 2022", "https://arxiv.org/abs/2201.08304",
        epochs=False, steps=1, groups=True,
    )  # fmt: skip

    local_steps: int | None = 1
    lr: float = step_size(0.1)
    lr_mu: float = step_size(0.1, zero=True)

    class State(NamedTuple):
        """The global model ``(..., P)`` and two mixtures of groups ``(..., K)``."""

        x: Tensor
        mu: Tensor
        rho: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and the groups' shares, which the clients send once."""
        shares = clients.each(group_shares(clients.groups), clients.data())
        rho = project_simplex(channel.mean(shares, stateless=True))
        return self.server_init(self.State(start["x"], rho, rho), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Descend the weighted risk; send the groups' risks of the received model."""
        x_t, w = channel.down(state.x, _ratio(state.mu, state.rho))
        (batch,) = clients.batches(self)
        gradient, risks = clients.gradient(group_weighted_loss, x_t, w, batch=batch, by=(0, 1))
        x, _ = self.step(x_t, gradient, batch, lr=self.lr)
        dx, total = channel.mean(Increment(x, of=x_t, scale=Public(self.lr)), risks, stateless=True)
        mu = project_simplex(state.mu + self.lr_mu * _ratio(total, state.rho))
        return self.server_step(state, x=dx)._replace(mu=mu)


def _ratio(of: Tensor, rho: Tensor) -> Tensor:
    """Divide by the groups' shares; 0 for a group without one."""
    return torch.where(rho > 0, of / torch.where(rho > 0, rho, 1.0), 0.0)
