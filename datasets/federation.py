"""A federation: one pool of samples and, for every split, an index saying which client holds which sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.allocation import Positions, index_of, spread
from datasets.partition import Partition

if TYPE_CHECKING:
    from datasets.dataset import Dataset


class FederationError(ValueError):
    """A federation was set up wrongly, or cannot be made of these data."""


class Batch(NamedTuple):
    """Samples with their weights; leading axes (runs, clients) come first.

    Attributes
    ----------
    x : Tensor
        Features, ``(..., B, *features)``.
    y : Tensor
        Labels, ``(..., B)``, int64.
    group : Tensor
        Sensitive group, ``(..., B)``, int64; all zero where the data have none.
    weight : Tensor
        ``(..., B)``; 0 marks padding, real samples have weight 1.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    weight: Tensor

    @property
    def active(self) -> Tensor:
        """1 for a row that has samples, 0 for one that has padding only, ``(..., 1)``."""
        return (self.weight.sum(-1, keepdim=True) > 0).to(self.weight.dtype)

    def at(self, positions: Tensor) -> Batch:
        """Return the samples of a pool at ``positions`` ``(..., B)``; -1 becomes padding of weight 0."""
        positions = positions.to(self.y.device)
        shape, where = positions.shape, positions.clamp(min=0).flatten()
        x, y, group = (part.index_select(0, where).unflatten(0, shape) for part in self[:3])
        return Batch(x, y, group, (positions >= 0).to(self.weight.dtype))


@dataclass(frozen=True)
class Federation:
    """Data set x partition.

    Attributes
    ----------
    pool : Batch
        All samples, ``(n, ...)``; nothing is copied per client.
    splits : Mapping[str, Tensor]
        For ``"train"`` and ``"test"`` positions in the pool, ``(C, N)`` int64, -1 = padding at the end of a
        row. Stacked runs put their axis in front: ``(R, C, N)``. Some runs have more: ``"selection"``, which no
        algorithm trains on and hyper-parameters are chosen by, and ``"validation"``, the training data of an
        outer problem (`datasets.validation`).
    classes, groups : tuple[str, ...]
        Names of the labels and of the sensitive groups (empty: no sensitive attribute).
    source : str
        Which source the data came from, as printed in every table.
    digest : str
        SHA-256 of the bytes that were read.
    public : tuple[str, ...]
        What a differential-privacy claim on these data takes as public (e.g. standardization statistics).
    """

    pool: Batch
    splits: Mapping[str, Tensor]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    source: str
    digest: str
    public: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.splits["train"].shape[-2])

    def counts(self, split: str = "train") -> Tensor:
        """Return the number of samples of every client, ``(..., C)``; not to be changed in place."""
        return self._counts[split]

    @cached_property
    def _counts(self) -> dict[str, Tensor]:
        return {name: (index >= 0).sum(-1) for name, index in self.splits.items()}

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Federation:
        """Return the federation with its samples on a device, features and weights in a floating type.

        Splits stay where they are, as who is in which batch is drawn on the CPU.
        """
        x, y, group, weight = self.pool
        pool = Batch(x.to(device, dtype), y.to(device), group.to(device), weight.to(device, dtype))
        return replace(self, pool=pool)

    def merged(self) -> Federation:
        """Return the federation of one client that holds everybody's samples."""
        splits = {name: index[index >= 0].unsqueeze(0) for name, index in self.splits.items()}
        return replace(self, splits=splits)


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
) -> Federation:
    """Deal a data set to clients and split every client's share into a training and a test part.

    All samples, the data's own test samples among them, are partitioned; then each client's share is shuffled
    and split. So a client's test part follows the client's own distribution, as personalized methods need it.

    Parameters
    ----------
    dataset : Dataset
        The samples.
    partition : Partition
        Which client holds which sample.
    clients : int or None
        Number of clients; None where the partition knows it itself.
    rng : numpy.random.Generator
        The only source of randomness. The partition is drawn before the split and does not depend on it.
    test : float or "official"
        Share of each client's samples used for testing, in (0, 1), rounded: at least one sample, and at
        least one is left for training (a client with a single sample trains on it). ``"official"``: only
        the training samples are partitioned and the data's own test samples are dealt evenly at random.
    stratify : sequence of "label", "group"
        What the test part of each client must hold in proportion (both: jointly); not with ``"official"``.
    limit : int, optional
        Use only a random subset of this many samples, each class in proportion (to one sample).
    standardize : bool
        Whether columns that the data set marks as continuous are standardized.
    drop_negatives : float
        Share, in [0, 1), of the samples of class 0 that is left out before anything is dealt, to make two
        classes uneven. The source's own test samples stay with ``"official"``; a share held out for testing
        is as uneven as the rest.
    selection : float
        Share, in [0, 1), of each client's training samples that is set aside to choose hyper-parameters by,
        stratified like the test part and of at least one sample (a client with a single sample trains on it).
        Standardization does not see it.

    Returns
    -------
    Federation
        Columns are standardized with the mean and standard deviation of all clients' training samples
        together, which `Federation.public` then names. Without such columns, the features are the data set's
        own tensor, not a copy. `Federation.source` says how many samples were used, if not all.

    Raises
    ------
    FederationError
        When a setting is out of range or the data lack what it needs.
    PartitionError
        When the partition does not fit the data.
    """
    if test == "official" and stratify:
        raise FederationError("the official test samples are given: stratify needs test as a share")
    labels = dataset.y.numpy()
    groups = None if dataset.group is None else dataset.group.numpy()
    held_out = _held_out(dataset, test)
    kept = _subset(labels, held_out, limit, rng)
    kept = _uneven(dataset, kept, held_out, drop_negatives, rng)
    rest = kept[~held_out[kept]]

    columns = {name: values[rest] for name, values in dataset.columns.items()}
    parts = partition(labels[rest], None if groups is None else groups[rest], columns, clients, rng)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    position = rest[np.concatenate(parts)]
    splits: dict[str, Positions] = {}
    if test == "official":
        splits["test"] = _deal(kept[held_out[kept]], len(parts), rng)
    shares = {} if test == "official" else {"test": test}
    for name, share in (shares | ({"selection": selection} if selection else {})).items():
        if not 0 < share < 1:
            raise FederationError(f"{name} is {share}; give a share above 0 and below 1")
        chosen = _part(owner, _strata(labels, groups, stratify)[position], share, rng)
        splits[name] = index_of(position[chosen], owner[chosen], len(parts))
        position, owner = position[~chosen], owner[~chosen]
    train = index_of(position, owner, len(parts))
    splits = {"train": train, **splits}

    x, public = _standardized(dataset, train[train >= 0]) if standardize else (dataset.x, ())
    limited = "" if len(kept) == len(labels) else f", {len(kept)} of {len(labels)} samples"
    group = torch.zeros_like(dataset.y) if dataset.group is None else dataset.group
    pool = Batch(x, dataset.y, group, torch.ones(len(labels), dtype=x.dtype))
    return Federation(
        pool=pool,
        splits={name: torch.from_numpy(index) for name, index in splits.items()},
        classes=dataset.classes,
        groups=dataset.groups if dataset.group is not None else (),
        source=dataset.source + limited,
        digest=dataset.digest,
        public=public,
    )


def one_pool(federations: Sequence[Federation]) -> list[Federation]:
    """Put the samples of federations into one pool that all of them point into.

    Parameters
    ----------
    federations : sequence of Federation
        Of the same data with the same number of clients, splits ``(C, N)``.

    Returns
    -------
    list of Federation
        As they were, over the common pool. The features of those that share one tensor are not copied; other
        pools are laid end to end.

    Raises
    ------
    FederationError
        When they do not go together.
    """
    if not federations:
        raise FederationError("no federations to stack; give at least one")
    for other in federations:
        _check_stackable(federations[0], other)
    pools: list[Batch] = []
    slots = []
    for federation in federations:
        known = (slot for slot, pool in enumerate(pools) if _same_pool(pool, federation.pool))
        slots.append(next(known, len(pools)))
        if slots[-1] == len(pools):
            pools.append(federation.pool)
    if len(pools) == 1:
        return [replace(federation, pool=pools[0]) for federation in federations]
    starts = np.cumsum([0, *(len(pool.y) for pool in pools)])
    pool = Batch(*(torch.cat(parts) for parts in zip(*pools, strict=True)))
    found = []
    moved: dict[tuple[int, int], Mapping[str, Tensor]] = {}  # of those that have been dealt the same, once
    for slot, federation in zip(slots, federations, strict=True):
        start, key = int(starts[slot]), (slot, id(federation.splits))
        if key not in moved:
            parts = federation.splits.items()
            moved[key] = {name: torch.where(index >= 0, index + start, -1) for name, index in parts}
        found.append(replace(federation, pool=pool, splits=moved[key]))
    return found


def stack(federations: Sequence[Federation]) -> Federation:
    """Put runs that differ in their seed side by side: every split gains a leading axis.

    Parameters
    ----------
    federations : sequence of Federation
        R federations of the same data with the same number of clients, splits ``(C, N_r)``.

    Returns
    -------
    Federation
        Over `one_pool`; splits ``(R, C, N)``, padded to the longest row.

    Raises
    ------
    FederationError
        When the runs do not go together.
    """
    moved = one_pool(federations)
    splits = {}
    for name in moved[0].splits:
        width = max(federation.splits[name].shape[-1] for federation in moved)
        rows = moved[0].splits[name].new_full((len(moved), moved[0].clients, width), -1)
        for row, federation in zip(rows, moved, strict=True):
            index = federation.splits[name]
            row[:, : index.shape[-1]] = index
        splits[name] = rows
    return replace(moved[0], splits=splits)


def _held_out(dataset: Dataset, test: float | Literal["official"]) -> NDArray[np.bool_]:
    """Return which samples are kept out of the partition because the data call them test samples."""
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
    """Return the positions of at most `limit` samples, every class and official part in proportion."""
    n = len(labels)
    if limit is not None and limit < 1:
        raise FederationError(f"limit is {limit}; at least 1 sample is needed")
    if limit is None or limit >= n:
        return np.arange(n)
    return np.flatnonzero(spread(np.zeros(n, dtype=np.int64), labels * 2 + held_out, np.array([limit]), rng))


def _uneven(
    dataset: Dataset, kept: Positions, held_out: NDArray[np.bool_], share: float, rng: np.random.Generator
) -> Positions:
    """Leave out a random share of the samples of class 0 that are not held out."""
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
    gone = rng.choice(negative, round(share * len(negative)), replace=False)
    return np.setdiff1d(kept, gone)


def _strata(
    labels: NDArray[np.int64], groups: NDArray[np.int64] | None, stratify: Sequence[Literal["label", "group"]]
) -> Positions:
    """Return the stratum of every sample, ``(n,)``: a number for its label, its group, both, or neither."""
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


def _part(owner: Positions, strata: Positions, share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of the samples of every client, ``(n,)`` bool."""
    sizes = np.bincount(owner)
    take = np.minimum(np.maximum(np.rint(sizes * share).astype(np.int64), 1), sizes - 1)
    return spread(owner, strata, take, rng)


def _deal(position: Positions, clients: int, rng: np.random.Generator) -> Positions:
    """Deal the official test samples, ``(C, N)``."""
    if len(position) < clients:
        raise FederationError(
            f"{len(position)} official test samples for {clients} clients; use fewer, or give test as a share"
        )
    return index_of(rng.permutation(position), np.arange(len(position)) % clients, clients)


def _standardized(dataset: Dataset, train: Positions) -> tuple[Tensor, tuple[str, ...]]:
    """Return the features with standardized columns, and what that takes as public."""
    if dataset.continuous is None or not dataset.continuous.any():
        return dataset.x, ()
    columns = dataset.x[:, dataset.continuous].double()
    std, mean = torch.std_mean(columns[torch.from_numpy(train)], dim=0, correction=0)
    x = dataset.x.clone()
    # A constant column has nothing to scale.
    x[:, dataset.continuous] = ((columns - mean) / torch.where(std > 0, std, 1.0)).to(x.dtype)
    names = [name for name, flag in zip(dataset.features, dataset.continuous, strict=True) if flag]
    return x, (f"mean and standard deviation over all training samples of: {', '.join(names)}",)


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
