"""FedRep: shared representation and personal heads, trained in turn.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021, Algorithm 1.
https://arxiv.org/abs/2102.07078

=======================  =========================================================
paper                    here
=======================  =========================================================
phi                      ``state.u``, the extractor
h_i                      ``state.vi``, the heads, one row per client
alpha                    ``lr_u``, ``lr_v``
tau_h                    ``head_epochs`` (None: the extractor's local work)
one update of phi        ``local_epochs`` (or ``local_steps``)
=======================  =========================================================

Travels: u down, u up (its increment); 2 |u| scalars per client and round. Heads stay local.

Deviations: one pass over the data for the head, as in FedReCo's comparison; the paper has ten. Evaluation combines
the averaged extractor with each client's head.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, positive, register, step_size
from harness.core.methods.personal import OwnHeads, PersonalHeads


@register
@dataclass(frozen=True, kw_only=True)
class FedRep(PersonalHeads):
    """Local SGD on the head, then on the extractor with the new head.

    Attributes
    ----------
    lr_u, lr_v : float
        Step sizes of extractor and head.
    head_epochs : int or None
        Passes over the data for the head; None: as many steps as for the extractor.
    """

    meta: ClassVar = Meta(
        "fedrep", "personalized", ("erm",), "Collins et al. 2021", "https://arxiv.org/abs/2102.07078"
    )

    lr_u: float = step_size(0.01, zero=True)
    lr_v: float = step_size(0.01)
    head_epochs: int | None = positive(None)

    def round(self, state: OwnHeads, clients: Clients, channel: Channel) -> OwnHeads:
        """Train heads, then extractors, locally; then apply the mean increment of the extractors."""
        u_t = channel.down(state.u)
        heads = clients.batches(self, stream="head", epochs=self.head_epochs)
        v = self.descend(clients.take(state.vi), heads, partial(clients.grad_y, u_t), lr=self.lr_v)
        u = self.descend(
            u_t, clients.batches(self), lambda u, batch: clients.grad_x(u, v, batch), lr=self.lr_u
        )
        return self.server_step(state, u=channel.mean(Increment(u, of=u_t)))._replace(
            vi=clients.put(state.vi, v)
        )
