"""Users whom the data name are not in training and in test, with and without privacy."""

import csv

import numpy as np
import pytest
import torch

from datasets.errors import warn_once
from datasets.partition import PARTITIONS
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.executors.scheduler import run_one
from harness.simulation.attacks.membership import draw_pairs, shadow
from harness.simulation.build import identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate
from harness.storage.store import Store

PATIENTS, VISITS = 300, 4
KINDS = sorted(PARTITIONS)


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Patients with labels at random, and four rows each that nearly agree: nothing can be learned."""
    drawn = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*"abcdef", "sex", "site", "person", "ill"])
        for person in range(PATIENTS):
            usual, label = drawn.standard_normal(6), int(drawn.integers(2))
            for _ in range(VISITS):
                x = usual + 0.01 * drawn.standard_normal(6)
                writer.writerow([*x.round(5), "fm"[person % 2], f"site {person % 3}", f"p{person}", label])
    return path


def spec_of(visits, kind, privacy=None, **fields):
    partition = {"kind": kind} | ({} if kind in ("natural", "sensitive") else {"clients": 3})
    return read_spec(
        {
            "data": {
                **{"name": "csv", "path": str(visits), "label": "ill", "client": "site", "user": "person"},
                "sensitive": "sex",
            },
            "partition": partition | fields.pop("partition", {}),
            "model": {"name": "mlp", "hidden": [64]},
            "algorithm": {"name": "fedavg", "local_steps": 50, "batch_size": 64, "lr": 0.5},
            "rounds": 20,
            "eval_every": 20,
            "privacy": privacy,
        }
        | fields
    )


def nearest(federation):
    """Return the accuracy of the label of the nearest training sample, of which a leak makes 1."""
    pool = federation.pool
    own = {name: index[index >= 0] for name, index in federation.splits.items()}
    place = torch.cdist(pool.x[own["test"]], pool.x[own["train"]]).argmin(1)
    return float((pool.y[own["train"]][place] == pool.y[own["test"]]).double().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_near_copies_of_a_sample_teach_nothing_about_others(visits, kind):
    """Ninety patients are tested: a guess is right for .5 ± .05 of them, and for half as many in selection."""
    for partition in ({}, {"selection": 0.2}, {"selection": 0.2, "selection_seed": 1}):
        federation = prepare(spec_of(visits, kind, partition=partition)).federation
        assert nearest(federation) == pytest.approx(0.5, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "centralized", "local"])
def test_no_network_learns_labels_at_random(visits, algorithm):
    fields = {"algorithm": {"name": algorithm, "local_steps": 50, "batch_size": 64, "lr": 0.5}}
    end = simulate(calibrated(prepare(spec_of(visits, "iid", **fields))))
    assert end["metrics"]["accuracy"] == pytest.approx(0.5, abs=0.2)


def test_privacy_of_whatever_unit_tests_the_same_samples(visits):
    unit = {"clip": 1.0, "epsilon": 8.0}
    every = [
        None,
        {"unit": "user", "user": "person", **unit},
        {"unit": "record", **unit},
        {"placement": "local", **unit},
    ]
    found = [prepare(spec_of(visits, "natural", privacy)).federation for privacy in every]
    assert len({federation.tested for federation in found}) == 1
    assert all(torch.equal(found[0].splits[name], one.splits[name]) for one in found for name in one.splits)
    other = prepare(spec_of(visits, "natural", seed=1)).federation
    assert other.tested != found[0].tested


def test_two_columns_of_users_are_refused(visits):
    with pytest.raises(UserError, match=r"name 'person' as the column of users .data.user., given 'site'"):
        spec_of(visits, "natural", {"unit": "user", "user": "site", "epsilon": 8.0})


def test_parties_share_the_split_of_their_users(visits):
    fields = {
        "algorithm": {"name": "lvfl", "local_steps": 1, "batch_size": 8},
        "problem": "vertical",
        "rounds": 1,
    }
    federation = prepare(spec_of(visits, "columns", partition={"clients": 2}, **fields)).federation
    of = [set(federation.users[index[index >= 0]].tolist()) for index in federation.splits.values()]
    assert sum(map(len, of)) == len(set.union(*of)) == PATIENTS


@pytest.mark.parametrize("kind", ["natural", "iid"])
def test_a_shadow_run_has_all_samples_of_a_user_or_none(visits, kind):
    """In the natural partition every patient is at one client; of those that iid scatters few are."""
    setup = calibrated(prepare(spec_of(visits, kind)))
    pairs, federation = draw_pairs(setup, 100), setup.federation
    users, train, test = federation.users, federation.splits["train"], federation.splits["test"]
    assert len(pairs.client) == 90 if kind == "natural" else len(pairs.client) < 30
    for number in range(4):
        made, coin = shadow(setup, pairs, number)
        index = made.federation.splits["train"]
        assert torch.equal((index >= 0).sum(-1), federation.counts("train"))
        trained = set(users[index[index >= 0]].tolist())
        for client, place, other, inside in zip(*(part.tolist() for part in (*pairs, coin)), strict=True):
            assert (int(users[train[client, place]]) in trained) == inside
            assert (int(users[test[client, other]]) in trained) == (not inside)
            assert bool((index == test[client, other]).any()) == (not inside)


def test_an_epsilon_of_a_record_or_a_client_is_said_to_be_none_of_a_user(visits, caplog):
    warn_once.cache_clear()
    prepare(spec_of(visits, "natural", {"unit": "user", "user": "person", "epsilon": 8.0, "clip": 1.0}))
    prepare(spec_of(visits, "natural", {"placement": "local", "epsilon": 8.0, "clip": 1.0}))
    assert not [one for one in caplog.records if "privacy.unit" in one.getMessage()]
    prepare(spec_of(visits, "natural", {"unit": "record", "epsilon": 8.0, "clip": 1.0}))
    prepare(spec_of(visits, "iid", {"placement": "local", "epsilon": 8.0, "clip": 1.0}))
    told = [one.getMessage() for one in caplog.records if "privacy.unit" in one.getMessage()]
    assert "up to 4 training records" in told[0] and "one of a record and not of a user" in told[0]
    assert "up to 3 clients" in told[1] and len(told) == 2


def test_a_run_records_its_test_samples_and_the_positive_class(visits, tmp_path):
    """Strict privacy tells their number, neither which they are nor their labels."""
    strict = {"placement": "local", "epsilon": 8.0, "clip": 1.0, "strict": True}
    store, found = Store(tmp_path).open(), []
    for privacy in (None, strict):
        fields = {"rounds": 1, "partition": {"standardize": False}}
        spec = spec_of(visits, "natural", privacy, **fields)
        run_one(spec, tmp_path)
        found.append(store.record(identify(spec), spec.model_dump(mode="json")).tested)
    assert found[0]["positive"] == found[1]["positive"] == "1"
    assert found[0]["samples"] == found[1]["samples"] == 4 * 30 * 3
    assert len(found[0]["digest"]) == 64 and "digest" not in found[1]
    assert 0.5 <= found[0]["constant"] <= 1 and "constant" not in found[1]
