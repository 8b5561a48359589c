"""A number of each stacked run rounds as the number of the run alone."""

import operator

import pytest
import torch

from harness.core.algorithm import ALGORITHMS
from harness.core.per_run import Mixed, PerRun, is_one, kind, side_by_side
from harness.core.settings.compression import Compression
from harness.core.steps import server_start, server_step

VALUES = (0.1, 1 / 3, 7.0)


def rows(dtype=torch.float32):
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@pytest.mark.parametrize("turned", [False, True])
def test_arithmetic_with_tensors(name, turned, dtype):
    function, x = getattr(operator, name), rows(dtype)
    together = function(PerRun(VALUES), x) if turned else function(x, PerRun(VALUES))
    for number, value in enumerate(VALUES):
        alone = function(value, x[number]) if turned else function(x[number], value)
        assert torch.equal(together[number], alone)


def test_numbers_are_combined_in_double_precision_before_they_meet_a_tensor():
    """In single precision a sixth of these entries differ."""
    x, g = rows(), rows().square()
    together = x - g / (50 * PerRun(VALUES))
    for number, value in enumerate(VALUES):
        assert torch.equal(together[number], x[number] - g[number] / (50 * value))


def test_functions_of_torch_take_it():
    x = rows()
    bounded = x.clamp(min=PerRun(VALUES))
    for number, value in enumerate(VALUES):
        assert torch.equal(bounded[number], x[number].clamp(min=value))
    assert torch.equal(torch.full_like(x, PerRun(VALUES))[2], torch.full_like(x[2], 7.0))
    assert torch.equal(torch.where(x > PerRun(VALUES), x, 0.0)[0], torch.where(x[0] > 0.1, x[0], 0.0))


def test_decisions_need_agreement():
    assert PerRun(VALUES) and PerRun(VALUES) > 0 and not PerRun((0.0, 0.0))
    assert is_one(PerRun((1.0, 1.0))) and not is_one(PerRun((1.0, 2.0))) and is_one(1.0)
    for question in (lambda n: n > 0.2, bool, lambda n: n == 0):
        with pytest.raises(Mixed):
            question(PerRun((0.0, 0.3)))


def test_it_never_meets_a_tensor_without_an_axis_of_runs():
    """Neither by shape nor inside a function of one client, whose batch may be as wide as the stack."""
    for x in (torch.ones(()), torch.ones(2, 3)):
        with pytest.raises(Mixed, match="no axis of 3 runs"):
            PerRun(VALUES) * x
    with pytest.raises(Mixed):
        torch.func.vmap(lambda x: PerRun(VALUES) * x)(torch.ones(4, 3))
    with pytest.raises(TypeError):
        float(PerRun(VALUES))
    with pytest.raises(TypeError):
        rows() ** PerRun(VALUES)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "yogi", "adagrad"])
def test_server_steps(optimizer):
    x, dx, choices = rows()[:, 0], rows()[:, 1], [{"lr": v, "tau": v / 7, "beta1": v / 8} for v in VALUES]
    settings = {name: PerRun([one[name] for one in choices]) for name in choices[0]}
    memory = server_start(x, optimizer, settings["tau"])
    moved, _ = server_step(x, dx, memory, optimizer=optimizer, **settings)
    for number, one in enumerate(choices):
        own = server_start(x[number], optimizer, one["tau"])
        assert torch.equal(
            moved[number], server_step(x[number], dx[number], own, optimizer=optimizer, **one)[0]
        )


def test_settings_of_a_stack_differ_in_numbers_only():
    cls = ALGORITHMS["fedavg"]
    one, other = cls(lr=0.1, local_steps=3), cls(lr=0.2, local_steps=3)
    merged = side_by_side([one, other])
    assert merged.lr.values == (0.1, 0.2) and merged.local_steps == 3
    assert merged.at(4).lr.values == (0.1, 0.2) and side_by_side([one, one]) is one
    with pytest.raises(Mixed, match="lr_schedule"):
        side_by_side([one, cls(lr_schedule="constant", local_steps=3)])
    pruned = side_by_side([Compression(beta=0.5), Compression(beta=0.9)])
    assert pruned.beta.values == (0.5, 0.9) and pruned.sparsifies


def test_only_the_sign_of_a_number_is_shared():
    assert kind(0.3) == kind(2.0) != kind(-1.0)
    assert len({kind(0.0), kind(0.1), kind(float("inf")), kind(None), kind("adaptive"), kind(3)}) == 6
