"""K-GT-Minimax: gradient tracking with local steps on a graph.

"Fast decentralized gradient tracking for federated learning with local updates: from mini to minimax
optimization", Algorithm 1.
https://arxiv.org/abs/2405.04566

=======================  =========================================================
paper                    here
=======================  =========================================================
x_i, y_i                 ``state.x``, ``state.y``, one row per node
c_i^x, c_i^y             ``state.cx``, ``state.cy``: corrections, mean zero
eta_c^x, eta_c^y         ``lr_x``, ``lr_y``
eta_s^x, eta_s^y         ``server_lr`` (one value for both)
K                        ``local_steps`` (with momentum, their `reach`)
L, kappa, v              ``smoothness``, ``condition``, ``v``: given, they decide the step sizes (Theorem 1)
p                        ``channel.gap``
Delta^x, Delta^y         ``dx``, ``dy``
=======================  =========================================================

Travels: along every directed edge (x, y, dx, dy), 2 (d_x + d_y) scalars per round; x and y are functions of earlier
messages, so only (dx, dy) releases anything. Once, before the first round, (d_x + d_y) up and down for the mean
gradient, unless ``zero_init``.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: the correction of y has a minus (the printed box omits that line; with a plus the method diverges). The
initial correction of x uses the mean of the x gradients (Lemma 9). With a constrained y, dy is the sum of the
unprojected steps, so the tracking identity holds, and y is projected after mixing. Corrections use the messages as
*sent*, so they keep mean zero under noise and compression.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, Release, UserError, positive, register
from harness.core.methods.descent_ascent import TwoVariables
from harness.core.steps import reach


@register
@dataclass(frozen=True, kw_only=True)
class KGTMinimax(TwoVariables, Descent, Release):
    """Corrected local descent ascent, followed by one exchange with the neighbors.

    Attributes
    ----------
    lr_x, lr_y : float
        Local step sizes.
    server_lr : float
        Step size of the communication; 1 on a complete graph, smaller on sparse ones.
    zero_init : bool
        Start with zero corrections instead of exchanging one gradient first.
    smoothness, condition : float or None
        L of the loss and kappa, L over its strong concavity in y. Given both, Theorem 1 decides the step sizes in
        place of the settings above: ``lr_y = p / (300 v kappa K L)``, ``lr_x = lr_y / kappa^2`` and
        ``server_lr = v p``.
    v : float
        The constant that Theorem 1 leaves open.
    """

    meta: ClassVar = Meta(
        "k_gt_minimax", "decentralized", ("minimax",), "K-GT-Minimax", "https://arxiv.org/abs/2405.04566",
        version=2, gossip=True, epochs=False,
    )  # fmt: skip

    server_lr: float = positive(0.5)
    zero_init: bool = False
    smoothness: float | None = positive(None)
    condition: float | None = positive(None)
    v: float = positive(1.0)

    class State(NamedTuple):
        """Variables and corrections, one row per node, ``(..., total, P)`` or ``(..., total, Q)``."""

        x: Tensor
        y: Tensor
        cx: Tensor
        cy: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.smoothness is None) != (self.condition is None):
            raise UserError("algorithm k_gt_minimax: Theorem 1 needs both smoothness and condition")

    def rates(self, channel: Channel) -> tuple[Any, Any, Any]:
        """Return the step sizes of x, y and the communication, as given or by Theorem 1."""
        if self.smoothness is None or self.condition is None:
            return self.lr_x, self.lr_y, self.server_lr
        lr_y = channel.gap / (300 * self.v * self.condition * (self.local_steps or 1) * self.smoothness)
        return lr_y / self.condition**2, lr_y, channel.gap * self.v

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point with corrections that make their gradients agree."""
        x, y = clients.rows(start["x"]), clients.rows(start["y"])
        if self.zero_init:
            return self.State(x, y, torch.zeros_like(x), torch.zeros_like(y))
        (batch,) = clients.batches(self, steps=1, stream="init")
        gx, gy = channel.gather(*clients.grads(x, y, batch))  # as sent, so the corrections have mean zero
        mx, my = channel.down(gx.mean(-2), gy.mean(-2))
        return self.State(x, y, mx - gx, my - gy)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take K corrected local steps, exchange, and update the corrections."""
        x, y, cx, cy = state
        lr_x, lr_y, server_lr = self.rates(channel)
        dx, dy = torch.zeros_like(x), torch.zeros_like(y)
        steps, m = clients.most_steps(self), None
        for batch in clients.batches(self):
            at = x + dx, clients.project(y + dy)
            gx, gy = clients.grads(*at, batch)
            (gx, gy), m = self.direction(at, (gx, gy), batch, m, correction=(cx, cy), ascend=(False, True))
            dx, dy = dx - lr_x * gx, dy + lr_y * gy
        length = reach(int(steps.value), self.momentum)
        (dx, dy), (wdx, wdy), (wx, wy), _ = channel.mix(
            Increment(dx, scale=steps * lr_x), Increment(dy, scale=steps * lr_y), rebroadcast=(x, y)
        )
        cx = cx + (dx - wdx) / (length * lr_x)
        cy = cy - (dy - wdy) / (length * lr_y)
        return self.State(wx + server_lr * wdx, clients.project(wy + server_lr * wdy), cx, cy)
