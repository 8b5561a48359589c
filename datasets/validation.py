"""Validation data of an outer problem, taken from the training data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from datasets.allocation import index_of
from datasets.errors import FederationError
from datasets.federation import Federation


def balanced(
    federation: Federation, share: float, rng: np.random.Generator, *, keep: bool = False
) -> Federation:
    """Split off validation data in which all groups present at a client are equally large.

    Parameters
    ----------
    federation : Federation
        A federation with sensitive groups.
    share : float
        Samples to draw from every group present at a client, as a share of its smallest such group, in (0, 1];
        rounded down, at least one sample. Users are drawn one after the other. What is left of those who are drawn
        is in neither split, without ``keep``.
    rng : numpy.random.Generator
        The only source of randomness.
    keep : bool
        Whether they also remain training samples.

    Returns
    -------
    Federation
        The federation with a split ``"validation"``, and without ``keep`` a smaller ``"train"``.

    Raises
    ------
    FederationError
        If the share is out of range, or a client would be left without training samples.
    """
    if not 0 < share <= 1:
        raise FederationError(f"validation is {share}; give a share above 0 and at most 1")
    train, groups = federation.splits["train"].numpy(), len(federation.groups)
    owner, column = np.nonzero(train >= 0)
    position = train[owner, column]
    cell = owner * groups + federation.pool.group.numpy()[position]
    sizes = np.bincount(cell, minlength=len(train) * groups)
    smallest = np.where(sizes > 0, sizes, len(position)).reshape(len(train), groups).min(1)
    users = np.arange(len(cell)) if federation.users is None else federation.users.numpy()[position]
    shuffle = rng.random(users.max() + 1)  # places of users, or of samples, in an order at random
    order = np.lexsort((users, shuffle[users], cell))
    rank = np.empty(len(cell), dtype=np.int64)
    rank[order] = np.arange(len(cell)) - (np.cumsum(sizes) - sizes)[cell[order]]
    chosen = rank < np.maximum(1, np.floor(share * smallest + 1e-9).astype(np.int64))[owner]
    stays = ~np.isin(users, users[chosen]) | keep
    remaining = np.bincount(owner[stays], minlength=len(train))
    if not remaining.all():
        raise FederationError(
            f"client {remaining.argmin()} would be left without training samples: its groups are so small that "
            "their validation samples are all it has; use fewer clients or another partition"
        )
    parts = {"train": stays, "validation": chosen}
    splits = {name: index_of(position[of], owner[of], len(train)) for name, of in parts.items()}
    return replace(
        federation, splits={**federation.splits, **{k: torch.from_numpy(v) for k, v in splits.items()}}
    )
