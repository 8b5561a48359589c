"""Users inside clients: who is drawn, what is clipped, what it costs, and what is refused."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from datasets.federation import FederationError
from harness.config.run import read_spec
from harness.core.execution.vectorize import Rows
from harness.core.registry import Incompatible, UserError
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.testing.transcript_audit import audit_transcript, of_setup
from privacy import Event, account

USERS, RECORDS = 40, 6  # of a site, of a user at most


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Three sites with users who have one to six records each."""
    drawn = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "site", "person", "ill"])
        for site in range(3):
            for user in range(USERS):
                usual = drawn.standard_normal(3)
                for _ in range(1 + (user % RECORDS)):
                    x = usual + 0.5 * drawn.standard_normal(3)
                    writer.writerow([*x.round(5), f"site {site}", f"person {site} {user}", int(x[0] > 0)])
    return path


def spec_of(visits, privacy=None, **fields):
    return read_spec(
        {
            "data": {"name": "csv", "path": str(visits), "label": "ill", "client": "site", "user": "person"},
            "partition": {"kind": "natural"},
            "model": "logistic",
            "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 8, "lr": 0.1},
            "rounds": 3,
            "privacy": {"unit": "user", "user": "person", "clip": 0.5, "noise_multiplier": 1.0}
            | (privacy or {}),
        }
        | fields
    )


def test_a_user_is_no_feature_and_is_drawn_with_all_records(visits):
    setup = prepare(spec_of(visits, {"user_records": 3}))
    federation = setup.federation
    assert federation.pool.x.shape[1] == 3
    table, train = federation.by_user("train", 3), federation.splits["train"]
    for client in range(3):
        for user in table[client]:
            places = user[user >= 0]
            who = federation.users[train[client, places]].unique()
            assert len(who) <= 1
            if len(who):
                own = int((federation.users[train[client][train[client] >= 0]] == who).sum())
                assert len(places) == min(3, own)
    taken = table[table >= 0]
    counts = torch.stack([(table[c] >= 0).sum() for c in range(3)])
    assert len(taken) == int(counts.sum()) and (counts <= (train >= 0).sum(-1)).all()


def test_the_mean_gradient_of_a_user_is_clipped_and_divided_by_the_expected_number_of_users(visits):
    """Everybody is drawn and there is no noise: one step, against a loop over users."""
    privacy = {"noise_multiplier": 0.0, "user_records": 4, "clip": 0.2}
    algorithm = {"name": "fedavg", "local_steps": 1, "batch_size": 1000, "lr": 1.0}
    setup = calibrated(prepare(spec_of(visits, privacy, algorithm=algorithm, precision="float64", rounds=1)))
    run = Simulation.from_setup(setup)
    x, federation, loss = run.state.x.clone(), setup.federation, setup.problem.loss
    steps = []
    for client, users in enumerate(federation.by_user("train", 4)):
        total, number = torch.zeros_like(x), 0
        for user in users:
            places = user[user >= 0]
            if len(places):
                batch = federation.pool.at(federation.splits["train"][client, places])
                gradient = torch.func.grad(loss)(x, batch)
                total += gradient * min(1.0, 0.2 / float(gradient.norm()))
                number += 1
        steps.append(-total / number)
    weights = federation.counts().double()
    run.step()
    expected = x + (weights / weights.sum()) @ torch.stack(steps)
    torch.testing.assert_close(run.state.x, expected)


def test_the_epsilon_is_far_below_that_of_a_group_of_records(visits):
    """A record's epsilon holds for a group of k records at k times epsilon (and a larger delta)."""
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": 2.0}, rounds=10)))
    run = Simulation.from_setup(setup)
    for _ in range(10):
        run.step()
    claim = run.statement()
    users = int((setup.federation.by_user("train", 8)[..., 0] >= 0).sum(-1).min())
    exact = account([Event(2.0, 8 / users, 20)], 1e-5).epsilon
    assert claim["epsilon_total"] == pytest.approx(exact, rel=1e-6)
    assert (claim["unit"], claim["user"], claim["user_records"]) == ("user", "person", 8)
    record = calibrated(prepare(spec_of(visits, rounds=10, privacy={"unit": "record", "user": None})))
    rate = 8 / int(record.federation.counts().min())
    group = RECORDS * account([Event(2.0, rate, 20)], 1e-5).epsilon
    assert claim["epsilon_total"] < 0.6 * group


def test_a_budget_is_met_and_the_audit_finds_nothing(visits):
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": None, "epsilon": 3.0})))
    found = audit_transcript(of_setup(setup), setup.privacy)
    assert found["findings"] == []
    assert found["epsilon_claimed"] == pytest.approx(found["epsilon_seen"])
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.2)


def test_records_that_are_clipped_one_by_one_are_found(visits, monkeypatch):
    """A user with six records would have six times the sensitivity."""
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": 0.01})))
    sums = Rows.clipped_sums
    monkeypatch.setattr(
        Rows, "clipped_sums", lambda self, *given, group, **options: sums(self, *given, group=1, **options)
    )
    assert audit_transcript(of_setup(setup), setup.privacy)["findings"]


def test_noise_and_batches_do_not_depend_on_what_a_user_holds(visits):
    """Neighbors: one user's labels are exchanged. The others' batches are the same, and the move is bounded."""
    algorithm = {"name": "fedavg", "local_steps": 1, "batch_size": 1000, "lr": 1.0}
    spec = spec_of(visits, {"noise_multiplier": 0.0}, algorithm=algorithm, rounds=1, precision="float64")
    setup = calibrated(prepare(spec))
    federation = setup.federation
    places = federation.by_user("train", 8)[1, 5]
    y = federation.pool.y.clone()
    own = federation.splits["train"][1, places[places >= 0]]
    y[own] = 1 - y[own]
    other = replace(setup, federation=replace(federation, pool=federation.pool._replace(y=y)))
    ends = []
    for one in (setup, other):
        run = Simulation.from_setup(one)
        run.step()
        ends.append(run.state.x)
    users = int((federation.by_user("train", 8)[1, :, 0] >= 0).sum())
    share = float(federation.counts()[1] / federation.counts().sum())
    moved = float((ends[0] - ends[1]).norm())
    assert 0 < moved <= share * 2 * 0.5 / users * (1 + 1e-9)


@pytest.mark.parametrize(
    ("privacy", "fields", "text"),
    [
        ({"user": None}, {}, "unit user needs the column"),
        ({"unit": "record"}, {}, "other units take neither user nor user_records"),
        ({"ghost": True}, {}, "is for unit record"),
        ({"placement": "central"}, {}, "unit user protects every local gradient"),
        ({"user_records": 0}, {}, "greater than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(visits, privacy, fields, text):
    with pytest.raises(UserError, match=text):
        spec_of(visits, privacy, **fields)


def test_users_at_two_clients_and_unknown_columns_are_refused(visits):
    with pytest.raises(FederationError, match=r"'person 0 .' of column 'person' has samples at clients"):
        prepare(spec_of(visits, partition={"kind": "iid", "clients": 3}))
    with pytest.raises(FederationError, match="unknown column of users 'persn'; nearest: person"):
        prepare(spec_of(visits, {"user": "persn"}))


def test_epochs_are_refused(visits):
    setup = prepare(spec_of(visits, algorithm={"name": "fedavg", "local_epochs": 1, "batch_size": 8}))
    with pytest.raises(Incompatible, match="an epoch of samples; use local_steps"):
        calibrated(setup)
