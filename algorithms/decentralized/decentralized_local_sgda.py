"""Decentralized local SGDA: local descent ascent, then one exchange with the neighbors, without correction.

The baseline for gradient tracking: Deng, Mahdavi: "Local Stochastic Gradient Descent Ascent: Convergence Analysis
and Communication Efficiency", AISTATS 2021, Algorithm 1, with a mixing matrix in place of the server's average.
https://arxiv.org/abs/2102.13152

===================  =========================================================
paper                here
===================  =========================================================
x_i, y_i             ``state.x``, ``state.y``, one row per node
eta_x, eta_y         ``lr_x``, ``lr_y``
tau                  ``local_steps``
===================  =========================================================

Travels: along every directed edge (x, y), d_x + d_y scalars per round. The start of a round is a function of
earlier messages, so only the increments release anything.

Deviations: the mixing step is ours. y is projected after every step and after mixing, as noise may leave the
feasible set. With several local steps and heterogeneous nodes the method does not converge to the saddle point;
with one step it does on a complete graph only.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, register
from harness.core.methods.descent_ascent import TwoVariables


@register
@dataclass(frozen=True, kw_only=True)
class DecentralizedLocalSGDA(TwoVariables, Descent):
    """Simultaneous local descent in x and ascent in y, then gossip."""

    meta: ClassVar = Meta(
        "decentralized_local_sgda", "decentralized", ("minimax",), "after Deng, Mahdavi 2021", "https://arxiv.org/abs/2102.13152",
        gossip=True, epochs=False,
    )  # fmt: skip

    class State(NamedTuple):
        """One row per node, ``(..., total, P)`` and ``(..., total, Q)``."""

        x: Tensor
        y: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point."""
        return self.State(clients.rows(start["x"]), clients.rows(start["y"]))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take simultaneous local steps, then exchange."""
        x, y = state
        m = None
        for batch in clients.batches(self):
            (x, y), m = self.step((x, y), clients.grads(x, y, batch), batch, m, lr=(self.lr_x, -self.lr_y))
            y = clients.project(y)
        x, y = channel.mix(*self.increments(clients, (x, y), state), onto=state).mixed
        return self.State(x, clients.project(y))
