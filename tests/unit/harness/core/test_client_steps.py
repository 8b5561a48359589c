"""Client steps against torch.optim, and what they do to clients that have run out of batches."""

import math

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from datasets.federation import Batch
from harness.core import ALGORITHMS, Descent, UserError
from harness.core.steps import directions, moved, rate, reach
from tests.support.worlds import close, make_algorithm, run_algorithm, scalar_quadratic

SETTINGS = [
    {"momentum": 0.9},
    {"weight_decay": 0.3},
    {"momentum": 0.5, "weight_decay": 0.1},
    {"momentum": 0.5, "weight_decay": 0.1, "grad_clip": 0.7},
]


def torch_sgd(x, curvature, optimum, steps, lr, grad_clip=None, maximize=False, **settings):
    x = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    optimizer = SGD([x], lr=lr, maximize=maximize, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        sign = -1 if maximize else 1
        (sign * curvature / 2 * (x - optimum) ** 2).sum().backward()
        if grad_clip is not None:
            x.grad *= min(1.0, grad_clip / float(x.grad.norm()))
        optimizer.step()
    return float(x.detach())


@pytest.mark.parametrize("name", ["local", "centralized", "fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_one_client_takes_the_steps_of_torch(name, settings):
    """With one client FedProx without a penalty and SCAFFOLD in its first round are SGD."""
    more = {"mu": 0.0} if name == "fedprox" else {}
    problem = scalar_quadratic((2.0,), (3.0,))
    found = run_algorithm(name, *problem, 1, lr=0.1, local_steps=7, **settings, **more).state.x
    assert close(found.flatten(), torch_sgd(0.0, 2.0, 3.0, 7, 0.1, **settings), 1e-12)


def test_momentum_begins_again_in_every_round():
    """Two rounds of three steps are twice three steps of torch with a new optimizer."""
    found = run_algorithm("local", *scalar_quadratic((2.0,), (3.0,)), 2, lr=0.1, local_steps=3, momentum=0.9)
    first = torch_sgd(0.0, 2.0, 3.0, 3, 0.1, momentum=0.9)
    assert close(found.state.x.flatten(), torch_sgd(first, 2.0, 3.0, 3, 0.1, momentum=0.9), 1e-12)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_negative_step_size_maximizes(settings):
    """-(a / 2) (y - o)^2 goes up as torch's SGD with maximize goes."""
    algorithm = make_algorithm("local_sgda", **settings)
    y, m = torch.zeros(1, 1, dtype=torch.float64), None
    batch = Batch(y, y, y, torch.ones(1, 1, dtype=torch.float64))
    for _ in range(5):
        (y,), m = algorithm.step((y,), (-2.0 * (y - 3.0),), batch, m, lr=(-0.1,))
    assert close(y.flatten(), torch_sgd(0.0, 2.0, 3.0, 5, 0.1, maximize=True, **settings), 1e-12)


def test_who_has_no_batch_follows_nothing_whatever_is_added():
    x, g = torch.ones(2, 3), torch.tensor([[1.0], [0.0]]).expand(2, 3)
    batch = Batch(x, x, x, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    (found,), buffers = directions(
        (x,), (g,), batch, (x,), plus=(x,), momentum=0.5, weight_decay=0.5, grad_clip=100.0
    )
    assert torch.equal(found[0], torch.full((3,), 0.5 + 1 + 1 + 0.5))
    assert torch.equal(found[1], torch.zeros(3))
    assert buffers is not None


def test_weight_decay_alone_does_not_move_who_has_no_batch():
    """Without momentum, whose mask comes last: 1 + .5 with a batch, and 0 without."""
    x, g = torch.ones(2, 3), torch.tensor([[1.0], [0.0]]).expand(2, 3)
    batch = Batch(x, x, x, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    (found,), _ = directions((x,), (g,), batch, weight_decay=0.5)
    assert torch.equal(found, torch.tensor([[1.5], [0.0]]).expand(2, 3))


def test_defaults_compute_nothing_besides_the_gradient():
    x = torch.ones(2, 3)
    batch = Batch(x, x, x, torch.ones(2, 1))
    (found,), buffers = directions((x,), (x,), batch)
    assert found is x and buffers is None


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_reach_is_the_way_along_a_gradient_of_one(steps):
    buffer = way = 0.0
    for _ in range(steps):
        buffer = 0.9 * buffer + 1
        way += buffer
    assert reach(steps, 0.9) == pytest.approx(way)
    assert float(reach(torch.tensor(float(steps)), 0.9)) == pytest.approx(way)
    assert reach(steps, 0.0) == steps


def test_control_variates_of_scaffold_are_gradients_with_momentum_too():
    """f = x: the gradient is 1 wherever a client goes, and so is its control variate."""
    problem = scalar_quadratic((1.0,), (-1.0,))
    found = run_algorithm("scaffold", *problem, 1, lr=1e-6, local_steps=5, momentum=0.9).state
    assert close(found.c, 1.0, 1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "torch_schedule"),
    [
        ("exponential", {"lr_decay": 0.9}, lambda o: ExponentialLR(o, 0.9)),
        ("step", {"lr_decay": 0.5, "lr_period": 3}, lambda o: StepLR(o, 3, 0.5)),
    ],
)
def test_a_schedule_is_that_of_torch(name, settings, torch_schedule):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    schedule = torch_schedule(optimizer)
    algorithm = make_algorithm("fedavg", lr=0.2, lr_schedule=name, **settings)
    for round in range(8):
        assert algorithm.at(round).lr == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_a_cosine_comes_down_over_its_period_and_stays_above_zero():
    found = [rate("cosine", round, 1.0, 4) for round in range(6)]
    half = (1 - math.sqrt(0.5)) / 2
    assert found == pytest.approx([1.0, 1 - half, 0.5, half, half, half])


def test_every_step_size_follows_the_schedule_and_its_settings_do_not():
    algorithm = make_algorithm("fedreco", lr_schedule="cosine", lr_period=2).at(1)
    assert (algorithm.lr_u, algorithm.lr_v, algorithm.lr_0) == pytest.approx((0.005, 0.005, 0.0005))
    assert (algorithm.lr_period, algorithm.lr_decay, algorithm.lr_schedule) == (2, 1.0, "cosine")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"lr_schedule": "cosine"}, "lr_period"),
        ({"lr_period": 3}, "lr_period"),
        ({"lr_schedule": "step", "lr_period": 0}, "lr_period"),
        ({"lr_schedule": "cosine", "lr_period": 3, "lr_decay": 0.9}, "lr_decay"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_settings_that_say_nothing_are_refused(wrong, named):
    with pytest.raises(UserError, match=named):
        make_algorithm("fedavg", **wrong)


def test_momentum_is_refused_where_a_round_is_one_step():
    with pytest.raises(UserError, match="momentum"):
        make_algorithm("fedminmax", local_steps=1, momentum=0.5)


OWN_RULES = {"dm_hsgd", "dream", "fcfl", "fedbioacc", "fedsgda_m", "local_adaseg", "momentum_local_sgda"}


def test_all_but_those_with_a_rule_of_their_own_take_client_steps():
    assert {name for name in ALGORITHMS if not issubclass(ALGORITHMS[name], Descent)} == OWN_RULES


def test_a_step_writes_over_what_was_made_for_it_alone():
    x, gradient, step = torch.ones(2, 3), torch.full((2, 3), 5.0), torch.full((2, 3), 0.25)
    before = step.data_ptr()
    assert moved(x, step).data_ptr() == before and torch.equal(step, torch.full((2, 3), 0.75))
    assert torch.equal(x, torch.ones(2, 3))
    assert torch.equal(moved(x, torch.tensor(0.5)), torch.full((2, 3), 0.5)), "a step of another shape"
    local = make_algorithm("local", lr=0.1)
    new, _ = local.step(x, gradient, None, lr=0.1)
    assert torch.equal(new, torch.full((2, 3), 0.5))
    assert torch.equal(x, torch.ones(2, 3)) and torch.equal(gradient, torch.full((2, 3), 5.0))
