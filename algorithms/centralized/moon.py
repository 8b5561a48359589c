"""MOON: local training with a contrast between the features of three models.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.
https://arxiv.org/abs/2103.16257

===================  =========================================================
paper                here
===================  =========================================================
w^t                  ``state.u``, ``state.v``: extractor and head of the global model
z, z_glob, z_prev    features of the local, the received and the client's previous extractor
w_i^{t-1}            ``state.ui``, previous extractors, one row per client
mu, tau              ``mu``, ``temperature``
eta, E               ``lr``, ``local_epochs`` (or ``local_steps``)
===================  =========================================================

Travels: u and v down, u and v up (their increments); 2 (|u| + |v|) scalars per client and round.

Deviations: the features are what the model's head reads; the paper's networks have two more layers before it. Until
a client's first round its previous extractor is the start.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    ServerUpdate,
    not_negative,
    positive,
    register,
    step_size,
)
from harness.core.methods.derivatives import contrastive_loss
from harness.core.methods.personal import Split
from harness.core.problem import join_model


@register
@dataclass(frozen=True, kw_only=True)
class MOON(Descent, ServerUpdate, Split):
    """FedAvg whose local features are drawn to those of the global model, away from the client's previous ones.

    Attributes
    ----------
    lr : float
        Local step size.
    mu : float
        Weight of the contrast; 0 is FedAvg.
    temperature : float
        Divisor of the cosine similarities.
    """

    meta: ClassVar = Meta(
        "moon",
        "centralized",
        ("erm",),
        "Li et al. 2021",
        "https://arxiv.org/abs/2103.16257",
        apart=("mu", "temperature"),
    )

    lr: float = step_size(0.1)
    mu: float = not_negative(1.0)
    temperature: float = positive(0.5)

    class State(NamedTuple):
        """Extractor ``(..., P)`` and head ``(..., Q)``; the clients' previous extractors ``(..., total, P)``."""

        u: Tensor
        v: Tensor
        ui: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model, also as everybody's previous one."""
        state = self.State(start["x"], start["y"], clients.rows(start["x"]))
        return self.server_init(state, "u", "v")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Run local SGD on loss and contrast at every client, then apply the mean increment."""
        loss = partial(contrastive_loss, weight=self.mu, temperature=self.temperature)
        u_t, v_t = channel.down(state.u, state.v)
        u, v, m, previous = u_t, v_t, None, clients.take(state.ui)
        for batch in clients.batches(self):
            both = clients.gradient(loss, u, v, u_t, previous, batch=batch, by=(0, 1))
            (u, v), m = self.step((u, v), both, batch, m, lr=(self.lr, self.lr))
        du, dv = channel.mean(Increment(u, of=u_t), Increment(v, of=v_t))
        return self.server_step(state, u=du, v=dv)._replace(ui=clients.put(state.ui, u))

    def model(self, state: State) -> Tensor:
        """Return the global model."""
        return join_model(state.u, state.v)
