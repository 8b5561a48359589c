"""Users inside clients: who has which samples, dealt whole to training and test samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.allocation import Positions, part_of
from datasets.errors import FederationError, nearest

if TYPE_CHECKING:
    from datasets.dataset import Dataset


class Users(NamedTuple):
    """Users of samples: the column, its sorted names, and the number of each sample's user, ``(n,)``."""

    column: str
    names: NDArray[np.str_]
    number: NDArray[np.int64]


def users_of(dataset: Dataset, column: str) -> Users:
    """Return the users of all samples."""
    if column not in dataset.columns:
        raise FederationError(f"unknown column of users {column!r}; {nearest(column, dataset.columns)}")
    names, number = np.unique(np.asarray(dataset.columns[column]).astype(str), return_inverse=True)
    return Users(column, names, number.astype(np.int64))


def refuse_scattered(users: Users, owner: Positions, position: Positions) -> None:
    """Refuse users with samples at several clients: no client's epsilon covers all of their samples."""
    pairs = np.unique(np.stack([users.number[position], owner]), axis=1)
    twice = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(twice):
        (user, first), second = pairs[:, twice[0]], pairs[1, twice[0] + 1]
        raise FederationError(
            f"user {str(users.names[user])!r} of column {users.column!r} has samples at clients {first} and "
            f"{second}, so no epsilon of one client covers all of them. If clients gave the same name to different "
            f"people, tell these apart, as by data.files.FILE.map.{users.column}={{'*': 'B*'}}; if they are the "
            "same people, use a partition that keeps users together (natural, by a column of which users are parts)"
        )


def refuse_shared(users: Users, official: NDArray[np.bool_]) -> None:
    """Refuse official test samples of users who have other samples too."""
    both = np.intersect1d(users.number[official], users.number[~official])
    if len(both):
        raise FederationError(
            f"{len(both)} users of column {users.column!r}, such as {str(users.names[both[0]])!r}, are among the "
            "official test samples and among the others; give test as a share, which keeps users together"
        )


def whole_users(
    owner: Positions,
    position: Positions,
    users: NDArray[np.int64],
    strata: Positions,
    share: float,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Choose a share of every client's users, and all their samples at every client, ``(n,)`` bool.

    A user counts at the client of the first of its samples in the data, and in the stratum of most of them. A
    client of which nothing would be left keeps the user of its first sample, who then is not chosen at any client.

    Parameters
    ----------
    owner, position, users, strata : ndarray
        Client, place in the data, user and stratum of every sample, ``(n,)``.
    share : float
        In (0, 1).
    rng : numpy.random.Generator
        The only source of randomness.
    """
    names, which = np.unique(users, return_inverse=True)
    order = np.lexsort((position, which))
    first = order[np.searchsorted(which[order], np.arange(len(names)))]
    pairs, times = np.unique(np.stack([which, strata]), axis=1, return_counts=True)
    most = np.lexsort((pairs[1], -times, pairs[0]))
    usual = pairs[1, most[np.searchsorted(pairs[0, most], np.arange(len(names)))]]
    chosen = part_of(owner[first], usual, share, rng)
    left = np.bincount(owner[~chosen[which]], minlength=owner.max() + 1)
    for client in np.setdiff1d(owner, np.flatnonzero(left)):
        members = which[owner == client]
        if chosen[members].all():
            chosen[members[0]] = False
    return chosen[which]


def reserved_users(users: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of all users, and all their samples, ``(n,)`` bool."""
    total = int(users.max()) + 1
    chosen = np.zeros(total, dtype=bool)
    chosen[rng.permutation(total)[: max(1, round(share * total))]] = True
    return chosen[users]


def most_of_a_user(users: Tensor, index: Tensor, unit: Literal["record", "client"]) -> int:
    """Return the largest number of samples in a split ``(C, N)`` of a user, or of clients at which a user is."""
    client, place = torch.nonzero(index >= 0, as_tuple=True)
    members = users[index[client, place]]
    if unit == "client":
        members = torch.stack([members, client], 1).unique(dim=0)[:, 0]
    return int(members.unique(return_counts=True)[1].max())


def grouped(users: Tensor, most: int) -> Tensor:
    """Return the places of each user's first samples, ``(U, most)``, padded with -1."""
    order = users.argsort(stable=True)
    counts = torch.unique(users, return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    within = torch.arange(len(users)) - starts.repeat_interleave(counts)
    table = torch.full((len(counts), most), -1)
    fits = within < most
    table[torch.arange(len(counts)).repeat_interleave(counts)[fits], within[fits]] = order[fits]
    return table
