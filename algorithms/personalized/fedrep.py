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
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    ServerUpdate,
    positive,
    register,
    step_size,
)
from harness.core.problem import Problem, join_model, split_model


@register
@dataclass(frozen=True, kw_only=True)
class FedRep(Descent, ServerUpdate):
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
    grad_clip: float | None = 10.0

    class State(NamedTuple):
        """The extractor ``(..., P)`` and the clients' heads ``(..., total, Q)``."""

        u: Tensor
        vi: Tensor

    def view(self, problem: Problem) -> Problem:
        """Split the model into extractor and head."""
        return split_model(problem)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the same model."""
        return self.server_init(self.State(start["x"], clients.rows(start["y"])), "u")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train heads, then extractors, locally; then apply the mean increment of the extractors."""
        u = u_t = channel.down(state.u)
        v, m = clients.take(state.vi), None
        for batch in clients.batches(self, stream="head", epochs=self.head_epochs):
            v, m = self.step(v, clients.grad_y(u, v, batch), batch, m, lr=self.lr_v)
        m = None
        for batch in clients.batches(self):
            u, m = self.step(u, clients.grad_x(u, v, batch), batch, m, lr=self.lr_u)
        return self.server_step(state, u=channel.mean(Increment(u, of=u_t)))._replace(
            vi=clients.put(state.vi, v)
        )

    def model(self, state: State) -> Tensor:
        """Return the common extractor with every client's head."""
        return join_model(state.u, state.vi)
