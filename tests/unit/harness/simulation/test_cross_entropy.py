"""Losses of single samples are torch's, to the last bit."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from harness.simulation.evaluation import cross_entropies


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("samples", [1, 7, 4001])
def test_losses_have_the_bits_of_torch(classes: int, samples: int) -> None:
    generator = torch.Generator().manual_seed(samples)
    scale = torch.randn(samples, 1, generator=generator, dtype=torch.float64).mul(3).exp()
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64) * scale
    if samples > 10:  # ties, saturation, and what a diverged model says
        logits[:3] = 0.0
        logits[3] = torch.arange(classes) * 1e3
        logits[4, 0], logits[5, 0], logits[6, 0] = float("nan"), float("inf"), -float("inf")
    labels = torch.randint(0, classes, (samples,), generator=generator)
    found = cross_entropies(logits, labels).numpy()
    expected = functional.cross_entropy(logits, labels, reduction="none").numpy()
    known = ~np.isnan(expected)
    assert np.array_equal(known, ~np.isnan(found))
    assert np.array_equal(found[known].view(np.int64), expected[known].view(np.int64))
