"""DM-HSGD: decentralized minimax by hybrid stochastic gradients and gradient tracking.

Xian, Huang, Zhang, Huang: "A Faster Decentralized Algorithm for Nonconvex Minimax Problems", NeurIPS 2021; one
iteration is one round.
https://openreview.net/forum?id=rjIjkiyAJao

===================  =====================================================================
formula              here
===================  =====================================================================
x_i, y_i             ``state.x``, ``state.y``, one row per node
u_i, v_i             ``state.u``, ``state.v``: estimates of the gradients in x and y
s_i^x, s_i^y         ``state.sx``, ``state.sy``: trackers of the mean estimates
eta_x, eta_y         ``lr_x``, ``lr_y``
b_x, b_y             ``beta_x``, ``beta_y``: weight of the fresh gradient
B_0                  ``mega_batch``
-                    ``state.ru``, ``state.rv``: the released estimates
===================  =====================================================================

Travels: along every directed edge, in two exchanges, (x - lr_x sx, y + lr_y sy) and (sx + du, sy + dv);
2 (d_x + d_y) scalars per round, and (sx, sy) once before the first. Trackers and points are functions of earlier
messages, so only the estimates release anything.

Deviations: written from the authors' code, with other letters than the paper's. A round releases the estimate
itself; du, dv are the changes of the released estimates. Without noise these are the changes of the estimates;
noise on every change would add up in the trackers. y is projected after mixing.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.core import Algorithm, Channel, Clients, Meta, at_most_one, positive, register, step_size
from harness.core.methods import tracking
from harness.core.methods.tracking import Trackers


@register
@dataclass(frozen=True, kw_only=True)
class DMHSGD(Algorithm):
    """A step along the trackers, then a fresh batch at the old and the new point, each with an exchange.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    beta_x, beta_y : float
        Weight of the fresh gradient in the estimates, in (0, 1]; 1 is descent ascent with gradient tracking.
    mega_batch : int
        Batch size of the first estimate.
    """

    meta: ClassVar = Meta(
        "dm_hsgd", "decentralized", ("minimax",), "Xian et al. 2021", "https://openreview.net/forum?id=rjIjkiyAJao",
        gossip=True, epochs=False, steps=1,
    )  # fmt: skip

    local_steps: int | None = 1
    batch_size: int | None = 10
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.1)
    beta_x: float = at_most_one(0.01)
    beta_y: float = at_most_one(0.1)
    mega_batch: int = positive(2000)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Trackers:
        """Start all nodes from one point with the mixed gradients of a large batch."""
        (batch,) = clients.batches(self, batch_size=self.mega_batch, stream="init")
        return tracking.begin(start, batch, clients, channel)

    def round(self, state: Trackers, clients: Clients, channel: Channel) -> Trackers:
        """Step along the trackers and mix; update the estimates at the new point; track their change."""
        x, y = tracking.step(state, (self.lr_x, self.lr_y), clients, channel)
        (batch,) = clients.batches(self)
        gx_old, gy_old = clients.grads(state.x, state.y, batch)
        gx, gy = clients.grads(x, y, batch)
        u = gx + (1 - self.beta_x) * (state.u - gx_old)
        v = gy + (1 - self.beta_y) * (state.v - gy_old)
        return tracking.track(state, (x, y), u, v, channel)
