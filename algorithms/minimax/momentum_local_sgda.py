"""Momentum Local SGDA: local descent ascent along running averages of gradients.

Sharma, Panda, Joshi, Varshney: "Federated Minimax Optimization: Improved Convergence Analyses and Algorithms",
ICML 2022, Algorithm 2.

=====================  =========================================================
paper                  here
=====================  =========================================================
x, y                   ``state.x``, ``state.y``
d_x, d_y               ``state.dx``, ``state.dy``: the directions
d_{x,0}^i, d_{y,0}^i   ``state.dxi``, ``state.dyi``: a client's own first ones
alpha_t                ``a``
beta_x, beta_y         ``b_x``, ``b_y``
eta_x, eta_y           ``lr_x``, ``lr_y``
tau                    ``local_steps``
=====================  =========================================================

Travels: (x, y, d_x, d_y) down and up (points as increments); 4 (d_x + d_y) scalars a client and round.

Deviations: alpha, beta and the step sizes do not change over time. y is projected after every step and after the
average. The first directions stay with their clients; who joins later starts from the averages.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Algorithm, Channel, Clients, Meta, UserError, positive, register


@register
@dataclass(frozen=True, kw_only=True)
class MomentumLocalSGDA(Algorithm):
    """Step along directions that take in a fresh gradient after every step; average points and directions.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    a : float
        Factor of the step sizes and of the fresh gradients' weights, in (0, 1].
    b_x, b_y : float
        Weight of a fresh gradient in the direction, ``a * b``, in (0, 1]; 1 is without memory.
    recompute_after_sync : bool
        Take the gradient between two rounds at the averaged point, and not at the client's own point before the
        average. Without memory the method is then Local SGDA.
    """

    meta: ClassVar = Meta("momentum_local_sgda", "minimax", ("minimax",), "Sharma et al. 2022", epochs=False)

    local_steps: int | None = 10
    lr_x: float = 0.01
    lr_y: float = 0.01
    a: float = 1.0
    b_x: float = 0.1
    b_y: float = 0.1
    recompute_after_sync: bool = False

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``; the clients' first directions."""

        x: Tensor
        y: Tensor
        dx: Tensor
        dy: Tensor
        dxi: Tensor
        dyi: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr_x", "lr_y", "a", "b_x", "b_y")
        if max(self.a, self.a * self.b_x, self.a * self.b_y) > 1:
            raise UserError(
                "algorithm momentum_local_sgda: a, a * b_x and a * b_y are in (0, 1], "
                f"given {self.a}, {self.a * self.b_x}, {self.a * self.b_y}"
            )

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point; every client takes its own first gradient there."""
        x, y = start["x"], start["y"]
        (batch,) = clients.batches(self, steps=1, stream="init")
        dxi, dyi = clients.grads(clients.rows(x), clients.rows(y), batch)
        return self.State(x, y, torch.zeros_like(x), torch.zeros_like(y), dxi, dyi)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Local steps along the directions, then the means of points and directions."""
        x, y, dx, dy = sent = channel.down(state.x, state.y, state.dx, state.dy)
        if clients.round == 0:
            dx, dy = clients.take(state.dxi), clients.take(state.dyi)
        step_x, step_y = self.a * self.lr_x, self.a * self.lr_y
        fresh_x, fresh_y = self.a * self.b_x, self.a * self.b_y
        batches = clients.batches(self)
        for batch in batches:
            if not self.recompute_after_sync:
                x, y = x - step_x * dx, clients.project(y + step_y * dy)
            gx, gy = clients.grads(x, y, batch)
            dx, dy = (1 - fresh_x) * dx + fresh_x * gx, (1 - fresh_y) * dy + fresh_y * gy
            if self.recompute_after_sync:
                x, y = x - step_x * dx, clients.project(y + step_y * dy)
        reach = len(batches) * step_x, len(batches) * step_y, 1.0, 1.0
        moved = channel.mean(x, y, dx, dy, base=sent, scale=reach, weighting="uniform")
        x, y, dx, dy = (old + step for old, step in zip(state[:4], moved, strict=True))
        return self.State(x, clients.project(y), dx, dy, state.dxi, state.dyi)
