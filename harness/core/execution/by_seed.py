"""Stacked runs of several seeds: what the runs of a seed share is in memory once a seed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def seeds_of(leaves: Sequence[Tensor], axes: int) -> int:
    """Return the number of seeds if some tensors have an axis of seeds, others of runs; else 1."""
    if axes == 1:
        return 1
    rows = {len(leaf) for leaf in leaves}
    return min(rows) if len(rows) > 1 else 1


def clients_side_by_side(leaves: Sequence[Tensor], seeds: int) -> list[Tensor]:
    """Let the clients of all seeds, ``(S, C, ...)``, be clients ``(S C, ...)`` that R runs share, as of one seed.

    What each run has of its own, ``(S R, C, ...)``, is put into this order, ``(R, S C, ...)``.
    """
    runs = max(map(len, leaves)) // seeds

    def moved(leaf: Tensor) -> Tensor:
        if len(leaf) == seeds:
            return leaf.flatten(0, 1).expand(runs, -1, *leaf.shape[2:])
        own: Tensor = leaf.unflatten(0, (seeds, runs)).transpose(0, 1).flatten(1, 2)
        return own

    return [moved(leaf) for leaf in leaves]


def by_run(seeds: int, result: Tensor) -> Tensor:
    """Undo `clients_side_by_side`: ``(R, S C, ...)`` to ``(S R, C, ...)``."""
    found: Tensor = result.unflatten(1, (seeds, -1)).transpose(0, 1).flatten(0, 1)
    return found
