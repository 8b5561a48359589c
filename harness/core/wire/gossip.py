"""Gossip: how rows spread over a graph, hop by hop. What protects them and what a hop costs is the channel's.

A hop is ``z + (W - I) z'``, with ``z'`` what the neighbors hear of z. Where a code changes nothing that is ``W z``.
Where it does, every node compares what it hears with what it has *said*, and keeps its own rounding error: the
differences cancel over the graph, so the mean of z is preserved exactly, whatever the code. A tracker needs that;
with its own clean share in place of what it said, the errors would add up from round to round.

Several hops are FastMix (Liu, Morse 2011), ``z_{k+1} = (1 + e) W z_k - e z_{k-1}`` from
``z_{-1} = z_0``: in the long run a hop shrinks the distance to the mean by ``lambda / (1 + sqrt(1 - lambda^2))``
in place of ``lambda``. The result is no convex combination of the rows: a constrained row must be projected again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from datasets.topology import spectral_gap
from harness.core.wire.message import combined

_MOMENTA: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a mixing matrix -> its momentum


def neighbors(mixing: Tensor) -> Tensor:
    """Return to how many others each node sends, ``(..., total)``."""
    return (mixing != 0).sum(-1) - (mixing.diagonal(dim1=-2, dim2=-1) != 0).long()


def momentum(mixing: Tensor) -> Tensor:
    """Return FastMix's ``e = (1 - sqrt(1 - lambda^2)) / (1 + sqrt(1 - lambda^2))``, ``(..., 1, 1)``.

    Computed once a matrix ``(..., total, total)``; lambda is its second largest absolute eigenvalue.
    """
    if mixing not in _MOMENTA:
        gaps = [spectral_gap(one.cpu()) for one in mixing.reshape(-1, *mixing.shape[-2:])]
        root = torch.tensor([gap.p for gap in gaps], dtype=torch.float64).sqrt()
        _MOMENTA[mixing] = ((1 - root) / (1 + root)).view(*mixing.shape[:-2], 1, 1).to(mixing.device)
    found: Tensor = _MOMENTA[mixing]
    return found


def spread(
    parts: Sequence[Tensor],
    heard: Sequence[Tensor],
    mixing: Tensor,
    hops: int,
    tell: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> list[Tensor]:
    """Mix rows over the graph.

    Parameters
    ----------
    parts : sequence of Tensor
        What the nodes hold, ``(..., total, P)`` each.
    heard : sequence of Tensor
        What the neighbors hear of it in the first hop.
    mixing : Tensor
        Mixing matrix ``(..., total, total)``.
    hops : int
        1: plain mixing. More: FastMix.
    tell : Callable
        Sends parts along the edges in every later hop; returns what is heard of them.

    Returns
    -------
    list of Tensor
        The parts after the last hop.
    """
    weights = mixing.to(parts[0].dtype)
    e = momentum(mixing).to(weights) if hops > 1 else 0.0
    before, now = list(parts), list(parts)
    for hop in range(hops):
        heard = tell(now) if hop else heard
        mixed = [combined(weights, said) + (own - said) for own, said in zip(now, heard, strict=True)]
        before, now = now, [(1 + e) * new - e * old for new, old in zip(mixed, before, strict=True)]
    return now
