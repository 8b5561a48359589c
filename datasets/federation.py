"""Federations: a pool of samples and, for every split, an index table of the clients' samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.allocation import Positions
from datasets.errors import FederationError
from datasets.partition import Partition, Samples
from datasets.splitting import USUAL, Holdings, Splitting
from datasets.users import grouped

if TYPE_CHECKING:
    from datasets.dataset import Dataset


KEPT = 2**26  # bytes of features that are kept in the order of the clients


class Batch(NamedTuple):
    """Samples with their weights, with optional leading axes (runs, clients).

    Attributes
    ----------
    x : Tensor
        Features, ``(..., B, *features)``.
    y : Tensor
        Labels, ``(..., B)``, int64; or numbers to predict, in the features' type.
    group : Tensor
        Sensitive group, ``(..., B)``, int64; zeros without a sensitive attribute.
    weight : Tensor
        ``(..., B)``; 0 marks padding, real samples have weight 1.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    weight: Tensor

    @property
    def active(self) -> Tensor:
        """1 for rows with samples, 0 for rows of padding, ``(..., 1)``."""
        return (self.weight.sum(-1, keepdim=True) > 0).to(self.weight.dtype)

    def at(self, positions: Tensor) -> Batch:
        """Return the samples of a pool at ``positions`` ``(..., B)``; -1 becomes padding of weight 0."""
        positions = positions.to(self.y.device)
        shape, where = positions.shape, positions.clamp(min=0).flatten()
        x, y, group = (part.index_select(0, where).unflatten(0, shape) for part in self[:3])
        return Batch(x, y, group, (positions >= 0).to(self.weight.dtype))


class Inputs(NamedTuple):
    """Construction of the features of a table from its raw columns.

    Attributes
    ----------
    features, origins : tuple[str, ...]
        Names of the F features, and of their raw columns. A feature is named after its column, or ``column=value``
        if it says whether the column has that value.
    shift, scale : Tensor
        What is subtracted from a feature, and what it is then divided by, ``(F,)`` float64.
    """

    features: tuple[str, ...]
    origins: tuple[str, ...]
    shift: Tensor
    scale: Tensor

    @classmethod
    def plain(cls, dataset: Dataset) -> Inputs:
        """Return those of features as they are."""
        width = len(dataset.features)
        zeros = torch.zeros(width, dtype=torch.float64)
        return cls(dataset.features, dataset.origins, zeros, zeros + 1)


@dataclass(frozen=True)
class Federation:
    """A partitioned data set.

    Attributes
    ----------
    pool : Batch
        All samples, ``(n, ...)``; nothing is copied per client.
    splits : Mapping[str, Tensor]
        Positions in the pool, ``(C, N)`` int64, padded with -1; stacked runs have an axis in front, ``(R, C, N)``.
        Always ``"train"`` and ``"test"``; optionally ``"selection"``, held out to choose hyper-parameters, and
        ``"validation"``, the data of an outer problem (`datasets.validation`).
    classes, groups : tuple[str, ...]
        Names of the labels (empty: numbers) and of the sensitive groups (empty: no sensitive attribute).
    source : str
        Source of the data, as printed in tables.
    digest : str
        SHA-256 of the data.
    public : tuple[str, ...]
        Facts that a privacy claim on these data takes as public, e.g. standardization statistics.
    names : tuple[str, ...]
        Names of the clients; empty if they have none.
    tested : str
        Digest of which samples of the data are test samples; empty if unknown.
    mean, std : float
        Of numbers to predict, which are standardized; 0 and 1 if they are not.
    users : Tensor or None
        Number of the user of every sample of the pool, ``(n,)`` int64, if users inside clients are told apart.
    inputs : Inputs or None
        How features were made of raw columns; None for images and problems with data of their own.
    encoded : str
        The encoder that has made features, with the digest of its weights; empty if none has.
    repeats : int
        Of a stack: how many consecutive runs share their splits, as those of a seed do.
    """

    pool: Batch
    splits: Mapping[str, Tensor]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    source: str
    digest: str
    public: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    tested: str = ""
    mean: float = 0.0
    std: float = 1.0
    users: Tensor | None = None
    inputs: Inputs | None = None
    encoded: str = ""
    repeats: int = 1

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.splits["train"].shape[-2])

    def counts(self, split: str = "train") -> Tensor:
        """Return the number of samples of every client, ``(..., C)``; do not modify it in place."""
        return self._counts[split]

    def constant_accuracy(self, split: str) -> float | None:
        """Return the accuracy of always predicting the most frequent class of a split; None without classes."""
        index = self.splits[split]
        labels = self.pool.y[index[index >= 0]].flatten()
        return float(labels.bincount().max()) / len(labels) if self.classes and len(labels) else None

    def sizes(self, split: str = "train") -> Tensor:
        """Return the different numbers of samples that clients have, ascending."""
        sizes: Tensor = self._counts[split].unique()
        return sizes

    @cached_property
    def _counts(self) -> dict[str, Tensor]:
        return {name: (index >= 0).sum(-1) for name, index in self.splits.items()}

    @cached_property
    def distinct(self) -> Mapping[str, Tensor]:
        """The splits of a stack once for all runs that share them, ``(R / repeats, C, N)``."""
        return {name: index[:: self.repeats].contiguous() for name, index in self.splits.items()}

    @cached_property
    def held(self) -> Batch | None:
        """All training samples by client, ``(C, N)``; None if a copy takes more than `KEPT` bytes."""
        index = self.splits["train"]
        size = self.pool.x[:1].nbytes * index.numel()
        return self.pool.at(index) if index.ndim == 2 and size <= KEPT else None

    def by_user(self, split: str, most: int) -> Tensor:
        """Return places of the users' samples in a split, ``(C, U, most)``, -1 = padding; do not modify it.

        Of users with more samples the first ones are taken.
        """
        assert self.users is not None
        if (split, most) not in self._by_user:
            tables = [
                grouped(self.users[positions[positions >= 0]], most) for positions in self.splits[split]
            ]
            table = torch.full((len(tables), max(1, *(len(row) for row in tables)), most), -1)
            for places, row in zip(table, tables, strict=True):
                places[: len(row)] = row
            self._by_user[split, most] = table
        return self._by_user[split, most]

    @cached_property
    def _by_user(self) -> dict[tuple[str, int], Tensor]:
        return {}

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Federation:
        """Return the federation with samples on a device, features and weights of a floating type.

        Splits stay on the CPU, where batches are drawn.
        """
        x, y, group, weight = self.pool
        y = y.to(device, dtype) if y.is_floating_point() else y.to(device)
        pool = Batch(x.to(device, dtype), y, group.to(device), weight.to(device, dtype))
        return replace(self, pool=pool)

    def merged(self) -> Federation:
        """Return the federation of one client that holds all samples."""
        splits = {name: index[index >= 0].unsqueeze(0) for name, index in self.splits.items()}
        return replace(self, splits=splits, names=())


def federate(
    dataset: Dataset,
    partition: Partition,
    clients: int | None,
    rng: np.random.Generator,
    split: Splitting = USUAL,
    *,
    standardize: bool = True,
) -> Federation:
    """Partition a data set among clients and split every client's samples into training and test samples.

    All samples, including the source's test samples, are partitioned; then each client's samples are shuffled and
    split. So a client's test samples follow its own distribution, as personalized methods need it.

    Parameters
    ----------
    dataset : Dataset
        The samples.
    partition : Partition
        Which client holds which sample.
    clients : int or None
        Number of clients; None if the partition determines it.
    rng : numpy.random.Generator
        The only source of randomness. The partition is drawn before the split and does not depend on it.
    split : Splitting
        Which samples are used, and for what.
    standardize : bool
        Whether to standardize the columns that the data set marks as continuous, and numbers to predict.

    Returns
    -------
    Federation
        Columns are standardized with the mean and standard deviation of all clients' training samples together,
        which `Federation.public` names. Without such columns the features are not copied. `Federation.source` gives
        the number of samples used, if not all.

    Raises
    ------
    FederationError
        If a setting is out of range or does not fit the data.
    PartitionError
        If the partition does not fit the data.
    """
    usage = split.usage(dataset, rng)
    columns = dataset.columns  # texts take long to copy
    if len(usage.shared) < len(dataset.y):
        columns = {name: values[usage.shared] for name, values in columns.items()}
    groups = None if dataset.group is None else dataset.group.numpy()[usage.shared]
    samples = Samples(dataset.strata[usage.shared], groups, columns)
    partition = partition.resolved(dataset.client)
    parts = partition(*samples, clients, rng)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    holdings = Holdings(usage.shared[np.concatenate(parts)], owner, len(parts), partition.drawn)
    splits = split.splits(dataset, usage, holdings, rng)
    hidden = [*partition.hides, *([] if usage.users is None else [usage.users.column])]
    users = None if usage.users is None else usage.users.number
    federation = _pool(dataset, splits, users, hidden, standardize=standardize)
    public = (*dataset.public, *partition.public, *federation.public)
    return replace(federation, names=partition.names(samples), public=public)


def _pool(
    dataset: Dataset,
    splits: dict[str, Positions],
    users: NDArray[np.int64] | None,
    hidden: Sequence[str],
    *,
    standardize: bool,
) -> Federation:
    """Return a federation of the features that are not hidden, with the public facts of its training data."""
    is_held = np.zeros(len(dataset.y), np.bool_)
    for index in splits.values():
        is_held[index[index >= 0]] = True
    positions = np.flatnonzero(is_held)
    limited = "" if is_held.all() else f", {len(positions)} of {len(is_held)} samples"
    tested = hashlib.sha256(np.sort(splits["test"][splits["test"] >= 0]).tobytes()).hexdigest()
    if limited and standardize and standardizes(dataset):  # features are copied: those that somebody holds
        place = np.full(len(is_held) + 1, -1)
        place[positions] = np.arange(len(positions))
        splits = {name: place[index] for name, index in splits.items()}
        dataset, users = (
            _rows(dataset, torch.from_numpy(positions)),
            None if users is None else users[positions],
        )
    dataset = _without_features(dataset, [*hidden, *(c for h in hidden for c in dataset.reveals.get(h, ()))])
    train = splits["train"][splits["train"] >= 0]
    public: tuple[str, ...] = ()
    x, inputs = dataset.x, Inputs.plain(dataset)
    if standardize:
        x, public, inputs = _standardize_features(dataset, train)
    y, mean, std = dataset.y, 0.0, 1.0
    if standardize and not dataset.classes:
        y, mean, std = _standardize_numbers(y, train)
        public = (*public, "mean and standard deviation over all training samples of the label")
    group = torch.zeros(len(y), dtype=torch.int64) if dataset.group is None else dataset.group
    return Federation(
        pool=Batch(x, y, group, torch.ones(len(y), dtype=x.dtype)),
        splits={name: torch.from_numpy(index) for name, index in splits.items()},
        classes=dataset.classes,
        groups=dataset.groups if dataset.group is not None else (),
        source=dataset.source + limited,
        digest=dataset.digest,
        public=public,
        tested=tested,
        mean=mean,
        std=std,
        users=None if users is None else torch.from_numpy(users),
        inputs=inputs if dataset.features else None,
        encoded=dataset.encoded,
    )


def one_pool(federations: Sequence[Federation]) -> list[Federation]:
    """Move federations to a common pool.

    Parameters
    ----------
    federations : sequence of Federation
        Federations of the same data with the same number of clients, splits ``(C, N)``.

    Returns
    -------
    list of Federation
        The same federations over the common pool. Pools that share their features are not copied; others are
        concatenated.

    Raises
    ------
    FederationError
        If they differ in more than their seed.
    """
    if not federations:
        raise FederationError("no federations to stack; give at least one")
    for other in federations:
        _check_stackable(federations[0], other)
    pools: list[Batch] = []
    slots = []
    for federation in federations:
        same = (slot for slot, pool in enumerate(pools) if _same_pool(pool, federation.pool))
        slots.append(next(same, len(pools)))
        if slots[-1] == len(pools):
            pools.append(federation.pool)
    if len(pools) == 1:
        return [replace(federation, pool=pools[0]) for federation in federations]
    starts = np.cumsum([0, *(len(pool.y) for pool in pools)])
    pool = Batch(*(torch.cat(parts) for parts in zip(*pools, strict=True)))
    firsts = [federations[slots.index(slot)].users for slot in range(len(pools))]
    users = torch.cat([part for part in firsts if part is not None]) if firsts[0] is not None else None
    result = []
    # Runs of one seed share one object of splits, which is shifted once; comparing entries would cost as much.
    moved_splits: dict[tuple[int, int], Mapping[str, Tensor]] = {}
    for slot, federation in zip(slots, federations, strict=True):
        start, key = int(starts[slot]), (slot, id(federation.splits))
        if key not in moved_splits:
            parts = federation.splits.items()
            moved_splits[key] = {name: torch.where(index >= 0, index + start, -1) for name, index in parts}
        result.append(replace(federation, pool=pool, splits=moved_splits[key], users=users))
    return result


def stack(federations: Sequence[Federation]) -> Federation:
    """Stack runs that differ in their seed: every split gains a leading axis.

    Parameters
    ----------
    federations : sequence of Federation
        R federations of the same data with the same number of clients, splits ``(C, N_r)``.

    Returns
    -------
    Federation
        A federation over `one_pool` with splits ``(R, C, N)``, padded to the longest row. If all runs have the same
        splits, the axis of runs is expanded.

    Raises
    ------
    FederationError
        If the runs differ in more than their seed.
    """
    moved = one_pool(federations)
    if all(federation.splits is moved[0].splits for federation in moved):  # of one seed
        shared = {name: index.expand(len(moved), *index.shape) for name, index in moved[0].splits.items()}
        return replace(moved[0], splits=shared, repeats=len(moved))
    of_a_seed = groupby(moved, key=lambda federation: id(federation.splits))  # as in `one_pool`
    lengths = {len(list(same)) for _, same in of_a_seed}
    splits = {}
    for name in moved[0].splits:
        width = max(federation.splits[name].shape[-1] for federation in moved)
        rows = moved[0].splits[name].new_full((len(moved), moved[0].clients, width), -1)
        for row, federation in zip(rows, moved, strict=True):
            index = federation.splits[name]
            row[:, : index.shape[-1]] = index
        splits[name] = rows
    return replace(moved[0], splits=splits, repeats=lengths.pop() if len(lengths) == 1 else 1)


def _without_features(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the data set without the features that come from raw columns."""
    keep = [number for number, column in enumerate(dataset.origins) if column not in columns]
    if len(keep) == len(dataset.origins):
        return dataset
    if not keep:
        raise FederationError(f"no feature is left without the column {columns[0]}")
    continuous = dataset.continuous
    exact = dataset.exact
    if continuous is not None and exact is not None:
        exact = exact[
            :,
            [column not in columns for column, flag in zip(dataset.origins, continuous, strict=True) if flag],
        ]
    return replace(
        dataset,
        x=dataset.x[:, keep],
        features=tuple(dataset.features[number] for number in keep),
        origins=tuple(dataset.origins[number] for number in keep),
        continuous=None if continuous is None else continuous[keep],
        exact=exact,
    )


def standardizes(dataset: Dataset) -> bool:
    """Return whether a data set has columns to standardize."""
    return dataset.continuous is not None and bool(dataset.continuous.any())


def _rows(dataset: Dataset, rows: Tensor) -> Dataset:
    """Return some rows of the features, labels and groups of a data set."""
    group, exact = (None if part is None else part[rows] for part in (dataset.group, dataset.exact))
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows], group=group, exact=exact)


def _standardize_features(dataset: Dataset, train: Positions) -> tuple[Tensor, tuple[str, ...], Inputs]:
    """Return the features with standardized columns, the statistics taken as public, and how they were made."""
    inputs = Inputs.plain(dataset)
    if not standardizes(dataset):
        return dataset.x, (), inputs
    assert dataset.continuous is not None
    columns = dataset.x[:, dataset.continuous].double() if dataset.exact is None else dataset.exact
    std, mean = torch.std_mean(columns[torch.from_numpy(train)], dim=0, correction=0)
    x = dataset.x.clone()
    std = torch.where(std > 0, std, 1.0)  # a constant column is only centered
    x[:, dataset.continuous] = ((columns - mean) / std).to(x.dtype)
    inputs.shift[dataset.continuous], inputs.scale[dataset.continuous] = mean, std
    names = [name for name, flag in zip(dataset.features, dataset.continuous, strict=True) if flag]
    return x, (f"mean and standard deviation over all training samples of: {', '.join(names)}",), inputs


def _standardize_numbers(y: Tensor, train: Positions) -> tuple[Tensor, float, float]:
    """Return standardized numbers to predict, and their mean and standard deviation among training samples."""
    training = y[torch.from_numpy(train)].double()
    mean, std = float(training.mean()), float(training.std(correction=0)) or 1.0
    return ((y.double() - mean) / std).to(y.dtype), mean, std


def _check_stackable(first: Federation, other: Federation) -> None:
    """Refuse runs that differ in more than their seed."""
    facts: dict[str, Callable[[Federation], object]] = {
        "number of clients": lambda f: f.clients,
        "digest of the data": lambda f: f.digest,
        "classes": lambda f: f.classes,
        "groups": lambda f: f.groups,
        "names of the splits": lambda f: tuple(f.splits),
        "number of axes": lambda f: f.splits["train"].ndim,
        "shape of a sample": lambda f: tuple(f.pool.x.shape[1:]),
    }
    for fact, of in facts.items():
        if of(first) != of(other):
            raise FederationError(f"stacked runs must agree in the {fact}: {of(first)} and {of(other)}")
    if first.splits["train"].ndim != 2:
        raise FederationError("these runs are stacked already; stack single runs")


def _same_pool(a: Batch, b: Batch) -> bool:
    """Tell whether two pools share their features and agree in the rest."""
    return a is b or (a.x is b.x and all(torch.equal(u, v) for u, v in zip(a[1:], b[1:], strict=True)))
