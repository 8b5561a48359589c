"""Gradient inversion, and labels from gradients."""

import pytest
import torch

from harness.config.run import read_spec
from harness.simulation.attacks.inversion import _agreement, _errors, _labels, inversion
from harness.simulation.attacks.labels import labels
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated

TASK = {
    "data": "digits",
    "partition": {"kind": "iid", "clients": 20},
    "model": {"name": "mlp", "hidden": [16]},
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch_size": 1, "lr": 0.1},
    "rounds": 1,
}
PARTIES = {
    "data": "breast-cancer",
    "partition": {"kind": "columns", "clients": 3},
    "problem": "vertical",
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "splitnn", "batch_size": 16, "lr": 0.1},
    "rounds": 1,
}


def found(attack, task, **fields):
    return attack(calibrated(prepare(read_spec(task | fields))))


@pytest.fixture
def two_victims(monkeypatch):
    """Attack two clients instead of four."""
    monkeypatch.setattr("harness.simulation.attacks.inversion.VICTIMS", 2)


@pytest.mark.slow
def test_one_sample_is_read_from_a_message_exactly():
    figures = found(inversion, TASK)
    assert figures["victims"] == 4 and figures["samples"] == 1
    assert figures["inversion_error"] < 0.01 and figures["inversion_blind"] < 0.01
    assert figures["inversion_labels"] == 1.0 and figures["inversion_psnr"] > 45


@pytest.mark.slow
def test_a_model_without_a_linear_layer_at_the_front_is_attacked_from_random_samples(
    monkeypatch, two_victims
):
    monkeypatch.setattr("harness.simulation.attacks.inversion._inputs", lambda *given: None)
    assert found(inversion, TASK)["inversion_error"] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "protection",
    [
        {"compression": {"codec": "sign"}},
        {"compression": {"beta": 0.99}},
        {"privacy": {"placement": "central", "clip": 1.0, "epsilon": 8, "sampling": "full"}},
        {"privacy": {"unit": "record", "clip": 1.0, "epsilon": 8}},
    ],
)
def test_messages_that_lack_most_or_are_noisy_show_little(protection, two_victims):
    assert found(inversion, TASK, **protection)["inversion_error"] > 0.7


@pytest.mark.slow
def test_a_pruned_model_shows_a_sample_all_the_same(two_victims):
    """Units that are left have gradients of the whole input."""
    assert found(inversion, TASK, compression={"alpha": 0.5})["inversion_error"] < 0.01


def test_algorithms_without_a_common_model_are_not_attacked():
    assert found(inversion, TASK, algorithm={"name": "local"}) is None
    assert found(inversion, PARTIES) is None and found(labels, TASK) is None


def test_samples_are_matched_before_they_are_compared():
    truth = torch.tensor([[0.0, 2.0], [4.0, 0.0], [9.0, 9.0]])
    error, mean = _errors(truth[[1, 0]] + 1, truth, truth)
    assert error == pytest.approx(1.0)
    center = truth.mean(0)
    assert mean == pytest.approx(float((truth[[1, 0]] - center).square().mean()))


def test_labels_follow_the_rise_of_the_last_biases():
    message = torch.tensor([7.0, 7.0, -1.0, 3.0, 1.0])
    assert sorted(_labels(message, 3, 4).tolist()) == [1, 1, 1, 2]
    assert sorted(_labels(-message.abs(), 3, 3).tolist()) == [0, 1, 2]  # nothing rises
    assert _agreement(torch.tensor([1, 1, 1, 2]), torch.tensor([1, 1, 0, 2])) == 3


def test_gradients_of_embeddings_tell_labels_and_noise_hides_them():
    plain = found(labels, PARTIES)
    assert plain["known"] == 8 and plain["labels_accuracy"] > plain["labels_blind"] + 0.1
    private = found(
        labels, PARTIES, privacy={"unit": "client", "placement": "local", "clip": 1, "epsilon": 1}
    )
    assert private["labels_blind"] == pytest.approx(plain["labels_blind"], abs=0.02)
