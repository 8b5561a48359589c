"""Users in one split each, in whatever way samples are dealt to clients."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.dataset import Dataset
from datasets.errors import FederationError
from datasets.federation import Federation, federate
from datasets.partition import PARTITIONS, Iid, Natural, PartitionError, Sensitive
from datasets.splitting import Splitting
from datasets.validation import balanced
from datasets.vertical import Columns

KINDS = [Sensitive((1.0, 1.0, 1.0)) if name == "sensitive" else made() for name, made in PARTITIONS.items()]


def table(n: int, users: int, seed: int, *, official: bool = False) -> Dataset:
    """Build a table of users with a random number of samples, of whom the last are the source's test samples."""
    drawn = np.random.default_rng(seed)
    who = np.sort(drawn.integers(0, users, n))
    return Dataset(
        name="visits",
        x=torch.from_numpy(drawn.standard_normal((n, 2))).float(),
        y=torch.from_numpy(drawn.integers(0, 2, n)),
        classes=("no", "yes"),
        source="visits (made up)",
        digest="d",
        group=torch.from_numpy(drawn.integers(0, 2, n)),
        groups=("a", "b"),
        official_test=torch.from_numpy(who > 2 * users // 3) if official else None,
        features=("u", "v"),
        origins=("u", "v"),
        columns={"site": drawn.integers(0, 3, n), "person": np.array([f"p{number}" for number in who])},
        client="site",
    )


def splits_of(federation: Federation) -> Counter[int]:
    """Return how many splits each user is in."""
    assert federation.users is not None
    of = [set(federation.users[index[index >= 0]].tolist()) for index in federation.splits.values()]
    return Counter(user for users in of for user in users)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from([*KINDS, Columns()]),
    n=st.integers(30, 120),
    users=st.integers(2, 60),
    seed=st.integers(0, 10**6),
    test=st.sampled_from([0.2, 0.5, 0.8, "official"]),
    selection=st.sampled_from([0.0, 0.3]),
    fixed=st.booleans(),
    stratify=st.sampled_from([(), ("label",), ("label", "group")]),
    limit=st.sampled_from([None, 25]),
)
def test_no_user_is_in_two_splits(kind, n, users, seed, test, selection, fixed, stratify, limit):
    official = test == "official"
    data = table(n, users, seed, official=official)
    vertical = isinstance(kind, Columns)
    options = {
        "test": test,
        "selection": selection,
        "selection_rng": np.random.default_rng(seed % 7) if selection and fixed else None,
        "stratify": () if official else stratify,
        "limit": limit,
    }
    federation = None
    with suppress(FederationError, PartitionError):  # too few samples for what is asked for
        federation = federate(
            data, Iid() if vertical else kind, 1 if vertical else 3, np.random.default_rng(seed),
            Splitting(user="person", **options),
        )  # fmt: skip
    if federation is None:
        return
    if vertical:
        federation = kind(federation, federation.inputs.features, 2)
    assert set(splits_of(federation).values()) == {1}
    assert federation.counts("train").min() > 0
    places = torch.cat([index[index >= 0] for index in federation.splits.values()])
    assert len(places) == len(places.unique())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6), share=st.sampled_from([0.2, 1.0]), kind=st.sampled_from([Iid(), Natural()])
)
def test_no_user_validates_and_trains(seed, share, kind):
    """As many validation samples of every group as without users; the rest of those users is nowhere."""
    federation = federate(
        table(200, 60, seed), kind, 3, np.random.default_rng(seed), Splitting(user="person")
    )
    with suppress(FederationError):
        made = balanced(federation, share, np.random.default_rng(seed))
        assert set(splits_of(made).values()) == {1}
        for before, after in zip(federation.splits["train"], made.splits["validation"], strict=True):
            sizes = federation.pool.group[before[before >= 0]].bincount()
            wanted = max(1, int(share * int(sizes[sizes > 0].min()) + 1e-9))
            assert made.pool.group[after[after >= 0]].bincount()[sizes > 0].tolist() == [wanted] * int(
                (sizes > 0).sum()
            )


def test_shares_are_of_users_at_every_client():
    """Thirty users of two samples, at one client each: three in ten of the ten at every client are tested."""
    data = table(60, 30, 0)
    who, home = np.repeat(np.arange(30), 2), np.repeat(np.arange(30) % 3, 2)
    columns = {"site": home, "person": np.array([f"p{number}" for number in who])}
    data = Dataset(**{**vars(data), "columns": columns})
    federation = federate(data, Natural(), None, np.random.default_rng(0), Splitting(test=0.3, user="person"))
    assert federation.counts("test").tolist() == [6, 6, 6]


def test_official_tests_of_users_who_train_are_refused():
    data = table(60, 20, 0, official=True)
    federate(data, Iid(), 3, np.random.default_rng(0), Splitting(test="official", user="person"))
    mixed = Dataset(**{**vars(data), "official_test": torch.arange(60) % 2 == 0})
    with pytest.raises(FederationError, match="are among the official test samples and among the others"):
        federate(mixed, Iid(), 3, np.random.default_rng(0), Splitting(test="official", user="person"))
