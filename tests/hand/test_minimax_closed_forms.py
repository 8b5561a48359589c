"""Minimax methods on quadratics whose saddle points and biased fixed points are known."""

import pytest
import torch
from helpers import close, quadratic_minimax, run_algorithm

from harness.problems.quadratic import Minimax

SADDLE = (-1.5, -0.25)


def limit(rounds, name="fedsgda_m", **settings):
    state = run_algorithm(name, *quadratic_minimax(), rounds, lr_x=0.05, lr_y=0.05, **settings).state
    return torch.cat([state.x, state.y])


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_fedsgda_m_without_local_steps_reaches_the_saddle(weight):
    """Averages P, B, Q, c, d of MM4 are (.5, 1, 2, 1, 1): .5 x + y = -1 and x - 2 y = -1 give (-1.5, -.25)."""
    assert close(limit(600, local_steps=1, alpha=weight, beta=weight), SADDLE, 1e-8)


@pytest.mark.parametrize(
    ("weight", "expected", "tolerance"),
    [
        (1.0, (-1.343324258, -0.250883970), 1e-8),
        (0.5, (-1.36385, -0.24966), 6e-6),
        (0.1, (-1.43809, -0.25008), 6e-6),
    ],
)
def test_fedsgda_m_with_five_local_steps_stops_at_its_biased_fixed_point(weight, expected, tolerance):
    """Fixed points computed apart from this program; the nearer to the saddle the smaller the weight."""
    assert close(limit(250, local_steps=5, alpha=weight, beta=weight), expected, tolerance)


def test_local_sgda_fixed_point_solves_the_affine_fixed_point_equation():
    """With weight 1 a client's five steps are z -> M_i^5 z + (I + .. + M_i^4) m_i; average, then solve."""
    rows = zip([1, -0.5, 0.5, 1], [1, 2, 1, 0], [1, 2, 1, 4], [2, -2, 1, 3], [0, 4, -2, 2], strict=True)
    power, shift = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for p, b, q, c, d in rows:
        step = torch.eye(2, dtype=torch.float64) + 0.05 * torch.tensor(
            [[-p, -b], [b, -q]], dtype=torch.float64
        )
        move = 0.05 * torch.tensor([-c, d], dtype=torch.float64)
        z = torch.zeros(2, dtype=torch.float64)
        for _ in range(5):
            z = step @ z + move
        power += torch.linalg.matrix_power(step, 5) / 4
        shift += z / 4
    expected = torch.linalg.solve(torch.eye(2, dtype=torch.float64) - power, shift)
    assert close(limit(200, local_steps=5, alpha=1.0, beta=1.0), expected, 1e-10)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, SADDLE), (5, (-1.343324258, -0.250883970)), (10, (-1.240888608, -0.261052041))],
)
def test_local_sgda_is_biased_by_its_local_steps(steps, expected):
    """Fixed points computed apart from this program."""
    assert close(limit(600, "local_sgda", local_steps=steps), expected, 1e-6)


def test_local_sgda_is_fedsgda_m_without_momentum():
    """Step by step where gradients are exact; FedSGDA-M's first estimates come with its first batch."""
    for rounds in (1, 2, 7):
        momentum = limit(rounds, local_steps=5, alpha=1.0, beta=1.0)
        assert close(limit(rounds, "local_sgda", local_steps=5), momentum, 1e-12)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_sagda_reaches_the_saddle_in_spite_of_local_steps(steps, server_lr):
    assert close(limit(1500, "sagda", local_steps=steps, server_lr=server_lr), SADDLE, 1e-9)


def test_sagda_with_one_step_descends_along_the_mean_gradient():
    """At (0, 0) the mean gradients are c = 1 and d = 1: x = -0.05, y = 0.05, as Local SGDA with one step."""
    assert close(limit(1, "sagda", local_steps=1), (-0.05, 0.05), 1e-12)
    assert close(limit(9, "sagda", local_steps=1), limit(9, "local_sgda", local_steps=1), 1e-12)


def test_fedsgda_m_solves_a_problem_with_matrices():
    """One step a round: the fixed point is the saddle [P B; B' -Q][x; y] = -[c; d] of the averages."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    p = [torch.eye(3, dtype=torch.float64) * (1 + i) for i in range(3)]
    q = [torch.eye(2, dtype=torch.float64) * (2 - 0.5 * i) for i in range(3)]
    b, c, d = draw(3, 3, 2), draw(3, 3), draw(3, 2)
    settings = Minimax(*([t.tolist() for t in coefficient] for coefficient in (p, b, q, c, d)))
    state = run_algorithm(
        "fedsgda_m", *quadratic_minimax(settings), 300, lr_x=0.1, lr_y=0.1, alpha=1.0, beta=1.0, local_steps=1
    ).state
    mp, mb, mq = sum(p) / 3, b.mean(0), sum(q) / 3
    system = torch.cat([torch.cat([mp, mb], 1), torch.cat([mb.T, -mq], 1)])
    saddle = torch.linalg.solve(system, -torch.cat([c.mean(0), d.mean(0)]))
    assert close(torch.cat([state.x, state.y]), saddle, 1e-8)
