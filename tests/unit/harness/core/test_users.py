"""Users inside clients: who is drawn, what is clipped, what it costs, and what is refused."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from datasets.errors import DataError, FederationError
from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.core.execution.vectorize import ClientExecutor
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.testing.transcript_audit import audit_transcript, of_setup
from privacy.accounting import account
from privacy.event import Event

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


def distance(setup, **changed):
    """How far a round moves the model away if fields of the pool are other ones."""
    pool = setup.federation.pool._replace(**changed)
    ends = []
    for one in (setup, replace(setup, federation=replace(setup.federation, pool=pool))):
        run = Simulation.from_setup(one)
        run.step()
        ends.append(run.state.x)
    return float((ends[0] - ends[1]).norm())


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


@pytest.mark.slow
def test_a_budget_is_met_and_the_audit_finds_nothing(visits):
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": None, "epsilon": 3.0})))
    found = audit_transcript(of_setup(setup), setup.privacy)
    assert found["findings"] == []
    assert found["epsilon_claimed"] == pytest.approx(found["epsilon_seen"])
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.2)


@pytest.mark.slow
def test_records_that_are_clipped_one_by_one_are_found(visits, monkeypatch):
    """A user with six records would have six times the sensitivity."""
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": 0.01})))
    sums = ClientExecutor.clipped_sums
    monkeypatch.setattr(
        ClientExecutor,
        "clipped_sums",
        lambda self, *given, group, **options: sums(self, *given, group=1, **options),
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
    moved = distance(setup, y=y)
    users = int((federation.by_user("train", 8)[1, :, 0] >= 0).sum())
    share = float(federation.counts()[1] / federation.counts().sum())
    assert 0 < moved <= share * 2 * 0.5 / users * (1 + 1e-9)


@pytest.mark.parametrize(
    ("privacy", "fields", "text"),
    [
        (
            {"user": None},
            {"data": {"name": "csv", "path": "visits.csv", "label": "ill"}},
            "and needs the column",
        ),
        ({"unit": "record"}, {}, "privacy.user.*: is for unit user; unit record does not support user"),
        ({"ghost": True}, {}, "is for unit record"),
        ({"placement": "central"}, {}, "units record and user protect every local gradient"),
        ({"user_records": 0}, {}, "greater than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(visits, privacy, fields, text):
    with pytest.raises(UserError, match=text):
        spec_of(visits, privacy, **fields)


def test_users_at_two_clients_and_unknown_columns_are_refused(visits):
    with pytest.raises(FederationError, match=r"'person 0 .' of column 'person' has samples at clients"):
        prepare(spec_of(visits, partition={"kind": "iid", "clients": 3}))
    with pytest.raises(UserError, match=r"as the column of users .data.user., given .persn."):
        prepare(spec_of(visits, {"user": "persn"}))


def test_epochs_are_refused(visits):
    setup = prepare(spec_of(visits, algorithm={"name": "fedavg", "local_epochs": 1, "batch_size": 8}))
    with pytest.raises(
        Incompatible, match=r"algorithm.local_steps: missing; under unit user a batch is of users"
    ):
        calibrated(setup)


@pytest.mark.parametrize("value", [float("nan"), 1e30, -1e36])
def test_nobody_else_is_moved_by_the_sample_that_empty_slots_hold(visits, value):
    """Padding is a place in the pool, of somebody's sample: it was in the mean of every user with few records."""
    algorithm = {"name": "fedavg", "local_steps": 1, "batch_size": 1000, "lr": 1.0}
    setup = calibrated(prepare(spec_of(visits, {"noise_multiplier": 0.0}, algorithm=algorithm, rounds=1)))
    federation = setup.federation
    x = federation.pool.x.clone()
    x[0] = value
    moved = distance(setup, x=x)
    users = (federation.by_user("train", 8)[..., 0] >= 0).sum(-1)
    share = federation.counts() / federation.counts().sum()
    assert moved <= float((share * 2 * 0.5 / users).max()) * (1 + 1e-5)


def test_a_user_is_in_one_split(visits):
    fields = {"partition": {"kind": "natural", "selection": 0.2}}
    for partition in ({}, {"selection_seed": 3}):
        federation = prepare(spec_of(visits, partition=fields["partition"] | partition)).federation
        seen = [set(federation.users[index[index >= 0]].tolist()) for index in federation.splits.values()]
        assert len(seen) == 3 and sum(map(len, seen)) == len(set.union(*seen)) == 3 * USERS
        assert min(map(len, seen)) > 10


def test_streams_of_two_splits_draw_users_apart(visits):
    setup = calibrated(prepare(spec_of(visits)))
    splits = setup.federation.splits
    same = replace(setup.federation, splits={**splits, "validation": splits["train"]})
    run = Simulation.from_setup(replace(setup, federation=same))
    clients = run.clients(torch.arange(3), 0)
    one, other = (
        clients.batches(None, steps=20, batch_size=8, split=name) for name in ("train", "validation")
    )
    assert one.positions.shape != other.positions.shape or not torch.equal(one.positions, other.positions)


def test_missing_users_are_refused_and_names_stay_text(visits, tmp_path):
    head, *cells = [line.split(",") for line in visits.read_text().splitlines()]
    ids = {name: 10**17 + number for number, name in enumerate({row[4] for row in cells})}
    named = [",".join(row) for row in (head, *([*row[:4], str(ids[row[4]]), row[5]] for row in cells))]
    path = tmp_path / "numbers.csv"
    path.write_text("\n".join(named))
    assert len(prepare(spec_of(path)).federation.users.unique()) == 3 * USERS
    path.write_text("\n".join([*named, "0,0,0,site 0,,1"]))
    data = {"name": "csv", "path": str(path), "label": "ill", "client": "site", "user": "person"}
    with pytest.raises(DataError, match="the user 'person' is missing in 1 rows; it is never filled"):
        prepare(spec_of(path, data=data | {"missing": "fill"}))


def test_a_default_has_the_id_of_its_value(visits):
    assert spec_of(visits) == spec_of(visits, {"user_records": 8})


def test_runs_of_two_units_in_one_process_have_models_of_their_own(visits):
    """The column of users is no feature if it is protected."""
    plain = {"name": "csv", "path": str(visits), "label": "ill", "client": "site", "drop": ["person"]}
    one = prepare(spec_of(visits, {"unit": "record", "user": None, "user_records": None}, data=plain))
    two = prepare(spec_of(visits, {"user": "a"}, data=plain, partition={"kind": "natural"}))
    assert one.federation.pool.x.shape[1] == 3 and two.federation.pool.x.shape[1] == 2
    assert one.problem is not two.problem


def test_problems_without_users_are_refused():
    with pytest.raises(Incompatible, match="has its own data, without users"):
        prepare(
            read_spec(
                {
                    "problem": "random_quadratic",
                    "algorithm": {"name": "local_sgda", "local_steps": 2, "batch_size": 2},
                    "privacy": {"unit": "user", "user": "person", "epsilon": 1.0},
                }
            )
        )


def test_canaries_are_users_of_their_own(visits):
    from harness.testing.canary_audit import _planted

    setup = prepare(spec_of(visits))
    planted, places = _planted(setup.federation, "user", 8, 0)
    before = setup.federation.users
    assert (
        len(planted.users) == len(planted.pool.y)
        and planted.splits["test"].shape == setup.federation.splits["test"].shape
    )
    assert len(set(planted.users[places].tolist())) == 8 and int(planted.users[places].min()) > int(
        before.max()
    )
