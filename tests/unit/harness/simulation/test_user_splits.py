"""Users whom the data name are not in training and in test, with and without privacy."""

import csv

import numpy as np
import pytest
import torch

from datasets.partition import PARTITIONS
from harness.config.run import read_spec
from harness.core.registry import UserError
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate

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
    with pytest.raises(UserError, match="name 'person' as the column of users .data.user., given 'site'"):
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
