"""Local SGDA: local stochastic gradient descent ascent.

Deng, Mahdavi: "Local Stochastic Gradient Descent Ascent: Convergence Analysis and Communication Efficiency",
AISTATS 2021, Algorithm 1; Sharma, Panda, Joshi, Varshney: "Federated Minimax Optimization: Improved Convergence
Analyses and Algorithms", ICML 2022.
https://arxiv.org/abs/2102.13152, https://arxiv.org/abs/2203.04850

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
eta_x, eta_y         ``lr_x``, ``lr_y``
tau                  ``local_steps``
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round.

Deviations: y is projected after every step and after the average (noise and compression may leave the feasible
set).
"""

from dataclasses import dataclass
from typing import ClassVar

from harness.core import Channel, Clients, Meta, register
from harness.core.methods.descent_ascent import DescentAscent, Point


@register
@dataclass(frozen=True, kw_only=True)
class LocalSGDA(DescentAscent):
    """Simultaneous local descent in x and ascent in y, averaged after some steps."""

    meta: ClassVar = Meta(
        "local_sgda", "minimax", ("minimax",), "Deng, Mahdavi 2021", "https://arxiv.org/abs/2102.13152",
        chunks=True, epochs=False,
    )  # fmt: skip

    def round(self, state: Point, clients: Clients, channel: Channel) -> Point:
        """Take simultaneous local steps, then apply the mean increments."""
        x, y = x_t, y_t = channel.down(state.x, state.y)
        m = None
        for batch in clients.batches(self):
            (x, y), m = self.step((x, y), clients.grads(x, y, batch), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        dx, dy = channel.mean(*self.increments(clients, (x, y), (x_t, y_t)), weighting="uniform")
        return self.server_point(state, clients, x=dx, y=dy)
