"""FedNova: normalized averaging for clients that take different numbers of local steps.

Wang, Liu, Liang, Joshi, Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, Algorithm 1.
https://arxiv.org/abs/2007.07481

===================  =========================================================
paper                here
===================  =========================================================
x                    ``state.x``
eta                  ``lr``
tau_i                a client's own number of local steps
a_i, ||a_i||_1       the weights of its gradients and their sum, the `reach` of its steps
tau_eff              ``clients.mean_steps``, weighted by samples
p_i                  the weights of ``channel.mean``
===================  =========================================================

Travels: x down, ``tau_eff / ||a_i||_1`` times the increment of x up; 2 P scalars per client and round.

Deviations: tau_eff is the mean over all clients, not over the cohort, so that no message depends on who else takes
part. The proximal term among the paper's local solvers is left out.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Meta, register, step_size
from harness.core.methods.averaging import Averaging, Model


@register
@dataclass(frozen=True, kw_only=True)
class FedNova(Averaging):
    """Local SGD, then the mean of the increments, each divided by the client's number of steps.

    Attributes
    ----------
    lr : float
        Local step size.
    """

    meta: ClassVar = Meta(
        "fednova",
        "centralized",
        ("erm",),
        "Wang et al. 2020",
        "https://arxiv.org/abs/2007.07481",
        chunks=True,
    )

    lr: float = step_size(0.1)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Run local SGD at every client, then apply the mean of the normalized increments."""
        x_t, batches = channel.down(state.x), clients.batches(self)
        x = self.descend(x_t, batches, clients.grad, lr=self.lr)
        own = self.reach(batches)
        tau = clients.mean_steps(self, self.momentum).of(x)
        return self.server_step(state, x=channel.mean(tau * (1 / own) * (x - x_t)))
