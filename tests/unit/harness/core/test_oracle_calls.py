"""Oracle calls: samples on which gradients were evaluated, counted by hand for one round of each kind."""

import pytest
import torch

from datasets.topology import Ring, mixing_matrix
from harness.core import ALGORITHMS, Problem
from harness.problems.quadratic import Minimax
from tests.support.worlds import logistic, quadratic_minimax, random_federation, run_algorithm


def calls(*arguments, **settings):
    return int(run_algorithm(*arguments, **settings).cost.oracle_calls)


@pytest.mark.parametrize("features", [2, 40])
def test_a_fedavg_step_is_one_oracle_call_a_sample(features):
    """Batches of 4 at clients with 6, 4 and 3 samples hold 4, 4 and 3: 11 a step, 5 steps, 2 rounds."""
    federation = random_federation([6, 4, 3], features=features)
    found = calls("fedavg", logistic(features), federation, 2, local_steps=5, batch_size=4)
    assert found == 2 * 5 * (4 + 4 + 3)


def test_only_who_takes_part_is_counted():
    """Two of four clients, full batches of 5 samples, 3 steps."""
    found = calls(
        "fedavg", logistic(), random_federation([5] * 4), 1, cohort=2, local_steps=3, batch_size=None
    )
    assert found == 2 * 3 * 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [("local_sgda", 3), ("fedsgda_m", 2 * 3), ("sagda", 3 + 1)],
)
def test_both_gradients_at_one_point_are_one_call(name, expected):
    """MM4: 4 clients of one sample, 3 local steps. FedSGDA-M asks at two points a step, SAGDA once more a round."""
    assert calls(name, *quadratic_minimax(), 2, local_steps=3) == 2 * 4 * expected


def test_what_is_asked_before_the_first_round_counts():
    """K-GT-Minimax's initial corrections take one gradient of each node, unless they start from zero."""
    mixing, counts = mixing_matrix(Ring(), 4), []
    for zero_init in (False, True):
        options = {"local_steps": 3, "mixing": mixing, "zero_init": zero_init}
        counts.append(calls("k_gt_minimax", *quadratic_minimax(), 2, **options))
    assert counts == [4 + 2 * 4 * 3, 2 * 4 * 3]


def test_functions_of_several_batches_count_each():
    """FedBiO, one client of 12 samples, one step: 4 for the inner gradient and, for the hypergradient, 4 for the
    outer one, 4 for the cross derivative and 4 for each of the Hessian products."""
    products = ALGORITHMS["fedbio"]().neumann_terms
    problem = Problem(
        "bilevel",
        "bilevel",
        lambda generator: {"x": torch.ones(1).double(), "y": torch.ones(1).double()},
        lambda x, y, batch: ((y - 1) ** 2 * batch.weight.mean()).sum() + (x**2).sum(),
        inner=lambda x, y, batch: 0.5 * ((y - x) ** 2 * batch.weight.mean()).sum(),
    )
    found = calls("fedbio", problem, random_federation([12]), 1, local_steps=1, batch_size=4)
    assert found == 4 * (1 + 1 + 1 + products)


def test_a_quadratic_with_full_batches_asks_for_all_samples():
    one = Minimax(P=[1.0], B=[1.0], Q=[1.0], c=[0.0], d=[0.0])
    assert calls("local_sgda", *quadratic_minimax(one), 7, local_steps=2, batch_size=None) == 14
