"""A round is an average over its cohort; that it leaves other rows alone is the conformance check `_partial`."""

import torch

from harness.core import Channel, rng
from harness.core.clients import sampling
from tests.support.wire import cohort
from tests.support.worlds import (
    close,
    largest_difference,
    make_algorithm,
    network,
    random_federation,
    run_algorithm,
    scalar_quadratic,
)


def test_the_mean_is_over_the_cohort_with_its_own_weights():
    """f_i = (w - o_i)^2 / 2, one step of size 1 moves client i from 0 to o_i; sizes 1, 2, 5.

    Cohort {0, 2}: (1 * 3 + 5 * 9) / 6 = 8.
    """
    problem, federation = scalar_quadratic((1, 1, 1), (3, 6, 9), (1, 2, 5))
    algorithm = make_algorithm("fedavg", lr=1.0, local_steps=1)
    some = cohort(data=federation, problem=problem, ids=[0, 2])
    state = algorithm.State(torch.zeros(1, dtype=torch.float64))
    assert close(algorithm.round(state, some, Channel(some)).x, 8.0, 1e-6)


def test_a_cohort_of_everybody_is_full_participation():
    problem, federation = network(), random_federation([6, 4, 9, 5])
    full = run_algorithm("scaffold", problem, federation, 3, local_steps=2).state
    assert (
        largest_difference(
            full, run_algorithm("scaffold", problem, federation, 3, local_steps=2, cohort=4).state
        )
        == 0.0
    )


def test_scaffold_moves_its_control_by_the_share_of_the_cohort():
    """c <- c + |S| / N * mean over S of the change; two of four clients, all controls from zero.

    lr 1, one step: c_i+ = c_i - c + (x - x_i) / lr = gradient = w - o_i = -o_i at w = 0.
    """
    problem, federation = scalar_quadratic((1, 1, 1, 1), (1, 2, 3, 4))
    algorithm = make_algorithm("scaffold", lr=1.0, local_steps=1)
    state = run_algorithm(algorithm, problem, federation, 1, cohort=2).state
    ids = sampling.draw_fixed_cohort(torch.tensor(rng.key(0, "cohort", 0)), 4, 2)
    optima = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    expected = torch.zeros(4, dtype=torch.float64)
    expected[ids] = -optima[ids]
    assert close(state.ci, expected, 1e-12)
    assert close(state.c, expected.sum() / 4, 1e-7)
    assert close(state.x, optima[ids].mean(), 1e-7)
