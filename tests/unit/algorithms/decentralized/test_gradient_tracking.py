"""K-GT-Minimax: exact convergence on graphs, the invariants of its corrections, and their sign."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from algorithms.decentralized.k_gt_minimax import KGTMinimax
from datasets.topology import TOPOLOGIES, mixing_matrix
from harness.problems.quadratic import Minimax
from tests.support.worlds import close, quadratic_minimax, run_algorithm, settled

SETTINGS = {"lr_x": 0.02, "lr_y": 0.02, "server_lr": 0.5, "local_steps": 5}


def weights(kind, nodes=4):
    return mixing_matrix(TOPOLOGIES[kind](), nodes, np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "erdos-renyi", "complete"])
@pytest.mark.parametrize("zero_init", [False, True])
def test_all_nodes_reach_the_saddle_and_corrections_balance(kind, zero_init):
    """At the saddle (-1.5, -.25) of MM4, cx_i = -(P_i x + B_i y + c_i), cy_i = -(B_i x - Q_i y + d_i).

    For client 1: P x + B y + c = -1.5 - .25 + 2 = .25; B x - Q y + d = -1.5 + .25 + 0 = -1.25.
    """
    settings = {"zero_init": zero_init, **SETTINGS}
    state = settled("k_gt_minimax", *quadratic_minimax(), mixing=weights(kind), **settings)
    assert close(state.x, [-1.5] * 4)
    assert close(state.y, [-0.25] * 4)
    assert close(state.cx, [-0.25, 1.75, 0.0, -1.5], 1e-5)
    assert close(state.cy, [1.25, -1.5, 3.25, -3.0], 1e-5)


def test_the_mean_of_the_corrections_is_always_zero():
    """W is doubly stochastic, so (I - W) D has mean zero whatever D is."""
    means = []
    run_algorithm(
        "k_gt_minimax",
        *quadratic_minimax(),
        20,
        mixing=weights("ring"),
        watch=lambda s: means.extend([s.cx.mean(0), s.cy.mean(0)]),
        **SETTINGS,
    )
    assert len(means) == 42
    assert float(torch.cat(means).abs().max()) < 1e-12


def test_frozen_at_zero_the_first_round_has_no_correction():
    """``zero_init`` starts from c = 0; otherwise c_i = mean gradient - own gradient at the start (0, 0).

    There the gradients by x are c = (2, -2, 1, 3), mean 1, and by y d = (0, 4, -2, 2), mean 1.
    """
    problem = quadratic_minimax()
    for zero_init, cx, cy in ((True, [0.0] * 4, [0.0] * 4), (False, [-1, 3, 0, -2], [1, -3, 3, -1])):
        state = run_algorithm("k_gt_minimax", *problem, 0, mixing=weights("ring"), zero_init=zero_init).state
        assert close(state.cx, cx, 1e-12)
        assert close(state.cy, cy, 1e-12)


@pytest.mark.parametrize("zero_init", [False, True])
def test_one_step_on_a_complete_graph_is_central_descent_ascent(zero_init):
    """W averages and c has mean zero: x <- x - lr (P x + B y + c), y <- y + lr (B x - Q y + d), averages of MM4."""
    seen = []
    run_algorithm(
        "k_gt_minimax",
        *quadratic_minimax(),
        15,
        mixing=weights("complete"),
        lr_x=0.05,
        lr_y=0.1,
        server_lr=1.0,
        local_steps=1,
        zero_init=zero_init,
        watch=lambda s: seen.append((s.x, s.y)),
    )
    x, y = 0.0, 0.0
    for rows_x, rows_y in seen:
        assert close(rows_x, [x] * 4, 1e-12)
        assert close(rows_y, [y] * 4, 1e-12)
        x, y = x - 0.05 * (0.5 * x + y + 1), y + 0.1 * (x - 2 * y + 1)


def test_two_steps_of_one_round_by_hand():
    """Two nodes, P = Q = 1, B = 0, c = (1, 3), d = (0, 0), zero_init, K = 2, lr .5, server_lr .5, from (0, 0).

    dx after two steps x <- x - .5 (x + c): -.5 c, then -.75 c: (-.75, -2.25). Weights of two nodes are 1/2:
    W dx = -1.5 each. cx = (dx - W dx) / (2 * .5) = (.75, -.75). x = 0 + .5 * -1.5 = -.75.
    """
    problem = quadratic_minimax(Minimax(P=[1, 1], B=[0, 0], Q=[1, 1], c=[1, 3], d=[0, 0]))
    state = run_algorithm(
        "k_gt_minimax",
        *problem,
        1,
        mixing=weights("ring", 2),
        lr_x=0.5,
        lr_y=0.5,
        server_lr=0.5,
        local_steps=2,
        zero_init=True,
    ).state
    assert close(state.x, [-0.75, -0.75], 1e-12)
    assert close(state.cx, [0.75, -0.75], 1e-12)
    assert close(state.y, [0.0, 0.0], 1e-12)


@dataclass(frozen=True, kw_only=True)
class PlusInY(KGTMinimax):
    """What is printed for x, taken over to y without changing the sign."""

    def round(self, state, clients, channel):
        new = super().round(state, clients, channel)
        return new._replace(cy=2 * state.cy - new.cy)  # old + change in place of old - change


@pytest.mark.slow
def test_a_plus_in_the_tracking_of_y_diverges():
    """For ascent D_y = + lr K (g + c): only the minus gives c <- - g + W (g + c)."""
    problem, mixing = quadratic_minimax(), weights("ring")
    right = run_algorithm("k_gt_minimax", *problem, 50, mixing=mixing, **SETTINGS).state
    wrong = run_algorithm(PlusInY(**SETTINGS), *problem, 50, mixing=mixing).state
    assert float(right.y.abs().max()) < 2
    assert float(wrong.y.abs().max()) > 1e3
