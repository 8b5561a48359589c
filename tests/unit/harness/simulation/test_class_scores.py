"""Probabilities, decisions and losses of single samples are torch's, to the last bit."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.simulation.class_scores import cross_entropies, decisions, in_double, probabilities


def drawn(samples: int, classes: int, *, finite: bool = False) -> Tensor:
    """Draw outputs of every scale, with ties, saturation, and what a diverged model says."""
    generator = torch.Generator().manual_seed(samples)
    scale = torch.randn(samples, 1, generator=generator, dtype=torch.float64).mul(3).exp()
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * scale
    if samples > 10:
        logits[:3] = 0.0
        logits[3] = torch.arange(classes) * 1e3
    if samples > 10 and not finite:
        logits[4, 0], logits[5, 0], logits[6, 0] = float("nan"), float("inf"), -float("inf")
    return logits


def same_bits(found: Tensor, expected: Tensor) -> bool:
    one, other = found.contiguous().numpy(), expected.contiguous().numpy()
    known = ~np.isnan(other)
    return np.array_equal(known, ~np.isnan(one)) and np.array_equal(
        one[known].view(np.int64), other[known].view(np.int64)
    )


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("samples", [1, 7, 4001])
def test_losses_have_the_bits_of_torch(classes: int, samples: int) -> None:
    logits = drawn(samples, classes)
    labels = torch.randint(0, classes, (samples,), generator=torch.Generator().manual_seed(1))
    expected = functional.cross_entropy(logits, labels, reduction="none")
    assert same_bits(cross_entropies(logits, labels), expected)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("samples", [1, 7, 16, 4001])
def test_probabilities_have_the_bits_of_torch(samples: int, classes: int, finite: bool) -> None:
    """Also in float32 as a network gives them, and wherever they lie in memory."""
    logits = drawn(samples, classes, finite=finite)
    for given in (logits, in_double(logits), in_double(logits.float())):
        assert same_bits(probabilities(given), given.contiguous().softmax(-1))
        assert torch.equal(decisions(probabilities(given)), given.contiguous().softmax(-1).argmax(-1))


def test_two_classes_are_computed_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has the bits of torch is not torch's function, unless numbers are not finite."""
    finite, other = drawn(4001, 2, finite=True), drawn(4001, 2)
    expected, _ = finite.softmax(-1), probabilities(finite)
    monkeypatch.setattr(Tensor, "softmax", lambda *_: pytest.fail("torch's own"))
    assert same_bits(probabilities(finite), expected)
    with pytest.raises(pytest.fail.Exception):
        probabilities(other)
