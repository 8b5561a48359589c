"""Hypergradients against matrices and finite differences, and FedBiO on BL2."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.methods.derivatives import exact_hypergradient, inner_gradient, neumann_hypergradient
from harness.problems.quadratic import Bilevel
from tests.support.worlds import close, make_algorithm, quadratic_bilevel, run_algorithm, settled


def fedbio(**hyper):
    """Return the state in which FedBiO comes to rest on BL2."""
    hyper = {"lr_x": 0.05, "lr_y": 0.1, "local_steps": 1, "neumann_terms": None} | hyper
    return settled("fedbio", *quadratic_bilevel(), **hyper)


@pytest.mark.slow
def test_fedbio_with_one_local_step_reaches_the_optimum():
    """BL2: y_1 = x, y_2 = x + 1; h_1' = 2x - 3, h_2' = 2x, so x* = .75 and y* = (.75, 1.75)."""
    state = fedbio()
    assert close(state.x, 0.75, 1e-8)
    assert close(state.y, [0.75, 1.75], 1e-8)


@pytest.mark.slow
def test_fedbio_with_five_local_steps_ends_in_a_known_cycle():
    """Fixed cycle computed apart from this program, seen right after a synchronization."""
    state = fedbio(local_steps=5)
    assert close(state.x, 0.7498319, 1e-7)
    assert close(state.y, [0.9074454, 1.5616574], 1e-7)


def test_frozen_weights_are_local_training_on_the_inner_objective():
    """BL2 at x = 0: y_1 = 0 and y_2 = 1 by steps of 1 - .1 A_m; x stays, and nothing travels up."""
    settings = {"lr_x": 0.0, "lr_y": 0.1, "local_steps": 3, "neumann_terms": 5}
    outcome = run_algorithm("fedbio", *quadratic_bilevel(), 4, **settings)
    assert float(outcome.state.x) == 0.0
    assert close(outcome.state.y, [[0.0], [1 - 0.6**12]], 1e-12)
    assert int(outcome.cost.up) == 0 < int(outcome.cost.down)
    frozen, free = (
        run_algorithm(
            "fedbio", *quadratic_bilevel(), 9, outer_rounds=4, lr_train=0.1, **settings | {"lr_x": lr}
        )
        for lr in (0.0, 0.05)
    )
    assert float(frozen.state.x) == 0.0 != float(free.state.x)
    assert int(frozen.cost.up) == int(free.cost.up) - 4 * 2 * 8
    assert int(frozen.cost.oracle_calls) < int(free.cost.oracle_calls)


def test_both_methods_have_one_control_with_frozen_weights():
    """The second stage takes x alone of the first: steps of x too short to move it leave the same model."""
    common = {"outer_rounds": 2, "lr_train": 0.1, "local_steps": 3}
    frozen = run_algorithm("fedbio", *quadratic_bilevel(), 5, lr_x=0.0, **common).state
    still = run_algorithm("fedbioacc", *quadratic_bilevel(), 5, lr_x=1e-300, **common).state
    moved = run_algorithm("fedbioacc", *quadratic_bilevel(), 5, lr_x=1.0, **common).state
    assert torch.equal(still.theta, frozen.theta) and bool((frozen.theta != 0).all())
    assert not torch.equal(moved.theta, frozen.theta)


def test_the_bias_of_local_steps_vanishes_with_the_step_size():
    """A tenth of the step leaves 2.2e-6 of the bias of 1.7e-4."""
    state = fedbio(local_steps=5, lr_x=0.005)
    assert close(state.x, 0.7499978, 2e-7)


@pytest.mark.parametrize(("terms", "expected"), [(0, 0.230769), (1, 0.36), (5, 0.599688), (20, 0.744804)])
def test_a_truncated_neumann_series_moves_the_limit(terms, expected):
    """A series of Q + 1 terms replaces A^-1 by A^-1 (1 - (1 - .1 A)^(Q + 1)).

    Q = 0: factors .2 and .4; rho x + .2 (x - 3) + .4 x summed over clients: 2.6 x = .6, x = .230769.
    """
    keep = [1 - (1 - 0.1 * a) ** (terms + 1) for a in (2, 4)]
    assert 3 * keep[0] / (2 + keep[0] + keep[1]) == pytest.approx(expected, abs=1e-6)
    state = fedbio(neumann_terms=terms, neumann_step=0.1)
    assert close(state.x, 3 * keep[0] / (2 + keep[0] + keep[1]), 1e-8)


def random_instance(seed, dx=3, dy=4, rho=0.7):
    """One client with a random positive definite A, as settings and as matrices."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    root = draw(dy, dy)
    a = root @ root.T / dy + torch.eye(dy, dtype=torch.float64)
    b, offset, t = draw(dy, dx), draw(dy), draw(dy)
    stated = Bilevel(A=[a.tolist()], B=[b.tolist()], b=[offset.tolist()], t=[t.tolist()], rho=rho)
    problem, federation = quadratic_bilevel(stated)
    batch = federation.pool.at(torch.tensor([0]))
    return problem, batch, (a, b, offset, t, rho), (draw(dx), draw(dy))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), terms=st.integers(0, 12))
def test_neumann_hypergradient_is_its_matrix_formula(seed, terms):
    """Phi = rho x + B' A^-1 (I - (I - th A)^(Q + 1)) (y - t), for the quadratic instance."""
    problem, batch, (a, b, _, t, rho), (x, y) = random_instance(seed)
    step = 0.9 / float(torch.linalg.eigvalsh(a)[-1])
    found = neumann_hypergradient(problem, step)(x, y, batch, batch, *[batch] * terms)
    eye = torch.eye(len(a), dtype=torch.float64)
    series = eye - torch.linalg.matrix_power(eye - step * a, terms + 1)
    assert close(found, rho * x + b.T @ torch.linalg.solve(a, series @ (y - t)), 1e-10)


def test_the_neumann_series_tends_to_the_exact_hypergradient():
    problem, batch, (a, *_), (x, y) = random_instance(3)
    step = 0.9 / float(torch.linalg.eigvalsh(a)[-1])
    exact = exact_hypergradient(problem)(x, y, batch, batch)
    errors = [
        float((neumann_hypergradient(problem, step)(x, y, batch, batch, *[batch] * q) - exact).norm())
        for q in (0, 5, 20, 80)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6


def test_a_hessian_product_uses_each_batch_of_its_own():
    """With batches of Hessians A and 3 A the series is s = p + (I - th A) p + (I - th 3 A)(I - th A) p, last first.

    eq. 4 runs j = Q .. 1, so the last batch given is applied first.
    """
    problem, federation = quadratic_bilevel(Bilevel(A=[1, 3], B=[1, 1], b=[0, 0], t=[0, 0], rho=0.0))
    one, three = (federation.pool.at(torch.tensor([n])) for n in (0, 1))
    x, y = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found = neumann_hypergradient(problem, 0.1)(x, y, one, one, one, three)
    assert close(found, 0.1 * (1 + 0.7 + 0.9 * 0.7), 1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_hypergradient_agrees_with_finite_differences(seed):
    """Central differences of h(x) = f(x, y(x)), with y(x) = A^-1 (B x + b)."""
    problem, batch, (a, b, offset, _, _), (x, _) = random_instance(seed)
    solve = lambda at: torch.linalg.solve(a, b @ at + offset)  # noqa: E731
    assert float(inner_gradient(problem)(x, solve(x), batch).abs().max()) < 1e-12
    found = exact_hypergradient(problem)(x, solve(x), batch, batch)
    for i in range(len(x)):
        bump = torch.zeros_like(x)
        bump[i] = 1e-5
        slope = problem.loss(x + bump, solve(x + bump), batch) - problem.loss(
            x - bump, solve(x - bump), batch
        )
        assert float(slope) / 2e-5 == pytest.approx(float(found[i]), abs=1e-8)


STEPS = {"lr_x": 0.05, "lr_y": 0.1, "local_steps": 1, "neumann_terms": None}


@pytest.mark.slow
@pytest.mark.parametrize("hyper", [{}, {"neumann_terms": 3}, {"local_steps": 5}])
def test_fedbioacc_that_forgets_at_once_is_fedbio(hyper):
    """sigma = 0, delta = u = 1, c = 1: alpha = 1 and 1 - c alpha^2 = 0, so the estimates are fresh gradients."""
    plain, kept = [], []
    common = STEPS | hyper
    run_algorithm("fedbio", *quadratic_bilevel(), 6, watch=plain.append, **common)
    run_algorithm("fedbioacc", *quadratic_bilevel(), 6, watch=kept.append, delta=1.0, sigma=0.0, **common)
    assert float((plain[-1].x - plain[0].x).abs().max()) > 0.1
    assert max(float((a.x - b.x).abs().max()) for a, b in zip(plain, kept, strict=True)) < 1e-12
    assert max(float((a.y - b.y).abs().max()) for a, b in zip(plain, kept, strict=True)) < 1e-12


def test_fedbioacc_reaches_the_optimum_too():
    """Without noise the corrected estimate is the gradient at the present point: FedBiO's fixed points."""
    hyper = STEPS | {"delta": 1.0, "sigma": 0.0, "c_x": 0.5, "c_y": 0.5}
    state = settled("fedbioacc", *quadratic_bilevel(), **hyper)
    assert close(state.x, 0.75, 1e-8)
    assert close(state.y, [0.75, 1.75], 1e-8)


def test_the_first_two_steps_of_fedbioacc_by_hand():
    """One client, g = 1/2 y^2 - y x, f = 1/2 (y - 1)^2, exact Phi = y - 1; delta = u = sigma = 1, c = 1.

    alpha_1 = 2^(-1/3), alpha_2 = 3^(-1/3). At (0, 0): omega = 0, nu = -1, so x = .1 alpha_1 and y = 0.
    There omega = -x + (1 - alpha_1^2)(0 - 0) = -x, and nu = -1 again. So y = .2 alpha_2 x, x grows by .1 alpha_2.
    """
    task = quadratic_bilevel(Bilevel(A=[1], B=[1], b=[0], t=[1], rho=0.0))
    hyper = {"lr_x": 0.1, "lr_y": 0.2, "delta": 1.0, "neumann_terms": None, "local_steps": 2}
    state = run_algorithm("fedbioacc", *task, 1, **hyper).state
    first, second = 2 ** (-1 / 3), 3 ** (-1 / 3)
    assert close(state.x, 0.1 * (first + second), 1e-12)
    assert close(state.xp, 0.1 * first, 1e-12)
    assert close(state.y, 0.02 * first * second, 1e-12)


def test_kept_estimates_weigh_by_the_step_size_before():
    """One client with two samples, inner gradients y - x - b and y - x + b, |b| = 1, each seen once.

    omega_1 = -b_1 = b_2 at (0, 0), where Phi = y = 0; so x_2 = 0 and y_2 = -.2 alpha_1 b_2. Then
    omega_2 = y_2 - b_2 + (1 - c alpha_1^2)(omega_1 + b_2) = b_2 (-.2 alpha_1 - 1 + 2 (1 - c alpha_1^2)).
    """
    problem, federation = quadratic_bilevel(Bilevel(A=[1, 1], B=[1, 1], b=[1, -1], t=[0, 0], rho=0.0))
    hyper = {"lr_x": 0.1, "lr_y": 0.2, "delta": 1.0, "neumann_terms": None, "local_steps": 2, "batch_size": 1}
    first = 2 ** (-1 / 3)
    for c in (0.3, 1.0):
        state = run_algorithm("fedbioacc", problem, federation.merged(), 1, c_y=c, **hyper).state
        assert close(state.omega.abs(), abs(1 - 0.2 * first - 2 * c * first**2), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_leaving_the_redundant_vector_away_changes_bytes_only(decay):
    """The receiver takes the step that the sender took, with its step size.

    3 and 2 vectors of one float64 each way, for 2 clients and 5 rounds: 240 and 160 bytes.
    """
    runs = [
        run_algorithm(
            "fedbioacc",
            *quadratic_bilevel(),
            5,
            neumann_terms=3,
            dedupe=dedupe,
            lr_decay=decay,
            lr_x=0.05,
            lr_y=0.1,
            delta=1.0,
            local_steps=5,
        )
        for dedupe in (False, True)
    ]
    assert close(runs[1].state.x, runs[0].state.x, 1e-12)
    assert close(runs[1].state.y, runs[0].state.y, 1e-12)
    assert [int(run.cost.up) for run in runs] == [5 * 2 * 3 * 8, 5 * 2 * 2 * 8]
    assert [int(run.cost.down) for run in runs] == [5 * 2 * 3 * 8, 5 * 2 * 2 * 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbio", "fedbioacc"])
def test_the_second_stage_minimizes_the_mean_inner_objective(name):
    """BL2 at x*: mean of y^2 - y (2 x) and 2 y^2 - y (4 x + 4): 3 y = 3 x + 2, so theta = x + 2 / 3.

    Before it, the clients' own y are the models; in it x and y rest. This holds wherever the first stage ends.
    """
    seen = []
    hyper = {"lr_x": 0.05, "lr_y": 0.1, "local_steps": 1, "outer_rounds": 10, "lr_train": 0.2}
    hyper |= {"delta": 1.0, "sigma": 0.0} if name == "fedbioacc" else {}
    algorithm = make_algorithm(name, neumann_terms=None, **hyper)
    outcome = run_algorithm(algorithm, *quadratic_bilevel(), 60, watch=seen.append)
    x = float(seen[10].x.reshape(-1)[0])
    assert x > 0.1 and torch.equal(algorithm.model(seen[10]), seen[10].y)
    assert close(algorithm.model(outcome.state), x + 2 / 3, 1e-8)
    assert torch.equal(seen[10].x, outcome.state.x) and torch.equal(seen[10].y, outcome.state.y)
    assert [algorithm.stage(round) for round in (0, 9, 10, 59)] == [0, 0, 1, 1]
