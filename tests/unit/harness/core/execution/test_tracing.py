"""A recording does what the function does, each operation once."""

import pytest
import torch

from harness.core.execution import tracing
from harness.core.execution.simplify import simplified
from harness.core.execution.tracing import Recorded, record


def operations(fn, *parts):
    """Return how many operations are left of a recording, and what it gives."""
    found = simplified(record(fn, parts))
    return sum(node.op == "call_function" for node in found.graph.nodes), found(*parts)


def test_what_is_computed_twice_is_computed_once():
    """exp, one sum, two products of it: of 2 + 2 + 2 operations 1 + 1 + 1."""

    def fn(x):
        return x * x.exp().sum() + 0 * x.exp().cos(), x * x.exp().sum()

    x = torch.linspace(-1, 1, 5)
    count, found = operations(fn, x)
    assert count == 6  # exp, sum, product; cosine, product, sum
    assert all(torch.equal(a, b) for a, b in zip(found, fn(x), strict=True))


def test_numbers_that_are_equal_and_not_the_same_stay_apart():
    """An integer times 1 is an integer, times 1.0 it is not; -0.0 equals 0.0."""

    def fn(x):
        return x * 1, x * 1.0, x / 0.0, x / -0.0

    x = torch.tensor([2])
    count, found = operations(fn, x)
    assert count == 4
    assert [part.dtype for part in found] == [torch.int64, *[torch.float32] * 3]
    assert [float(part) for part in found] == [2, 2, torch.inf, -torch.inf]


def test_in_place_functions_are_not_recorded():
    def fn(x):
        total = x.clone()
        total.add_(1)
        total.add_(1)
        return (total,)

    _, (found,) = operations(fn, torch.zeros(2))
    assert found.tolist() == [2, 2]


def test_products_with_vectors_are_simplified_although_torch_squeezes_them_in_place():
    x, matrix = torch.linspace(-1, 1, 6).view(3, 2), torch.linspace(0, 1, 12).view(3, 2, 2)
    once, twice = (torch.func.vmap(fn) for fn in (lambda x, m: (x @ m,), lambda x, m: (x @ m + x @ m,)))
    assert "squeeze_" in record(once, (x, matrix)).code
    count, found = operations(twice, x, matrix)
    assert count == operations(once, x, matrix)[0] + 1
    assert torch.equal(found[0], twice(x, matrix)[0])


def test_a_matrix_that_is_transposed_twice_is_the_matrix():
    x = torch.linspace(-1, 1, 24).view(2, 3, 4)
    count, found = operations(lambda x: (x.transpose(1, 2).mT.exp(), x.transpose(0, 1).mT.exp()), x)
    assert count == 4  # one exponential, and two transpositions before the other
    assert torch.equal(found[0], x.exp()) and torch.equal(found[1], x.transpose(0, 1).mT.exp())


def test_two_draws_are_two_draws():
    def fn(x):
        return torch.rand_like(x), torch.rand_like(x)

    _, (one, other) = operations(fn, torch.zeros(8))
    assert not torch.equal(one, other)


def test_what_returns_its_argument_as_it_is_is_left_away():
    """vmap brings operands of a product into the form of a batch, in which they are here already."""

    def fn(x, y):
        same = y.view(3, 4, 5).expand(3, 4, 5).permute(0, 1, 2).detach()
        return x @ same, y.view(3, 20), y.permute(0, 2, 1).permute(0, 2, 1)

    x, y = torch.randn(3, 2, 4), torch.randn(3, 4, 5)
    count, found = operations(fn, x, y)
    assert count == 4  # product, view, and two permutations
    assert all(torch.equal(a, b) for a, b in zip(found, fn(x, y), strict=True))


def test_operations_are_called_by_torch_names():
    def fn(x):
        return (x.mul(2).sum([0], True).new_zeros([2]) + x[1:],)

    x = torch.tensor([1.0, 2.0, 3.0])
    found = simplified(record(fn, (x,)))
    assert torch.equal(found(x)[0], fn(x)[0])
    targets = [node.target for node in found.graph.nodes if node.op == "call_function"]
    assert torch.mul in targets and torch.sum in targets and torch.Tensor.new_zeros in targets


@pytest.mark.parametrize("view", [False, True])
def test_results_are_the_callers(view):
    """A constant that is returned, also seen in another form, is made anew by every call."""

    def fn(x):
        ones = torch.ones(4)
        return x * 2, ones.view(2, 2) if view else ones

    made = simplified(record(fn, (torch.ones(2),)))
    for _ in range(3):
        _, ones = made(torch.ones(2))
        assert ones.sum() == 4
        ones.add_(1)


def test_foreign_operations_are_not_taken_for_torchs():
    @torch.library.custom_op("fedfrontier_test::mul", mutates_args=())
    def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 10 * y

    x = torch.tensor([1.0, 2.0])
    _, (found,) = operations(lambda x: (mul(x, x),), x)
    assert found.tolist() == [11, 22]


def test_a_function_may_hold_a_tensor_of_its_own():
    """Its form is changed by the product; of constants nothing is known beforehand."""
    held = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

    def fn(y):
        return torch.einsum("ij,j->i", held, y), held.view(3, 4) * 1

    y = torch.linspace(0, 1, 4)
    _, found = operations(fn, y)
    assert all(torch.equal(a, b) for a, b in zip(found, fn(y), strict=True))


def test_arguments_shared_when_recorded_may_differ_later(monkeypatch):
    monkeypatch.setattr(tracing, "CALLS", 1)
    recorded = Recorded(lambda a, b: (a * 2 + b * b,))
    x, y = torch.tensor([10.0, 20.0]), torch.tensor([1.0, 2.0])
    for _ in range(3):
        assert recorded(x, x)[0].tolist() == [120, 440]
    assert recorded(x, y)[0].tolist() == [21, 44]


def test_second_derivatives_share_points_and_keep_every_bit(monkeypatch):
    """Three Hessian products at one point go through the loss once each; recorded, once in all."""
    monkeypatch.setattr(tracing, "CALLS", 1)
    features = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))

    def loss(w):
        return torch.nn.functional.softplus(features @ w).mean()

    def fn(w, v):
        for _ in range(3):
            along = v
            v = v - torch.func.grad(lambda u, along=along: torch.func.grad(loss)(u) @ along)(w)
        return (v,)

    w, v = features[0], features[1]
    recorded = Recorded(fn)
    assert torch.equal(recorded(w, v)[0], recorded(w, v)[0])
    whole = sum(node.op == "call_function" for node in record(fn, (w, v)).graph.nodes)
    assert operations(fn, w, v)[0] < 0.8 * whole


def test_where_many_calls_are_to_come_recording_begins_early(monkeypatch):
    recorded, ahead = Recorded(lambda x: (x * 2,)), tracing.CALLS / 3
    recorded(torch.ones(2))
    recorded(torch.ones(2))
    assert not recorded._recordings
    assert recorded(torch.ones(2), ahead=ahead)[0].tolist() == [2, 2] and not recorded._recordings
    assert recorded(torch.ones(2), ahead=ahead)[0].tolist() == [2, 2] and recorded._recordings


def test_what_depends_on_values_runs_unrecorded(monkeypatch):
    monkeypatch.setattr(tracing, "CALLS", 1)
    weights = torch.ones(2)
    recorded = Recorded(
        lambda x: torch.autograd.grad((z := x.detach().requires_grad_()).sum() * weights.sum().item(), z)
    )
    with pytest.raises(tracing.Unrecordable, match="depend on values"):
        record(recorded._fn, (torch.ones(2),))
    assert [recorded(torch.ones(2))[0].tolist() for _ in range(4)] == [[2, 2]] * 4


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_whose_derivatives_are_not_all_asked_for(frozen):
    """Such operations return None for the others."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.Flatten(), torch.nn.Linear(16, 2)
    )
    parameters = {
        name: part.detach()[None].repeat(3, *[1] * part.ndim) for name, part in layers.named_parameters()
    }
    names = list(parameters)[2:] if frozen else list(parameters)
    x = torch.randn(3, 5, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    def gradients(x, *parts):
        leaves = [part.detach().requires_grad_() for part in parts]
        given = parameters | dict(zip(names, leaves, strict=True))
        losses = torch.func.vmap(lambda own, x: torch.func.functional_call(layers, own, (x,)).square().sum())(
            given, x
        )
        return torch.autograd.grad(losses.sum(), leaves)

    points = [parameters[name] for name in names]
    _, found = operations(gradients, x, *points)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(x, *points), strict=True))


def test_linear_systems_are_recorded_without_their_checks():
    a = torch.eye(3).expand(2, 3, 3) * torch.tensor([2.0, 4.0])[:, None, None]
    _, found = operations(torch.func.vmap(lambda a: (torch.linalg.solve(a, torch.ones(3)),)), a)
    assert found[0].tolist() == [[0.5] * 3, [0.25] * 3]


def test_ones_keep_their_strides():
    def fn(a):
        return (torch.ones_like(a.t()).t().view(-1) * a.view(-1),)

    _, found = operations(fn, torch.arange(6.0).view(2, 3))
    assert found[0].tolist() == [0, 1, 2, 3, 4, 5]
