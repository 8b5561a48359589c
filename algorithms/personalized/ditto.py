"""Ditto: a personal model with a penalty on its distance to the global one.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.
https://arxiv.org/abs/2012.04221

=======================  =========================================================
paper                    here
=======================  =========================================================
w                        ``state.x``, the global model
v_k                      ``state.pi``, the personal models, one row per client
lambda                   ``tie``
eta                      ``lr``
r, s                     ``local_epochs`` (or ``local_steps``), ``personal_epochs``
=======================  =========================================================

Travels: w down, w up (its increment); 2 P scalars per client and round.

Deviations: both models see the same batches, so that the personal one is that of local training if lambda is 0. The
gradient is clipped with the penalty ``lambda / 2 ||v - w||^2`` included, as in the public code.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, not_negative, positive, register, step_size
from harness.core.methods.personal import OwnModels, PersonalModels


@register
@dataclass(frozen=True, kw_only=True)
class Ditto(PersonalModels):
    """FedAvg, and separate local training with a pull toward the received global model.

    Attributes
    ----------
    lr : float
        Step size.
    tie : float
        Weight of the pull.
    personal_epochs : int or None
        Passes over the data for the personal model; None: as much local work as for the global model.
    """

    meta: ClassVar = Meta(
        "ditto", "personalized", ("erm",), "Li et al. 2021", "https://arxiv.org/abs/2012.04221"
    )

    lr: float = step_size(0.01)
    tie: float = not_negative(0.01)
    personal_epochs: int | None = positive(None)

    def round(self, state: OwnModels, clients: Clients, channel: Channel) -> OwnModels:
        """Take local steps on both models, then apply the mean increment of the global one."""
        x_t, batches = channel.down(state.x), clients.batches(self)
        x = self.descend(x_t, batches, clients.grad, lr=self.lr)
        if self.personal_epochs is not None:
            batches = clients.batches(self, epochs=self.personal_epochs)
        p, m = clients.take(state.pi), None
        for batch in batches:
            pull = self.tie * (p - x_t)
            p, m = self.step(p, clients.grad(p, batch), batch, m, lr=self.lr, plus=pull)
        return self.server_step(state, x=channel.mean(Increment(x, of=x_t)))._replace(
            pi=clients.put(state.pi, p)
        )
