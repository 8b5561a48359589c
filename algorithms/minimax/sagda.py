"""SAGDA: stochastic sampling-averaging gradient descent ascent.

Yang, Zhang, Bao, Liu, Liu, Ding, Xu: "SAGDA: Achieving O(eps^-2) Communication Complexity in Federated Min-Max
Learning", NeurIPS 2022.
https://arxiv.org/abs/2210.00611

=====================  =======================================================
paper                  here
=====================  =======================================================
x, y                   ``state.x``, ``state.y``
eta_x,l, eta_y,l       ``lr_x``, ``lr_y``
eta_x,g, eta_y,g       ``server_lr``, one for both
K                      ``local_steps``
=====================  =======================================================

Travels, in two exchanges: (x, y) down, gradients up; their mean down, (x, y) up (their increments);
4 (d_x + d_y) scalars per client and round.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: written from the abstract and secondary sources. Whether the paper evaluates the anchor gradients once
or on every batch is unknown to us (``resample_cv``); both agree for exact gradients. y is projected after every
step.
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Meta, Release, register
from harness.core.methods.descent_ascent import DescentAscent, Point


@register
@dataclass(frozen=True, kw_only=True)
class SAGDA(DescentAscent, Release):
    """Local SGDA that replaces each client's gradient at the server's point by the mean of all clients.

    Attributes
    ----------
    resample_cv : bool
        Evaluate a client's gradient at the server's point on every batch instead of once.
    """

    meta: ClassVar = Meta(
        "sagda", "minimax", ("minimax",), "Yang et al. 2022", "https://arxiv.org/abs/2210.00611",
        version=2, epochs=False,
    )  # fmt: skip

    resample_cv: bool = False

    def round(self, state: Point, clients: Clients, channel: Channel) -> Point:
        """Average the gradients at the server's point, then take corrected local steps from it."""
        x, y = x_t, y_t = channel.down(state.x, state.y)
        (anchor,) = clients.batches(self, steps=1, stream="anchor")
        ax, ay = clients.grads(x, y, anchor)
        mx, my = channel.down(*channel.mean(ax, ay, weighting="uniform"))
        m = None
        for batch in clients.batches(self):
            gx, gy = clients.grads(x, y, batch)
            if self.resample_cv:
                ax, ay = clients.grads(x_t, y_t, batch)
            drift, sizes = (gx - ax, gy - ay), (self.lr_x, -self.lr_y)
            (x, y), m = self.step((x, y), drift, batch, m, lr=sizes, correction=(mx, my))
            y = clients.project(y)
        dx, dy = channel.mean(*self.increments(clients, (x, y), (x_t, y_t)), weighting="uniform")
        return self.server_point(state, clients, x=dx, y=dy)
