"""FedALA: heads that start a round from a learned mixture of the client's last one and the global one.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
AAAI 2023, Algorithm 1.
https://arxiv.org/abs/2212.01197

=======================  =========================================================
paper                    here
=======================  =========================================================
Theta, lower layers      ``state.u``, the extractor
Theta, p higher layers   ``state.v``, the global head; ``state.vi``, the clients' heads, one row per client
W_i^p                    ``state.wi``, weights of the global head's entries, one row per client
eta                      ``lr_weights``
alpha                    ``lr``
s                        all data, for ``weight_epochs`` or as many steps as the model
=======================  =========================================================

Travels: extractor and head down and up (their increments); 2 (|u| + |v|) scalars per client and round. Weights stay
local.

Deviations: p = 1, the head. The weights are learned in passes of batches, as many in every round; the paper trains
them until the loss settles in a client's second round and for one pass later, on a random share of the data.
Evaluation mixes the heads by a client's last weights, without learning them anew.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, positive, register, step_size
from harness.core.methods.personal import Divided, Personalized
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class FedALA(Personalized, Divided):
    """FedAvg whose clients mix the received head with their own, entry by entry, before they train.

    Attributes
    ----------
    lr, lr_weights : float
        Step sizes of the model and of the weights; weights with step size 0 are 1, and the method is FedAvg.
    weight_epochs : int or None
        Passes over the data to learn the weights; None: as many steps as for the model.
    """

    meta: ClassVar = Meta(
        "fedala", "personalized", ("erm",), "Zhang et al. 2023", "https://arxiv.org/abs/2212.01197"
    )

    lr: float = step_size(0.01)
    lr_weights: float = step_size(1.0, zero=True)
    weight_epochs: int | None = positive(None)

    class State(NamedTuple):
        """Extractor ``(..., P)``, head ``(..., Q)``; the clients' heads and weights ``(..., total, Q)``."""

        u: Tensor
        v: Tensor
        vi: Tensor
        wi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model, and from weights of 1."""
        u, v = start["x"], start["y"]
        rows = clients.rows(v), clients.rows(torch.ones_like(v))
        return self.server_init(self.State(u, v, *rows), "u", "v")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Learn the weights, take local steps from the mixture, then apply the mean increment."""
        u_t, v_t = channel.down(state.u, state.v)
        kept, w = clients.take(state.vi), clients.take(state.wi)
        apart = v_t - kept
        for batch in clients.batches(self, stream="weights", epochs=self.weight_epochs):
            slope = clients.grad_y(u_t, kept + w * apart, batch) * apart
            w = (w - self.lr_weights * slope).clamp(0, 1)
        u, v, m = u_t, kept + w * apart, None
        for batch in clients.batches(self):
            (u, v), m = self.step((u, v), clients.grads(u, v, batch), batch, m, lr=(self.lr, self.lr))
        du, dv = channel.mean(Increment(u, of=u_t), Increment(v, of=v_t))
        own = {"vi": clients.put(state.vi, v), "wi": clients.put(state.wi, w)}
        return self.server_step(state, u=du, v=dv)._replace(**own)

    def model(self, state: State) -> Tensor:
        """Return the common extractor with every client's mixture of the heads."""
        return join_model(state.u, state.vi + state.wi * (state.v.unsqueeze(-2) - state.vi))
