"""BEER: gradient tracking in which only compressed changes travel.

Zhao, Li, Li, Richtarik, Chi: "BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization with Communication
Compression", NeurIPS 2022, Algorithm 1; one iteration is one round.
https://arxiv.org/abs/2201.13320

=======================  =========================================================
paper                    here
=======================  =========================================================
x_i, v_i                 ``state.x``, ``state.v``: points and trackers, one row per node
h_i, g_i                 ``state.known_x``, ``state.known_v``: what the neighbors know
gradient of f_i          ``state.g``, as released
eta, gamma, b            ``lr``, ``gamma``, ``batch_size``
C                        the run's compression: a code, top-k, random-k
=======================  =========================================================

Travels: along every directed edge two compressed differences, of x and of v to what is known of them; 2 P scalars
per round before compression. x is a function of earlier messages, so only the gradient releases anything.

Deviations: written from the authors' code. Known points begin at the common start instead of zero, and the first
trackers are exchanged at once. A round releases the gradient itself, and trackers follow the changes of what was
released, as in `dm_hsgd`. With ``grad_clip``, or noise on clipped gradients of records, this is PORTER (Li, Chi,
arXiv:2305.09896) with a hard clip in place of its smooth one.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, at_most_one, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class BEER(Descent):
    """A gradient at every node, one exchange of points and of trackers, then a step along the trackers.

    Attributes
    ----------
    lr : float
        Step size.
    gamma : float
        Step size of the gossip, in (0, 1]; smaller if much is left out.
    """

    meta: ClassVar = Meta(
        "beer", "decentralized", ("erm",), "Zhao et al. 2022", "https://arxiv.org/abs/2201.13320",
        gossip=True, epochs=False, steps=1,
    )  # fmt: skip

    local_steps: int | None = 1
    lr: float = step_size(0.1)
    gamma: float = at_most_one(0.5)

    class State(NamedTuple):
        """One row per node, ``(..., total, P)``; x has made its step and v has been mixed."""

        x: Tensor
        v: Tensor
        g: Tensor
        known_x: Tensor
        known_v: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start all nodes from one point, which all know, with empty trackers."""
        x = clients.rows(start["x"])
        none = torch.zeros_like(x)
        return self.State(x, none, none, x, none)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Exchange points; track the change of the gradient there and exchange trackers; step."""
        x, v = state.x, state.v
        (batch,) = clients.batches(self)
        g, _ = self.direction(x, clients.grad(x, batch), batch)
        points = channel.mix_changes(rebroadcast=[x], memory=[state.known_x])
        (mixed_x,), (known_x,) = points.rebroadcast, points.received
        (g,), (mixed_v,), _, (known_v,) = channel.mix_changes(g, onto=[v - state.g], memory=[state.known_v])
        v = v - state.g + g
        x = x + self.gamma * (mixed_x - x) - self.lr * v
        return self.State(x, v + self.gamma * (mixed_v - v), g, known_x, known_v)
