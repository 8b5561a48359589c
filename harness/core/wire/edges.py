"""Gossip about the differences between neighbors, as factors of low rank.

PowerGossip (Vogels, Karimireddy, Jaggi 2020, https://arxiv.org/abs/2008.01425): the ends i and j of an edge share a
basis Q, and tell each other ``X_i Q`` and ``X_j Q``. So both know ``(X_j - X_i) Q = D``, and each goes its weight's
share of ``D Q^T`` towards the other. Then they do the same from the left, with the basis of D: ``X_i^T P`` and
``X_j^T P``. What they learn there is the basis of the next hop. These are two of the paper's iterations, which take
turns between left and right, so that every hop costs the same.

What one end adds the other takes away, whatever the code: the mean stays. No end needs a memory of the other, and
there is nothing to set but the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from compression.codec import Coded
from compression.low_rank import Factors
from harness.core.errors import Incompatible
from harness.core.execution.exact.sums import combined

BLOCK_ENTRIES = 2**24  # of the rows of edges that are computed at once


class Edges(NamedTuple):
    """The edges of a graph.

    Attributes
    ----------
    ends : Tensor
        Numbers of both ends, ``(2, E)``, the smaller first.
    shares : Tensor
        What a node adds of the difference along an edge, ``(total, E)``: the weight at its smaller end, minus the
        weight at the other.
    """

    ends: Tensor
    shares: Tensor

    @property
    def number(self) -> int:
        """Number of edges."""
        return self.ends.shape[-1]

    @classmethod
    def of(cls, mixing: Tensor) -> Edges:
        """Return the edges of a symmetric mixing matrix ``(total, total)``."""
        ends = mixing.triu(1).nonzero().T
        each = torch.arange(ends.shape[1], device=ends.device)
        shares = mixing.new_zeros(len(mixing), len(each))
        shares[ends[0], each], shares[ends[1], each] = mixing[ends[0], ends[1]], -mixing[ends[0], ends[1]]
        return cls(ends, shares)


class Hop(NamedTuple):
    """A hop of gossip.

    Attributes
    ----------
    rows : Tensor
        The rows after it, ``(total, n)``.
    start : Tensor
        Right factors of each edge for the next one, ``(E, k)``.
    sizes : Tensor
        Bytes that each node has sent, ``(total,)``.
    """

    rows: Tensor
    start: Tensor
    sizes: Tensor


def graphs(mixing: Tensor, runs: int) -> list[Edges]:
    """Return the edges of each run, from one matrix ``(total, total)`` or one of each run.

    Raises
    ------
    Incompatible
        If their numbers differ, since what runs remember of their edges is stacked.
    """
    each = [Edges.of(mixing)] * runs if mixing.ndim == 2 else [Edges.of(matrix) for matrix in mixing]
    if len({graph.number for graph in each}) > 1:
        raise Incompatible("compression.rank: stacked runs have different numbers of edges; run them apart")
    return each


def hop(rows: Tensor, edges: Edges, factors: Factors, start: Tensor, code: Callable[[Tensor], Coded]) -> Hop:
    """Move rows towards their neighbors' along what factors show of the differences.

    Parameters
    ----------
    rows : Tensor
        Rows of the nodes, ``(total, n)``.
    edges : Edges
        The graph.
    factors : Factors
        Layout of the rows.
    start : Tensor
        Right factors of each edge, ``(E, k)``.
    code : Callable
        Codes what travels along the edges, ``(2, E, k)``: what the smaller ends send, and what the others send.
    """
    shares, ends = edges.shares.to(rows), edges.ends
    pieces = torch.arange(edges.number).split(max(1, BLOCK_ENTRIES // rows.shape[-1]))

    def learned(sent: Tensor) -> tuple[Tensor, Tensor]:
        arrived, sizes = code(sent)
        return arrived[1] - arrived[0], sizes

    def moved(now: Tensor, *parts: Tensor) -> Tensor:
        for piece in pieces:
            now = now + combined(shares[:, piece], factors.join(*(part[piece] for part in parts)))
        return now

    right = factors.right_basis(start)
    products = torch.cat([factors.left(rows[ends[:, piece]], right[piece]) for piece in pieces], 1)
    far, first = learned(torch.cat([products, factors.rest(rows)[ends]], -1))
    left, rest = far.split([factors.left_size, factors.rest_size], -1)
    rows, basis = moved(rows, left, right, rest), factors.left_basis(left)
    products = torch.cat([factors.right(rows[ends[:, piece]], basis[piece]) for piece in pieces], 1)
    begin, second = learned(products)
    rows = moved(rows, basis, begin, torch.zeros_like(rest))
    sizes = torch.zeros(len(rows), dtype=torch.int64)
    for end, sent in zip(ends.cpu(), (first + second).cpu(), strict=True):
        sizes = sizes.index_add(0, end, sent)
    return Hop(rows, begin, sizes)
