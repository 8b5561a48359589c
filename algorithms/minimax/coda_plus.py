"""CODA+: local descent ascent in proximal stages.

Yuan, Guo, Xu, Ying, Yang: "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021; CODA: Guo, Liu, Yuan, Shen, Liu, Yang, ICML 2020.
https://arxiv.org/abs/2102.04635

===================  =========================================================
paper                here
===================  =========================================================
v                    ``state.x``
alpha                ``state.y``
v_0 of a stage       ``state.xr``
eta                  ``lr_x``, ``lr_y``, divided by ``decay`` from stage to stage
1 / gamma            ``prox``
T_s                  ``stage_rounds`` rounds of ``local_steps``
I                    ``local_steps``
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. The reference
point is a past broadcast; a partial cohort receives it again, d_x more.

Deviations: a stage ends with its last average, not with the average of all its iterates. All stages are equally
long. Unlike CODA it does not estimate y again when a stage begins. y is projected after every step.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Meta, register
from harness.core.methods.descent_ascent import StagedDescentAscent


@register
@dataclass(frozen=True, kw_only=True)
class CODAPlus(StagedDescentAscent):
    """Local descent ascent with a proximal term in x and smaller step sizes in every stage."""

    meta: ClassVar = Meta(
        "coda_plus", "minimax", ("minimax",), "Yuan et al. 2021", "https://arxiv.org/abs/2102.04635",
        epochs=False,
    )  # fmt: skip

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, and the stage's reference point ``(..., P)``."""

        x: Tensor
        y: Tensor
        xr: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point."""
        return self.server_init(self.State(start["x"], start["y"], start["x"]), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take proximal local steps, then apply the mean increments."""
        (lr_x, lr_y), began = self.rates(clients.round), self.began(state, clients.round)
        x, y = x_t, y_t = channel.down(state.x, state.y)
        xr = channel.rebroadcast(began)
        m = None
        for batch in clients.batches(self):
            gx, gy = clients.grads(x, y, batch)
            gx = gx + self.prox * (x - xr)
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(lr_x, -lr_y))
            y = clients.project(y)
        increments = self.increments(clients, (x, y), (x_t, y_t), (lr_x, lr_y))
        dx, dy = channel.mean(*increments, weighting="uniform")
        return self.server_point(state._replace(xr=began), clients, x=dx, y=dy)
