"""Products of rows with a shared matrix round alike, however many rows there are."""

import pytest
import torch

from harness import models
from harness.core.execution.exact import row_product as row_product_module
from harness.core.execution.exact.row_product import (
    Linear,
    exact_sizes,
    padding,
    rounds_alike,
    row_product,
    with_plain_layers,
)
from harness.core.execution.vectorize import ClientExecutor

SHAPES = [(6, 13, 7), (20, 105, 32), (3, 30, 1), (1, 784, 64), (5, 4, 4)]


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("clients", "inner", "columns"), SHAPES)
def test_a_row_rounds_alike_beside_any_others(clients, inner, columns, dtype):
    rows = drawn(clients, 200, inner, dtype=dtype)
    for matrix in (
        drawn(clients, inner, columns, dtype=dtype),
        drawn(clients, columns, inner, dtype=dtype).mT,
    ):
        wide = row_product(rows, matrix)
        assert torch.allclose(wide, rows @ matrix, rtol=1e-4, atol=1e-4)
        assert padding(matrix) is not None
        for first, last in [(0, 1), (1, 3), (5, 12), (64, 127), (199, 200)]:
            assert torch.equal(row_product(rows[:, first:last], matrix), wide[:, first:last])


@pytest.mark.parametrize(
    ("dtype", "inner", "columns", "each", "runs"),
    [
        (torch.float32, 1300, 240, 16, 16),
        (torch.float32, 1300, 240, 64, 4),
        (torch.float64, 300, 240, 16, 16),
        (torch.float64, 300, 64, 200, 3),
        (torch.float32, 105, 32, 2, 100),
    ],
)
def test_many_runs_round_as_each_alone(dtype, inner, columns, each, runs):
    """Of a product of more rows than paddings are tried with, and of the gradient by them."""
    rows, matrix = drawn(runs, each, inner, dtype=dtype), drawn(columns, inner, dtype=dtype).mT
    out = drawn(runs, each, columns, dtype=dtype)

    def gradient(own, by):
        return torch.func.vjp(lambda one: row_product(one, matrix), own)[1](by)[0]

    together = torch.func.vmap(row_product, in_dims=(0, None))(rows, matrix)
    gradients = torch.func.vmap(gradient)(rows, out)
    for run in range(runs):
        assert torch.equal(together[run], row_product(rows[run], matrix))
        assert torch.equal(gradients[run], gradient(rows[run], out[run]))


def test_where_no_padding_serves_runs_are_multiplied_one_by_one(monkeypatch):
    made = []
    monkeypatch.setattr(row_product_module, "PADDINGS", ())
    monkeypatch.setattr(
        torch, "matmul", lambda a, b, matmul=torch.matmul: made.append(a.shape) or matmul(a, b)
    )
    row_product_module._found.cache_clear()
    torch.func.vmap(row_product, in_dims=(0, None))(drawn(3, 2, 105), drawn(105, 32))
    row_product_module._found.cache_clear()
    assert made == [(2, 105)] * 3


@pytest.mark.parametrize("upright", [True, False])
def test_wherever_a_models_rows_begin_they_round_alike(upright):
    matrix = drawn(20, 105, 32) if upright else drawn(20, 32, 105).mT
    assert padding(matrix)[0] == 1  # nothing is copied; the number of rows depends on the processor
    rows, room = drawn(20, 8, 105), torch.empty(20 * 8 * 105 + 16)
    alone = row_product(rows, matrix)
    for place in range(16):
        moved = room[place:][: rows.numel()].view(rows.shape).copy_(rows)
        assert torch.equal(row_product(moved, matrix), alone)
        assert torch.equal(row_product(moved.mT.contiguous().mT, matrix), alone)


def test_plain_products_do_not():
    """Otherwise the padding could go."""
    rows, matrix = drawn(20, 200, 105), drawn(20, 32, 105).mT
    assert not torch.equal(rows[:, :2].contiguous() @ matrix, (rows @ matrix)[:, :2])


def test_vmap_folds_runs_into_rows_and_into_columns():
    rows, matrix = drawn(4, 3, 2, 6), drawn(3, 6, 5)
    runs = torch.func.vmap(torch.func.vmap(row_product, in_dims=(0, None)), in_dims=(1, 0), out_dims=1)
    assert torch.equal(runs(rows, matrix), torch.stack([row_product(run, matrix) for run in rows]))
    samples = torch.func.vmap(row_product, in_dims=(None, 0))(rows[0, 0], matrix)
    assert torch.allclose(samples, rows[0, 0] @ matrix)
    pairs = torch.func.vmap(row_product, in_dims=(1, 0))(drawn(2, 3, 6), matrix)
    assert torch.allclose(pairs, drawn(2, 3, 6).movedim(1, 0) @ matrix, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 6])
def test_derivatives_of_every_order(rows):
    a, b = drawn(rows, 3, dtype=torch.float64), drawn(3, 4, dtype=torch.float64)
    leaves = (a.requires_grad_(), b.requires_grad_())
    assert torch.autograd.gradcheck(row_product, leaves)
    assert torch.autograd.gradgradcheck(row_product, leaves)


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_models_are_made_of_it(name):
    net = models.build(name, (13,), 3)
    layers = [layer for layer in net.modules() if isinstance(layer, torch.nn.Linear)]
    assert rounds_alike(net) and not rounds_alike(torch.nn.Linear(2, 3))
    x = drawn(5, 13)
    plain = torch.nn.functional.linear(x, layers[0].weight, layers[0].bias)
    assert torch.allclose(layers[0](x), plain, atol=1e-6)


def test_operations_are_counted_without_padding():
    layer = Linear(10, 1, bias=False)
    rows = ClientExecutor("vmap")
    assert rows.flops(lambda w, x: row_product(w, x.mT), 1, layer.weight[None], drawn(1, 7, 10)) == 2 * 7 * 10
    with exact_sizes():
        assert torch.equal(layer(drawn(7, 10)), drawn(7, 10) @ layer.weight.mT)


def test_models_that_are_never_stacked_have_plain_layers():
    net, drawn_before = models.build("mlp", (13,), 3), torch.random.get_rng_state()
    plain = with_plain_layers(net)
    layers = [type(layer) for layer in plain.modules() if isinstance(layer, torch.nn.Linear)]
    assert layers == [torch.nn.Linear] * 2 and plain(drawn(5, 13)).shape == (5, 3)
    assert torch.equal(torch.random.get_rng_state(), drawn_before)
