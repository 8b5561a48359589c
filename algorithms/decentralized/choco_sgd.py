"""CHOCO-SGD: local SGD and gossip in which only compressed changes travel.

Koloskova, Stich, Jaggi: "Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication", ICML 2019, Algorithm 2.
https://arxiv.org/abs/1902.00340

=======================  =========================================================
paper                    here
=======================  =========================================================
x_i                      ``state.x``, one row per node
hat x_i                  ``state.known``: what the neighbors know of x_i
eta_t, gamma             ``lr``, ``gamma``
Q                        the run's compression: a code, top-k, random-k
=======================  =========================================================

Travels: along every directed edge the compressed difference of the model to its known estimate, P scalars per round
before compression. Start and estimate are functions of earlier messages, so only the local steps release anything.

Deviations: written from general knowledge and others' code. Estimates begin at the common start instead of zero.
Several local steps are allowed. A node goes on from its steps as released: they are clipped and noised once, before
compression, and no estimate has to catch up with that.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, at_most_one, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class ChocoSGD(Descent):
    """Local SGD, then gossip on what the neighbors know of each other's models.

    Attributes
    ----------
    lr : float
        Step size.
    gamma : float
        Step size of the gossip, in (0, 1]; 1 is right without compression, less if much is left out.
    """

    meta: ClassVar = Meta(
        "choco_sgd", "decentralized", ("erm",), "Koloskova et al. 2019", "https://arxiv.org/abs/1902.00340",
        gossip=True,
    )  # fmt: skip

    lr: float = step_size(0.1)
    gamma: float = at_most_one(0.5)

    class State(NamedTuple):
        """Models and what is known of them, one row per node, ``(..., total, P)``."""

        x: Tensor
        known: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point, which all know."""
        x = clients.rows(start["x"])
        return self.State(x, x)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take local steps, tell the neighbors what they do not know yet, and move towards them."""
        x = self.descend(state.x, clients.batches(self), clients.grad, lr=self.lr)
        (dx,), (mixed,), _, (known,) = channel.mix_changes(
            Increment(x, of=state.x), onto=[state.x], memory=[state.known]
        )
        x = state.x + dx
        return self.State(x + self.gamma * (mixed - x), known)
