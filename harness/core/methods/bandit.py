"""A bandit with very many arms, whose rewards may change with time: E-UCB.

An agent's arms are the cells of a grid. Neighboring cells form regions, at first a single one, and a region is
split where an arm of it was drawn, so that regions become small where rewards are high. All is written for several
agents at once, one row each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Agents(NamedTuple):
    """Memory of bandit agents, ``(A, G)`` each.

    Attributes
    ----------
    pulls, gains : Tensor
        Discounted numbers of pulls of each cell, and sums of its rewards in [0, 1].
    edges : Tensor
        1 where a region begins, also at the first cell.
    """

    pulls: Tensor
    gains: Tensor
    edges: Tensor


def choose(agents: Agents, draw: Tensor) -> Tensor:
    """Draw an arm from the region with the largest upper confidence bound.

    The bound is the mean reward plus ``sqrt(2 ln n / N)`` with N pulls of the region out of n (discounted UCB of
    Garivier and Moulines); regions that have never been tried come first.

    Parameters
    ----------
    agents : Agents
        With a row for each agent.
    draw : Tensor
        Numbers in [0, 1), ``(A,)``.

    Returns
    -------
    Tensor
        The cells, int64, ``(A,)``.
    """
    pulls, gains, edges = agents
    region = edges.long().cumsum(-1) - 1
    zeros = torch.zeros_like(pulls)
    size, count, gain = (
        zeros.scatter_add(-1, region, numbers) for numbers in (torch.ones_like(pulls), pulls, gains)
    )
    width = (2 * pulls.sum(-1, keepdim=True).clamp(min=1).log() / count).sqrt()
    bound = torch.where(count > 0, gain / count + width, torch.inf).masked_fill(size == 0, -torch.inf)
    best = bound.argmax(-1, keepdim=True)
    first, size = (region < best).sum(-1), size.gather(-1, best).squeeze(-1).long()
    return first + torch.minimum((draw * size).long(), size - 1)


def learn(agents: Agents, arms: Tensor, rewards: Tensor, discount: float) -> Agents:
    """Note the rewards of drawn arms, and split their regions there.

    Parameters
    ----------
    agents : Agents
        With a row for each agent.
    arms, rewards : Tensor
        The cells and their rewards in [0, 1], ``(A,)`` each.
    discount : float
        Weight of what happened a step earlier, in (0, 1].
    """
    pulls, gains, edges = agents
    here = torch.nn.functional.one_hot(arms, pulls.shape[-1]).to(pulls)
    # A region that begins at the arm is split behind it.
    at = (arms + (edges * here).sum(-1).long()).clamp(max=pulls.shape[-1] - 1)
    split = torch.nn.functional.one_hot(at, pulls.shape[-1]).to(edges)
    gains = discount * gains + here * rewards.unsqueeze(-1)
    return Agents(discount * pulls + here, gains, torch.maximum(edges, split))
