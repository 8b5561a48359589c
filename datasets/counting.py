"""Counts of the samples of every client of a federation."""

from __future__ import annotations

import torch
from torch import Tensor

from datasets.client_statistics import ClientCounts
from datasets.dataset import tenths
from datasets.errors import FederationError
from datasets.federation import Federation


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
        members = torch.cat([index[index >= 0] for index in federation.splits.values()]).cpu()
        numbers = (values.cpu()[members].double() * federation.std + federation.mean).float()
        place, classes = tenths(numbers)
        values = torch.zeros(len(values), dtype=torch.int64).index_put((members,), torch.from_numpy(place))
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
