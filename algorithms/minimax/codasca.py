"""CODASCA: CODA+ with control variates.

Yuan, Guo, Xu, Ying, Yang: "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication
Complexity", ICML 2021.
https://arxiv.org/abs/2102.04635

===================  =========================================================
paper                here
===================  =========================================================
v                    ``state.x``
alpha                ``state.y``
v_0 of a stage       ``state.xr``
c_i, c               ``state.cxi``, ``state.cx`` and ``state.cyi``, ``state.cy``
eta_l                ``lr_x``, ``lr_y``, divided by ``decay`` from stage to stage
eta_g                ``server_lr``
1 / gamma            ``prox``
T_s                  ``stage_rounds`` rounds of ``local_steps``
===================  =========================================================

Travels: (x, y, c_x, c_y) down and up (their increments); 4 (d_x + d_y) scalars per client and round. The reference
point is a past broadcast; a partial cohort receives it again, d_x more.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: a client's new control variate is the mean of its directions in the round. Without projection that
equals the paper's, computed from the increment; with projection the increment of y no longer measures the
gradients. Stages are equally long and end with their last average. y is projected after every step. Under central
privacy the server takes its own control variates as the means of the cohort's.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Meta, Release, Value, register
from harness.core.methods.descent_ascent import StagedDescentAscent


@register
@dataclass(frozen=True, kw_only=True)
class CODASCA(StagedDescentAscent, Release):
    """Staged proximal descent ascent corrected by control variates."""

    meta: ClassVar = Meta(
        "codasca", "minimax", ("minimax",), "Yuan et al. 2021", "https://arxiv.org/abs/2102.04635",
        version=2, epochs=False,
    )  # fmt: skip

    class State(NamedTuple):
        """Server: points, reference, control variates, ``(..., P)`` and ``(..., Q)``; the clients' variates."""

        x: Tensor
        y: Tensor
        xr: Tensor
        cx: Tensor
        cy: Tensor
        cxi: Tensor
        cyi: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point and zero control variates."""
        x, y = start["x"], start["y"]
        zeros = torch.zeros_like(x), torch.zeros_like(y)
        return self.server_init(self.State(x, y, x, *zeros, *map(clients.rows, zeros)), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take corrected local steps, then the server's step; add the mean change of the control variates."""
        (lr_x, lr_y), began = self.rates(clients.round), self.began(state, clients.round)
        x, y, cx, cy = channel.down(state.x, state.y, state.cx, state.cy)
        xr, x_t, y_t = channel.rebroadcast(began), x, y
        cxi, cyi = clients.take(state.cxi, mean=state.cx), clients.take(state.cyi, mean=state.cy)
        m, total_x, total_y = None, 0 * x, 0 * y
        for batch in (batches := clients.batches(self)):
            gx, gy = clients.grads(x, y, batch)
            gx = gx + self.prox * (x - xr)
            total_x, total_y = total_x + gx, total_y + gy
            corrections = cx - cxi, cy - cyi
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(lr_x, -lr_y), correction=corrections)
            y = clients.project(y)
        taken = batches.num_steps.clamp(min=1)
        (dx, dy, dcx, dcy), (_, _, cxi, cyi) = channel.mean_and_sent(
            *self.increments(clients, (x, y), (x_t, y_t), (lr_x, lr_y)),
            Value(total_x / taken, of=cxi),
            Value(total_y / taken, of=cyi),
            weighting="uniform",
        )
        return self.server_point(state, clients, x=dx, y=dy)._replace(
            xr=began,
            cx=state.cx + clients.share * dcx,
            cy=state.cy + clients.share * dcy,
            cxi=clients.put(state.cxi, cxi),
            cyi=clients.put(state.cyi, cyi),
        )
