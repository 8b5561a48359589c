"""Federations: the split of every client, official tests, standardization, stacking, and the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datasets.dataset import Dataset, halves
from datasets.errors import FederationError
from datasets.federation import Federation, federate, stack
from datasets.partition import Classes, Iid, Natural, PartitionError, Sensitive
from datasets.picture import draw
from datasets.splitting import Splitting
from datasets.validation import balanced


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(n: int, known: int = 2, *, groups: int = 0, continuous: bool = False, tested: int = 0) -> Dataset:
    """Build a table: label i % known, random group, features (i, 3 i, 5), the last `tested` rows official."""
    position = torch.arange(n)
    group = torch.from_numpy(rng(5).integers(0, groups, n)) if groups else None
    return Dataset(
        name="table",
        x=torch.stack([position, 3 * position, torch.full((n,), 5)], 1).float(),
        y=position % known,
        classes=tuple(f"class {k}" for k in range(known)),
        source="table (made up)",
        digest="d",
        group=group,
        groups=tuple(f"group {k}" for k in range(groups)),
        official_test=position >= n - tested if tested else None,
        features=("position", "triple", "constant"),
        continuous=torch.tensor([True, False, True]) if continuous else None,
        columns={"site": position.numpy() % 3},
    )


def held(federation: Federation, split: str) -> list[list[int]]:
    return [[int(i) for i in row if i >= 0] for row in federation.splits[split]]


def everything(federation: Federation) -> list[int]:
    return sorted(i for split in federation.splits for row in held(federation, split) for i in row)


@pytest.mark.parametrize(("each", "classes", "train", "test"), [(7000, 4, 980, 420), (6000, 2, 840, 360)])
def test_fedreco_client_sizes(each: int, classes: int, train: int, test: int) -> None:
    """FedReCo's Table 4: 50 clients, 1,400 = 980 + 420 (49,000 and 21,000 in all), 1,200 = 840 + 360."""
    federation = federate(table(10 * each, 10), Classes(classes), 50, rng())
    assert federation.clients == 50
    assert set(federation.counts("train").tolist()) == {train}
    assert set(federation.counts("test").tolist()) == {test}
    assert everything(federation) == list(range(10 * each))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(5, 60), share=st.floats(0.01, 0.99), seed=st.integers(0, 2**32))
def test_every_client_trains_and_tests_on_disjoint_samples(n: int, share: float, seed: int) -> None:
    """Two or more samples: at least one of each. The test part is the rounded share but for that."""
    federation = federate(table(n), Iid(), 4, rng(seed), Splitting(test=share))
    assert everything(federation) == list(range(n))
    for train, test in zip(held(federation, "train"), held(federation, "test"), strict=True):
        size = len(train) + len(test)
        assert train
        assert len(test) == (0 if size == 1 else min(max(round(size * share), 1), size - 1))


def test_padding_is_minus_one_at_the_end_of_a_row() -> None:
    """5 samples over 2 clients: 3 and 2, of which one each is tested: rows of 2 and 1."""
    index = federate(table(5), Iid(), 2, rng()).splits["train"]
    assert index.shape == (2, 2)
    assert sorted((index >= 0).sum(1).tolist()) == [1, 2]
    assert index[index[:, 1] < 0][0, 0] >= 0


def test_a_federation_follows_from_seed_and_partition() -> None:
    first, again, other = (federate(table(60), Iid(), 3, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.splits["train"], again.splits["train"])
    assert not torch.equal(first.splits["train"], other.splits["train"])
    half = federate(table(60), Iid(), 3, rng(1), Splitting(test=0.5))
    for client in range(3):
        shares = [sorted(held(f, "train")[client] + held(f, "test")[client]) for f in (first, half)]
        assert shares[0] == shares[1]


def test_stratified_test_parts_keep_proportions() -> None:
    data = table(400, 2, groups=2)
    federation = federate(data, Iid(), 4, rng(), Splitting(test=0.25, stratify=("label", "group")))
    key = data.y * 2 + federation.pool.group
    for train, test in zip(held(federation, "train"), held(federation, "test"), strict=True):
        tested, all_held = (torch.bincount(key[part], minlength=4) for part in (test, train + test))
        assert ((tested - 0.25 * all_held).abs() < 1).all()


def test_official_test_samples_are_never_trained_on() -> None:
    federation = federate(table(100, tested=30), Iid(), 4, rng(), Splitting(test="official"))
    tested = sorted(i for row in held(federation, "test") for i in row)
    assert tested == list(range(70, 100))
    assert sorted(federation.counts("test").tolist()) == [7, 7, 8, 8]
    assert federation.sizes("test").tolist() == [7, 8]
    assert everything(federation) == list(range(100))


def test_limit_takes_a_proportional_subset_and_says_so() -> None:
    """90 samples of 3 classes limited to 31: 10 or 11 of each.

    A third are official test samples; of each class between 3 and 4 (10.33 / 3 rounded up or down) are drawn.
    """
    federation = federate(table(90, 3, tested=30), Iid(), 4, rng(), Splitting(test="official", limit=31))
    used = everything(federation)
    assert len(used) == len(set(used)) == 31
    assert set(torch.bincount(federation.pool.y[used]).tolist()) <= {10, 11}
    assert int(federation.counts("test").sum()) in range(9, 13)
    assert federation.source == "table (made up), 31 of 90 samples"
    whole = federate(table(90, 3), Iid(), 4, rng(), Splitting(limit=1000))
    assert everything(whole) == list(range(90))
    assert whole.source == "table (made up)"


def test_columns_are_standardized_by_training_samples() -> None:
    """On the training rows column 0 gets mean 0, deviation 1. Column 1 stays, the constant one is 0."""
    data = table(50, continuous=True)
    federation = federate(data, Iid(), 3, rng())
    train = sorted(i for row in held(federation, "train") for i in row)
    x = federation.pool.x
    assert float(x[train, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(x[train, 0].std(correction=0)) == pytest.approx(1, abs=1e-6)
    mean, std = float(np.mean(train)), float(np.std(train))
    torch.testing.assert_close(x[:, 0], (data.x[:, 0] - mean) / std, rtol=1e-5, atol=1e-6)
    assert torch.equal(x[:, 1], data.x[:, 1])
    assert torch.equal(x[:, 2], torch.zeros(50))
    assert federation.public == (
        "mean and standard deviation over all training samples of: position, constant",
    )
    assert torch.equal(data.x[:, 0], torch.arange(50.0))  # the data set itself is not touched


def test_without_continuous_columns_nothing_is_public() -> None:
    data = table(20)
    federation = federate(data, Natural("site"), None, rng())
    assert federation.clients == 3
    assert federation.pool.x is data.x
    assert federation.public == federation.groups == ()
    assert not federation.pool.group.any()
    assert torch.equal(federation.pool.weight, torch.ones(20))


def test_sensitive_groups_reach_partition_and_pool() -> None:
    data = table(200, groups=4)
    federation = federate(data, Sensitive(), 3, rng())
    assert data.group is not None
    assert torch.equal(federation.pool.group, data.group)
    assert federation.groups == data.groups
    size = federation.counts("train") + federation.counts("test")
    assert int(size.sum()) == 200


@pytest.mark.parametrize("test", [0.0, 1.0, -0.1, "own"])
def test_shares_out_of_range_are_refused(test: float) -> None:
    with pytest.raises(FederationError, match="above 0 and below 1, or 'official'"):
        federate(table(20), Iid(), 2, rng(), Splitting(test=test))


def test_what_the_data_lack_is_refused() -> None:
    with pytest.raises(FederationError, match="no official test samples"):
        federate(table(20), Iid(), 2, rng(), Splitting(test="official"))
    with pytest.raises(FederationError, match="no sensitive attribute"):
        federate(table(20), Iid(), 2, rng(), Splitting(stratify=("group",)))
    with pytest.raises(FederationError, match="stratify names \\['age'\\]"):
        federate(table(20), Iid(), 2, rng(), Splitting(stratify=("age",)))  # type: ignore[arg-type]
    with pytest.raises(FederationError, match="3 official test samples for 4 clients"):
        federate(table(20, tested=3), Iid(), 4, rng(), Splitting(test="official"))
    with pytest.raises(FederationError, match="stratify needs test as a share"):
        federate(table(20, tested=9), Iid(), 4, rng(), Splitting(test="official", stratify=("label",)))
    with pytest.raises(FederationError, match="limit is 0"):
        federate(table(20), Iid(), 2, rng(), Splitting(limit=0))
    with pytest.raises(PartitionError, match="3 samples are too few for 4 clients"):
        federate(table(20), Iid(), 4, rng(), Splitting(limit=3))


def rows_of(federation: Federation, index: Tensor) -> Tensor:
    return federation.pool.x[index[index >= 0]]


@pytest.mark.parametrize("continuous", [False, True])
def test_stacked_runs_hold_the_samples_of_each_run(continuous: bool) -> None:
    """Standardized pools differ by seed and are concatenated; raw ones are one tensor and stay one."""
    data = table(61, continuous=continuous)
    runs = [federate(data, Iid(), 4, rng(seed)) for seed in range(3)]
    stacked = stack(runs)
    assert stacked.clients == 4
    assert stacked.splits["train"].shape[:2] == (3, 4)
    assert len(stacked.pool.y) == (183 if continuous else 61)
    assert (stacked.pool.x is data.x) is not continuous
    for r, run in enumerate(runs):
        for split in ("train", "test"):
            assert torch.equal(stacked.counts(split)[r], run.counts(split))
            for client in range(4):
                assert torch.equal(
                    rows_of(stacked, stacked.splits[split][r, client]),
                    rows_of(run, run.splits[split][client]),
                )


def test_runs_of_different_width_are_padded() -> None:
    """20 and 40 samples over 2 clients: 7 and 14 to train on; the shorter run is filled up with -1."""
    data = table(40)
    stacked = stack([federate(data, Iid(), 2, rng(), Splitting(limit=limit)) for limit in (20, 40)])
    assert stacked.splits["train"].shape == (2, 2, 14)
    assert stacked.counts("train").tolist() == [[7, 7], [14, 14]]
    assert stacked.sizes().tolist() == [7, 14], "of all runs"
    assert (stacked.splits["train"][0, :, 7:] == -1).all()


def test_runs_that_do_not_go_together_are_refused() -> None:
    data = table(40)
    two, three = (federate(data, Iid(), clients, rng()) for clients in (2, 3))
    with pytest.raises(FederationError, match="number of clients: 2 and 3"):
        stack([two, three])
    with pytest.raises(FederationError, match="stacked already"):
        stack([stack([two]), stack([two])])
    with pytest.raises(FederationError, match="at least one"):
        stack([])
    with pytest.raises(FederationError, match="agree in the classes"):
        stack([two, federate(table(40, 4), Iid(), 2, rng())])


def test_to_casts_features_and_weights_only() -> None:
    moved = federate(table(20), Iid(), 2, rng()).to("cpu", torch.float64)
    assert (moved.pool.x.dtype, moved.pool.weight.dtype) == (torch.float64, torch.float64)
    assert (moved.pool.y.dtype, moved.splits["test"].dtype) == (torch.int64, torch.int64)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written_and_repeat_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    federation = federate(table(120, 3, groups=2), Iid(), 3, rng())
    first, second = (draw(federation, tmp_path / name / f"picture{suffix}") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    if suffix == ".svg":
        assert b"sensitive group" in first.read_bytes()


def test_pictures_of_other_formats_or_stacked_runs_are_refused(tmp_path: Path) -> None:
    federation = federate(table(30), Iid(), 3, rng())
    with pytest.raises(FederationError, match=r"\.png or \.svg"):
        draw(federation, tmp_path / "picture.bmp")
    with pytest.raises(FederationError, match="single run"):
        draw(stack([federation]), tmp_path / "picture.png")


def test_dropped_negatives_are_training_samples_of_class_0_only() -> None:
    """100 samples, 20 official test ones, classes alternate: 40 training negatives, of which 80 % = 32 go."""
    data = table(100, tested=20)
    found = federate(data, Iid(), 4, rng(), Splitting(test="official", drop_negatives=0.8))
    train, tested = (found.splits[name].flatten() for name in ("train", "test"))
    assert data.y[train].bincount().tolist() == [8, 40]
    assert set(found.counts("train").tolist()) == {12} and sorted(tested.tolist()) == list(range(80, 100))
    assert found.source == "table (made up), 68 of 100 samples"
    other = federate(data, Iid(), 4, rng(1), Splitting(test="official", drop_negatives=0.8))
    assert everything(found) != everything(other), "another seed drops others"


def test_without_dropping_no_draw_is_made() -> None:
    """So that older partitions stay as they were."""
    plain, zero = (
        federate(table(40), Iid(), 4, rng()),
        federate(table(40), Iid(), 4, rng(), Splitting(drop_negatives=0.0)),
    )
    assert torch.equal(plain.splits["train"], zero.splits["train"])


@pytest.mark.parametrize(("share", "known", "message"), [(1.0, 2, "below 1"), (0.5, 3, "halves")])
def test_only_some_negatives_of_two_classes_are_dropped(share: float, known: int, message: str) -> None:
    with pytest.raises(FederationError, match=message):
        federate(table(30, known), Iid(), 3, rng(), Splitting(drop_negatives=share))


@pytest.mark.parametrize(("known", "expected"), [(2, [0, 1]), (4, [0, 0, 1, 1]), (5, [0, 0, 1, 1, 1])])
def test_halves_makes_the_upper_classes_positive(known: int, expected: list[int]) -> None:
    data = table(10, known)
    found = halves(data)
    assert found.y[:known].tolist() == expected and len(found.classes) == 2
    assert found.x is data.x and found.digest == data.digest and found.source.startswith(data.source)


def dealt(selection: float = 0.1, sizes: tuple[float, ...] = (2.0, 2.0, 6.0)) -> Federation:
    """Deal 600 samples of three groups 2:2:6, a third tested, a tenth of the rest for selection."""
    ways = {"test": 0.3, "stratify": ("group",), "selection": selection}
    return federate(table(600, groups=3), Sensitive(sizes), None, rng(), Splitting(**ways))


def positions(federation: Federation, split: str) -> list[set[int]]:
    return [set(row[row >= 0].tolist()) for row in federation.splits[split]]


def test_selection_samples_come_from_training() -> None:
    """A tenth of what is left of each client and of each of its groups, to one sample."""
    plain, split = dealt(0.0), dealt()
    assert positions(split, "test") == positions(plain, "test")
    assert "selection" not in plain.splits
    group = split.pool.group
    for whole, train, chosen in zip(
        *(positions(*of) for of in ((plain, "train"), (split, "train"), (split, "selection"))), strict=True
    ):
        assert train | chosen == whole and not train & chosen
        assert len(chosen) == round(0.1 * len(whole))
        for a in range(3):
            here, all_of_it = (sum(int(group[i]) == a for i in part) for part in (chosen, whole))
            assert abs(here - 0.1 * all_of_it) < 1


def test_a_client_with_one_sample_has_none_for_selection() -> None:
    split = federate(table(4), Iid(), 2, rng(), Splitting(test=0.5, selection=0.5))
    assert split.counts("train").tolist() == [1, 1]
    assert split.counts("selection").tolist() == [0, 0]


def test_balanced_validation_has_as_many_of_every_group() -> None:
    """B11: v = floor(.2 times the smallest group present, at least 1) of each, disjoint from what is trained on."""
    before = dealt()
    after = balanced(before, 0.2, rng(3))
    assert positions(after, "test") == positions(before, "test")
    assert positions(after, "selection") == positions(before, "selection")
    group = before.pool.group
    for whole, train, held in zip(
        *(positions(*of) for of in ((before, "train"), (after, "train"), (after, "validation"))), strict=True
    ):
        sizes = [sum(int(group[i]) == a for i in whole) for a in range(3)]
        each = max(1, min(size for size in sizes if size) // 5)
        assert [sum(int(group[i]) == a for i in held) for a in range(3)] == [each if n else 0 for n in sizes]
        assert train | held == whole and not train & held


def test_absent_groups_are_not_in_validation_data() -> None:
    data = table(40, groups=2)
    owner = Natural("site")  # made by hand below: client 0 holds one group only
    data.columns["site"] = np.where(data.group.numpy() == 0, 0, np.arange(40) % 2)
    split = balanced(federate(data, owner, None, rng(), Splitting(test=0.2)), 0.5, rng())
    held = positions(split, "validation")
    here = [sorted({int(data.group[i]) for i in part}) for part in held]
    assert here == [[0, 1], [1]]


def test_validation_that_would_take_all_a_client_has_is_refused() -> None:
    """Two groups of one sample each: both would be validation."""
    data = table(8, groups=2)
    data = replace(data, group=torch.arange(8) % 2)
    part = federate(data, Iid(), 2, rng(), Splitting(test=0.5))
    single = replace(part, splits={**part.splits, "train": torch.tensor([[0, 1], [2, 3]])})
    with pytest.raises(FederationError, match="client 0 would be left without training samples"):
        balanced(single, 0.2, rng())
    with pytest.raises(FederationError, match="give a share above 0 and at most 1"):
        balanced(single, 0.0, rng())


def test_shares_of_groups_are_2_2_6_and_nothing_is_lost() -> None:
    """B11: every group's samples are cut 2:2:6 to a sample, in an order of its own."""
    data = table(600, groups=3)
    parts = Sensitive((2.0, 2.0, 6.0))(data.y.numpy(), data.group.numpy(), {}, None, rng())
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    for a in range(3):
        mine = [int((data.group[torch.from_numpy(part)] == a).sum()) for part in parts]
        for found, share in zip(sorted(mine), (0.2, 0.2, 0.6), strict=True):
            assert abs(found - share * sum(mine)) <= 1


def test_samples_are_contiguous_for_every_table_layout():
    """Batches gather rows in every step; from a table that lies by columns each row is as many jumps as columns."""
    by_columns = torch.arange(12.0).view(3, 4).t()
    dataset = Dataset("t", by_columns, torch.tensor([0, 1, 0, 1]), ("a", "b"), "here", "d")
    assert not by_columns.is_contiguous() and dataset.x.is_contiguous()
    assert torch.equal(dataset.x, by_columns)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from([0.1, 0.25, 0.5]))
def test_own_selection_samples_are_the_same_whatever_the_seed(one: int, other: int, share: float) -> None:
    """No run trains or tests on them, whichever seed splits the rest."""
    made = [
        federate(table(200, 4), Iid(), 5, rng(seed), Splitting(selection=share, selection_rng=rng(7)))
        for seed in (one, other)
    ]
    first, second = ({i for row in held(federation, "selection") for i in row} for federation in made)
    assert first == second
    assert len(first) == round(200 * share)
    for federation in made:
        assert everything(federation) == list(range(200))
    per_class = [sum(i % 4 == label for i in first) for label in range(4)]
    assert max(per_class) - min(per_class) <= 1


def test_own_selection_samples_leave_official_tests_and_subsets_alone() -> None:
    data = table(200, 2, tested=40)
    federation = federate(
        data, Iid(), 4, rng(), Splitting(test="official", selection=0.25, selection_rng=rng(7))
    )
    assert sorted(i for row in held(federation, "test") for i in row) == list(range(160, 200))
    assert sum(map(len, held(federation, "selection"))) == 40
    small = [
        federate(table(200), Iid(), 4, rng(s), Splitting(limit=50, selection=0.5, selection_rng=rng(7)))
        for s in (0, 1)
    ]
    chosen, tested = (
        ({i for row in held(f, "selection") for i in row} for f in small),
        [everything(f) for f in small],
    )
    assert [len(own) for own in tested] == [50, 50]
    a, b = chosen
    assert not a & {i for split in ("train", "test") for row in held(small[1], split) for i in row}
    assert not b & {i for split in ("train", "test") for row in held(small[0], split) for i in row}


def test_a_client_of_nothing_but_selection_samples_is_refused() -> None:
    with pytest.raises(FederationError, match="held out for selection; use fewer clients"):
        federate(table(20), Iid(), 10, rng(), Splitting(selection=0.8, selection_rng=rng(7)))


def test_clients_of_the_data_keep_a_sample_when_all_are_drawn() -> None:
    """Persons of two samples: some would have none to train on, and under every seed keep the same one."""
    persons = np.arange(40) // 2
    data = replace(table(40), columns={"person": persons})
    own = [
        federate(data, Natural("person"), None, rng(seed), Splitting(selection=0.5, selection_rng=rng(7)))
        for seed in (0, 1)
    ]
    first, second = (held(federation, "selection") for federation in own)
    assert first == second
    assert all(held(own[0], "train")) and everything(own[0]) == list(range(40))
    assert 0 < sum(map(len, first)) < 20, (
        "of 20 that are drawn, those are given back that leave somebody none"
    )
    with pytest.raises(
        FederationError, match="held out for selection"
    ):  # other seeds would draw other persons
        limited = Splitting(limit=39, selection=0.5, selection_rng=rng(7))
        federate(data, Natural("person"), None, rng(), limited)


def test_a_pool_holds_no_samples_that_nobody_has() -> None:
    """Of 327,000 flights 77,000 belong to large enough aircraft: the others took three quarters of the memory."""
    whole = federate(
        table(90, continuous=True), Natural("site"), None, rng(3), Splitting(limit=60), standardize=False
    )
    part = federate(table(90, continuous=True), Natural("site"), None, rng(3), Splitting(limit=60))
    assert len(whole.pool.y) == 90 and len(part.pool.y) == 60
    assert part.source == whole.source and "60 of 90 samples" in part.source
    for split in whole.splits:
        ours, theirs = (
            [whole.pool.x[row[row >= 0]] for row in whole.splits[split]],
            [part.pool.x[row[row >= 0]] for row in part.splits[split]],
        )
        train = torch.cat([whole.pool.x[row[row >= 0], 0] for row in whole.splits["train"]]).double()
        for one, other in zip(ours, theirs, strict=True):
            expected = (one[:, 0].double() - train.mean()) / train.std(correction=0)
            assert torch.allclose(other[:, 0].double(), expected, atol=1e-6)
            assert torch.equal(other[:, 1], one[:, 1])
    assert sorted(i for rows in part.splits.values() for i in rows[rows >= 0].tolist()) == list(range(60))
