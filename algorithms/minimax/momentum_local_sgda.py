"""Momentum Local SGDA (MLSGDA): local descent ascent along moving averages of the gradients.

Sharma, Panda, Joshi, Varshney: "Federated Minimax Optimization: Improved Convergence Analyses and Algorithms",
ICML 2022, Algorithm 2.
https://arxiv.org/abs/2203.04850

===================  =========================================================
paper                here
===================  =========================================================
x, y                 ``state.x``, ``state.y``
d_x, d_y             ``state.dx``, ``state.dy``, the directions
eta_x, eta_y         ``lr_x``, ``lr_y``
alpha_t              ``a``
beta_x, beta_y       ``b_x``, ``b_y``: weight of the fresh gradient is b a
tau                  ``local_steps``
===================  =========================================================

Travels: (x, y, d_x, d_y) down and up (their increments); 4 (d_x + d_y) scalars per client and round. Once, before
the first round, d_x + d_y up for the first directions.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: written from general knowledge of the paper. The first directions are averaged before they are followed,
so that one step per round without momentum is plain descent ascent; this matters in the first round only. y is
projected after every step.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, Release, UserError, positive, register
from harness.core.methods.descent_ascent import TwoVariables


@register
@dataclass(frozen=True, kw_only=True)
class MomentumLocalSGDA(TwoVariables, Release):
    """Local steps along the directions, which move toward the gradients at each new point; all four are averaged.

    Attributes
    ----------
    a : float
        Scale of steps and of momentum, in (0, 1].
    b_x, b_y : float
        Weight of the fresh gradient in the directions, times ``a`` in (0, 1]; 1 is no momentum.
    recompute_after_sync : bool
        Update the directions before each step instead of after it, so that the first step after an average follows
        gradients at the averaged point.
    """

    meta: ClassVar = Meta(
        "momentum_local_sgda", "minimax", ("minimax",), "Sharma et al. 2022", "https://arxiv.org/abs/2203.04850",
        version=2, epochs=False,
    )  # fmt: skip

    a: float = positive(1.0)
    b_x: float = positive(0.5)
    b_y: float = positive(0.5)
    recompute_after_sync: bool = False

    class State(NamedTuple):
        """Server vectors: points and directions, ``(..., P)`` and ``(..., Q)``."""

        x: Tensor
        y: Tensor
        dx: Tensor
        dy: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a > 1 or self.a * max(self.b_x, self.b_y) > 1:
            given = f"a {self.a}, b_x {self.b_x}, b_y {self.b_y}"
            raise UserError(
                f"algorithm momentum_local_sgda: a, a b_x and a b_y must be in (0, 1], given {given}"
            )

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point with the mean gradients there as directions."""
        x, y = start["x"], start["y"]
        (batch,) = clients.batches(self, steps=1, stream="init")
        directions = clients.grads(clients.rows(x), clients.rows(y), batch)
        return self.State(x, y, *channel.mean(*directions, weighting="uniform"))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps and update the directions, then average points and directions."""
        x, y, dx, dy = x_t, y_t, dx_t, dy_t = channel.down(*state)
        lr_x, lr_y, wx, wy = self.a * self.lr_x, self.a * self.lr_y, self.a * self.b_x, self.a * self.b_y
        for batch in clients.batches(self):
            if not self.recompute_after_sync:
                x, y = x - lr_x * dx, clients.project(y + lr_y * dy)
            gx, gy = clients.grads(x, y, batch)
            dx, dy = dx + wx * (gx - dx), dy + wy * (gy - dy)
            if self.recompute_after_sync:
                x, y = x - lr_x * dx, clients.project(y + lr_y * dy)
        moved = channel.mean(
            *self.increments(clients, (x, y), (x_t, y_t), (lr_x, lr_y)),
            Increment(dx, of=dx_t),
            Increment(dy, of=dy_t),
            weighting="uniform",
        )
        x, y, dx, dy = (old + step for old, step in zip(state, moved, strict=True))
        return self.State(x, clients.project(y), dx, dy)
