"""Users inside clients: who has which samples, dealt whole to training and test samples."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datasets.allocation import Positions, part_of
from datasets.errors import FederationError

if TYPE_CHECKING:
    from datasets.dataset import Dataset


def user_numbers(dataset: Dataset, column: str, owner: Positions, position: Positions) -> NDArray[np.int64]:
    """Return the number of the user of every sample, ``(n,)``, each of whom is at one client."""
    if column not in dataset.columns:
        near = difflib.get_close_matches(column, dataset.columns, n=1, cutoff=0.0)
        raise FederationError(
            f"unknown column of users {column!r}; {f'nearest: {near[0]}' if near else 'the data have no columns'}"
        )
    names, users = np.unique(np.asarray(dataset.columns[column]).astype(str), return_inverse=True)
    pairs = np.unique(np.stack([users[position], owner]), axis=1)
    twice = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(twice):
        (who, one), other = pairs[:, twice[0]], pairs[1, twice[0] + 1]
        raise FederationError(
            f"user {str(names[who])!r} of column {column!r} has samples at clients {one} and {other}, so no "
            "epsilon of one client covers all of them; use a partition that keeps users together (natural, by a "
            "column of which users are parts)"
        )
    return users.astype(np.int64)


def whole_users(
    owner: Positions, users: NDArray[np.int64], share: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose a share of every client's users, and all their samples, ``(n,)`` bool."""
    _, first, which = np.unique(users, return_index=True, return_inverse=True)
    return part_of(owner[first], np.zeros(len(first), np.int64), share, rng)[which]


def reserved_users(users: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose a share of all users, and all their samples, ``(n,)`` bool."""
    total = int(users.max()) + 1
    chosen = np.zeros(total, dtype=bool)
    chosen[rng.permutation(total)[: max(1, round(share * total))]] = True
    return chosen[users]


def grouped(users: Tensor, most: int) -> Tensor:
    """Return the places of each user's first samples, ``(U, most)``, padded with -1."""
    order = users.argsort(stable=True)
    counts = torch.unique(users, return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    within = torch.arange(len(users)) - starts.repeat_interleave(counts)
    table = torch.full((len(counts), most), -1)
    kept = within < most
    table[torch.arange(len(counts)).repeat_interleave(counts)[kept], within[kept]] = order[kept]
    return table
