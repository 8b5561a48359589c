"""Decentralized local SGDA: local descent ascent, then one exchange with the neighbors; no correction.

The baseline that gradient tracking is measured against: Deng, Mahdavi: "Local Stochastic Gradient Descent Ascent:
Convergence Analysis and Communication Efficiency", AISTATS 2021, Algorithm 1, with a mixing matrix in place of the
server's average.
https://arxiv.org/abs/2102.13152

===================  =========================================================
paper                here
===================  =========================================================
x_i, y_i             ``state.x``, ``state.y``, one row a node
eta_x, eta_y         ``lr_x``, ``lr_y``
tau                  ``local_steps``
===================  =========================================================

Travels: along every directed edge (x, y), d_x + d_y scalars a round. Where a round began is a function of what was
sent before, so only the way from there releases anything.

Deviations: none of the mixing is printed anywhere. y is projected after every step and after mixing, as noise may
leave the feasible set. With several steps and unlike nodes it does not stop at the saddle; with one step it does
on a complete graph only.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, positive, register


@register
@dataclass(frozen=True, kw_only=True)
class DecentralizedLocalSGDA(Descent):
    """Local descent in x and ascend in y, both from the same point, and gossip of where that led.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    """

    meta: ClassVar = Meta(
        "decentralized_local_sgda",
        "decentralized",
        ("minimax",),
        "after Deng, Mahdavi 2021",
        "https://arxiv.org/abs/2102.13152",
        gossip=True,
        epochs=False,
    )

    local_steps: int | None = 10
    lr_x: float = 0.01
    lr_y: float = 0.01

    class State(NamedTuple):
        """One row a node, ``(..., total, P)`` and ``(..., total, Q)``."""

        x: Tensor
        y: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr_x", "lr_y")

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point."""
        return self.State(clients.rows(start["x"]), clients.rows(start["y"]))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Simultaneous local steps, then the exchange."""
        x, y = state
        batches = clients.batches(self)
        m = None
        for batch in batches:
            gx, gy = clients.grads(x, y, batch)
            (x, y), m = self.step((x, y), (gx, gy), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        reach = len(batches) * self.lr_x, len(batches) * self.lr_y
        _, (x, y), _ = channel.mix(x, y, base=tuple(state), onto=tuple(state), scale=reach)
        return self.State(x, clients.project(y))

    def model(self, state: State) -> Tensor:
        """Return the average of the nodes, ``(..., P)``."""
        return state.x.mean(-2)
