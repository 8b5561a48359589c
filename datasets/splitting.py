"""The samples of a data set that are used, and those of every client that train, test and select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.allocation import Positions, index_of, part_of, spread
from datasets.errors import FederationError
from datasets.users import Users, refuse_scattered, refuse_shared, reserved_users, users_of, whole_users

if TYPE_CHECKING:
    from datasets.dataset import Dataset


class Usage(NamedTuple):
    """The samples of a data set that are used.

    Attributes
    ----------
    shared, official : ndarray
        Positions of the samples that are partitioned, and of the source's test samples, which are not.
    users : Users or None
        Users of all samples, if they are told apart.
    """

    shared: Positions
    official: Positions
    users: Users | None


class Holdings(NamedTuple):
    """Samples that clients hold.

    Attributes
    ----------
    position, owner : ndarray
        Position in the data and client of each sample, ``(n,)``, ascending in a client.
    clients : int
        Number of clients.
    drawn : bool
        Whether another seed gives the samples to other clients.
    """

    position: Positions
    owner: Positions
    clients: int
    drawn: bool

    @property
    def table(self) -> Positions:
        """The sorted positions of every client, ``(C, N)``, padded with -1."""
        return index_of(self.position, self.owner, self.clients)

    def divide(self, chosen: NDArray[np.bool_]) -> tuple[Holdings, Holdings]:
        """Return the chosen samples, ``(n,)`` bool, and the others."""
        return self._where(chosen), self._where(~chosen)

    def _where(self, chosen: NDArray[np.bool_]) -> Holdings:
        return self._replace(position=self.position[chosen], owner=self.owner[chosen])


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """Settings of a federation's samples: which are used, and for what.

    Attributes
    ----------
    test : float or "official"
        Share of each client's samples used for testing, in (0, 1), rounded to at least one sample; at least one is
        left for training (a client with a single sample trains on it). ``"official"``: only the training samples
        are partitioned, and the source's test samples are distributed evenly at random.
    stratify : sequence of "label", "group"
        Stratification of each client's test samples (both: jointly); not with ``"official"``.
    limit : int, optional
        Size of a random subset to use, stratified by class.
    drop_negatives : float
        Share, in [0, 1), of the samples of class 0 to drop before partitioning, which makes two classes imbalanced.
        Official test samples are kept with ``"official"``; otherwise test samples are as imbalanced as the rest.
    selection : float
        Share, in [0, 1), of each client's training samples held out to choose hyper-parameters, stratified like the
        test samples and of at least one sample (a client with a single sample trains on it). Standardization does
        not use them.
    selection_rng : numpy.random.Generator, optional
        Draws the samples of ``selection`` instead of the federation's: a share of all samples, stratified by class,
        before anything else. Federations of other generators then hold out the same samples, and train and test on
        none of them. A client all of whose samples are drawn keeps the first, if it is the same client in all of
        these federations; otherwise it is refused.
    user : str, optional
        Raw column that names the user of a sample. It is no feature, and all samples of a user, at whatever
        client, are in one split. Shares are then of users, and official test samples must be of users of their own.
    one_client : bool
        Whether users with samples at several clients are refused.
    """

    test: float | Literal["official"] = 0.3
    stratify: Sequence[Literal["label", "group"]] = ()
    limit: int | None = None
    drop_negatives: float = 0.0
    selection: float = 0.0
    selection_rng: np.random.Generator | None = None
    user: str | None = None
    one_client: bool = False

    def usage(self, dataset: Dataset, rng: np.random.Generator) -> Usage:
        """Draw the samples of a data set that are used."""
        if self.test == "official" and self.stratify:
            raise FederationError("the official test samples are given: stratify needs test as a share")
        held_out = _held_out(dataset, self.test)
        users = None if self.user is None else users_of(dataset, self.user)
        if users is not None and self.test == "official":
            refuse_shared(users, held_out)
        used = _subset(dataset.strata, held_out, self.limit, rng)
        used = _uneven(dataset, used, held_out, self.drop_negatives, rng)
        return Usage(used[~held_out[used]], used[held_out[used]], users)

    def splits(
        self, dataset: Dataset, usage: Usage, holdings: Holdings, rng: np.random.Generator
    ) -> dict[str, Positions]:
        """Draw the splits of the samples that clients hold: positions in the data, ``(C, N)``, padded with -1."""
        users = usage.users
        if users is not None and self.one_client:
            refuse_scattered(users, holdings.owner, holdings.position)
        splits = {}
        if self.test == "official":
            splits["test"] = _deal(usage.official, holdings.clients, rng)
        shares = self._shares()
        if self.selection_rng is not None:
            reserved, holdings = self._reserved(
                dataset, users, holdings, shares.pop("selection"), self.selection_rng
            )
            splits["selection"] = reserved.table
        strata = _strata(dataset, self.stratify)
        for name, share in shares.items():
            classes = strata[holdings.position]
            if users is None:
                chosen = part_of(holdings.owner, classes, share, rng)
            else:
                number = users.number[holdings.position]
                chosen = whole_users(holdings.owner, holdings.position, number, classes, share, rng)
            part, holdings = holdings.divide(chosen)
            splits[name] = part.table
        if not (splits["test"] >= 0).any():
            raise FederationError(
                f"no client has a test sample: every one holds a single {'sample' if users is None else 'user'}, "
                "on which it trains; use fewer clients, or group those with few samples (partition.at_least, "
                "partition.group)"
            )
        return {"train": holdings.table, **splits}

    def _shares(self) -> dict[str, float]:
        """Return the shares of samples that are drawn, by split."""
        shares = {} if self.test == "official" else {"test": self.test}
        shares |= {"selection": self.selection} if self.selection else {}
        for name, share in shares.items():
            if not 0 < share < 1:
                raise FederationError(f"{name} is {share}; give a share above 0 and below 1")
        return shares

    def _reserved(
        self,
        dataset: Dataset,
        users: Users | None,
        holdings: Holdings,
        share: float,
        rng: np.random.Generator,
    ) -> tuple[Holdings, Holdings]:
        """Divide samples into those that are held out in every federation of the data, and the others."""
        if users is None:
            chosen = _reserved(dataset.strata, _held_out(dataset, self.test), share, rng)
        else:
            chosen = reserved_users(users.number, share, rng)
        held_out = chosen[holdings.position]
        empty = np.flatnonzero(np.bincount(holdings.owner[~held_out], minlength=holdings.clients) == 0)
        if users is None and not (holdings.drawn or self.limit or self.drop_negatives):
            held_out[np.searchsorted(holdings.owner, empty)] = False
        elif len(empty):
            raise FederationError(
                f"all samples of client {empty[0]} are held out for selection; use fewer clients, more samples a "
                "client (at_least), or a smaller selection"
            )
        return holdings.divide(held_out)


#: Three tenths of every client's samples are tested.
USUAL = Splitting()


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
    candidates = np.flatnonzero(~held_out)
    take = np.array([max(1, round(share * len(candidates)))])
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[candidates[spread(np.zeros(len(candidates), dtype=np.int64), labels[candidates], take, rng)]] = (
        True
    )
    return chosen


def _uneven(
    dataset: Dataset, used: Positions, held_out: NDArray[np.bool_], share: float, rng: np.random.Generator
) -> Positions:
    """Drop a random share of the samples of class 0 that are not held out."""
    if share == 0:
        return used
    if not 0 < share < 1:
        raise FederationError(f"drop_negatives is {share}; give a share of at least 0 and below 1")
    if len(dataset.classes) != 2:
        raise FederationError(
            f"drop_negatives needs two classes, {dataset.name} has {len(dataset.classes)}; "
            "`binary: halves` makes two of them"
        )
    negative = used[(dataset.y.numpy()[used] == 0) & ~held_out[used]]
    dropped = rng.choice(negative, round(share * len(negative)), replace=False)
    return np.setdiff1d(used, dropped)


def _strata(dataset: Dataset, stratify: Sequence[Literal["label", "group"]]) -> Positions:
    """Return the stratum of every sample, ``(n,)``, by label, group, both or neither."""
    unfit = set(stratify) - {"label", "group"}
    if unfit:
        raise FederationError(f"stratify names {sorted(unfit)}; it may name 'label' and 'group'")
    strata = np.zeros(len(dataset.y), dtype=np.int64)
    if "label" in stratify:
        strata = dataset.strata
    if "group" in stratify:
        if dataset.group is None:
            raise FederationError("stratify names 'group', but the data have no sensitive attribute")
        groups = dataset.group.numpy()
        strata = strata * (groups.max() + 1) + groups
    return strata


def _deal(position: Positions, clients: int, rng: np.random.Generator) -> Positions:
    """Distribute the official test samples evenly, ``(C, N)``."""
    if len(position) < clients:
        raise FederationError(
            f"{len(position)} official test samples for {clients} clients; use fewer, or give test as a share"
        )
    return index_of(rng.permutation(position), np.arange(len(position)) % clients, clients)
