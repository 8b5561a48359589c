"""FCFL: consistent performance under a disparity budget, then Pareto steps.

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

Travels: x down; loss, gap and their gradients up; 3 P + 2 scalars per client and round.

Deviations: the disparity is the equal-opportunity gap with sigmoid(10 logit) as decision, as in the public code;
for more than two groups, the largest minus the smallest rate. Gradients use one batch. A width shrinks to 0.01 of
its value when 0.1 |gradient| falls below it, as in the public code. If the linear program of the second stage has
only the solution 0, the step is the shortest convex combination of the gradients.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Meta, ServerUpdate, not_negative, positive, register, step_size
from harness.core.methods.fairness import soft_gap
from harness.core.methods.multi_objective import best_of_two, common_descent, smooth_maximum


@register
@dataclass(frozen=True, kw_only=True)
class FCFL(ServerUpdate):
    """Descent on the worst client's loss while no client's gap exceeds the budget, then on all losses together.

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
        Initial width of both smooth maxima.
    weight_decay : float
        Factor of the model in the server's step.
    """

    meta: ClassVar = Meta(
        "fcfl", "fairness", ("erm",), "Cui et al. 2021", "https://arxiv.org/abs/2108.08435",
        epochs=False, steps=1, groups=True, classes=True, apart=("slope",)
    )  # fmt: skip

    local_steps: int | None = 1
    lr: float = step_size(0.1)
    budget: float = not_negative(0.05)
    minmax_rounds: int = not_negative(800)
    slope: float = positive(10.0)
    width: float = positive(0.5)
    weight_decay: float = not_negative(1e-4)

    class State(NamedTuple):
        """The global model ``(..., P)``, the widths of the smooth maxima ``(..., 1)``."""

        x: Tensor
        width_loss: Tensor
        width_gap: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model and the initial widths."""
        width = torch.full_like(start["x"][..., :1], self.width)
        return self.server_init(self.State(start["x"], width, width), "x")

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Gather losses, gaps and their gradients, then step along the server's choice."""
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
            every = torch.cat([by_loss, (unfair * over).unsqueeze(-2)], -2)
            return self._along(state, common_descent(every, by_loss.mean(-2)))
        worst = smooth_maximum(losses.squeeze(-1), by_loss, state.width_loss)
        fairer, better = best_of_two(worst, unfair, unfair, keep=worst), best_of_two(worst, unfair, worst)
        widths = _narrower(state.width_loss, worst), _narrower(state.width_gap, unfair)
        new = self._along(state, torch.where(over, fairer, better))
        return new._replace(width_loss=widths[0], width_gap=widths[1])

    def _along(self, state: State, direction: Tensor) -> State:
        return self.server_step(state, x=-self.lr * (direction + self.weight_decay * state.x))


def _narrower(width: Tensor, gradient: Tensor) -> Tensor:
    """Shrink a width where the smooth maximum is close to its minimum."""
    close = 0.1 * torch.linalg.vector_norm(gradient, dim=-1, keepdim=True) <= width
    return torch.where(close & (width > 1e-4), 0.01 * width, width)
