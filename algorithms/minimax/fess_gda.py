"""FESS-GDA: local descent ascent, smoothed by a slow copy of x at the server.

Shen, Huang, Zhang, Shen: "Stochastic Smoothed Gradient Descent Ascent for Federated Minimax Optimization", AISTATS
2024, Algorithm 1.
https://arxiv.org/abs/2311.00944

=======================  =========================================================
paper                    here
=======================  =========================================================
x_t, y_t                 ``state.x``, ``state.y``
z_t                      ``state.z``, which follows x
eta_x,l, eta_y,l         ``lr_x``, ``lr_y``
eta_x,g, eta_y,g         ``server_lr``, one for both
K                        ``local_steps`` (with momentum, their `reach`)
p, beta                  ``prox``, ``beta``
=======================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. z stays at the
server.

Deviations: written from a secondary source. y is projected after every step and after the average.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Meta, at_most_one, not_negative, register
from harness.core.methods.descent_ascent import DescentAscent
from harness.core.steps import reach


@register
@dataclass(frozen=True, kw_only=True)
class FESSGDA(DescentAscent):
    """Local SGDA whose server also steps against ``prox / 2 |x - z|^2``.

    Attributes
    ----------
    prox : float
        Weight of the pull toward the slow copy; 0 for none.
    beta : float
        Share of the way that the slow copy goes toward x in a round, in (0, 1].
    """

    meta: ClassVar = Meta(
        "fess_gda", "minimax", ("minimax",), "Shen et al. 2024", "https://arxiv.org/abs/2311.00944",
        chunks=True, epochs=False,
    )  # fmt: skip

    prox: float = not_negative(1.0)
    beta: float = at_most_one(0.5)

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, and the slow copy ``(..., P)``."""

        x: Tensor
        y: Tensor
        z: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point."""
        return self.server_init(self.State(start["x"], start["y"], start["x"]), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take simultaneous local steps; the server applies their mean and the pull toward z."""
        x, y = x_t, y_t = channel.down(state.x, state.y)
        m = None
        for batch in clients.batches(self):
            (x, y), m = self.step((x, y), clients.grads(x, y, batch), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        dx, dy = channel.mean(*self.increments(clients, (x, y), (x_t, y_t)), weighting="uniform")
        steps = clients.most_steps(self)
        pull = reach(int(steps.value), self.momentum) * self.lr_x * self.prox * (state.x - state.z)
        new = self.server_point(state, clients, x=dx - pull, y=dy)
        return new._replace(z=state.z + self.beta * (new.x - state.z))
