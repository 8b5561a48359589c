"""FedPer: shared base layers and personal heads, trained together.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019, Algorithms 1 and 2.
https://arxiv.org/abs/1912.00818

=======================  =========================================================
paper                    here
=======================  =========================================================
W_B                      ``state.u``, the extractor
W_P_j                    ``state.vi``, the heads, one row per client
eta                      ``lr``
e                        ``local_epochs`` (or ``local_steps``)
=======================  =========================================================

Travels: u down, u up (its increment); 2 |u| scalars per client and round. Heads stay local.

Deviations: the personal layer is the last linear one; all heads start equal.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Increment, Meta, register, step_size
from harness.core.methods.personal import OwnHeads, PersonalHeads


@register
@dataclass(frozen=True, kw_only=True)
class FedPer(PersonalHeads):
    """Local SGD on the whole model; only the extractor is averaged.

    Attributes
    ----------
    lr : float
        Step size.
    """

    meta: ClassVar = Meta(
        "fedper", "personalized", ("erm",), "Arivazhagan et al. 2019", "https://arxiv.org/abs/1912.00818"
    )

    lr: float = step_size(0.01)

    def round(self, state: OwnHeads, clients: Clients, channel: Channel) -> OwnHeads:
        """Take joint local steps, then apply the mean increment of what is shared."""
        u = u_t = channel.down(state.u)
        v, m = clients.take(state.vi), None
        for batch in clients.batches(self):
            (u, v), m = self.step((u, v), clients.grads(u, v, batch), batch, m, lr=(self.lr, self.lr))
        return self.server_step(state, u=channel.mean(Increment(u, of=u_t)))._replace(
            vi=clients.put(state.vi, v)
        )
