"""FedSAM against plain torch, and its limits."""

import pytest
import torch
from torch.nn import functional

from harness.core.settings.privacy import Privacy
from harness.simulation.simulation import Simulation
from tests.support.worlds import (
    EXACT,
    close,
    logistic,
    make_algorithm,
    random_federation,
    run_algorithm,
    scalar_quadratic,
)

SIZES = [9, 12, 7]


def slope(w, x, y):
    w = w.detach().requires_grad_()
    loss = functional.cross_entropy(functional.linear(x, w[:12].view(3, 4), w[12:]), y)
    return torch.autograd.grad(loss, w)[0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedsam_takes_the_rounds_of_plain_torch(momentum):
    """Every step follows the gradient at w + rho g / |g|."""
    federation, lr, rho = random_federation(SIZES), 0.3, 0.7
    work = {"lr": lr, "rho": rho, "momentum": momentum, "local_steps": 3, "batch_size": None}
    run = Simulation(logistic(), federation, make_algorithm("fedsam", **work), None, EXACT, (0,))
    w = run.state.x
    data = [(federation.pool.x[i[i >= 0]], federation.pool.y[i[i >= 0]]) for i in federation.splits["train"]]
    for members in [(0, 1, 2), (0, 2), (1,)]:
        run.step(torch.tensor(members))
        mean = torch.zeros_like(w)
        for i in members:
            at, buffer = w, 0.0
            for _ in range(3):
                g = slope(at, *data[i])
                buffer = momentum * buffer + slope(at + rho * g / g.norm(), *data[i])
                at = at - lr * buffer
            mean += SIZES[i] / sum(SIZES[j] for j in members) * (at - w)
        w = w + mean
        assert close(run.state.x, w, 1e-12)


def test_one_step_of_fedsam_by_hand():
    """f = 2 / 2 (w - 3)^2 at w = 0: g = -6, ahead at -rho, slope 2 (-0.5 - 3) = -7, step 0.1 * 7."""
    found = run_algorithm("fedsam", *scalar_quadratic((2,), (3,)), 1, lr=0.1, rho=0.5, local_steps=1).state
    assert close(found.x, 0.7, 1e-12)


def test_fedsam_with_rho_zero_is_fedavg():
    federation = random_federation(SIZES)
    options = {"lr": 0.3, "local_epochs": 2, "batch_size": 4}
    plain = run_algorithm("fedavg", logistic(), federation, 4, **options).state.x
    assert torch.equal(run_algorithm("fedsam", logistic(), federation, 4, rho=0.0, **options).state.x, plain)


def test_a_gradient_of_zero_has_no_direction():
    """At its optimum a client stays."""
    start = {"x": torch.tensor([3.0], dtype=torch.float64)}
    found = run_algorithm("fedsam", *scalar_quadratic((2,), (3,)), 1, start=start, local_steps=2).state
    assert close(found.x, 3.0, 0.0)


def test_records_pay_for_both_gradients_of_a_step():
    records = Privacy.of(0.0, clip=1.0, unit="record", sampling="poisson")
    work = {"local_steps": 3, "batch_size": 4}
    made = run_algorithm("fedsam", logistic(), random_federation(SIZES), 2, privacy=records, **work)
    assert made.ledger.made == 2 * 2 * 3
