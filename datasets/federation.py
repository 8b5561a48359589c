"""Federations: a pool of samples and, for every split, an index table of the clients' samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.allocation import Positions, index_of, part_of, spread
from datasets.errors import FederationError
from datasets.partition import Partition, Samples
from datasets.users import (
    grouped,
    refuse_scattered,
    refuse_shared,
    reserved_users,
    users_of,
    whole_users,
)

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
    repeats: int = 1

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.splits["train"].shape[-2])

    def counts(self, split: str = "train") -> Tensor:
        """Return the number of samples of every client, ``(..., C)``; do not modify it in place."""
        return self._counts[split]

    def sizes(self, split: str = "train") -> Tensor:
        """Return the different numbers of samples that clients have, ascending; do not modify it in place."""
        return self._sizes[split]

    @cached_property
    def _sizes(self) -> dict[str, Tensor]:
        return {name: counts.unique() for name, counts in self._counts.items()}

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
            rows = [grouped(self.users[own[own >= 0]], most) for own in self.splits[split]]
            table = torch.full((len(rows), max(1, *(len(row) for row in rows)), most), -1)
            for own, row in zip(table, rows, strict=True):
                own[: len(row)] = row
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
    *,
    test: float | Literal["official"] = 0.3,
    stratify: Sequence[Literal["label", "group"]] = (),
    limit: int | None = None,
    standardize: bool = True,
    drop_negatives: float = 0.0,
    selection: float = 0.0,
    selection_rng: np.random.Generator | None = None,
    user: str | None = None,
    one_client: bool = False,
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
    test : float or "official"
        Share of each client's samples used for testing, in (0, 1), rounded to at least one sample; at least one is
        left for training (a client with a single sample trains on it). ``"official"``: only the training samples
        are partitioned, and the source's test samples are distributed evenly at random.
    stratify : sequence of "label", "group"
        Stratification of each client's test samples (both: jointly); not with ``"official"``.
    limit : int, optional
        Size of a random subset to use, stratified by class.
    standardize : bool
        Whether to standardize the columns that the data set marks as continuous, and numbers to predict.
    drop_negatives : float
        Share, in [0, 1), of the samples of class 0 to drop before partitioning, which makes two classes imbalanced.
        Official test samples are kept with ``"official"``; otherwise test samples are as imbalanced as the rest.
    selection : float
        Share, in [0, 1), of each client's training samples held out to choose hyper-parameters, stratified like the
        test samples and of at least one sample (a client with a single sample trains on it). Standardization does
        not use them.
    selection_rng : numpy.random.Generator, optional
        Draws the samples of ``selection`` instead of ``rng``: a share of all samples, stratified by class, before
        anything else. Runs with other ``rng`` then hold out the same samples, and train and test on none of them.
    user : str, optional
        Raw column that names the user of a sample. It is no feature, and all samples of a user, at whatever
        client, are in one split. Shares are then of users, and official test samples must be of users of their own.
    one_client : bool
        Whether users with samples at several clients are refused.

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
    if test == "official" and stratify:
        raise FederationError("the official test samples are given: stratify needs test as a share")
    labels = dataset.strata
    groups = None if dataset.group is None else dataset.group.numpy()
    held_out = _held_out(dataset, test)
    named = None if user is None else users_of(dataset, user)
    if named is not None and test == "official":
        refuse_shared(named, held_out)
    kept = _subset(labels, held_out, limit, rng)
    kept = _uneven(dataset, kept, held_out, drop_negatives, rng)
    rest = kept[~held_out[kept]]

    columns = dataset.columns  # texts take long to copy
    if not np.array_equal(rest, np.arange(len(labels))):
        columns = {name: values[rest] for name, values in columns.items()}
    samples = Samples(labels[rest], None if groups is None else groups[rest], columns)
    partition = partition.resolved(dataset.client)
    parts = partition(*samples, clients, rng)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    position = rest[np.concatenate(parts)]
    users = None if named is None else named.number
    if named is not None and one_client:
        refuse_scattered(named, owner, position)
    splits: dict[str, Positions] = {}
    if test == "official":
        splits["test"] = _deal(kept[held_out[kept]], len(parts), rng)
    shares = {} if test == "official" else {"test": test}
    shares |= {"selection": selection} if selection else {}
    for name, share in shares.items():
        if not 0 < share < 1:
            raise FederationError(f"{name} is {share}; give a share above 0 and below 1")
    if selection_rng is not None:
        share = shares.pop("selection")
        if users is None:
            reserved = _reserved(labels, held_out, share, selection_rng)[position]
        else:
            reserved = reserved_users(users, share, selection_rng)[position]
        splits["selection"] = index_of(position[reserved], owner[reserved], len(parts))
        position, owner = position[~reserved], owner[~reserved]
        empty = np.flatnonzero(np.bincount(owner, minlength=len(parts)) == 0)
        if len(empty):
            raise FederationError(
                f"all samples of client {empty[0]} are held out for selection; use fewer clients, more samples a "
                "client (at_least), or a smaller selection"
            )
    for name, share in shares.items():
        strata = _strata(labels, groups, stratify)[position]
        if users is None:
            chosen = part_of(owner, strata, share, rng)
        else:
            chosen = whole_users(owner, position, users[position], strata, share, rng)
        splits[name] = index_of(position[chosen], owner[chosen], len(parts))
        position, owner = position[~chosen], owner[~chosen]
    train = index_of(position, owner, len(parts))
    splits = {"train": train, **splits}
    if not (splits["test"] >= 0).any():
        raise FederationError(
            f"no client has a test sample: every one holds a single {'sample' if users is None else 'user'}, on "
            "which it trains; use fewer clients, or group those with few samples (partition.at_least, "
            "partition.group)"
        )

    tested = hashlib.sha256(np.sort(splits["test"][splits["test"] >= 0]).tobytes()).hexdigest()
    held = np.zeros(len(labels), np.bool_)
    for index in splits.values():
        held[index[index >= 0]] = True
    rows = np.flatnonzero(held)
    limited = "" if len(rows) == len(labels) else f", {len(rows)} of {len(labels)} samples"
    if limited and standardize and standardizes(dataset):  # features are copied: those that somebody holds
        place = np.full(len(labels) + 1, -1)
        place[rows] = np.arange(len(rows))
        splits, train = {name: place[index] for name, index in splits.items()}, place[train]
        dataset, users = _rows(dataset, torch.from_numpy(rows)), None if users is None else users[rows]
    hidden = [*partition.hides, *([] if user is None else [user])]
    dataset = _without(dataset, [*hidden, *(c for h in hidden for c in dataset.reveals.get(h, ()))])
    public: tuple[str, ...] = ()
    x, inputs = dataset.x, Inputs.plain(dataset)
    if standardize:
        x, public, inputs = _standardized(dataset, train[train >= 0])
    y, mean, std = dataset.y, 0.0, 1.0
    if standardize and not dataset.classes:
        y, mean, std = _scaled(y, train[train >= 0])
        public = (*public, "mean and standard deviation over all training samples of the label")
    group = torch.zeros(len(y), dtype=torch.int64) if dataset.group is None else dataset.group
    pool = Batch(x, y, group, torch.ones(len(y), dtype=x.dtype))
    return Federation(
        pool=pool,
        splits={name: torch.from_numpy(index) for name, index in splits.items()},
        classes=dataset.classes,
        groups=dataset.groups if dataset.group is not None else (),
        source=dataset.source + limited,
        digest=dataset.digest,
        public=(*dataset.public, *partition.public, *public),
        names=partition.names(samples),
        tested=tested,
        mean=mean,
        std=std,
        users=None if users is None else torch.from_numpy(users),
        inputs=inputs if dataset.features else None,
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
    users = torch.cat([one for one in firsts if one is not None]) if firsts[0] is not None else None
    result = []
    moved: dict[tuple[int, int], Mapping[str, Tensor]] = {}  # shared splits are shifted once
    for slot, federation in zip(slots, federations, strict=True):
        start, key = int(starts[slot]), (slot, id(federation.splits))
        if key not in moved:
            parts = federation.splits.items()
            moved[key] = {name: torch.where(index >= 0, index + start, -1) for name, index in parts}
        result.append(replace(federation, pool=pool, splits=moved[key], users=users))
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
    lengths = {len(list(same)) for _, same in groupby(moved, key=lambda federation: id(federation.splits))}
    splits = {}
    for name in moved[0].splits:
        width = max(federation.splits[name].shape[-1] for federation in moved)
        rows = moved[0].splits[name].new_full((len(moved), moved[0].clients, width), -1)
        for row, federation in zip(rows, moved, strict=True):
            index = federation.splits[name]
            row[:, : index.shape[-1]] = index
        splits[name] = rows
    return replace(moved[0], splits=splits, repeats=lengths.pop() if len(lengths) == 1 else 1)


def _held_out(dataset: Dataset, test: float | Literal["official"]) -> NDArray[np.bool_]:
    """Return the mask of the source's test samples, which are not partitioned, ``(n,)``."""
    if test != "official":
        if isinstance(test, str) or not 0 < test < 1:
            raise FederationError(f"test is {test!r}; give a share above 0 and below 1, or 'official'")
        return np.zeros(len(dataset.y), dtype=bool)
    if dataset.official_test is None:
        raise FederationError(f"{dataset.name} has no official test samples; give test as a share, e.g. 0.3")
    official: NDArray[np.bool_] = dataset.official_test.numpy()
    return official


def _subset(
    labels: NDArray[np.int64], held_out: NDArray[np.bool_], limit: int | None, rng: np.random.Generator
) -> Positions:
    """Return the positions of at most `limit` samples, stratified by class and official split."""
    n = len(labels)
    if limit is not None and limit < 1:
        raise FederationError(f"limit is {limit}; at least 1 sample is needed")
    if limit is None or limit >= n:
        return np.arange(n)
    return np.flatnonzero(spread(np.zeros(n, dtype=np.int64), labels * 2 + held_out, np.array([limit]), rng))


def _reserved(
    labels: NDArray[np.int64], held_out: NDArray[np.bool_], share: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose a share of the samples that are not held out, stratified by class, ``(n,)`` bool."""
    own = np.flatnonzero(~held_out)
    take = np.array([max(1, round(share * len(own)))])
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[own[spread(np.zeros(len(own), dtype=np.int64), labels[own], take, rng)]] = True
    return chosen


def _uneven(
    dataset: Dataset, kept: Positions, held_out: NDArray[np.bool_], share: float, rng: np.random.Generator
) -> Positions:
    """Drop a random share of the samples of class 0 that are not held out."""
    if share == 0:
        return kept
    if not 0 < share < 1:
        raise FederationError(f"drop_negatives is {share}; give a share of at least 0 and below 1")
    if len(dataset.classes) != 2:
        raise FederationError(
            f"drop_negatives needs two classes, {dataset.name} has {len(dataset.classes)}; "
            "`binary: halves` makes two of them"
        )
    negative = kept[(dataset.y.numpy()[kept] == 0) & ~held_out[kept]]
    dropped = rng.choice(negative, round(share * len(negative)), replace=False)
    return np.setdiff1d(kept, dropped)


def _strata(
    labels: NDArray[np.int64], groups: NDArray[np.int64] | None, stratify: Sequence[Literal["label", "group"]]
) -> Positions:
    """Return the stratum of every sample, ``(n,)``, by label, group, both or neither."""
    unfit = set(stratify) - {"label", "group"}
    if unfit:
        raise FederationError(f"stratify names {sorted(unfit)}; it may name 'label' and 'group'")
    strata = np.zeros(len(labels), dtype=np.int64)
    if "label" in stratify:
        strata = labels
    if "group" in stratify:
        if groups is None:
            raise FederationError("stratify names 'group', but the data have no sensitive attribute")
        strata = strata * (groups.max() + 1) + groups
    return strata


def _deal(position: Positions, clients: int, rng: np.random.Generator) -> Positions:
    """Distribute the official test samples evenly, ``(C, N)``."""
    if len(position) < clients:
        raise FederationError(
            f"{len(position)} official test samples for {clients} clients; use fewer, or give test as a share"
        )
    return index_of(rng.permutation(position), np.arange(len(position)) % clients, clients)


def _without(dataset: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the data set without the features that come from raw columns."""
    keep = [number for number, column in enumerate(dataset.origins) if column not in columns]
    if len(keep) == len(dataset.origins):
        return dataset
    if not keep:
        raise FederationError(f"no feature is left without the column {columns[0]}")
    given = dataset.continuous
    exact = dataset.exact
    if given is not None and exact is not None:
        exact = exact[
            :, [column not in columns for column, flag in zip(dataset.origins, given, strict=True) if flag]
        ]
    return replace(
        dataset,
        x=dataset.x[:, keep],
        features=tuple(dataset.features[number] for number in keep),
        origins=tuple(dataset.origins[number] for number in keep),
        continuous=None if given is None else given[keep],
        exact=exact,
    )


def standardizes(dataset: Dataset) -> bool:
    """Whether a data set has columns to standardize."""
    return dataset.continuous is not None and bool(dataset.continuous.any())


def _rows(dataset: Dataset, rows: Tensor) -> Dataset:
    """Return some rows of the features, labels and groups of a data set."""
    group, exact = (None if part is None else part[rows] for part in (dataset.group, dataset.exact))
    return replace(dataset, x=dataset.x[rows], y=dataset.y[rows], group=group, exact=exact)


def _standardized(dataset: Dataset, train: Positions) -> tuple[Tensor, tuple[str, ...], Inputs]:
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


def _scaled(y: Tensor, train: Positions) -> tuple[Tensor, float, float]:
    """Return standardized numbers to predict, and their mean and standard deviation among training samples."""
    own = y[torch.from_numpy(train)].double()
    mean, std = float(own.mean()), float(own.std(correction=0)) or 1.0
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
