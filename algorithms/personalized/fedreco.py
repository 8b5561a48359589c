"""FedReCo: personal extractors held near a common one in feature space.

Source: the paper's appendix (Algorithm 1 is reconstructed from its proofs) and the authors' public code.

=======================  =========================================================
paper                    here
=======================  =========================================================
u_0                      ``state.u``, the server's extractor
u_i, v_i                 ``state.ui``, ``state.vi``, extractors and heads, one row per client
H_i(u_i, u_0)            mean squared distance of the features of a client's samples
lambda                   ``tie``
eta_u, eta_v, eta_0      ``lr_u``, ``lr_v``, ``lr_0``
q_i                      ``q``, the gradient of H_i by u_0
=======================  =========================================================

Travels: u_0 down, q up; 2 |u| scalars per client and round. Client parameters never leave the client.

Deviations: the server's step has no factor lambda / 2, as in the paper's Algorithm 2 and the code, unlike its
Lemma 1. H is a mean over samples; ``total=True`` sums over the batch, as in the code. q uses one fresh batch, as in
the paper; ``full_q=True`` uses all data, as in the code.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Meta, not_negative, positive, register, step_size
from harness.core.methods.derivatives import feature_distance, tied_loss
from harness.core.methods.personal import Personalized, Split
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class FedReCo(Personalized, Split):
    """Local SGD on the head, then on the extractor with a penalty; the common one follows the clients' features.

    Attributes
    ----------
    lr_u, lr_v, lr_0 : float
        Step sizes of the clients' extractors and heads, and of the server's extractor.
    tie : float
        Weight of the distance, times 1/2.
    head_epochs : int or None
        Passes over the data for the head; None: as many steps as for the extractor.
    total, full_q : bool
        Sum H over the batch; take q on all data.
    """

    meta: ClassVar = Meta("fedreco", "personalized", ("erm",), "FedReCo (appendix)", apart=("tie",))

    lr_u: float = step_size(0.01)
    lr_v: float = step_size(0.01)
    lr_0: float = step_size(0.001, zero=True)
    tie: float = not_negative(0.01)
    head_epochs: int | None = positive(None)
    total: bool = False
    full_q: bool = False

    class State(NamedTuple):
        """The common extractor ``(..., P)``; the clients' ``(..., total, P)``; heads ``(..., total, Q)``."""

        u: Tensor
        ui: Tensor
        vi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model, which makes features comparable."""
        state = self.State(start["x"], clients.rows(start["x"]), clients.rows(start["y"]))
        return self.server_init(state, "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train head and extractor locally, then step the common extractor along the mean of q."""
        tied = partial(tied_loss, weight=self.tie / 2, total=self.total)
        distance = partial(feature_distance, total=self.total)
        u_0, u, v = channel.down(state.u), clients.take(state.ui), clients.take(state.vi)
        heads, m = clients.batches(self, stream="head", epochs=self.head_epochs), None
        v = self.descend(v, heads, partial(clients.grad_y, u), lr=self.lr_v)
        for batch in clients.batches(self):
            u, m = self.step(u, clients.gradient(tied, u, v, u_0, batch=batch), batch, m, lr=self.lr_u)
        fresh = clients.data() if self.full_q else next(iter(clients.batches(self, steps=1, stream="q")))
        q = channel.mean(clients.gradient(distance, u, u_0, batch=fresh, by=1), weighting="uniform")
        kept = {"ui": clients.put(state.ui, u), "vi": clients.put(state.vi, v)}
        return self.server_step(state, u=-self.lr_0 * self.clip(q))._replace(**kept)

    def model(self, state: State) -> Tensor:
        """Return the clients' extractors and heads."""
        return join_model(state.ui, state.vi)
