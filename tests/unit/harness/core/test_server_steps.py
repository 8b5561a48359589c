"""Server optimizers against plain loops over numbers, by themselves and inside FedAvg on quadratics."""

import math

import numpy as np
import pytest
import torch

from harness.core import UserError
from harness.core.steps import server_start, server_step
from tests.support.worlds import close, make_algorithm, run_algorithm, scalar_quadratic

A, OPTIMA = (1.0, 2.0, 1.0), (0.0, 3.0, 6.0)
BETA1, BETA2, TAU, LR = 0.8, 0.95, 0.01, 0.3
RULES = ("sgd", "momentum", "adam", "yogi", "adagrad")


def by_hand(rule, x, increments, lr=LR, beta1=BETA1, beta2=BETA2, tau=TAU):
    """Reddi et al., Algorithm 2, and Hsu et al.; number by number, without a moment's bias corrected."""
    x = np.array(x, dtype=np.float64)
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for step in increments:
        dx = np.array(step(x) if callable(step) else step, dtype=np.float64)
        if rule == "sgd":
            x = x + lr * dx
            continue
        if rule == "momentum":
            m = beta1 * m + dx
            x = x + lr * m
            continue
        m = beta1 * m + (1 - beta1) * dx
        for i, d in enumerate(dx):
            if rule == "adagrad":
                v[i] += d**2
            elif rule == "adam":
                v[i] = beta2 * v[i] + (1 - beta2) * d**2
            else:
                v[i] -= (1 - beta2) * d**2 * math.copysign(1, v[i] - d**2)
            x[i] += lr * m[i] / (math.sqrt(v[i]) + tau)
    return x


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_the_loop_over_coordinates(rule):
    """Increments of both signs, above and below the root of the second moment, so that Yogi's sign shows."""
    increments = [[0.5, -0.002], [-0.3, 0.004], [0.01, 0.6], [0.2, -0.001]]
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    memory = server_start(x, rule, TAU)
    for dx in increments:
        x, memory = server_step(
            x,
            torch.tensor(dx, dtype=torch.float64),
            memory,
            optimizer=rule,
            lr=LR,
            beta1=BETA1,
            beta2=BETA2,
            tau=TAU,
        )
    assert np.allclose(x.numpy(), by_hand(rule, [1.0, -2.0], increments), rtol=1e-13, atol=0)


@pytest.mark.parametrize("rule", RULES)
def test_fedavg_follows_the_rule_on_a_quadratic(rule):
    """With one local step the mean increment is lr (12 - 4 w) / 3: gradients a (w - o), sum a = 4, sum a o = 12."""
    settings = {"server_lr": LR, "server_momentum": BETA1, "server_beta2": BETA2, "server_tau": TAU}
    found = run_algorithm(
        "fedavg",
        *scalar_quadratic(A, OPTIMA),
        6,
        lr=0.1,
        local_steps=1,
        server_optimizer=rule,
        **settings,
    ).state
    expected = by_hand(rule, [0.0], [lambda w: 0.1 * (12 - 4 * w) / 3] * 6)
    assert close(found.x, expected[0], 1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavgm", {"server_optimizer": "momentum"}),
        ("fedadam", {"server_optimizer": "adam", "server_lr": 0.1}),
        ("fedyogi", {"server_optimizer": "yogi", "server_lr": 0.1}),
        ("fedadagrad", {"server_optimizer": "adagrad", "server_lr": 0.1, "server_momentum": 0.0}),
    ],
)
def test_a_registered_name_is_fedavg_with_settings(name, settings):
    problem, common = scalar_quadratic(A, OPTIMA, (1, 2, 4)), {"lr": 0.1, "local_steps": 3}
    named = run_algorithm(name, *problem, 4, **common).state
    set_ = run_algorithm("fedavg", *problem, 4, **common, **settings).state
    assert named._fields == set_._fields
    assert all(torch.equal(one, other) for one, other in zip(named, set_, strict=True))


def test_a_step_of_sgd_keeps_nothing():
    """The state of a default run has the fields it always had, so its checkpoints can be read."""
    problem = scalar_quadratic(A, OPTIMA)
    assert run_algorithm("fedavg", *problem, 1, local_steps=1).state._fields == ("x",)
    adam = run_algorithm("fedavg", *problem, 1, local_steps=1, server_optimizer="adam").state
    assert adam._fields == ("x", "x_m", "x_v")


def test_both_variables_of_a_minimax_method_have_their_own_memory():
    algorithm = make_algorithm("local_sgda", server_optimizer="momentum", server_lr=1.0, server_momentum=0.5)
    one = torch.ones(2)
    state = algorithm.server_init(algorithm.State(one, 2 * one), "x", "y")
    for _ in range(2):
        state = algorithm.server_step(state, x=one, y=-one)
    assert torch.equal(state.x, 1 + (1 + 1.5) * one)
    assert torch.equal(state.y, 2 - (1 + 1.5) * one)


@pytest.mark.parametrize(
    "wrong", [{"server_lr": 0.0}, {"server_momentum": 1.0}, {"server_beta2": -0.1}, {"server_tau": 0.0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        make_algorithm("fedadam", **wrong)
