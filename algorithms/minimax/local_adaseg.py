"""LocalAdaSEG: local extragradient steps whose size each client adapts by itself, as AdaGrad does.

Liao, Shen, Duan, Kolar, Tao: "Local AdaGrad-Type Algorithm for Stochastic Convex-Concave Optimization", 2021,
Algorithm 1.
https://arxiv.org/abs/2106.10022

=======================  =========================================================
paper                    here
=======================  =========================================================
z~*                      (x, y) before a step; ``state.x``, ``state.y`` in a round's first
z_t, z~_t                ``ahead``; (x, y) after the step
M_t, g_t                 gradients at z~* and at z_t, on independent batches
D alpha / G_0            ``lr``, the first step size
G_0                      ``g0``
sum of Z_t^2 / G_0^2     ``state.moved``, a number of each client
(1 / eta_t) D alpha/G_0  ``weight``, at least 1
K                        ``local_steps``
=======================  =========================================================

Travels: (x, y) down, the weight and the increments times the weight up; 2 (d_x + d_y) + 1 scalars per client and
round.

Deviations: written from general knowledge of the paper. The model is the last average; the paper's output is the
mean of all z_t. Clients that are absent keep their step size.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, ServerUpdate, positive, register, step_size
from harness.core.public import Public


@register
@dataclass(frozen=True, kw_only=True)
class LocalAdaSEG(ServerUpdate):
    """Extragradient steps that shrink with the distance moved, averaged with weights inverse to the step sizes.

    Attributes
    ----------
    lr : float
        First step size, of both variables; the diameter of the feasible set over ``g0`` in theory.
    g0 : float
        Guess of the gradients' norm. Steps shrink as the squared norms seen add up to more than its square.
    """

    meta: ClassVar = Meta(
        "local_adaseg", "minimax", ("minimax",), "Liao et al. 2021", "https://arxiv.org/abs/2106.10022",
        epochs=False,
    )  # fmt: skip

    local_steps: int | None = 10
    lr: float = step_size(0.1)
    g0: float = positive(1.0)

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, and what each client has moved, ``(..., total, 1)``."""

        x: Tensor
        y: Tensor
        moved: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point and with the largest steps."""
        x, y = start["x"], start["y"]
        return self.server_init(self.State(x, y, clients.rows(torch.zeros_like(x[..., :1]))), "x", "y")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local extragradient steps, then move along their weighted mean."""
        x, y = x_t, y_t = channel.down(state.x, state.y)
        moved = clients.take(state.moved)

        def step(x: Tensor, y: Tensor, lr: Tensor, gradients: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            gx, gy = gradients
            return clients.project_x(x - lr * gx), clients.project(y + lr * gy)

        for look, batch in zip(clients.batches(self, stream="look"), clients.batches(self), strict=True):
            lr = self.lr / (1 + moved).sqrt()
            ahead = step(x, y, lr, clients.grads(x, y, look))
            after = step(x, y, lr, clients.grads(*ahead, batch))
            lengths = [
                (one - there).square().sum(-1, keepdim=True)
                for before, there, end in zip((x, y), ahead, after, strict=True)
                for one in (before, end)
            ]
            moved = moved + sum(lengths) / (5 * (lr * self.g0) ** 2)
            x, y = after
        weight = (1 + moved).sqrt()
        reach = clients.most_steps(self) * self.lr
        seen = (self.local_steps or 1) * (clients.round + 1)
        dx, dy, excess = channel.mean(
            Increment(weight * (x - x_t), scale=reach),
            Increment(weight * (y - y_t), scale=reach),
            Increment(weight - 1, scale=Public(math.sqrt(1 + seen))),
            weighting="uniform",
            stateless=True,
        )
        mean = 1 + excess.clamp(min=0)  # noise may take it below what it is at least
        new = self.server_step(state, x=dx / mean, y=dy / mean)
        x, y = clients.project_x(new.x), clients.project(new.y)
        return new._replace(x=x, y=y, moved=clients.put(state.moved, moved))
