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
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, ServerUpdate, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class LocalSGDA(Descent, ServerUpdate):
    """Simultaneous local descent in x and ascent in y, averaged after some steps.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    """

    meta: ClassVar = Meta(
        "local_sgda", "minimax", ("minimax",), "Deng, Mahdavi 2021", "https://arxiv.org/abs/2102.13152",
        parts=True, epochs=False,
    )  # fmt: skip

    local_steps: int | None = 10
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.01)

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``."""

        x: Tensor
        y: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point."""
        return self.server_init(self.State(start["x"], start["y"]), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take simultaneous local steps, then apply the mean increments."""
        x, y = x_t, y_t = channel.down(state.x, state.y)
        m = None
        for batch in clients.batches(self):
            (x, y), m = self.step((x, y), clients.grads(x, y, batch), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        steps = clients.most_steps(self)
        dx, dy = channel.mean(
            Increment(x, of=x_t, scale=steps * self.lr_x),
            Increment(y, of=y_t, scale=steps * self.lr_y),
            weighting="uniform",
        )
        new = self.server_step(state, x=dx, y=dy)
        return new._replace(y=clients.project(new.y))
