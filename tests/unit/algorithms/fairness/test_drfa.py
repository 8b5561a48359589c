"""DRFA: its round written out, the choice of the snapshot, and the model that is fair to any mixture."""

import numpy as np
import pytest
import torch

from harness.core import rng
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

CURVES, CENTERS = np.array([1.0, 0.5, 2.0, 1.5, 0.8]), np.array([0.0, 1.0, 4.0, -2.0, 3.0])


def chosen(round, steps):
    """Return the number of the step whose model is kept: the last of the coins with odds 1, 1/2, 1/3, ..."""
    tosses = [
        float(rng.uniform(torch.tensor([rng.key(0, "coin", "common", f"snapshot {number}", round)])))
        for number in range(1, steps + 1)
    ]
    return max(number for number, toss in enumerate(tosses, 1) if toss < 1 / number)


def simplex(v):
    """Project by bisection of the threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def test_drfa_is_its_recursion_on_partial_cohorts():
    """w <- sum of lambda_i w_i over the cohort, whose weights follow its losses at the mixed snapshot."""
    lr, up, steps, x, weights, seen = 0.1, 0.05, 4, 0.0, np.full(5, 0.2), set()
    algorithm = make_algorithm("drfa", lr=lr, lr_weights=up, local_steps=steps)
    run = Simulation(*scalar_quadratic(CURVES, CENTERS), algorithm, None, EXACT, (0,), cohort=3)
    for round in range(8):
        who, kept = run.cohort().ids.numpy(), chosen(round, steps)
        seen.add(kept)
        moved, path = np.full(3, x), []
        for _ in range(steps):
            moved = moved - lr * CURVES[who] * (moved - CENTERS[who])
            path.append(moved)
        mass = weights[who].sum()
        mixture = weights[who] / mass
        middle = mixture @ path[kept - 1]
        risks = CURVES[who] / 2 * (middle - CENTERS[who]) ** 2
        x, weights[who] = mixture @ moved, mass * simplex(mixture + up / mass * risks)
        run.step()
        assert close(run.state.x, x, 1e-12) and close(run.state.weights, weights, 1e-9)
    assert len(seen) > 1


def test_every_local_step_is_as_likely_to_be_the_snapshot():
    """Of 2000 rounds each of 4 steps has 500, with a standard deviation of sqrt(375)."""
    counts = np.bincount([chosen(round, 4) for round in range(2000)], minlength=5)[1:]
    assert abs(counts - 500).max() < 5 * 375**0.5


def test_drfa_without_ascent_averages_clients_equally():
    task, hyper = (logistic(), random_federation([8, 8, 8])), {"lr": 0.3, "local_steps": 3, "batch_size": 4}
    plain = run_algorithm("fedavg", *task, 5, **hyper).state
    assert close(run_algorithm("drfa", *task, 5, lr_weights=0.0, **hyper).state.x, plain.x, 1e-12)


@pytest.mark.slow
def test_drfa_finds_the_model_that_is_fair_to_any_mixture():
    """(w - c)^2 / 2 with c = 0, 0, 4: risks are equal at 2, where the third client weighs 1/2."""
    task = scalar_quadratic([1.0] * 3, [0.0, 0.0, 4.0])
    state = run_algorithm("drfa", *task, 250, lr=0.2, lr_weights=0.03, local_steps=3).state
    assert close(state.x, 2.0, 1e-4)
    assert close(state.weights[2], 0.5, 1e-3) and close(state.weights.sum(), 1.0, 1e-12)


def test_a_round_of_drfa_releases_twice():
    """Models with snapshots, then losses."""
    task, protected = scalar_quadratic(CURVES, CENTERS), Privacy.of(1.0, clip=1.0)
    ledger = run_algorithm("drfa", *task, 3, local_steps=2, privacy=protected).ledger
    assert ledger.made == 6
