"""FedProx: FedAvg with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020,
Algorithm 2.
https://arxiv.org/abs/1812.06127

===================  =========================================================
paper                here
===================  =========================================================
w^t                  ``state.x``
mu                   ``mu``
gamma-inexact solve  ``local_steps`` or ``local_epochs`` of SGD with step ``lr``
===================  =========================================================

Travels: x down, x up (its increment); 2 P scalars per client and round.

Deviations: the cohort is uniform and the mean weighted by samples. The paper draws clients in proportion to their
samples and averages uniformly; both have the same expectation.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, not_negative, register, step_size
from harness.core.methods.averaging import Averaging, Model


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """FedAvg with the penalty ``mu / 2 ||x - x_t||^2`` in every local loss.

    Attributes
    ----------
    lr : float
        Local step size.
    mu : float
        Weight of the penalty; 0 is FedAvg.
    """

    meta: ClassVar = Meta(
        "fedprox", "centralized", ("erm",), "Li et al. 2020", "https://arxiv.org/abs/1812.06127", chunks=True
    )

    lr: float = step_size(0.1)
    mu: float = not_negative(0.01)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Run proximal local SGD at every client, then apply the mean increment."""
        x = x_t = channel.down(state.x)
        m = None
        for batch in clients.batches(self):
            pull = self.mu * (x - x_t)
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr, plus=pull)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))
