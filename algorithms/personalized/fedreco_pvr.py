"""FedReCo-PVR: FedReCo with variance reduction of the penalty's gradient.

Source: the paper's appendix, Algorithm 2.

=======================  =========================================================
paper                    here
=======================  =========================================================
u_0, u_i, v_i            ``state.u``, ``state.ui``, ``state.vi``
u_0^{t-1}                ``state.before``, the u_0 of a client's last round, one row per client
g_i                      ``state.gi``, the full gradient of H_i by u_i at (u_i, u_0^{t-1}), one row per client
lambda                   ``tie``
=======================  =========================================================

Travels: u_0 down, q up; 2 |u| scalars per client and round.

Deviations: before a client's first round u_0^{t-1} is the initial extractor and g is zero. q and g use all local
data, as in the paper.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Meta, not_negative, positive, register, step_size
from harness.core.methods.derivatives import feature_distance
from harness.core.methods.personal import Personalized, Split
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class FedReCoPVR(Personalized, Split):
    """FedReCo with the penalty's gradient corrected by its full value at the start of the round.

    Attributes
    ----------
    lr_u, lr_v, lr_0 : float
        Step sizes of the clients' extractors and heads, and of the server's extractor.
    tie : float
        Weight of the distance, times 1/2.
    head_epochs : int or None
        Passes over the data for the head; None: as many steps as for the extractor.
    """

    meta: ClassVar = Meta("fedreco_pvr", "personalized", ("erm",), "FedReCo (appendix)")

    lr_u: float = step_size(0.01)
    lr_v: float = step_size(0.01)
    lr_0: float = step_size(0.001, zero=True)
    tie: float = not_negative(0.01)
    head_epochs: int | None = positive(None)

    class State(NamedTuple):
        """The common extractor ``(..., P)``; client rows ``(..., total, P)``, heads ``(..., total, Q)``."""

        u: Tensor
        ui: Tensor
        vi: Tensor
        before: Tensor
        gi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model, where the distance and its gradient are zero."""
        u = clients.rows(start["x"])
        zero = clients.rows(torch.zeros_like(start["x"]))
        state = self.State(start["x"], u, clients.rows(start["y"]), u, zero)
        return self.server_init(state, "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train head and extractor locally, then step the common extractor along the mean of q."""
        u_0 = channel.down(state.u)
        u, v, before, g = (clients.take(rows) for rows in state[1:5])
        heads = clients.batches(self, stream="head", epochs=self.head_epochs)
        v = self.descend(v, heads, partial(clients.grad_y, u), lr=self.lr_v)
        u_t, m = u, None
        for batch in clients.batches(self):
            new = clients.gradient(feature_distance, u, u_0, batch=batch)
            old = clients.gradient(feature_distance, u_t, before, batch=batch)
            tie = self.tie / 2 * (new - old + g)
            u, m = self.step(u, clients.grad_x(u, v, batch), batch, m, lr=self.lr_u, plus=tie)
        data = clients.data()
        g = clients.gradient(feature_distance, u, u_0, batch=data)
        q = channel.mean(clients.gradient(feature_distance, u, u_0, batch=data, by=1), weighting="uniform")
        kept = {"ui": u, "vi": v, "before": u_0, "gi": g}
        kept = {name: clients.put(getattr(state, name), rows) for name, rows in kept.items()}
        return self.server_step(state, u=-self.lr_0 * self.clip(q))._replace(**kept)

    def model(self, state: State) -> Tensor:
        """Return the clients' extractors and heads."""
        return join_model(state.ui, state.vi)
