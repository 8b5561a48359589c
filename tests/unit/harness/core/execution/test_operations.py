"""Operations are counted as torch counts them."""

import pytest
import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from datasets.federation import Batch
from harness import models
from harness.core.cost import Cost
from harness.core.execution.exact.row_product import exact_sizes
from harness.core.execution.vectorize import ClientExecutor
from harness.core.methods.derivatives import neumann_hypergradient
from harness.problems.classify import classifier
from tests.support.worlds import quadratic_bilevel


def network(name):
    """A problem of three classes and a batch of four samples in the shape its model takes."""
    inputs = models.describe(name)["inputs"]
    shape = (5, 1) if inputs == "text" else (3, 32, 32) if "image" in inputs else (12,)
    problem = classifier(models.build(name, shape, 3))
    generator = torch.Generator().manual_seed(0)
    x = problem.init(generator)["x"]
    x_batch = torch.rand(4, *shape, generator=generator)
    batch = Batch(x_batch, torch.tensor([0, 1, 2, 0]), torch.zeros(4, dtype=torch.int64), torch.ones(4))
    return problem, x, batch


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*models.names()} - {"encoder_rest"}))  # which needs weights
def test_a_gradient_and_a_prediction_cost_what_torch_counts(name):
    problem, x, batch = network(name)
    leaf = x.clone().requires_grad_()
    with FlopCounterMode(display=False) as gradient, exact_sizes():
        torch.autograd.grad(problem.loss(leaf, batch), leaf)
    with FlopCounterMode(display=False) as prediction, exact_sizes():
        problem.predict(x, batch.x)

    rows = ClientExecutor("vmap")
    one = type(batch)(*(part[None] for part in batch))
    assert rows.flops(problem.loss, 1, x[None], one, gradient=True) == gradient.get_total_flops() > 0
    assert rows.flops(problem.predict, 1, x[None], one.x) == prediction.get_total_flops() > 0


def test_derivatives_of_derivatives_cost_what_torch_counts():
    """Of a bilevel problem; transforms stand between function and operations."""
    problem, federation = quadratic_bilevel()
    point = [federation.pool.x.new_ones(len(value)) for value in problem.init(torch.Generator()).values()]
    batch = federation.pool.at(torch.tensor([0, 0]))
    fn = neumann_hypergradient(problem, 0.1)
    with FlopCounterMode(display=False) as counted:
        fn(*point, batch, batch, batch)
    found = ClientExecutor("vmap").flops(
        fn, 1, *tree_map(lambda part: part[None], (*point, batch, batch, batch))
    )
    assert found == counted.get_total_flops() > 0


def test_large_counts_are_exact():
    """Twelve thousand million operations and one: single precision has steps of a thousand there."""
    cost = Cost()
    cost.work(12_000_000_001 / 48, torch.ones(1, 48), oracle=True)
    assert cost.state()["flops"] == 12_000_000_001 and cost.state()["oracle_calls"] == 48


def test_work_on_two_batches_is_rounded_once():
    """Three operations a sample and a half, on 1 + 2 of them: 4.5 is 4; in two parts it would be 2 + 3."""
    cost = Cost()
    cost.work(1.5, torch.ones(1, 1), torch.ones(1, 2))
    assert cost.flops == 4 and cost.oracle_calls == 0
