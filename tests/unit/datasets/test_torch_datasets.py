"""Datasets of torch, whose clients a function names."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from datasets.errors import DataError
from datasets.torch_datasets import from_torch


def half(index):
    return "first" if index < 2 else "second"


def images(dtype=torch.float32):
    return TensorDataset(
        torch.arange(4 * 3 * 2 * 2).reshape(4, 3, 2, 2).to(dtype) / 100, torch.tensor([1, 0, 1, 0])
    )


def test_tensors_are_images_with_named_clients():
    data = from_torch("mine", images(), half)
    assert data.x.tolist() == images()[:][0].tolist() and data.y.tolist() == [1, 0, 1, 0]
    assert data.classes == ("0", "1") and data.name == "mine" and data.source == "mine (a dataset of torch)"
    assert data.client == "client" and data.columns["client"].tolist() == ["first"] * 2 + ["second"] * 2


def test_the_digest_covers_inputs_labels_and_clients():
    other = TensorDataset(images()[:][0], torch.tensor([1, 1, 1, 0]))
    made = [from_torch("a", images(), half), from_torch("a", images(), str), from_torch("a", other, half)]
    assert len({one.digest for one in made}) == 3 and made[0].digest == from_torch("a", images(), half).digest


def test_images_of_pillow_are_scaled_and_classes_keep_their_order():
    """The positive class is the last as it was given, not as it sorts."""
    samples = [(Image.fromarray(np.full((2, 3), 51 * n, np.uint8)), n % 2) for n in range(4)]
    data = from_torch("mine", samples, half, ["well", "ill"])
    assert np.allclose(data.x[:, 0, 0, 0], [0, 0.2, 0.4, 0.6]) and data.x.shape == (4, 1, 2, 3)
    assert data.classes == ("well", "ill") and data.y.tolist() == [0, 1, 0, 1]


def test_vectors_are_features():
    data = from_torch("mine", TensorDataset(torch.tensor([[1.5, 0], [2, 1]]), torch.tensor([0, 1])), half)
    assert data.features == ("x 0", "x 1") and data.continuous.tolist() == [True, False]


def palette():
    """Return an image whose numbers are places in a list of colors."""
    return Image.fromarray(np.zeros((2, 3, 3), np.uint8)).quantize(4)


class Broken:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise OSError("the disk is gone")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "client", "said"),
    [
        (Stream(), half, "a map-style dataset is needed"),
        (Broken(), half, "sample 0 is no input with a label: OSError: the disk is gone"),
        ([np.zeros(2)] * 2, lambda _: 1 / 0, "sample 0 is no input with a label"),
        (
            [(np.zeros(2), 0), (np.zeros(3), 1)],
            half,
            r"sample 1 has the shape \(3,\) of float64, and the first \(2,\)",
        ),
        (
            [(np.full((2, 3), 200, np.uint8), 0), (np.full((2, 3), 0.5), 1)],
            half,
            r"sample 1 has the shape \(2, 3\) of float64, and the first \(2, 3\) of uint8",
        ),
        ([(palette(), 0), (palette(), 1)], half, r"sample 0 is an image of mode P; convert it"),
        ([(np.zeros(2), 0), (np.zeros(2), 1)], lambda _: None, "sample 0: the client is None"),
        ([(np.zeros(2), 0)], half, "1 samples; two or more"),
        ([(np.zeros(2), 0), (np.zeros(2), 2)], half, "a label is 2; 2 classes have numbers from 0"),
    ],
)
def test_datasets_that_do_not_fit_are_refused_by_sample(dataset, client, said):
    with pytest.raises(DataError, match=said):
        from_torch("mine", dataset, client, ["a", "b"])
