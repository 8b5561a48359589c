"""Membership inference: the scores, the shadow runs, and what a guarantee allows."""

import json

import numpy as np
import pytest
import torch

from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.executors.scheduler import run_all
from harness.metrics import ATTACKED, better_is_higher
from harness.simulation.attacks.membership import candidates, draw_pairs, lira, membership, rmia, shadow
from harness.simulation.attacks.roc import area, detection
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation

# Few samples, many features, many steps: it remembers.
TASK = {
    "data": "digits",
    "partition": {"kind": "iid", "clients": 4, "limit": 160, "test": 0.5},
    "model": {"name": "mlp", "hidden": [32]},
    "algorithm": {"name": "fedavg", "local_steps": 20, "batch_size": 10, "lr": 0.2},
    "rounds": 10,
    "eval_every": 10,
}


def attacked_run(shadows=16, **fields):
    setup = calibrated(prepare(read_spec(TASK | fields)))
    run = Simulation.from_setup(setup)
    for _ in range(setup.spec.rounds):
        run.step()
    return membership(setup, run, 0, shadows, 2000)


@pytest.fixture(scope="module")
def plain():
    """What is found in a run without protection."""
    return attacked_run()


def test_areas_count_pairs_in_the_right_order():
    inside, outside = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.0])
    pairs = [(i > o) + 0.5 * (i == o) for i in inside for o in outside]
    found = area(inside, outside)
    assert found.value == pytest.approx(np.mean(pairs)) and found.low < found.value < found.high


def test_intervals_of_areas_hold_what_they_should():
    generator = np.random.default_rng(0)
    truth = 0.7602  # Phi(1 / sqrt 2)
    held = 0
    for _ in range(300):
        found = area(generator.standard_normal(80) + 1, generator.standard_normal(80))
        held += found.low <= truth <= found.high
    assert 0.9 < held / 300 < 0.99


def test_detection_accuses_no_more_than_it_may():
    outside = np.arange(200.0)
    inside = np.array([199.5, 198.5, 197.5, 10.0])
    assert detection(inside, outside, 0.01).value == 0.75  # two of the others may be accused
    assert detection(inside, outside, 0.001).value == 0.25  # none of them
    assert detection(inside, outside, 0.0).value == 0.25
    found = detection(np.ones(10), np.zeros(10), 0.01)
    assert found.value == found.high == 1.0 and 0.6 < found.low < 0.75


def test_a_likelihood_ratio_of_two_normals_is_known():
    """Models with the sample have log odds around 2, others around 0: the ratio at v is 2 v - 2."""
    generator = np.random.default_rng(0)
    inside = np.arange(4000)[:, None] % 2 == np.zeros(3)
    odds = generator.standard_normal((4000, 3)) + 2 * inside
    assert lira(np.array([0.0, 1.0, 2.0]), odds, inside) == pytest.approx([-2.0, 0.0, 2.0], abs=0.2)


def test_relative_probabilities_are_those_of_the_label():
    odds = np.log(np.array([[0.5], [0.25]]) / np.array([[0.5], [0.75]]))
    assert rmia(np.array([np.log(3.0)]), odds) == pytest.approx([np.log(0.75 / 0.375)])


def test_shadow_runs_exchange_samples_within_clients_and_keep_counts():
    setup = prepare(read_spec(TASK))
    pairs = draw_pairs(setup, 40)
    assert len(pairs.client) == 40
    train, test = (setup.federation.splits[name] for name in ("train", "test"))
    (one, coin), (other, opposite) = shadow(setup, pairs, 0), shadow(setup, pairs, 1)
    assert torch.equal(coin, ~opposite) and 5 < int(coin.sum()) < 35
    assert one.spec.seed != other.spec.seed != setup.spec.seed and one.noise_key != setup.noise_key
    for made, which in ((one, coin), (other, opposite)):
        own = made.federation.splits["train"]
        assert torch.equal((own >= 0).sum(-1), (train >= 0).sum(-1))
        for pair, kept in enumerate(which.tolist()):
            client, place, twin = (int(part[pair]) for part in pairs)
            assert own[client, place] == (train[client, place] if kept else test[client, twin])
        assert int((own != train).sum()) == int((~which).sum())
    index, member = candidates(setup.federation, pairs)
    inside = {int(p) for p in train.flatten() if p >= 0}
    flat = index[index >= 0].tolist()
    assert [place in inside for place in flat] == member.tolist() and member.sum() == 40


@pytest.mark.slow
def test_a_model_that_remembers_is_found_out_and_one_that_sees_nothing_is_not(plain):
    assert plain["members"] == plain["others"] == 80 and plain["shadows"] == 16
    assert plain["lira_auc"].low > 0.55 and plain["rmia_auc"].low > 0.55
    assert plain["transcript_auc"].value > 0.6
    assert "ceiling" not in plain
    blind = attacked_run(algorithm=TASK["algorithm"] | {"lr": 1e-9})
    for name in ("lira", "rmia"):
        assert blind[f"{name}_auc"].low < 0.5 < blind[f"{name}_auc"].high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "epsilon"),
    [
        ({"placement": "local", "adjacency": "replace"}, 4.0),
        ({"placement": "central", "sampling": "full", "adjacency": "zero-out"}, 0.5),
        ({"placement": "distributed", "adjacency": "zero-out"}, 4.0),
        ({"unit": "record"}, 0.5),
    ],
)
def test_nobody_is_found_more_often_than_the_guarantee_allows(privacy, epsilon):
    found = attacked_run(privacy=privacy | {"clip": 1.0, "epsilon": epsilon}, shadows=8)
    assert found["ceiling"]["1"] < 1 and found["ceiling"]["01"] < found["ceiling"]["1"]
    for name in ("lira", "rmia", "transcript"):
        for rate, ceiling in found["ceiling_sampled"].items():
            assert found[f"{name}_tpr_{rate}"].low <= ceiling
        exchanged = epsilon * (1 if privacy.get("adjacency") == "replace" else 2)
        assert found[f"{name}_auc"].low <= 1 / (1 + np.exp(-exchanged)) + 1e-3


def test_a_mechanism_without_its_noise_breaks_the_ceiling(plain):
    """So that the test above could fail: a claimed epsilon of 0.1 on a model that remembers."""
    assert plain["transcript_auc"].low > 1 / (1 + np.exp(-0.1))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["membrship"], "'membership', 'inversion' or 'labels'"),
        ([], "at least one is needed"),
        ({"kinds": ["membership"], "shadows": 7}, "a multiple of 2"),
        (["labels", "labels"], "each at most once"),
    ],
)
def test_wrong_settings_are_refused(given, text):
    with pytest.raises(UserError, match=text):
        read_spec(TASK | {"attacks": given})


@pytest.mark.parametrize("setting", ["strict", "secure_rng"])
def test_runs_that_cannot_be_repeated_or_looked_into_are_refused(setting):
    privacy = {"placement": "local", "epsilon": 1.0, setting: True}
    with pytest.raises(Incompatible, match="attacks"):
        read_spec(TASK | {"privacy": privacy, "attacks": ["inversion"]})


@pytest.mark.slow
def test_attacks_change_nothing_of_a_run_and_their_figures_are_measures(tmp_path):
    fields = {
        "rounds": 2,
        "eval_every": 2,
        "algorithm": TASK["algorithm"] | {"batch_size": 2, "local_steps": 1},
    }
    specs = [
        read_spec(TASK | fields | {"seed": seed} | more)
        for seed in (0, 1)
        for more in ({}, {"attacks": {"kinds": ["membership", "inversion"], "shadows": 4, "samples": 40}})
    ]
    outcomes = run_all(specs, tmp_path)
    ends = [json.loads((tmp_path / "runs" / one.id / "done.json").read_text()) for one in outcomes]
    for plain, attacked in zip(ends[::2], ends[1::2], strict=True):
        figures = {name: value for name, value in attacked["metrics"].items() if name in ATTACKED}
        assert {**plain["metrics"], **figures} == attacked["metrics"]
        assert plain["bytes_up"] == attacked["bytes_up"] and plain["flops"] == attacked["flops"]
        assert {"lira_auc", "rmia_tpr_1", "transcript_auc", "inversion_error", "inversion_labels"} <= set(
            figures
        )
        assert attacked["attacks"]["membership"]["lira_auc"]["value"] == figures["lira_auc"]
    assert not better_is_higher("lira_auc") and better_is_higher("inversion_error")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fednest", "sagda", "fcfl"])
def test_messages_that_are_gradients_are_read_in_their_direction(name):
    """Read as steps, members seemed to be those that were not trained on: areas about 0.3."""
    given = {"name": name, "local_steps": 1 if name == "fcfl" else 20, "batch_size": 10}
    problem = "classify" if name == "fcfl" else "fair_classification"
    fields = {"problem": problem, "algorithm": given, "data": "adult"}
    fields["partition"] = TASK["partition"] | {"limit": 160}
    found = attacked_run(shadows=4, **fields)
    assert found["transcript_auc"].value > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedper", "lg_fedavg", "moon", "fedcr"])
def test_algorithms_that_share_a_part_of_the_model_end_all_the_same(name, tmp_path):
    """Extractors, heads, a whole model of two parts, and noise in the model."""
    algorithm = {"name": name, "local_steps": 1, "batch_size": 10}
    attacks = {"kinds": ["membership", "inversion"], "shadows": 4, "samples": 40}
    spec = read_spec(TASK | {"algorithm": algorithm, "attacks": attacks, "rounds": 2})
    (outcome,) = run_all([spec], tmp_path)
    end = json.loads((tmp_path / "runs" / outcome.id / "done.json").read_text())
    assert outcome.status == "done" and not any("error" in found for found in end.get("attacks", {}).values())


def test_an_attack_that_fails_does_not_end_a_run(tmp_path, monkeypatch):
    def broken(setup):
        raise RuntimeError("no luck")

    monkeypatch.setattr("harness.simulation.attacks.measure.inversion", broken)
    (outcome,) = run_all([read_spec(TASK | {"attacks": ["inversion"], "rounds": 1})], tmp_path)
    end = json.loads((tmp_path / "runs" / outcome.id / "done.json").read_text())
    assert outcome.status == "done" and end["attacks"]["inversion"] == {"error": "RuntimeError: no luck"}


def test_changes_that_neighbors_hear_are_seen():
    fields = {"algorithm": {"name": "choco_sgd", "local_epochs": 1, "batch_size": 10, "lr": 0.2}}
    found = attacked_run(shadows=4, topology={"kind": "ring"}, **fields)
    assert "transcript_auc" in found


@pytest.mark.slow
def test_shadow_runs_that_diverge_leave_with_their_twins(monkeypatch):
    from harness.simulation.attacks import membership as module
    from harness.simulation.snapshot import Diverged

    usual = Simulation.step

    def step(self, *given, **options):
        if any(name.endswith("shadow 3") for name in self.cohorts.noise_keys):
            raise Diverged(0, (0,))
        usual(self, *given, **options)

    monkeypatch.setattr(Simulation, "step", step)
    assert attacked_run(shadows=8)["shadows"] == 6
    monkeypatch.setattr(module, "FEWEST", 7)
    found = attacked_run(shadows=8)
    assert "lira_auc" not in found and "transcript_auc" in found


def test_official_test_samples_have_no_transcript_figure(monkeypatch):
    setup = calibrated(prepare(read_spec(TASK | {"rounds": 1})))
    partition = setup.spec.partition.model_copy(update={"test": "official"})
    spec = setup.spec.model_copy(update={"partition": partition})
    from dataclasses import replace

    run = Simulation.from_setup(setup)
    found = membership(replace(setup, spec=spec), run, 0, 4, 40)
    assert "transcript_auc" not in found and "lira_auc" in found


def test_attacks_do_not_change_the_noise_of_a_run():
    privacy = {"placement": "local", "epsilon": 4.0}
    setups = [
        prepare(read_spec(TASK | {"privacy": privacy} | more)) for more in ({}, {"attacks": ["inversion"]})
    ]
    assert setups[0].noise_key == setups[1].noise_key and setups[0].id != setups[1].id


def test_ceilings_are_those_of_an_exchange():
    """Zero-out bounds presence; a sample in place of another is two such steps."""
    for adjacency, factor in (("replace", 1), ("zero-out", 2)):
        privacy = {
            "placement": "central",
            "sampling": "full",
            "adjacency": adjacency,
            "clip": 1.0,
            "epsilon": 1.0,
        }
        found = attacked_run(shadows=4, rounds=1, privacy=privacy)
        delta = 1e-5 * (1 if factor == 1 else 1 + np.e)
        assert found["ceiling"]["1"] == pytest.approx(0.01 * np.exp(factor) + delta, rel=1e-3)
