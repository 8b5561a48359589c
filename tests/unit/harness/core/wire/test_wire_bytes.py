"""Bytes of dense messages of single-precision numbers, against the table of what each method sends."""

import pytest
import torch

from datasets.topology import TOPOLOGIES, mixing_matrix
from harness.core import Problem
from harness.core.settings.compression import Compression
from harness.problems import PROBLEMS, Setting
from harness.problems.quadratic import Minimax
from tests.support.worlds import (
    EXACT,
    logistic,
    quadratic_bilevel,
    quadratic_minimax,
    random_federation,
    run_algorithm,
    vertical_data,
)

P = 15  # 4 features x 3 classes + 3 biases


def bytes_of(*arguments, **settings):
    cost = run_algorithm(*arguments, compression=Compression(), **settings).cost
    return int(cost.up), int(cost.down)


@pytest.mark.parametrize(
    ("name", "up", "down"), [("fedavg", P, P), ("fedprox", P, P), ("scaffold", 2 * P, 2 * P), ("local", 0, 0)]
)
@pytest.mark.parametrize("cohort", [None, 2])
def test_each_client_of_the_cohort_is_charged_what_it_sends(name, up, down, cohort):
    """FedAvg P numbers each way, SCAFFOLD model and control variate; 4 bytes each, 3 rounds."""
    found = bytes_of(name, logistic(), random_federation([6, 4, 5, 3]), 3, cohort=cohort, local_steps=1)
    members = cohort or 4
    assert found == (3 * members * up * 4, 3 * members * down * 4)


def test_pooled_training_sends_nothing():
    assert bytes_of("centralized", logistic(), random_federation([6, 4]).merged(), 3) == (0, 0)


def minimax_problem(nodes):
    """dx = 3, dy = 2."""
    eye = lambda n: [[float(i == j) for j in range(n)] for i in range(n)]  # noqa: E731
    return quadratic_minimax(
        Minimax(
            P=[eye(3)] * nodes,
            B=[[[0.0, 0.0]] * 3] * nodes,
            Q=[eye(2)] * nodes,
            c=[[1.0] * 3] * nodes,
            d=[[1.0] * 2] * nodes,
        )
    )


@pytest.mark.parametrize(
    ("name", "numbers", "settings"),
    [
        ("local_sgda", 5, {}),
        ("local_sgda_plus", 5, {}),
        ("fedsgda_plus", 5, {}),
        ("coda_plus", 5, {}),
        ("fed_norm_sgda", 5, {}),
        ("fed_norm_sgda", 5, {"snapshot_rounds": 2}),
        ("fedsgda_m", 10, {}),
        ("fedsgda_m", 15, {"average_prev": True}),
        ("codasca", 10, {}),
        ("sagda", 10, {}),
        ("fednest", 2 * 2 + 2 * 3, {}),
        ("fednest", 2 * 3 * 2 + 2 * 3, {"inner_rounds": 3}),
    ],
)
def test_minimax_methods_send_what_the_table_says(name, numbers, settings):
    """dx + dy = 5: points; 10: points and gradients; FEDNEST 2 T dy + 2 dx. 5 clients, 2 rounds, 4 bytes."""
    total = 5 * 2 * 4 * numbers
    assert bytes_of(name, *minimax_problem(5), 2, local_steps=3, **settings) == (total, total)


def test_momentum_local_sgda_pays_for_its_first_gradient():
    """2 (dx + dy) = 10 numbers each way, 5 clients, 2 rounds, and 5 numbers up once."""
    assert bytes_of("momentum_local_sgda", *minimax_problem(5), 2, local_steps=3) == (400 + 100, 400)


@pytest.mark.parametrize(
    ("name", "more"), [("local_sgda_plus", 3), ("fedsgda_plus", 3), ("coda_plus", 3), ("fednest", 2)]
)
def test_newcomers_are_sent_the_past_broadcast_again(name, more):
    """dx = 3 numbers for a snapshot or reference, dy = 2 for FEDNEST's y; 2 of 5 clients, 2 rounds."""
    up, down = bytes_of(name, *minimax_problem(5), 2, local_steps=3, cohort=2)
    assert down - up == 2 * 2 * 4 * more


@pytest.mark.parametrize(
    ("kind", "nodes", "edges"), [("ring", 8, 16), ("complete", 5, 20), ("torus", 9, 36), ("star", 6, 10)]
)
def test_k_gt_sends_along_every_directed_edge(kind, nodes, edges):
    """2 (dx + dy) = 10 numbers an edge and round; nothing goes to a server."""
    mixing = mixing_matrix(TOPOLOGIES[kind](), nodes, None)
    found = bytes_of("k_gt_minimax", *minimax_problem(nodes), 3, mixing=mixing, zero_init=True, local_steps=1)
    assert found == (3 * edges * 10 * 4, 0)


def test_k_gt_pays_for_the_mean_gradient_before_the_first_round():
    """dx + dy = 5 numbers up and down, once, for each of 8 nodes."""
    mixing = mixing_matrix(TOPOLOGIES["ring"](), 8, None)
    assert bytes_of("k_gt_minimax", *minimax_problem(8), 0, mixing=mixing) == (8 * 5 * 4, 8 * 5 * 4)


@pytest.mark.parametrize(
    ("kind", "nodes", "edges"), [("ring", 8, 16), ("complete", 8, 56), ("torus", 16, 64), ("star", 6, 10)]
)
@pytest.mark.parametrize(
    ("name", "settings", "before", "each"),
    [
        ("decentralized_local_sgda", {"local_steps": 3}, 0, 5),
        ("dm_hsgd", {}, 5, 10),
        ("dream", {"hops": 1}, 5, 10),
        ("dream", {"hops": 2, "p": 1.0}, 10, 20),
        ("dream", {"hops": 3, "p": 0.0}, 15, 30),
    ],
)
def test_gossip_pays_for_every_edge_and_hop(name, settings, before, each, kind, nodes, edges):
    """dx + dy = 5: (x, y) of the baseline; moved points and trackers, 2 * 5, of DM-HSGD; K times that of DREAM.

    The trackers are mixed once before the first round. No coin changes what travels.
    """
    mixing = mixing_matrix(TOPOLOGIES[kind](), nodes, None)
    found = bytes_of(name, *minimax_problem(nodes), 3, mixing=mixing, **settings)
    assert found == ((before + 3 * each) * edges * 4, 0)


@pytest.mark.parametrize("name", ["decentralized_local_sgda", "dm_hsgd", "dream"])
def test_half_precision_halves_all_that_is_gossiped(name):
    """Points, trackers and what is passed on: there is no part that stays in single precision."""
    problem, mixing = minimax_problem(5), mixing_matrix(TOPOLOGIES["ring"](), 5, None)
    costs = [
        int(run_algorithm(name, *problem, 3, mixing=mixing, compression=Compression(codec=codec)).cost.up)
        for codec in ("float32", "float16")
    ]
    assert costs[0] == 2 * costs[1]


@pytest.mark.parametrize("steps", [1, 4])
def test_fedbio_sends_the_outer_variable_only(steps):
    """dx = 1 number each way, 2 clients, 3 rounds, however many local steps and Hessian products."""
    assert bytes_of("fedbio", *quadratic_bilevel(), 3, local_steps=steps) == (24, 24)


def test_splitnn_sends_embeddings_up_and_gradients_down():
    """Batch 5 x embedding 4 numbers, 3 parties, 2 rounds of 3 steps: 5 * 4 * 3 * 6 * 4 = 1440 bytes."""
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randn(15, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    federation = vertical_data(columns, torch.randint(2, (15,), generator=generator))
    kind = PROBLEMS["vertical"]
    problem, _ = kind.build(Setting(kind.settings(embedding=4), federation, ("logistic", {})))
    assert isinstance(problem, Problem)
    assert bytes_of("splitnn", problem, federation, 2, local_steps=3, batch_size=5) == (1440, 1440)


def test_double_precision_costs_twice_and_keeps_every_bit():
    federation, start = random_federation([6, 4]), {"x": torch.full((P,), 0.1, dtype=torch.float64)}
    runs = [
        run_algorithm("fedavg", logistic(), federation, 1, start=start, compression=wire, local_steps=2)
        for wire in (Compression(codec="float32"), EXACT)
    ]
    assert int(runs[1].cost.up) == 2 * int(runs[0].cost.up)
    assert 0 < float((runs[0].state.x - runs[1].state.x).abs().max()) < 1e-6
