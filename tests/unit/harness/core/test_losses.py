"""Losses that vectorize well, and round alike wherever an entry lies."""

import pytest
import torch
from torch.nn import functional

from harness.core.execution.exact.functions import sigmoid, softplus
from harness.core.losses import cross_entropy


@pytest.mark.parametrize("classes", [2, 3, 8, 9])
def test_cross_entropy_and_its_derivatives_are_torchs(classes):
    generator = torch.Generator().manual_seed(classes)
    scores = 3 * torch.randn(6, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (6,), generator=generator)
    assert torch.allclose(
        cross_entropy(scores, labels), functional.cross_entropy(scores, labels, reduction="none")
    )
    gradient = torch.func.grad(lambda s: functional.cross_entropy(s, labels, reduction="sum"))
    own = torch.func.grad(lambda s: cross_entropy(s, labels).sum())
    assert torch.allclose(own(scores), gradient(scores))
    direction = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    for fn in (own, gradient):
        _, product = torch.func.vjp(fn, scores)
        assert torch.allclose(product(direction)[0], torch.func.vjp(gradient, scores)[1](direction)[0])


@pytest.mark.parametrize("mine", [sigmoid, softplus])
def test_derivatives_up_to_the_third(mine):
    z = torch.linspace(-4, 4, 9, dtype=torch.float64)
    theirs = getattr(functional, mine.__name__)
    for order in range(4):
        one, other = mine, theirs
        for _ in range(order):
            one, other = torch.func.grad(one), torch.func.grad(other)
        assert torch.allclose(torch.func.vmap(one)(z), torch.func.vmap(other)(z), atol=1e-12)


@pytest.mark.parametrize("far", [50.0, 1e4, 1e30])
def test_far_from_zero_nothing_overflows(far):
    scores = torch.tensor([[far, -far], [far, -far]])
    labels = torch.tensor([0, 1])
    assert cross_entropy(scores, labels).tolist() == pytest.approx([0, 2 * far])
    gradient = torch.func.grad(lambda s: cross_entropy(s, labels).sum())(scores)
    assert gradient.flatten().tolist() == pytest.approx([0, 0, 1, -1])
    curvature = torch.func.vmap(torch.func.grad(torch.func.grad(softplus)))
    assert curvature(torch.tensor([-far, far])).tolist() == pytest.approx([0, 0])


def test_an_improbable_label_is_told_from_an_impossible_one():
    """The gradient of the other class keeps its relative precision."""
    scores, labels = torch.tensor([[25.0, 0.0]]), torch.tensor([0])
    gradient = torch.func.grad(lambda s: cross_entropy(s, labels).sum())(scores)
    assert gradient[0, 1] == pytest.approx(1.3888e-11, rel=1e-4)


@pytest.mark.parametrize("fn", [sigmoid, softplus])
def test_an_entry_rounds_alike_anywhere(fn):
    z = 4 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    derivative = torch.func.vmap(torch.func.grad(fn))
    for one in (fn, derivative):
        whole = one(z)
        for first, length in [(0, 1), (1, 2), (5, 11), (100, 33), (999, 1)]:
            assert torch.equal(one(z[first : first + length]), whole[first : first + length])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_limit_of_the_logistic_function_changes_no_bit(dtype):
    edges = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], dtype=dtype)
    z = torch.cat([torch.linspace(-1000, 1000, 4001, dtype=dtype), edges])
    assert torch.equal(sigmoid(z).nan_to_num(), ((-z).exp() + 1).reciprocal().nan_to_num())
    assert sigmoid(edges).isnan().tolist() == [True, False, False, False]
