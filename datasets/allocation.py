"""Integer allocation: equal and proportional parts, classes per client, stratified samples, index tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


def even(n: int, parts: int) -> Positions:
    """Return the sizes of `parts` parts of `n`, which differ by at most one."""
    return n // parts + (np.arange(parts) < n % parts)


def proportional(n: NDArray[Any], shares: NDArray[np.float64]) -> Positions:
    """Split `n` by `shares` into integers that sum to `n`, each at most one off its exact share.

    Parameters
    ----------
    n : ndarray
        Integers that broadcast against `shares`.
    shares : ndarray
        Non-negative, ``(..., parts)``; need not sum to one.

    Returns
    -------
    ndarray
        ``(..., parts)``.
    """
    total = np.cumsum(shares, axis=-1)
    bounds = np.rint(n * (total / total[..., -1:])).astype(np.int64)
    return np.diff(bounds, axis=-1, prepend=0)


def deal_classes(classes: int, per_client: int, clients: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw which client holds which class: rows sum to `per_client`, columns are equal.

    Clients draw in turn, with probabilities in proportion to the shards left of a class. With m clients to go
    there are ``per_client * m`` shards left and no class has more than m. So at most `per_client` classes have
    exactly m shards, and at least `per_client` classes have any. A client takes all of the former and fills up
    from the rest, which preserves both statements for m - 1: the draw cannot get stuck.

    Parameters
    ----------
    classes, per_client, clients : int
        Number of classes, classes per client, number of clients; ``clients * per_client`` is a multiple of
        `classes` and `per_client` at most `classes`.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    ndarray
        ``(clients, classes)`` bool.
    """
    remaining = np.full(classes, clients * per_client // classes)
    holds = np.zeros((clients, classes), dtype=bool)
    # Exponential times over rates: the smallest are a draw without replacement, in proportion to the rates.
    waiting = rng.exponential(size=(clients, classes))
    for client in range(clients):
        with np.errstate(divide="ignore"):
            order = waiting[client] / remaining
        order[remaining == clients - client] = -1.0
        chosen = np.argpartition(order, per_client - 1)[:per_client]
        holds[client, chosen] = True
        remaining[chosen] -= 1
    assert not remaining.any()
    return holds[rng.permutation(clients)]


def spread(
    block: Positions, strata: Positions, take: Positions, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose ``take[b]`` samples of every block b, in proportion to its strata.

    Systematic sampling: a block of n samples is ordered by stratum and at random within strata. Sample r is
    chosen if ``(r * take + phase) // n`` increases after it. That happens exactly `take` times, and
    ``m * take / n`` times (rounded) among m consecutive samples. The random phase makes all samples equally likely.

    Parameters
    ----------
    block, strata : ndarray
        ``(n,)``, integers.
    take : ndarray
        ``(B,)``, integers.
    rng : numpy.random.Generator
        Order and phase.

    Returns
    -------
    ndarray
        ``(n,)`` bool.
    """
    order = np.lexsort((rng.random(len(block)), strata, block))
    block = block[order]
    sizes = np.bincount(block, minlength=len(take))
    rank = np.arange(len(block)) - (np.cumsum(sizes) - sizes)[block]
    step, size = take[block], sizes[block]
    phase = rng.integers(0, np.maximum(sizes, 1))[block]
    chosen = np.empty(len(block), dtype=bool)
    chosen[order] = ((rank + 1) * step + phase) // size > (rank * step + phase) // size
    return chosen


def index_of(position: Positions, owner: Positions, clients: int) -> Positions:
    """Return the sorted positions of every client, ``(C, N)``, padded with -1."""
    order = np.lexsort((position, owner))
    sizes = np.bincount(owner, minlength=clients)
    index = np.full((clients, sizes.max()), -1, dtype=np.int64)
    column = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    index[owner[order], column] = position[order]
    return index


def part_of(owner: Positions, strata: Positions, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of every client's samples, ``(n,)`` bool."""
    sizes = np.bincount(owner)
    take = np.minimum(np.maximum(np.rint(sizes * share).astype(np.int64), 1), np.maximum(sizes - 1, 0))
    return spread(owner, strata, take, rng)
