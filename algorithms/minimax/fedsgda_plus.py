"""FedSGDA+: Local SGDA+ with a server step size.

Wu, Sun, Hu, Zhang, Huang: "Solving a Class of Non-Convex Minimax Optimization in Federated Learning",
NeurIPS 2023, Algorithm 1.

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
x tilde              ``state.xs``, the snapshot
chat, c              ``lr_x``, ``lr_y``
eta_x, eta_y         ``server_lr``, ``server_lr_y``; the public code has one value for both
Q                    ``local_steps``
S                    ``snapshot_rounds``, a number of rounds
===================  =========================================================

Travels: (x, y) down, (x, y) up (their increments); 2 (d_x + d_y) scalars per client and round. The snapshot is a
past broadcast; a partial cohort receives it again, d_x more.

Deviations: y is projected (Euclidean) after every local step and after the server's, which may leave the simplex if
its step size is above 1; the public code clips and renormalizes instead.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import (
    Channel,
    Clients,
    Descent,
    Increment,
    Meta,
    ServerUpdate,
    positive,
    register,
    step_size,
)


@register
@dataclass(frozen=True, kw_only=True)
class FedSGDAPlus(Descent, ServerUpdate):
    """Local descent in x, ascent in y at a snapshot of x, then a server step along the mean increments.

    Attributes
    ----------
    lr_x, lr_y : float
        Local step sizes.
    snapshot_rounds : int
        Rounds between snapshots of the server's x.
    server_lr_y : float or None
        Step size of the server for y; None: `server_lr`.
    """

    meta: ClassVar = Meta(
        "fedsgda_plus", "minimax", ("minimax",), "Wu et al. 2023",
        "https://github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-Optimization",
        epochs=False,
    )  # fmt: skip

    local_steps: int | None = 10
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.01)
    server_lr: float = 1.5
    server_lr_y: float | None = positive(None)
    snapshot_rounds: int = positive(5)

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, and the snapshot ``(..., P)``."""

        x: Tensor
        y: Tensor
        xs: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point, which is the first snapshot."""
        return self.server_init(self.State(start["x"], start["y"], start["x"]), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps with ascent gradients at the snapshot, then the server's step."""
        snapshot = state.x if clients.round % self.snapshot_rounds == 0 else state.xs
        x, y = x_t, y_t = channel.down(state.x, state.y)
        xs = channel.rebroadcast(snapshot)
        m = None
        for batch in clients.batches(self):
            gx, gy = clients.grad_x(x, y, batch), clients.grad_y(xs, y, batch)
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        steps = clients.most_steps(self)
        dx, dy = channel.mean(
            Increment(x, of=x_t, scale=steps * self.lr_x),
            Increment(y, of=y_t, scale=steps * self.lr_y),
            weighting="uniform",
        )
        new = self.server_step(state, x=dx, y=dy)
        return new._replace(y=clients.project(new.y), xs=snapshot)
