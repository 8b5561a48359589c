"""Minimax methods one exact step at a time, and on the simplex."""

import pytest
import torch
from torch import nn

from harness.core import Problem
from harness.core.losses import weighted_mean
from harness.core.methods.derivatives import project_simplex
from harness.problems.fair import fair_classifier, renorm
from tests.support.wire import cohort
from tests.support.worlds import (
    close,
    federation_of,
    make_algorithm,
    quadratic_minimax,
    random_federation,
    run_algorithm,
    settled,
)

ENDLESS = {"prox": 0.0, "stage_rounds": 10**6}
# Settings at which a method is plain descent ascent along the mean gradient, one step a round.
PLAIN = {
    "local_sgda": {},
    "local_sgda_plus": {"snapshot_rounds": 1},
    "fedsgda_plus": {"snapshot_rounds": 1, "server_lr": 1.0},
    "momentum_local_sgda": {"b_x": 1.0, "b_y": 1.0},
    "fedsgda_m": {"alpha": 1.0, "beta": 1.0},
    "coda_plus": ENDLESS,
    "codasca": ENDLESS,
    "sagda": {},
    "fed_norm_sgda": {},
}


def states(name, rounds=7, steps=3, batch_size=4, data=None, **settings):
    """Return points after every round, on a small fair classification with batches unless data are given."""
    problem, federation = data or (
        fair_classifier(nn.Linear(4, 3), 3, "euclidean"),
        random_federation([9, 9, 9, 9]),
    )
    settings = {"lr_x": 0.1, "lr_y": 0.05, "local_steps": steps, "batch_size": batch_size, **settings}
    seen = []
    run_algorithm(name, problem, federation, rounds, watch=seen.append, **settings)
    return [torch.cat([state.x, state.y]) for state in seen]


def same(one, other):
    assert len(one) == len(other)
    assert max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) < 1e-10
    assert float((one[0] - one[-1]).abs().max()) > 1e-3


def test_fedsgda_plus_with_server_lr_one_is_local_sgda_plus():
    for snapshot in (1, 3):
        plus = states("local_sgda_plus", snapshot_rounds=snapshot)
        same(states("fedsgda_plus", snapshot_rounds=snapshot, server_lr=1.0), plus)


def test_sagda_evaluates_anchors_anew_only_if_asked():
    """No difference where gradients are exact, one with batches."""
    same(states("sagda", batch_size=None, resample_cv=True), states("sagda", batch_size=None))
    anew, once = states("sagda", resample_cv=True), states("sagda")
    assert float((anew[-1] - once[-1]).abs().max()) > 1e-4


@pytest.mark.parametrize("name", PLAIN)
def test_one_exact_step_follows_the_mean_gradient(name):
    """On MM4: x <- x - lr (P x + B y + c), y <- y + lr (B x - Q y + d), averages (.5, 1, 2, 1, 1)."""
    found = states(name, 12, 1, None, quadratic_minimax(), lr_x=0.05, lr_y=0.1, **PLAIN[name])
    x, y = 0.0, 0.0
    for state in found:
        assert close(state, (x, y), 1e-12)
        x, y = x - 0.05 * (0.5 * x + y + 1), y + 0.1 * (x - 2 * y + 1)


def test_one_exact_step_of_fednest_alternates():
    """y climbs first, and x descends at the new y."""
    found = states("fednest", 12, 1, None, quadratic_minimax(), lr_x=0.05, lr_y=0.1, inner_rounds=1)
    x, y = 0.0, 0.0
    for state in found:
        assert close(state, (x, y), 1e-12)
        y = y + 0.1 * (x - 2 * y + 1)
        x = x - 0.05 * (0.5 * x + y + 1)


def test_average_prev_changes_the_path_not_the_fixed_point():
    settings = {"batch_size": None, "alpha": 0.3, "beta": 0.3}
    for prev in (False, True):
        steps = {"lr_x": 0.05, "lr_y": 0.05, "local_steps": 1, "average_prev": prev}
        state = settled("fedsgda_m", *quadratic_minimax(), **steps, **settings)
        assert close(torch.cat([state.x, state.y]), (-1.5, -0.25), 1e-8)
    settings["data"] = quadratic_minimax()
    local = [states("fedsgda_m", 3, 3, average_prev=prev, **settings)[-1] for prev in (False, True)]
    assert float((local[0] - local[1]).abs().max()) > 1e-6


@pytest.mark.parametrize("server_lr_y", [None, 0.3])
def test_the_server_may_take_another_step_in_y(server_lr_y):
    """One round: x moves by 1.5 times the mean increment, y by its own step size or the same."""
    first, whole = states("fedsgda_plus", 1, server_lr=1.0, data=quadratic_minimax(), batch_size=None)
    settings = {"server_lr": 1.5, "server_lr_y": server_lr_y}
    _, found = states("fedsgda_plus", 1, data=quadratic_minimax(), batch_size=None, **settings)
    factors = torch.tensor([1.5, server_lr_y or 1.5], dtype=torch.float64)
    assert close(found, first + factors * (whole - first), 1e-12)


def test_the_first_estimate_has_a_batch_of_its_own():
    """Two rounds of two steps by hand: all 9 samples at the first point, then the usual batches of 4."""
    problem, federation = fair_classifier(nn.Linear(4, 3), 3, "euclidean"), random_federation([9, 9, 9])
    algorithm = make_algorithm(
        "fedsgda_m", first_batch=50, local_steps=2, batch_size=4, lr_x=0.1, lr_y=0.05, alpha=0.3, beta=0.6
    )
    seen = []
    cost = run_algorithm(algorithm, problem, federation, 2, watch=seen.append).cost
    assert int(cost.oracle_calls) == 3 * 2 * (9 + 4 + 4 + 4)
    x, y = before = seen[0].x.expand(3, -1), seen[0].y.expand(3, -1)
    u = v = None
    for number in range(2):
        clients = cohort(data=federation, problem=problem, round=number)
        batches = list(clients.batches(algorithm))
        if u is None:
            batches[0] = next(iter(clients.batches(None, steps=1, batch_size=None)))
        for batch in batches:
            (gx, gy), (hx, hy) = clients.grads(x, y, batch), clients.grads(*before, batch)
            u, v = (gx, gy) if u is None else (gx + 0.7 * (u - hx), gy + 0.4 * (v - hy))
            before = x, y
            x, y = x - 0.1 * u, project_simplex(y + 0.05 * v)
        x, y, u, v = (part.mean(0).expand(3, -1) for part in (x, y, u, v))
        end = seen[number + 1]
        assert all(close(part, row[0], 1e-12) for part, row in zip(end[:4], (x, y, u, v), strict=True))


def miniature(rule):
    """Fair classification of two classes: ``y_1 x^2 / 2 + y_2 ((x - 2)^2 / 2 + 1/2) + e_i x``, mean e_i zero."""

    def loss(x, y, batch):
        losses = torch.cat([x**2 / 2, (x - 2) ** 2 / 2 + 0.5])
        return y @ losses + weighted_mean(batch.x[:, 0] * x, batch.weight)

    def init(generator):
        return {"x": torch.zeros(1, dtype=torch.float64), "y": torch.full((2,), 0.5, dtype=torch.float64)}

    slopes = [torch.tensor([[e]], dtype=torch.float64) for e in (0.5, -0.2, -0.3)]
    return Problem("miniature", "minimax", init, loss, project=rule), federation_of(slopes)


SIMPLEX = project_simplex, (1.25, 0.375, 0.625), 230
RENORM = renorm, (1.142038, 0.428981, 0.571019), 120


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "expected", "rounds"),
    [*((name, *SIMPLEX) for name in [*PLAIN, "fednest"]), ("local_sgda", *RENORM), ("fednest", *RENORM)],
)
def test_the_simplex_rule_decides_the_limit(name, rule, expected, rounds):
    """Every method goes by the rule of the problem, so the other rule is tried with two.

    Saddle: equal losses, x^2 = (x - 2)^2 + 1, so x = 1.25; y_1 x + y_2 (x - 2) = 0, so y_2 = x / 2.

    Cutting off and dividing by the sum stops where L_c is proportional to y_c: y_2 = x / 2 again, and
    L_1 / L_2 = y_1 / y_2, at x = 1.142038. Both hold for any step size; descent ascent is fastest near 0.25.
    """
    settings = {**PLAIN.get(name, {}), "lr_x": 0.2, "lr_y": 0.2}
    found = states(name, rounds, 1, None, miniature(rule), **settings)[-1]
    assert close(found, expected, 2e-6)


def test_a_projected_y_is_not_measured_by_the_way_it_went():
    """CODASCA's control variates hold gradients, of which the mean is the server's, though y hits its wall."""
    seen = []
    problem, federation = miniature(project_simplex)
    run_algorithm(
        "codasca", problem, federation, 30, local_steps=3, lr_x=0.05, lr_y=2.0, watch=seen.append, **ENDLESS
    )
    assert any(float(state.y.min()) == 0.0 for state in seen)
    for state in seen:
        torch.testing.assert_close(state.cxi.mean(0), state.cx)
        torch.testing.assert_close(state.cyi.mean(0), state.cy)


def test_one_exact_step_leaves_gradients_in_codascas_controls():
    """c_i = P_i x + B_i y + c_i at the point where the last round began."""
    seen = []
    run_algorithm(
        "codasca", *quadratic_minimax(), 3, local_steps=1, lr_x=0.05, lr_y=0.05, watch=seen.append, **ENDLESS
    )
    x, y = float(seen[-2].x), float(seen[-2].y)
    own = zip([1, -0.5, 0.5, 1], [1, 2, 1, 0], [2, -2, 1, 3], strict=True)
    assert close(seen[-1].cxi[:, 0], [p * x + b * y + c for p, b, c in own], 1e-12)


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("momentum_local_sgda", {"a": 1.5}, "in \\(0, 1\\]"),
        ("momentum_local_sgda", {"b_x": 1.5}, "in \\(0, 1\\]"),
        ("fed_norm_sgda", {"own_steps": (1, 0)}, "own_steps must be above 0"),
        ("coda_plus", {"prox": -1.0}, "prox must be at least 0"),
        ("fedsgda_m", {"first_batch": 0}, "first_batch must be above 0"),
        ("fedsgda_plus", {"server_lr_y": -1.0}, "server_lr_y must be above 0"),
        ("local_sgda_plus", {"snapshot_rounds": 0}, "snapshot_rounds must be above 0"),
    ],
)
def test_settings_without_a_meaning_are_refused(name, settings, why):
    with pytest.raises(ValueError, match=why):
        make_algorithm(name, **settings)
