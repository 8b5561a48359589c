"""FedNest, minimax case: inner rounds of ascent, then one outer round of descent, both variance-reduced.

Tarzanagh, Li, Thrampoulidis, Oymak: "FedNest: Federated Bilevel, Minimax, and Compositional Optimization", ICML
2022, Algorithms 1 (FedNest), 2 (FedOut) and 3 (FedInn).
https://arxiv.org/abs/2205.02215

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
alpha, beta          ``lr_x``, ``lr_y``
T                    ``inner_rounds``
tau                  ``local_steps``
q, h                 ``b``, ``a``: the mean gradients at the anchor
===================  =========================================================

Travels: x down; for every inner round the mean gradient and y down, a gradient and y up; for the outer round the
mean gradient down, a gradient and x up: 2 (T d_y + d_x) scalars each way. The first y of a round is a past
broadcast; a partial cohort receives it again, d_y more.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: written from the authors' code and general knowledge. The inner problem minimizes minus the objective,
so the outer gradient is direct. y is projected after every step.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, Release, positive, register
from harness.core.methods.descent_ascent import DescentAscent, Point


@register
@dataclass(frozen=True, kw_only=True)
class FedNest(DescentAscent, Release):
    """Ascent in y at a fixed x, then descent in x at the new y.

    Attributes
    ----------
    inner_rounds : int
        Exchanges of y for each of x.
    svrg : bool
        Correct local gradients by those at the anchor, which are exchanged; False takes plain local steps.
    """

    meta: ClassVar = Meta(
        "fednest", "minimax", ("minimax",), "Tarzanagh et al. 2022", "https://arxiv.org/abs/2205.02215",
        version=2, epochs=False,
    )  # fmt: skip

    inner_rounds: int = positive(1)
    svrg: bool = True

    def round(self, state: Point, clients: Clients, channel: Channel) -> Point:
        """Ascend in the inner rounds, then descend once."""
        x, y = channel.down(state.x), channel.rebroadcast(state.y)
        for number in range(self.inner_rounds):
            state = self.server_point(state, clients, y=self._ascent(x, y, number, clients, channel))
            y = channel.down(state.y)
        return self.server_step(state, x=self._descent(x, y, clients, channel))

    def _ascent(self, x: Tensor, y_t: Tensor, number: int, clients: Clients, channel: Channel) -> Tensor:
        """FedInn: return the mean increment of y."""
        y, b = y_t, 0 * y_t
        if self.svrg:
            (anchor,) = clients.batches(self, steps=1, stream=f"inner anchor {number}")
            b = channel.down(channel.mean(clients.grad_y(x, y_t, anchor), weighting="uniform"))
        m = None
        for batch in clients.batches(self, stream=f"inner {number}"):
            g = clients.grad_y(x, y, batch)
            g = g - clients.grad_y(x, y_t, batch) if self.svrg else g
            y, m = self.step(y, g, batch, m, lr=-self.lr_y, correction=b)
            y = clients.project(y)
        reach = clients.most_steps(self) * self.lr_y
        moved: Tensor = channel.mean(Increment(y, of=y_t, scale=reach), weighting="uniform")
        return moved

    def _descent(self, x_t: Tensor, y: Tensor, clients: Clients, channel: Channel) -> Tensor:
        """FedOut: return the mean increment of x."""
        x, a = x_t, 0 * x_t
        if self.svrg:
            (anchor,) = clients.batches(self, steps=1, stream="outer anchor")
            a = channel.down(channel.mean(clients.grad_x(x_t, y, anchor), weighting="uniform"))
        m = None
        for batch in clients.batches(self):
            g = clients.grad_x(x, y, batch)
            g = g - clients.grad_x(x_t, y, batch) if self.svrg else g
            x, m = self.step(x, g, batch, m, lr=self.lr_x, correction=a)
        reach = clients.most_steps(self) * self.lr_x
        moved: Tensor = channel.mean(Increment(x, of=x_t, scale=reach), weighting="uniform")
        return moved
