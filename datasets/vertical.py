"""Vertical partitions: parties hold different columns, or image tiles, of the same samples.

A partition is a frozen dataclass whose fields are its settings. It maps a federation of one client to the
federation of the parties, in which sample i of every party is the same person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from datasets.errors import FederationError, nearest
from datasets.federation import Batch, Federation
from datasets.partition import PartitionError


@dataclass(frozen=True)
class Columns:
    """Vertical: one block of columns per party.

    Attributes
    ----------
    blocks : tuple of tuples of str
        Names of each party's columns; ``sex`` includes all one-hot columns ``sex_Female``, ``sex_Male``. Columns
        without a party are dropped. Empty: even blocks, in the order of the data.
    """

    kind: ClassVar[str] = "columns"
    version: ClassVar[int] = 1
    blocks: tuple[tuple[str, ...], ...] = ()

    def __call__(self, whole: Federation, features: Sequence[str], parties: int | None) -> Federation:
        """Split the columns; blocks are padded with zero columns to the widest."""
        flat = whole.pool.x.flatten(1)
        width = flat.shape[1]
        if self.blocks:
            blocks = self._named(features)
            if parties not in (None, len(blocks)):
                raise _error(self.kind, f"{len(blocks)} blocks for {parties} clients; omit clients")
        else:
            parties = 2 if parties is None else parties
            if not 1 <= parties <= width:
                raise _error(self.kind, f"between 1 and {width} clients (columns), given {parties}")
            blocks = [list(block) for block in torch.arange(width).tensor_split(parties)]
        widest = max(len(block) for block in blocks)
        return _deal(whole, [functional.pad(flat[:, block], (0, widest - len(block))) for block in blocks])

    def _named(self, features: Sequence[str]) -> list[list[int]]:
        """Return the positions of each party's columns."""
        if not features:
            raise _error(self.kind, "these data have no named columns; omit blocks, or use quadrants")
        families = {name: [i for i, f in enumerate(features) if f == name] for name in features}
        for mark in ("_", "="):
            for i, feature in enumerate(features):
                if mark in feature:
                    families.setdefault(feature.partition(mark)[0], []).append(i)
        for name in (name for block in self.blocks for name in block):
            if name not in families:
                raise _error(self.kind, f"unknown column {name!r}; {nearest(name, families)}")
        blocks = [[i for name in block for i in families[name]] for block in self.blocks]
        times = Counter(i for block in blocks for i in block)
        if twice := [features[i] for i, count in times.items() if count > 1]:
            raise _error(self.kind, f"columns are given twice: {twice}; every party needs columns of its own")
        if not all(blocks):
            raise _error(self.kind, "a party has no columns; every party needs columns of its own")
        return blocks


@dataclass(frozen=True)
class Quadrants:
    """Vertical: one tile of every image per party, row by row.

    Attributes
    ----------
    grid : tuple of int
        Rows and columns of tiles.
    """

    kind: ClassVar[str] = "quadrants"
    version: ClassVar[int] = 1
    grid: tuple[int, int] = (2, 2)

    def __call__(self, whole: Federation, features: Sequence[str], parties: int | None) -> Federation:
        """Cut the images into tiles."""
        x, (down, across) = whole.pool.x, self.grid
        if x.ndim != 4:
            raise _error(self.kind, "these data are not images; use columns")
        height, width = x.shape[-2:]
        if min(self.grid) < 1 or height % down or width % across:
            raise _error(
                self.kind, f"images of {height} x {width} cannot be cut into {down} x {across} equal tiles"
            )
        if parties not in (None, down * across):
            raise _error(self.kind, f"{down} x {across} tiles for {parties} clients; omit clients")
        tiles = [row for band in x.chunk(down, -2) for row in band.chunk(across, -1)]
        return _deal(whole, tiles)


VERTICAL: dict[str, type[Columns] | type[Quadrants]] = {kind.kind: kind for kind in (Columns, Quadrants)}
"""All vertical partitions by name."""


def _deal(whole: Federation, parts: Sequence[Tensor]) -> Federation:
    """Return the federation whose clients hold these features, ``(n, ...)`` each, of the same samples."""
    if whole.clients != 1:
        raise FederationError(f"vertical partitions split one client's data, given {whole.clients} clients")
    members = torch.cat([index[index >= 0] for index in whole.splits.values()]).unique()
    place = torch.full((len(whole.pool.y),), -1).index_put((members,), torch.arange(len(members)))
    x = torch.cat([part[members] for part in parts])
    pool = Batch(x, *(part[members].repeat(len(parts)) for part in whole.pool[1:]))
    first = torch.arange(len(parts))[:, None] * len(members)
    splits = {
        name: torch.where(index >= 0, place[index.clamp(min=0)] + first, -1)
        for name, index in whole.splits.items()
    }
    users = None if whole.users is None else whole.users[members].repeat(len(parts))
    return replace(whole, pool=pool, splits=splits, users=users, public=(*whole.public, "labels"))


def _error(kind: str, message: str) -> PartitionError:
    return PartitionError(f"partition {kind!r}: {message}")
