"""Minimax methods on quadratics whose saddle points and biased fixed points are known."""

import pytest
import torch

from harness.problems.quadratic import Minimax
from tests.support.worlds import close, quadratic_minimax, run_algorithm, settled

SADDLE = (-1.5, -0.25)


def after(rounds, name="fedsgda_m", **settings):
    """Return (x, y) after so many rounds on MM4."""
    settings = {"lr_x": 0.05, "lr_y": 0.05, **settings}
    state = run_algorithm(name, *quadratic_minimax(), rounds, **settings).state
    return torch.cat([state.x, state.y])


def limit(name="fedsgda_m", **settings):
    """Return the (x, y) at which a method comes to rest on MM4."""
    settings = {"lr_x": 0.05, "lr_y": 0.05, **settings}
    state = settled(name, *quadratic_minimax(), **settings)
    return torch.cat([state.x, state.y])


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_fedsgda_m_without_local_steps_reaches_the_saddle(weight):
    """Averages P, B, Q, c, d of MM4 are (.5, 1, 2, 1, 1): .5 x + y = -1 and x - 2 y = -1 give (-1.5, -.25)."""
    assert close(limit(local_steps=1, alpha=weight, beta=weight), SADDLE, 1e-8)


@pytest.mark.parametrize(
    ("weight", "expected", "tolerance"),
    [
        (1.0, (-1.343324258, -0.250883970), 1e-8),
        (0.5, (-1.36385, -0.24966), 6e-6),
        (0.1, (-1.43809, -0.25008), 6e-6),
    ],
)
def test_fedsgda_m_with_local_steps_has_a_biased_limit(weight, expected, tolerance):
    """Fixed points computed apart from this program; the nearer to the saddle the smaller the weight."""
    assert close(limit(local_steps=5, alpha=weight, beta=weight), expected, tolerance)


def test_local_sgda_ends_at_its_affine_limit():
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
    assert close(limit(local_steps=5, alpha=1.0, beta=1.0), expected, 1e-10)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, SADDLE), (5, (-1.343324258, -0.250883970)), (10, (-1.240888608, -0.261052041))],
)
def test_local_sgda_is_biased_by_its_local_steps(steps, expected):
    """Fixed points computed apart from this program."""
    assert close(limit("local_sgda", local_steps=steps), expected, 1e-6)


def test_local_sgda_is_fedsgda_m_without_momentum():
    """Step by step where gradients are exact; FedSGDA-M's first estimates come with its first batch."""
    for rounds in (1, 2, 7):
        momentum = after(rounds, local_steps=5, alpha=1.0, beta=1.0)
        assert close(after(rounds, "local_sgda", local_steps=5), momentum, 1e-12)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_sagda_reaches_the_saddle_in_spite_of_local_steps(steps, server_lr):
    assert close(limit("sagda", local_steps=steps, server_lr=server_lr), SADDLE, 1e-9)


def test_sagda_with_one_step_descends_along_the_mean_gradient():
    """At (0, 0) the mean gradients are c = 1 and d = 1: x = -0.05, y = 0.05, as Local SGDA with one step."""
    assert close(after(1, "sagda", local_steps=1), (-0.05, 0.05), 1e-12)
    assert close(after(9, "sagda", local_steps=1), after(9, "local_sgda", local_steps=1), 1e-12)


@pytest.mark.parametrize("name", ["local_sgda_plus", "fedsgda_plus"])
@pytest.mark.parametrize("snapshot", [1, 5])
def test_the_age_of_a_snapshot_does_not_move_the_limit(name, snapshot):
    """Fixed point computed apart from this program."""
    server = {"server_lr": 1.0} if name == "fedsgda_plus" else {}
    found = limit(name, local_steps=5, snapshot_rounds=snapshot, period=snapshot, **server)
    assert close(found, (-1.298858786, -0.271665046), 1e-7)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(1.0, (-1.34663, -0.24512)), (0.5, (-1.38335, -0.24435)), (0.1, (-1.46519, -0.24867))],
)
def test_momentum_brings_local_sgda_nearer_to_the_saddle(weight, expected):
    """Fixed points computed apart from this program, to five places."""
    found = limit("momentum_local_sgda", local_steps=5, a=1.0, b_x=weight, b_y=weight)
    assert close(found, expected, 6e-6)


@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_codasca_reaches_the_saddle_in_spite_of_local_steps(server_lr):
    found = limit("codasca", local_steps=5, prox=0.0, stage_rounds=10**6, server_lr=server_lr)
    assert close(found, SADDLE, 1e-9)


def test_a_proximal_term_draws_x_to_its_start():
    """Q = 1: (P + prox) x + B y + c = 0 with x_ref = 0 and B x - Q y + d = 0, averages (.5, 1, 2, 1, 1).

    With prox 1: 1.5 x + y = -1 and x - 2 y = -1 give x = -.75, y = .125.
    """
    for name in ("coda_plus", "codasca"):
        found = limit(name, local_steps=1, prox=1.0, stage_rounds=10**6)
        assert close(found, (-0.75, 0.125), 1e-9)


def test_a_new_stage_begins_at_the_last_end_with_smaller_steps():
    """From (0, 0), prox 1, Q = 1, lr .05: the first step is (-.05, .05), in both stages' terms.

    With stages of one round x_ref = x, so the second step is along the mean gradients at (-.05, .05),
    .5 x + y + 1 = 1.025 and x - 2 y + 1 = .85, with .05 / 3.
    """
    expected = (-0.05 - 0.05 / 3 * 1.025, 0.05 + 0.05 / 3 * 0.85)
    for name in ("coda_plus", "codasca"):
        found = after(2, name, local_steps=1, prox=1.0, stage_rounds=1, decay=3.0)
        assert close(found, expected, 1e-12)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("inner", [1, 3])
def test_fednest_reaches_the_saddle_in_spite_of_local_steps(steps, inner):
    assert close(limit("fednest", local_steps=steps, inner_rounds=inner), SADDLE, 1e-9)


def test_fednest_without_variance_reduction_is_biased():
    """Its clients climb and descend along their own gradients, as in Local SGDA."""
    found = limit("fednest", local_steps=5, svrg=False)
    assert float((found - torch.tensor(SADDLE)).abs().max()) > 0.05


@pytest.mark.parametrize(
    ("normalize", "expected"), [(True, (-1.49969, -0.24920)), (False, (-0.69138, -0.32401))]
)
def test_unequal_steps_need_normalization(normalize, expected):
    """Steps (1, 2, 4, 1) at 1e-3: the saddle of the sum of tau_i f_i is (-.691667, -.325) as steps shrink."""
    settings = {"own_steps": (1, 2, 4, 1), "lr_x": 1e-3, "lr_y": 1e-3, "normalize": normalize}
    assert close(limit("fed_norm_sgda", **settings), expected, 6e-6)


def test_fedsgda_m_solves_a_problem_with_matrices():
    """One step a round: the fixed point is the saddle [P B; B' -Q][x; y] = -[c; d] of the averages."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    p = [torch.eye(3, dtype=torch.float64) * (1 + i) for i in range(3)]
    q = [torch.eye(2, dtype=torch.float64) * (2 - 0.5 * i) for i in range(3)]
    b, c, d = draw(3, 3, 2), draw(3, 3), draw(3, 2)
    settings = Minimax(*([t.tolist() for t in coefficient] for coefficient in (p, b, q, c, d)))
    work = {"lr_x": 0.1, "lr_y": 0.1, "alpha": 1.0, "beta": 1.0, "local_steps": 1}
    state = settled("fedsgda_m", *quadratic_minimax(settings), **work)
    mp, mb, mq = sum(p) / 3, b.mean(0), sum(q) / 3
    system = torch.cat([torch.cat([mp, mb], 1), torch.cat([mb.T, -mq], 1)])
    saddle = torch.linalg.solve(system, -torch.cat([c.mean(0), d.mean(0)]))
    assert close(torch.cat([state.x, state.y]), saddle, 1e-8)
