"""Partitions: every sample goes to exactly one client, by the rule that each kind promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from datasets.allocation import Positions, deal_classes, even, proportional, spread
from datasets.partition import (
    PARTITIONS,
    Classes,
    Dirichlet,
    Iid,
    Natural,
    Partition,
    PartitionError,
    Quantity,
    Samples,
    Sensitive,
    Shards,
)

# One maker per registered kind: from the number of clients and classes to settings that fit them.
MAKERS: dict[str, Callable[[int, int], Partition]] = {
    "iid": lambda clients, known: Iid(),
    "classes": lambda clients, known: Classes(known // np.gcd(known, clients)),
    "dirichlet": lambda clients, known: Dirichlet(alpha=1.0, at_least=1),
    "quantity": lambda clients, known: Quantity(alpha=0.3),
    "sensitive": lambda clients, known: Sensitive(tuple(float(1 + i) for i in range(clients))),
    "shards": lambda clients, known: Shards(by_class=known % 2 == 0),
    "natural": lambda clients, known: Natural("site"),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def deal(
    partition: Partition, labels: NDArray[np.int64], clients: int | None, seed: int = 0
) -> list[Positions]:
    return partition(labels, None, {}, clients, rng(seed))


def balanced(known: int, each: int) -> NDArray[np.int64]:
    return rng(7).permutation(np.repeat(np.arange(known), each))


def test_every_registered_kind_takes_part_in_the_property_test() -> None:
    assert set(MAKERS) == set(PARTITIONS)


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 6),
    known=st.integers(1, 6),
    extra=st.integers(0, 60),
    seed=st.integers(0, 2**32),
)
@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_parts_are_disjoint_complete_not_empty_and_reproducible(
    kind: str, clients: int, known: int, extra: int, seed: int
) -> None:
    """Unbalanced on purpose: 12 samples of every class (enough for all shards), the others at random."""
    draw = rng(seed)
    labels = np.concatenate([np.repeat(np.arange(known), 12), draw.integers(0, known, 12 + extra)])
    columns = {"site": draw.permutation(np.arange(len(labels)) % clients)}
    groups = np.arange(len(labels)) % 2
    part = MAKERS[kind](clients, known)
    parts = part(labels, groups, columns, clients, rng(seed))
    assert len(parts) == clients
    assert all(len(held) and (np.diff(held) > 0).all() for held in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    again = part(labels, groups, columns, clients, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - {"natural"}))
def test_another_seed_gives_another_partition(kind: str) -> None:
    labels, part = balanced(4, 30), MAKERS[kind](4, 4)
    first, second = (part(labels, labels % 2, {}, 4, rng(seed)) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("n", "clients"), [(100, 7), (10, 10), (11, 1)])
def test_iid_sizes_differ_by_at_most_one(n: int, clients: int) -> None:
    sizes = [len(held) for held in deal(Iid(), balanced(1, n), clients)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("clients", "classes", "each", "size"),
    [
        (50, 4, 7000, 1400),
        (50, 2, 6000, 1200),
        (10, 4, 40, 40),
        (20, 4, 80, 40),
        (10, 10, 20, 20),
        (5, 2, 3, 6),
    ],
)
def test_classes_gives_clients_equal_shards_of_their_classes(
    clients: int, classes: int, each: int, size: int
) -> None:
    """The first two rows are FedReCo's Table 4.

    70,000 samples of 10 classes over 50 clients with 4 classes: 50 * 4 / 10 = 20 shards of 350 a class, so
    a client holds 4 * 350 = 1,400. 60,000 samples and 2 classes: 10 shards of 600, 2 * 600 = 1,200.
    """
    labels = balanced(10, each)
    for held in deal(Classes(classes), labels, clients):
        counts = np.bincount(labels[held], minlength=10)
        assert np.count_nonzero(counts) == classes
        assert set(counts[counts > 0]) == {size // classes}


def test_classes_cuts_classes_of_any_size_evenly() -> None:
    """4 clients x 2 of 4 classes: 2 shards a class. 11 samples make shards of 6 and 5, 20 make 10 and 10."""
    labels = np.repeat(np.arange(4), [11, 20, 7, 8])
    parts = deal(Classes(2), labels, 4)
    table = np.array([np.bincount(labels[held], minlength=4) for held in parts])
    shards = [sorted(column[column > 0]) for column in table.T]
    assert shards == [[5, 6], [10, 10], [3, 4], [4, 4]]


def test_classes_names_the_numbers_that_would_do() -> None:
    """Clients must be a multiple of 10 / gcd(10, 4) = 5, classes per client one of 10 / gcd(10, 7) = 10."""
    with pytest.raises(PartitionError, match=r"28 shards.*use 5 or 10 clients, or 10 classes per client"):
        deal(Classes(4), balanced(10, 28), 7)


def test_classes_refuses_too_many_classes_and_empty_shards() -> None:
    with pytest.raises(PartitionError, match="11 classes per client, but the data have 10"):
        deal(Classes(11), balanced(10, 20), 10)
    with pytest.raises(PartitionError, match="class 2 has 3 samples but must be cut into 4 shards"):
        deal(Classes(2), np.repeat(np.arange(4), [9, 9, 3, 9]), 8)


@settings(max_examples=60, deadline=None)
@given(
    known=st.integers(1, 12),
    per_client=st.integers(1, 12),
    times=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_dealing_classes_never_runs_into_a_dead_end(
    known: int, per_client: int, times: int, seed: int
) -> None:
    per_client = min(per_client, known)
    clients = times * known // np.gcd(known, per_client)
    holds = deal_classes(known, per_client, clients, rng(seed))
    assert (holds.sum(1) == per_client).all()
    assert (holds.sum(0) == clients * per_client // known).all()


def test_dealt_class_pairs_are_not_tied_together() -> None:
    """Over many clients with 2 of 4 classes all 6 pairs occur, each about 1000 / 6 times."""
    holds = deal_classes(4, 2, 1000, rng())
    _, times = np.unique(holds, axis=0, return_counts=True)
    assert len(times) == 6
    assert times.min() > 100


def test_only_small_dirichlet_alphas_skew_labels() -> None:
    """With alpha 1000 shares are 1/5 within a few percent; with 0.1 one client holds most of a class."""
    labels = balanced(4, 500)

    def largest_share(alpha: float) -> float:
        parts = deal(Dirichlet(alpha), labels, 5)
        return float(max(np.bincount(labels[held], minlength=4).max() for held in parts)) / 500

    assert largest_share(1000.0) < 0.25
    assert largest_share(0.1) > 0.5


def test_dirichlet_redraws_until_everyone_holds_enough() -> None:
    labels = balanced(2, 50)
    for seed in range(20):
        assert min(len(held) for held in deal(Dirichlet(0.3, at_least=5), labels, 4, seed)) >= 5
    with pytest.raises(PartitionError, match=r"1000 draws with alpha 0.001.*larger alpha"):
        deal(Dirichlet(0.001, at_least=20), labels, 5)
    with pytest.raises(PartitionError, match="100 samples cannot give each of 51 clients at_least 2"):
        deal(Dirichlet(), labels, 51)


def test_quantity_skews_sizes_but_not_labels() -> None:
    """The label shares of the largest client stay near 1/2: over 1,000 samples have a deviation of 0.016."""
    labels = balanced(2, 2000)
    parts = deal(Quantity(0.3, at_least=3), labels, 8)
    largest = max(parts, key=len)
    assert min(len(held) for held in parts) >= 3
    assert len(largest) > 1000
    assert abs(labels[largest].mean() - 0.5) < 0.1


def test_two_two_six_cuts_every_sensitive_value() -> None:
    """50 values of 10 samples: a client gets 2 or 6 of a value; each of the three gets a 6 sometimes."""
    groups = rng(3).permutation(np.repeat(np.arange(50), 10))
    parts = Sensitive()(np.zeros_like(groups), groups, {}, 3, rng())
    table = np.array([np.bincount(groups[held], minlength=50) for held in parts])
    assert all(sorted(column) == [2, 2, 6] for column in table.T)
    assert set(table.argmax(0)) == {0, 1, 2}


def test_sensitive_shares_are_within_one_sample_of_the_ratio() -> None:
    """7 samples by 2:2:6 are 1.4, 1.4, 4.2: cumulated 1.4, 2.8, 7, rounded 1, 3, 7, so shares 1, 2, 4."""
    parts = Sensitive()(np.zeros(7, dtype=int), np.zeros(7, dtype=int), {}, None, rng())
    assert sorted(len(held) for held in parts) == [1, 2, 4]


def test_sensitive_needs_groups_and_one_share_per_client() -> None:
    labels = balanced(2, 10)
    with pytest.raises(PartitionError, match="no sensitive attribute"):
        deal(Sensitive(), labels, 3)
    with pytest.raises(PartitionError, match="3 shares for 4 clients"):
        Sensitive()(labels, labels, {}, 4, rng())


def test_even_shards_hold_an_even_part_of_every_class() -> None:
    """Dealing ``rank::4`` from the sorted samples: of 10 in a class 2 or 3 each; sizes at most one apart."""
    labels = balanced(5, 10)
    parts = deal(Shards(), labels, 4)
    assert all(set(np.bincount(labels[held], minlength=5)) <= {2, 3} for held in parts)
    assert {len(held) for held in parts} == {12, 13}


def test_shards_by_class_are_contiguous_blocks_of_classes() -> None:
    """2 classes of 30 over 6 clients: blocks of 10, three clients hold only class 0, three only class 1."""
    labels = balanced(2, 30)
    parts = deal(Shards(by_class=True), labels, 6)
    assert sorted((int(labels[held].min()), int(labels[held].max()), len(held)) for held in parts) == [
        *[(0, 0, 10)] * 3,
        *[(1, 1, 10)] * 3,
    ]


def test_natural_gives_each_value_its_own_client() -> None:
    columns = {"site": np.array(["rome", "bern", "rome", None, "bern"], dtype=object)}
    parts = Natural("site")(np.zeros(5, dtype=int), None, columns, None, rng())
    assert [held.tolist() for held in parts] == [[3], [1, 4], [0, 2]]  # "None", "bern", "rome"


def test_natural_names_the_nearest_column() -> None:
    columns = {"site": np.array([1, 2, 3]), "age": np.array([1, 1, 1])}
    with pytest.raises(PartitionError, match="'site' has 3 values, not 2"):
        Natural("site")(np.zeros(3, dtype=int), None, columns, 2, rng())
    with pytest.raises(PartitionError, match="unknown column 'sit'; did you mean 'site'"):
        Natural("sit")(np.zeros(3, dtype=int), None, columns, None, rng())


class LeavesOneOut(Partition):
    kind = "leaves-one-out"
    remedy = "do not use this"

    def owners(self, samples: Samples, clients: int, rng: np.random.Generator) -> Positions:
        return np.where(
            np.arange(len(samples.labels)) % clients == 2, 0, np.arange(len(samples.labels)) % clients
        )


def test_a_client_without_samples_is_named_with_kind_and_remedy() -> None:
    with pytest.raises(
        PartitionError, match=r"'leaves-one-out': client 2 of 4 is left without.*; do not use this"
    ):
        deal(LeavesOneOut(), balanced(2, 8), 4)


def test_numbers_of_clients_that_make_no_sense_are_refused() -> None:
    for clients, reason in (
        (None, "needs the number of clients"),
        (0, "at least 1"),
        (9, "8 samples are too few"),
    ):
        with pytest.raises(PartitionError, match=reason):
            deal(Iid(), balanced(2, 4), clients)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classes(0),
        lambda: Dirichlet(0.0),
        lambda: Dirichlet(float("nan")),
        lambda: Dirichlet(at_least=0),
        lambda: Quantity(-1.0),
        lambda: Sensitive(()),
        lambda: Sensitive((1.0, 0.0)),
    ],
)
def test_settings_out_of_range_are_refused_when_set(make: Callable[[], Partition]) -> None:
    with pytest.raises(PartitionError):
        make()


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 500), shares=st.lists(st.floats(0.01, 10), min_size=1, max_size=8))
def test_proportional_parts_sum_up_and_are_at_most_one_off(n: int, shares: list[float]) -> None:
    parts = proportional(np.array(n), np.array(shares))
    exact = n * np.array(shares) / sum(shares)
    assert parts.sum() == n
    assert (np.abs(parts - exact) <= 1 + 1e-9).all()


def test_even_parts_put_the_rest_in_front() -> None:
    assert even(11, 4).tolist() == [3, 3, 3, 2]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), blocks=st.integers(1, 4), n=st.integers(4, 80), seed=st.integers(0, 2**32))
def test_spread_takes_exact_numbers_in_proportion(
    data: st.DataObject, blocks: int, n: int, seed: int
) -> None:
    draw = rng(seed)
    block, strata = draw.permutation(np.arange(n) % blocks), draw.integers(0, 3, n)
    sizes = np.bincount(block, minlength=blocks)
    take = np.array([data.draw(st.integers(0, int(size))) for size in sizes])
    chosen = spread(block, strata, take, draw)
    assert np.bincount(block[chosen], minlength=blocks).tolist() == take.tolist()
    for b in range(blocks):
        for s in range(3):
            run = (block == b) & (strata == s)
            assert abs(chosen[run].sum() - run.sum() * take[b] / sizes[b]) < 1


def test_spread_chooses_every_sample_equally_often() -> None:
    """3 of 10 in 4,000 draws: each 1,200 times, deviation sqrt(4000 * 0.3 * 0.7) = 29; within 5 of those."""
    draw, strata = rng(), np.array([0] * 7 + [1] * 3)
    times = sum(spread(np.zeros(10, dtype=int), strata, np.array([3]), draw).astype(int) for _ in range(4000))
    assert np.abs(times - 1200).max() < 145
