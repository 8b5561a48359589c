"""Gossip: mix rows over a graph, hop by hop. Protection and cost of the hops are the channel's.

A hop is ``z + (W - I) z'``, where ``z'`` is the decoded message of z; with a lossless code it is ``W z``. Every
node compares the messages it receives with the message it *sent* and keeps its own coding error, so the errors
cancel over the graph and the mean of z is preserved exactly. A tracker needs this: with its exact value instead of
its message, the errors would accumulate from round to round. Where factors travel (`harness.core.wire.edges`), a
hop keeps the mean edge by edge.

Several hops are FastMix (Liu, Morse 2011), ``z_{k+1} = (1 + e) W z_k - e z_{k-1}`` from ``z_{-1} = z_0``: each hop
shrinks the distance to the mean asymptotically by ``lambda / (1 + sqrt(1 - lambda^2))`` instead of ``lambda``. The
result is not a convex combination of the rows, so constrained rows must be projected again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from datasets.topology import spectral_gap
from harness.core.clients.cohort import Cohort
from harness.core.errors import Incompatible
from harness.core.execution.exact.sums import combined
from harness.core.settings.compression import Compression
from harness.core.wire.dp_client import Mechanism


class Exchange(NamedTuple):
    """The rows that a node has after an exchange with its neighbors.

    Attributes
    ----------
    sent : tuple of Tensor
        The message of each client after protection, without what it was added onto; after coding, too, unless it is
        coded as a part of something else. A tracker must use this version of its own share.
    mixed, rebroadcast : tuple of Tensor
        The mixtures of the messages and of the rows that were sent again.
    received : tuple of Tensor
        All these rows as the neighbors know them after the first hop; empty if they know differences only.
    """

    sent: tuple[Tensor, ...]
    mixed: tuple[Tensor, ...]
    rebroadcast: tuple[Tensor, ...]
    received: tuple[Tensor, ...]


def checked(
    mixing: Tensor | None,
    clients: Cohort,
    mechanism: Mechanism | None,
    compression: Compression,
    *,
    neighbors_know: bool,
) -> Tensor:
    """Return the mixing matrix, or refuse settings that do not fit gossip; ``neighbors_know``: they know rows."""
    if mixing is None:
        raise ValueError(
            "this run has no topology; an algorithm that uses mix declares Meta(..., gossip=True)"
        )
    if clients.pruned is not None and clients.pruned.which is not None:
        raise Incompatible("compression.alpha: gossip needs one model size for all clients")
    if mechanism is not None and mechanism.privacy.server_clip is not None:
        raise Incompatible("privacy.server_clip: gossip has no server")
    if compression.downlink:
        raise Incompatible("compression.downlink: gossip has no server")
    if compression.rank is not None and compression.remembers:
        raise Incompatible(
            "compression: rank in gossip supports neither error_feedback nor shift: what factors leave out of a "
            "difference between neighbors, or between a row and its estimate, is in the next difference anyway"
        )
    if neighbors_know and compression.error_feedback:
        raise Incompatible(
            "compression.error_feedback: the algorithm adds its messages to rows that neighbors already know, "
            "and the residual of such a sum must not be added to the next one"
        )
    if neighbors_know and compression.shift is not None:
        raise Incompatible(
            "compression.shift: the algorithm already adds its messages to rows that neighbors know"
        )
    return mixing


def neighbors(mixing: Tensor) -> Tensor:
    """Return the number of neighbors of each node, ``(..., total)``."""
    return (mixing != 0).sum(-1) - (mixing.diagonal(dim1=-2, dim2=-1) != 0).long()


def gaps(mixing: Tensor) -> list[float]:
    """Return ``p = 1 - lambda^2`` of every matrix in ``(..., total, total)``.

    Lambda is the second largest absolute eigenvalue of a matrix.
    """
    matrices = mixing.reshape(-1, *mixing.shape[-2:]).double().cpu().numpy()
    return [_gap(matrix.tobytes(), len(matrix)) for matrix in matrices]


@lru_cache(maxsize=64)  # a run asks in every round
def _gap(matrix: bytes, total: int) -> float:
    return spectral_gap(torch.frombuffer(bytearray(matrix), dtype=torch.float64).view(total, total)).p


def momentum(mixing: Tensor) -> Tensor:
    """Return FastMix's ``e = (1 - sqrt(1 - lambda^2)) / (1 + sqrt(1 - lambda^2))``, ``(..., 1, 1)``."""
    root = torch.tensor(gaps(mixing), dtype=torch.float64).sqrt()
    return ((1 - root) / (1 + root)).view(*mixing.shape[:-2], 1, 1).to(mixing.device)


def mixed(rows: Sequence[Tensor], received: Sequence[Tensor], mixing: Tensor) -> list[Tensor]:
    """Return ``z + (W - I) z'`` of all rows z ``(..., total, P)``, received as z'."""
    weights = mixing.to(rows[0].dtype)
    return [combined(weights, sent) + (row - sent) for row, sent in zip(rows, received, strict=True)]


def spread(
    parts: Sequence[Tensor],
    mixing: Tensor,
    hops: int,
    hop: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    first: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Mix rows over the graph.

    Parameters
    ----------
    parts : sequence of Tensor
        Rows of the nodes, ``(..., total, P)`` each.
    mixing : Tensor
        Mixing matrix ``(..., total, total)``.
    hops : int
        1: plain mixing. More: FastMix.
    hop : Callable
        Sends rows along the edges and returns what they become, ``W z`` or what is known of it.
    first : sequence of Tensor, optional
        What the first hop has made of the rows, if it has taken place.

    Returns
    -------
    list of Tensor
        The parts after the last hop.
    """
    e = momentum(mixing).to(parts[0]) if hops > 1 else 0.0
    before, now = list(parts), list(parts)
    for number in range(hops):
        after = first if first is not None and number == 0 else hop(now)
        pairs = zip(after, before, strict=True)
        before, now = now, [(1 + e) * new - e * old for new, old in pairs]
    return now
