"""DREAM: decentralized minimax by recursive gradients with random restarts, tracking and accelerated gossip.

Chen, Ye, Luo: "An Efficient Stochastic Algorithm for Decentralized Nonconvex-Strongly-Concave Minimax
Optimization", AISTATS 2024; one iteration is one round.
https://arxiv.org/abs/2212.02387

===================  =====================================================================
formula              here
===================  =====================================================================
x_i, y_i             ``state.x``, ``state.y``, one row per node
g_i, h_i             ``state.u``, ``state.v``: estimates of the gradients in x and y
s_i^x, s_i^y         ``state.sx``, ``state.sy``: trackers of the mean estimates
eta_x, eta_y         ``lr_x``, ``lr_y``
p                    ``p``, probability of the coin ``refresh`` that all nodes share
q, omega_i           ``q``, probability of a node's coin ``active``
B_0, b               ``mega_batch``, ``batch_size``
K                    ``hops`` of FastMix
-                    ``state.ru``, ``state.rv``: the released estimates
===================  =====================================================================

Travels: along every directed edge and in each of K hops, in two exchanges, (x - lr_x sx, y + lr_y sy) and
(sx + du, sy + dv); 2 K (d_x + d_y) scalars per round, and half of that before the first. Trackers and points are
functions of earlier messages, so only the estimates release anything.

Deviations: written from the authors' code and general knowledge of the paper. Unlike in that code the first coin is
shared and 1 / q multiplies both gradients. Released estimates as in `dm_hsgd`. The first mix has K hops like the
others. y is projected after FastMix, which is not a convex combination. The authors' step sizes (0.1, 1) are for
normalized logistic losses; ours are smaller.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.core import (
    Algorithm,
    Channel,
    Clients,
    Meta,
    at_most_one,
    positive,
    probability,
    register,
    step_size,
)
from harness.core.methods import tracking
from harness.core.methods.tracking import Trackers


@register
@dataclass(frozen=True, kw_only=True)
class DREAM(Algorithm):
    """A step along the trackers; then all nodes take a large batch, or some of them a small one at two points.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    p : float
        Probability that all nodes restart their estimates from a large batch, in [0, 1].
    q : float
        Probability that a node takes part in a round of small batches, in (0, 1].
    mega_batch : int
        Size of a large batch.
    hops : int
        Exchanges with the neighbors per mix; 1 is plain mixing, more are FastMix.
    """

    meta: ClassVar = Meta(
        "dream", "decentralized", ("minimax",), "Chen, Ye, Luo 2024", "https://arxiv.org/abs/2212.02387",
        stackable=False, gossip=True, epochs=False, steps=1,  # the shared coin branches, differently in every run
    )  # fmt: skip

    local_steps: int | None = 1
    batch_size: int | None = 64
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.1)
    p: float = probability(0.5)
    q: float = at_most_one(0.5)
    mega_batch: int = positive(128)
    hops: int = positive(2)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Trackers:
        """Start all nodes from one point with the mixed gradients of a large batch."""
        (batch,) = clients.batches(self, batch_size=self.mega_batch, stream="mega")
        return tracking.begin(start, batch, clients, channel, self.hops)

    def round(self, state: Trackers, clients: Clients, channel: Channel) -> Trackers:
        """Step along the trackers and mix; update the estimates by the coins; track their change."""
        x, y = tracking.step(state, (self.lr_x, self.lr_y), clients, channel, self.hops)
        if bool(clients.coin(self.p, "anew")):  # refresh
            (batch,) = clients.batches(self, batch_size=self.mega_batch, stream="mega")
            u, v = clients.grads(x, y, batch)
        else:
            active = clients.coin(self.q, "active", each=True)
            (batch,) = clients.batches(self)
            batch = batch.only(active)  # idle nodes compute nothing
            gx_old, gy_old = clients.grads(state.x, state.y, batch)
            gx, gy = clients.grads(x, y, batch)
            u = state.u + active / self.q * (gx - gx_old)
            v = state.v + active / self.q * (gy - gy_old)
        return tracking.track(state, (x, y), u, v, channel, self.hops)
