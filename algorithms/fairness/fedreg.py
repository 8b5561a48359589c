"""FedReg: federated averaging with a penalty on each client's own equal-opportunity gap.

Li, Huang, Huang: "Local Stochastic Bilevel Optimization with Momentum-Based Variance Reduction", section 6, where
it is a baseline.
https://arxiv.org/abs/2205.01608

===================  =========================================================
paper                here
===================  =========================================================
theta                ``state.x``
lambda               ``penalty``
I                    ``local_steps`` (or ``local_epochs``)
===================  =========================================================

Travels: x down, x up (its increment); 2 P scalars per client and round. Group statistics stay at home.

Deviations: the paper does not define a smooth gap; here a group's true positive rate is the mean of
sigmoid(slope * logit) over its positive samples in the batch.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, not_negative, positive, register, step_size
from harness.core.methods.averaging import Averaging, Model
from harness.core.methods.fairness import penalized_loss


@register
@dataclass(frozen=True, kw_only=True)
class FedReg(Averaging):
    """Federated averaging with local SGD on a penalized loss.

    Attributes
    ----------
    lr : float
        Local step size.
    penalty : float
        Weight of the gap.
    slope : float
        Steepness of the sigmoid.
    """

    meta: ClassVar = Meta(
        "fedreg", "fairness", ("erm",), "Li et al. 2022", "https://arxiv.org/abs/2205.01608",
        chunks=True, groups=True, classes=True, apart=("penalty", "slope")
    )  # fmt: skip

    lr: float = step_size(0.1)
    penalty: float = not_negative(0.1)
    slope: float = positive(1.0)

    def round(self, state: Model, clients: Clients, channel: Channel) -> Model:
        """Run local SGD on loss and penalty, then apply the mean increment."""
        loss = partial(penalized_loss, groups=clients.groups, weight=self.penalty, slope=self.slope)
        x = x_t = channel.down(state.x)
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.gradient(loss, x, batch=batch), batch, m, lr=self.lr)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))
