"""FCFL: consistent performance within a budget of disparity, then a Pareto step.

Cui, Pan, Liang, Zhang, Wang: "Addressing Algorithmic Disparity and Performance Inconsistency in Federated
Learning", NeurIPS 2021, Algorithm 1.
https://arxiv.org/abs/2108.08435

=========================  ==================================================================
paper                      here
=========================  ==================================================================
w                          ``state.x``
l_i, g_i                   ``loss``, ``gap`` of the clients
epsilon                    ``budget``
delta_l, delta_g           ``state.width_loss``, ``state.width_gap`` of the smooth maxima
hat l, hat g (gradients)   ``worst``, ``unfair``
=========================  ==================================================================

Travels: x down; loss, gap and their gradients up; 3 P + 2 scalars a client and round.

Deviations: the disparity is the equal-opportunity gap with sigmoid(10 logit) for decisions, as in the public code,
and between more than two groups the largest minus the smallest rate. Gradients are of one batch. Widths shrink by
0.01 where 0.1 |gradient| has come below them, as in the public code. Where the program of the second stage has no
solution but 0, the step is the shortest combination of the gradients.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Meta, ServerUpdate, not_negative, positive, register
from harness.core.methods.fairness import soft_gap
from harness.core.methods.multi_objective import best_of_two, common_descent, smooth_maximum


@register
@dataclass(frozen=True, kw_only=True)
class FCFL(ServerUpdate):
    """Lower the worst client's loss while no client's gap exceeds the budget, then everybody's loss together.

    Attributes
    ----------
    lr : float
        Step size.
    budget : float
        Largest gap of a client.
    minmax_rounds : int
        Rounds of the first stage.
    slope : float
        Steepness of the sigmoid in the gap.
    width : float
        At the start, of both smooth maxima.
    weight_decay : float
        What pulls the model to 0.
    """

    meta: ClassVar = Meta(
        "fcfl",
        "fairness",
        ("erm",),
        "Cui et al. 2021",
        "https://arxiv.org/abs/2108.08435",
        epochs=False,
        steps=1,
        groups=True,
    )

    local_steps: int | None = 1
    lr: float = 0.1
    budget: float = 0.05
    minmax_rounds: int = 800
    slope: float = 10.0
    width: float = 0.5
    weight_decay: float = 1e-4

    class State(NamedTuple):
        """The global model ``(..., P)``, the widths of the smooth maxima ``(..., 1)``."""

        x: Tensor
        width_loss: Tensor
        width_gap: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr", "slope", "width")
        not_negative(self, "budget", "minmax_rounds", "weight_decay")

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and wide maxima."""
        width = torch.full_like(start["x"][..., :1], self.width)
        return self.server_init(self.State(start["x"], width, width), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Everybody's losses, gaps and gradients, and a step of the server's choice."""
        x_t = channel.down(state.x)
        (batch,) = clients.batches(self)
        disparity = partial(soft_gap, groups=clients.groups, slope=self.slope)
        losses, gaps, by_loss, by_gap = channel.gather(
            clients.each(clients.problem.loss, x_t, batch).unsqueeze(-1),
            clients.each(disparity(clients.problem), x_t, batch).unsqueeze(-1),
            clients.grad(x_t, batch),
            clients.gradient(disparity, x_t, batch=batch),
            stateless=True,
        )
        unfair = smooth_maximum(gaps.squeeze(-1), by_gap, state.width_gap)
        over = gaps.amax(-2) > self.budget  # (..., 1)
        if clients.round >= self.minmax_rounds:
            usual = by_loss.mean(-2)
            every = torch.cat([by_loss, (unfair * over).unsqueeze(-2)], -2)
            return self._along(state, common_descent(every, usual))
        worst = smooth_maximum(losses.squeeze(-1), by_loss, state.width_loss)
        way = torch.where(
            over, best_of_two(worst, unfair, unfair, keep=worst), best_of_two(worst, unfair, worst)
        )
        return self._along(state, way)._replace(
            width_loss=_narrower(state.width_loss, worst), width_gap=_narrower(state.width_gap, unfair)
        )

    def _along(self, state: State, way: Tensor) -> State:
        return self.server_step(state, x=-self.lr * (way + self.weight_decay * state.x))


def _narrower(width: Tensor, gradient: Tensor) -> Tensor:
    """Return a smaller width where the smooth maximum has come close to its minimum."""
    close = 0.1 * torch.linalg.vector_norm(gradient, dim=-1, keepdim=True) <= width
    return torch.where(close & (width > 1e-4), 0.01 * width, width)
