"""K-GT: gradient tracking with local steps, for minimization.

Liu, Lin, Koloskova, Stich: "Decentralized Gradient Tracking with Local Steps", 2023, Algorithm 1.
https://arxiv.org/abs/2301.01313

=======================  =========================================================
paper                    here
=======================  =========================================================
x_i                      ``state.x``, one row per node
c_i                      ``state.c``: corrections, mean zero
eta_c, eta_s             ``lr``, ``server_lr``
K                        ``local_steps`` (with momentum, their `reach`)
- K eta_c z_i            ``dx``
=======================  =========================================================

Travels: along every directed edge (x, dx), 2 P scalars per round. x, and the part of dx that the
correction makes, are functions of earlier messages, so only the gradients in dx release anything. Once, before the
first round, P up and down for the mean gradient, unless ``zero_init``.

Deviations: written from general knowledge of the paper. Corrections use dx as *sent*, so they keep mean zero under
noise and compression.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, Release, positive, register, step_size
from harness.core.steps import reach


@register
@dataclass(frozen=True, kw_only=True)
class KGT(Descent, Release):
    """Corrected local SGD, followed by one exchange with the neighbors.

    Attributes
    ----------
    lr : float
        Local step size.
    server_lr : float
        Step size of the communication; 1 on a complete graph, smaller on sparse ones.
    zero_init : bool
        Start with zero corrections instead of exchanging one gradient first.
    """

    meta: ClassVar = Meta(
        "k_gt", "decentralized", ("erm",), "Liu et al. 2023", "https://arxiv.org/abs/2301.01313",
        gossip=True, epochs=False,
    )  # fmt: skip

    local_steps: int | None = 10
    lr: float = step_size(0.1)
    server_lr: float = positive(0.5)
    zero_init: bool = False

    class State(NamedTuple):
        """Model and correction, one row per node, ``(..., total, P)``."""

        x: Tensor
        c: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point with corrections that make their gradients agree."""
        x = clients.rows(start["x"])
        if self.zero_init:
            return self.State(x, torch.zeros_like(x))
        (batch,) = clients.batches(self, steps=1, stream="init")
        g = channel.gather(clients.grad(x, batch))  # as sent, so the corrections have mean zero
        return self.State(x, channel.down(g.mean(-2)) - g)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take K corrected local steps, exchange, and update the corrections."""
        x = self.descend(state.x, clients.batches(self), clients.grad, lr=self.lr, correction=state.c)
        steps = clients.most_steps(self)
        far = self.lr * reach(int(steps.value), self.momentum)
        (dx,), (mixed_dx,), (mixed_x,), _ = channel.mix(
            Increment(x, of=state.x, scale=steps * self.lr), rebroadcast=[state.x]
        )
        return self.State(mixed_x + self.server_lr * mixed_dx, state.c + (dx - mixed_dx) / far)
