"""FedDyn against its algorithm written out, and its fixed point."""

import pytest
import torch

from harness.core.errors import UserError
from harness.simulation.simulation import Simulation
from tests.support.worlds import EXACT, close, make_algorithm, run_algorithm, scalar_quadratic, settled

A, OPTIMA = (1.0, 4.0, 1.0), (0.0, 3.0, 9.0)  # w* = 21 / 6 = 3.5


def written_out(rounds, cohorts, lr, mu, steps):
    """Algorithm 1 for losses a / 2 (w - o)^2, with SGD in place of the exact minimization."""
    theta, h, g = 0.0, 0.0, [0.0] * len(A)
    for number in range(rounds):
        ends = {}
        for k in cohorts(number):
            w = theta
            for _ in range(steps):
                w -= lr * (A[k] * (w - OPTIMA[k]) - g[k] + mu * (w - theta))
            g[k] -= mu * (w - theta)
            ends[k] = w
        h -= mu * sum(w - theta for w in ends.values()) / len(A)
        theta = sum(ends.values()) / len(ends) - h / mu
    return theta, h, g


@pytest.mark.parametrize("release", ["value", "change"])
@pytest.mark.parametrize("members", [(0, 1, 2), (0, 2)])
def test_the_rounds_are_those_of_the_paper(release, members):
    options = {"lr": 0.1, "mu": 0.7, "local_steps": 4, "release": release}
    run = Simulation(*scalar_quadratic(A, OPTIMA), make_algorithm("feddyn", **options), compression=EXACT)
    for _ in range(7):
        run.step(torch.tensor(members))
    state = run.state
    theta, h, g = written_out(7, lambda number: members, 0.1, 0.7, 4)
    assert close(state.x, theta, 1e-10) and close(state.h, h, 1e-10) and close(state.gi, g, 1e-10)


def test_it_converges_to_the_common_optimum_where_fedavg_drifts():
    """Fixed point: theta_k = theta and h = 0, so that every g_k is the gradient a_k (w* - o_k) there."""
    problem = scalar_quadratic(A, OPTIMA)
    drifted = settled("fedavg", *problem, lr=0.1, local_steps=5).x
    assert abs(float(drifted) - 3.5) > 0.1
    state = settled("feddyn", *problem, lr=0.1, mu=1.0, local_steps=20)
    assert close(state.x, 3.5, 1e-7) and close(state.h, 0.0, 1e-7)
    assert close(state.gi, [3.5, 2.0, -5.5], 1e-6)


def test_without_regularization_it_is_refused():
    with pytest.raises(UserError, match="mu"):
        make_algorithm("feddyn", mu=0)


def test_the_mean_of_the_clients_gradients_is_the_servers():
    state = run_algorithm("feddyn", *scalar_quadratic(A, OPTIMA), 5, lr=0.1, mu=0.5, local_steps=3).state
    assert close(state.gi.mean(-2), state.h, 1e-12)
