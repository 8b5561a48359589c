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
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Algorithm, Channel, Clients, Meta, UserError, positive, register, step_size


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
    p: float = 0.5
    q: float = 0.5
    mega_batch: int = positive(128)
    hops: int = positive(2)

    class State(NamedTuple):
        """One row per node, ``(total, P)`` or ``(total, Q)``."""

        x: Tensor
        y: Tensor
        u: Tensor
        v: Tensor
        ru: Tensor
        rv: Tensor
        sx: Tensor
        sy: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.p <= 1 and 0 < self.q <= 1):
            raise UserError(
                f"algorithm dream: p must be in [0, 1], q in (0, 1], given p {self.p}, q {self.q}"
            )

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point with the mixed gradients of a large batch."""
        x, y = clients.rows(start["x"]), clients.rows(start["y"])
        (batch,) = clients.batches(self, batch_size=self.mega_batch, stream="mega")
        u, v = clients.grads(x, y, batch)
        zeros = torch.zeros_like(u), torch.zeros_like(v)
        (ru, rv), (sx, sy), *_ = channel.mix(u, v, onto=zeros, hops=self.hops)
        return self.State(x, y, u, v, ru, rv, sx, sy)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Step along the trackers and mix; update the estimates by the coins; track their change."""
        x_old, y_old, u, v, ru, rv, sx, sy = state
        moved = x_old - self.lr_x * sx, y_old + self.lr_y * sy
        x, y = channel.mix(rebroadcast=moved, hops=self.hops).rebroadcast
        y = clients.project(y)
        if bool(clients.coin(self.p, "anew")):  # refresh
            (batch,) = clients.batches(self, batch_size=self.mega_batch, stream="mega")
            u, v = clients.grads(x, y, batch)
        else:
            active = clients.coin(self.q, "active", each=True)
            (batch,) = clients.batches(self)
            batch = batch.only(active)  # idle nodes compute nothing
            gx_old, gy_old = clients.grads(x_old, y_old, batch)
            gx, gy = clients.grads(x, y, batch)
            u = u + active / self.q * (gx - gx_old)
            v = v + active / self.q * (gy - gy_old)
        (ru, rv), (sx, sy), *_ = channel.mix(u, v, onto=(sx - ru, sy - rv), hops=self.hops)
        return self.State(x, y, u, v, ru, rv, sx, sy)

    def model(self, state: State) -> Tensor:
        """Return the average of the nodes, ``(..., P)``."""
        return state.x.mean(-2)
