"""Sample counts of every client by split, class and sensitive group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datasets.dataset import FederationError, tenths
from datasets.federation import Federation

Counts = Mapping[str, tuple[int, ...]]
PARTS = ("splits", "classes", "groups")


class ClientCounts(NamedTuple):
    """Sample counts per client; `classes` and `groups` add up all splits.

    Attributes
    ----------
    title : str
        Data and partition.
    splits, classes, groups : Mapping[str, tuple of int]
        Name to one count per client; empty without sensitive groups.
    names : tuple of str
        Names of the clients; empty if they have none.
    """

    title: str
    splits: Counts
    classes: Counts
    groups: Counts
    names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(next(iter(self.splits.values())))

    @property
    def numbers(self) -> int:
        """Total number of counts."""
        return self.clients * sum(len(getattr(self, part)) for part in PARTS)

    def packed(self) -> dict[str, Any]:
        """Return a JSON object in which the counts of all clients are one string."""
        found: dict[str, Any] = {
            part: {name: " ".join(map(str, counts)) for name, counts in getattr(self, part).items()}
            for part in PARTS
        }
        return found | ({"names": list(self.names)} if self.names else {})


def unpacked(title: str, packed: Mapping[str, Any]) -> ClientCounts:
    """Restore the result of `ClientCounts.packed`."""
    splits, classes, groups = (
        {name: tuple(map(int, numbers.split())) for name, numbers in packed[part].items()} for part in PARTS
    )
    return ClientCounts(title, splits, classes, groups, tuple(packed.get("names", ())))


def count(federation: Federation) -> ClientCounts:
    """Count the samples of a single run's clients.

    Raises
    ------
    FederationError
        If runs are stacked.
    """
    if federation.splits["train"].ndim != 2:
        raise FederationError("cannot count the samples of stacked runs; give a single run")
    pool, classes, values = federation.pool, federation.classes, federation.pool.y
    if not classes:
        own = torch.cat([index[index >= 0] for index in federation.splits.values()]).cpu()
        numbers = (values.cpu()[own].double() * federation.std + federation.mean).float()
        place, classes = tenths(numbers)
        values = torch.zeros(len(values), dtype=torch.int64).index_put((own,), torch.from_numpy(place))
    return ClientCounts(
        f"{federation.source}: {federation.clients} clients",
        {name: tuple(federation.counts(name).tolist()) for name in federation.splits},
        _table(federation, values, classes),
        _table(federation, pool.group, federation.groups) if federation.groups else {},
        federation.names,
    )


def _table(federation: Federation, values: Tensor, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Count the samples of every client by value."""
    table = torch.zeros(federation.clients, len(names), dtype=torch.int64)
    for index in federation.splits.values():
        index = index.cpu()
        client, _ = torch.nonzero(index >= 0, as_tuple=True)
        cell = client * len(names) + values.cpu()[index[index >= 0]]
        table += torch.bincount(cell, minlength=table.numel()).view_as(table)
    return {name: tuple(column.tolist()) for name, column in zip(names, table.T, strict=True)}
