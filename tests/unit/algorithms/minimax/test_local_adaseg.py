"""LocalAdaSEG: its rounds written out, and games on which plain descent ascent runs away."""

import numpy as np
import pytest
import torch

from harness.core import UserError
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.problems.quadratic import Minimax
from harness.simulation.simulation import Simulation
from tests.support.worlds import EXACT, MM4, close, make_algorithm, quadratic_minimax, run_algorithm

P, B, Q, C, D = (np.array(getattr(MM4, name)) for name in "PBQcd")


def field(z, who):
    """Return (grad_x, -grad_y) of some clients of MM4 at their points ``(2, n)``."""
    x, y = z
    return np.array([P[who] * x + B[who] * y + C[who], -(B[who] * x - Q[who] * y + D[who])])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"server_lr": 0.8}, {"lr_decay": 0.9}])
def test_local_adaseg_is_its_recursion_on_partial_cohorts(settings):
    """eta = lr / sqrt(1 + sum Z^2 / g0^2) of each client; the average has weights 1 / eta."""
    algorithm = make_algorithm("local_adaseg", lr=0.3, g0=2.0, local_steps=3, **settings)
    run = Simulation(*quadratic_minimax(), algorithm, None, EXACT, (0,), cohort=2)
    z, total, seen = np.zeros(2), np.zeros(4), set()
    for number in range(6):
        who = run.cohort().ids.numpy()
        seen.add(tuple(who))
        run.step()
        first = 0.3 * settings.get("lr_decay", 1.0) ** number
        zi = np.repeat(z[:, None], 2, axis=1)
        for _ in range(3):
            eta = first / np.sqrt(1 + total[who] / 2.0**2)
            ahead = zi - eta * field(zi, who)
            after = zi - eta * field(ahead, who)
            total[who] += (((ahead - zi) ** 2).sum(0) + ((ahead - after) ** 2).sum(0)) / (5 * eta**2)
            zi = after
        weight = np.sqrt(1 + total[who] / 2.0**2)
        z = z + settings.get("server_lr", 1.0) * ((zi - z[:, None]) * weight).sum(1) / weight.sum()
        assert close(torch.cat([run.state.x, run.state.y]), z, 1e-12)
        assert close(run.state.moved[:, 0] * 2.0**2, total, 1e-12)
    assert len(seen) > 2


@pytest.mark.slow
def test_it_settles_a_game_on_which_descent_ascent_runs_away():
    """On 2 x y every simultaneous step grows by sqrt(1 + 4 lr^2); those of extragradient shrink."""
    game = quadratic_minimax(Minimax(P=[0.0] * 2, B=[2.0] * 2, Q=[1e-12] * 2, c=[0.0] * 2, d=[0.0] * 2))
    start = {name: torch.ones(1, dtype=torch.float64) for name in "xy"}

    def distance(name, rounds, **settings):
        state = run_algorithm(name, *game, rounds, start=start, local_steps=2, **settings).state
        return float(torch.cat([state.x, state.y]).norm())

    assert distance("local_sgda", 100, lr_x=0.3, lr_y=0.3) > 1e3
    assert distance("local_adaseg", 400, lr=1.0, g0=4.0) < 1e-5


@pytest.mark.slow
def test_a_first_step_that_is_far_too_large_does_no_lasting_harm():
    """Curvatures are up to 4.2. What is left falls with the step sizes, as clients' own gradients do not vanish."""
    options = {"problem": quadratic_minimax()[0], "federation": quadratic_minimax()[1], "local_steps": 1}
    plain = run_algorithm("local_sgda", **options, rounds=100, lr_x=2.0, lr_y=2.0).state
    assert float(plain.x.abs()) > 1e6
    state = run_algorithm("local_adaseg", **options, rounds=300, lr=2.0).state
    assert close(torch.cat([state.x, state.y]), (-1.5, -0.25), 0.1)


def test_the_step_size_of_a_client_travels_with_its_increments():
    """d_x + d_y + 1 = 3 numbers of 4 bytes up, 2 down; 4 clients, 2 rounds."""
    outcome = run_algorithm("local_adaseg", *quadratic_minimax(), 2, local_steps=3, compression=Compression())
    assert (int(outcome.cost.up), int(outcome.cost.down)) == (2 * 4 * 3 * 4, 2 * 4 * 2 * 4)


@pytest.mark.parametrize("placement", ["local", "central"])
def test_noise_cannot_turn_the_weights_around(placement):
    """The mean weight is at least 1, so a step is at most as long as the mean increment that arrives."""
    privacy = Privacy.of(1e3, placement=placement, clip=1.0)
    largest = []
    run_algorithm(
        "local_adaseg", *quadratic_minimax(), 20, lr=0.01, local_steps=1, privacy=privacy,
        watch=lambda state: largest.append(float(torch.cat([state.x, state.y]).abs().max())),
    )  # fmt: skip
    # One release has deviation 2 * 1e3, times lr = 0.01; twenty of them at six deviations each.
    assert 0 < max(largest) < 20 * 6 * 2 * 1e3 * 0.01


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"g0": -1.0}, {"local_steps": None}])
def test_local_adaseg_refuses_what_makes_no_sense(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        make_algorithm("local_adaseg", **settings)
