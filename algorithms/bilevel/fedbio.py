"""FedBiO: federated bilevel optimization with local inner problems.

Li, Huang, Huang: "Local Stochastic Bilevel Optimization with Momentum-Based Variance Reduction", Algorithm 1.
https://arxiv.org/abs/2205.01608

=======================  =========================================================
paper                    here
=======================  =========================================================
x                        ``state.x``, the outer variable
y_m                      ``state.y``, the inner variables, one row per client
eta, gamma               ``lr_x``, ``lr_y``
I                        ``local_steps``
Q, eta in eq. 4          ``neumann_terms``, ``neumann_step``
Phi                      ``nu``
=======================  =========================================================

Travels: x down and up (its increment); 2 d_x scalars per client and round. Inner variables never leave the client.
Second stage: the common model down and up, and x down; 2 d_y + d_x.

Deviations: every round has exactly I steps (in the printed box the first is shorter). Inner gradient, outer
gradient, cross derivative and Hessian products use independent batches; the products take theirs from reshuffled
passes, like local steps. x is projected after every step and after the average if the problem has a feasible set.
``outer_rounds`` runs the paper's two stages in one: later rounds train a common model by federated averaging on
the inner objective, with x fixed.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, ServerUpdate, register, step_size
from harness.core.methods.bilevel import Bilevel
from harness.core.methods.derivatives import inner_gradient


@register
@dataclass(frozen=True, kw_only=True)
class FedBiO(Bilevel, Descent, ServerUpdate):
    """Local steps on inner and outer variable; only the outer variable is averaged.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes of the outer and the inner variable. With ``lr_x: 0`` the outer variable stays at its start, a
        control: no hypergradient is computed, and nothing travels up in the first stage.
    """

    meta: ClassVar = Meta(
        "fedbio", "bilevel", ("bilevel",), "Li et al. 2022", "https://arxiv.org/abs/2205.01608",
        version=2, epochs=False, apart=("neumann_step",)
    )  # fmt: skip

    lr_x: float = step_size(0.1, zero=True)
    lr_y: float = step_size(0.1)

    class State(NamedTuple):
        """x ``(..., P)``, the clients' y ``(..., total, Q)``, the common model; ``trained`` is 0 or 1."""

        x: Tensor
        y: Tensor
        theta: Tensor
        trained: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point."""
        x, y = start["x"], start["y"]
        return self.server_init(self.State(x, clients.rows(y), y, torch.zeros_like(y[..., :1])), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take I simultaneous steps on (y_m, x_m), then apply the mean increment of x."""
        if self.stage(clients.round):
            return self.train(state, clients, channel)
        phi = self.hypergradient(clients.problem)
        omega = inner_gradient(clients.problem)
        x, y = x_t, _ = channel.down(state.x), clients.take(state.y)
        m_x = m_y = None
        for lower, outer in self.draws(clients):
            step = clients.each(omega, x, y, lower)
            if self.lr_x:
                x, m_x = self.step(x, clients.each(phi, x, y, *outer), lower, m_x, lr=self.lr_x)
                x = clients.project_x(x)
            y, m_y = self.step(y, step, lower, m_y, lr=self.lr_y)
        if not self.lr_x:
            return state._replace(y=clients.put(state.y, y))
        new = self.server_step(state, x=channel.mean(Increment(x, of=x_t), weighting="uniform"))
        return new._replace(x=clients.project_x(new.x), y=clients.put(state.y, y))
