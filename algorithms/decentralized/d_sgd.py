"""D-SGD: local SGD, then one exchange with the neighbors in place of the server's average.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study
for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017, Algorithm 1 (D-PSGD).
https://arxiv.org/abs/1705.09056

===================  =========================================================
paper                here
===================  =========================================================
x_{k,i}              ``state.x``, one row per node
gamma                ``lr``
W                    the mixing matrix of the topology
-                    ``local_steps``, ``local_epochs``; one step is the paper's
===================  =========================================================

Travels: along every directed edge x, P scalars per round. The start of a round is a function of earlier messages,
so only the increment releases anything.

Deviations: nodes step first and mix then; the paper mixes the old points and adds the step, which would leave each
node with a step that no message contains. Several local steps are allowed. Nodes count equally, whatever their
sample counts, as W is doubly stochastic.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class DSGD(Descent):
    """Local SGD, then gossip.

    Attributes
    ----------
    lr : float
        Step size.
    """

    meta: ClassVar = Meta(
        "d_sgd", "decentralized", ("erm",), "Lian et al. 2017", "https://arxiv.org/abs/1705.09056",
        gossip=True,
    )  # fmt: skip

    lr: float = step_size(0.1)

    class State(NamedTuple):
        """One row per node, ``(..., total, P)``."""

        x: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point."""
        return self.State(clients.rows(start["x"]))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps, then exchange."""
        x = self.descend(state.x, clients.batches(self), clients.grad, lr=self.lr)
        return self.State(*channel.mix(Increment(x, of=state.x), onto=(state.x,)).mixed)
