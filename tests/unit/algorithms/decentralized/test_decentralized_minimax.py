"""Decentralized local SGDA, DM-HSGD and DREAM: limits, identities, and steps by hand on quadratic problems."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from algorithms.decentralized.k_gt_minimax import KGTMinimax
from datasets.topology import TOPOLOGIES, mixing_matrix
from harness.core import UserError, rng
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.problems.fair import fair_classifier
from harness.problems.quadratic import Minimax
from tests.support.wire import privacy as mechanism
from tests.support.worlds import (
    close,
    largest_difference,
    make_algorithm,
    quadratic_minimax,
    random_federation,
    run_algorithm,
    settled,
)

GRAPHS = ["ring", "erdos-renyi", "star", "complete"]  # a torus of four nodes is a ring
NOISY = mechanism(clip=50.0, z=0.01)
CODED = Compression(codec="q4")
TRACKED = {
    "dm_hsgd": {"lr_x": 0.05, "lr_y": 0.05, "beta_x": 0.1, "beta_y": 0.1},
    "dream": {"lr_x": 0.02, "lr_y": 0.02, "p": 0.2, "q": 0.5},
}


def weights(kind, nodes=4):
    return mixing_matrix(TOPOLOGIES[kind](), nodes, np.random.default_rng(0))


def watched(name, rounds, kind="ring", problem=None, **options):
    """Run and return the states before the first and after every round."""
    seen = []
    problem, federation = problem or quadratic_minimax()
    options = {"mixing": weights(kind, federation.clients)} | options
    run_algorithm(name, problem, federation, rounds, watch=seen.append, **options)
    return seen


def central(rounds, lr_x=0.05, lr_y=0.1):
    """Return the path of descent ascent on the averages of MM4: P .5, B 1, Q 2, c 1, d 1."""
    path, x, y = [(0.0, 0.0)], 0.0, 0.0
    for _ in range(rounds):
        x, y = x - lr_x * (0.5 * x + y + 1), y + lr_y * (x - 2 * y + 1)
        path.append((x, y))
    return path


def assert_central(states):
    for state, (x, y) in zip(states, central(len(states) - 1), strict=True):
        assert close(state.x, [x] * 4, 1e-12)
        assert close(state.y, [y] * 4, 1e-12)


# --- the baseline ---


@dataclass(frozen=True, kw_only=True)
class Frozen(KGTMinimax):
    """K-GT whose corrections stay at zero."""

    def round(self, state, clients, channel):
        new = super().round(state, clients, channel)
        return new._replace(cx=state.cx, cy=state.cy)


@pytest.mark.parametrize("kind", GRAPHS)
def test_decentralized_local_sgda_is_k_gt_without_corrections(kind):
    """Then K-GT's round is W (x + dx) with server_lr 1, and dx the sum of plain steps."""
    settings = {"lr_x": 0.05, "lr_y": 0.03, "local_steps": 4}
    mine = watched("decentralized_local_sgda", 8, kind, **settings)
    frozen = watched(Frozen(server_lr=1.0, zero_init=True, **settings), 8, kind)
    for one, other in zip(mine, frozen, strict=True):
        assert close(one.x, other.x, 1e-13)
        assert close(one.y, other.y, 1e-13)


@pytest.mark.parametrize("kind", ["ring", "star", "complete"])
def test_decentralized_local_sgda_stops_at_its_fixed_point(kind):
    """A step maps z_i = (x_i, y_i) to A_i z_i + b_i; a round to W (A_i^K z_i + (1 + .. + A_i^{K-1}) b_i).

    A_i = [[1 - lr P, -lr B], [lr B, 1 - lr Q]], b_i = lr (-c, d). On the complete graph that is Local SGDA's
    limit (-1.343324258, -0.250883970).
    """
    lr, steps = 0.05, 5
    P, B, Q, c, d = ([1, -0.5, 0.5, 1], [1, 2, 1, 0], [1, 2, 1, 4], [2, -2, 1, 3], [0, 4, -2, 2])
    move, shift = np.zeros((8, 8)), np.zeros(8)
    for i in range(4):
        A = np.array([[1 - lr * P[i], -lr * B[i]], [lr * B[i], 1 - lr * Q[i]]])
        here = slice(2 * i, 2 * i + 2)
        move[here, here] = np.linalg.matrix_power(A, steps)
        shift[here] = sum(np.linalg.matrix_power(A, k) for k in range(steps)) @ (lr * np.array([-c[i], d[i]]))
    mixing = np.kron(weights(kind).numpy(), np.eye(2))
    expected = np.linalg.solve(np.eye(8) - mixing @ move, mixing @ shift)
    work = {"lr_x": lr, "lr_y": lr, "local_steps": steps}
    state = settled("decentralized_local_sgda", *quadratic_minimax(), mixing=weights(kind), **work)
    assert close(torch.cat([state.x, state.y], -1), expected, 1e-9)
    assert (abs(expected[0] + 1.343324258) < 1e-8) == (kind == "complete")
    assert not close(state.x.mean(0), -1.5, 0.05), "biased: it is not the saddle"


def test_one_local_step_on_a_complete_graph_is_central():
    assert_central(watched("decentralized_local_sgda", 20, "complete", lr_x=0.05, lr_y=0.1, local_steps=1))


# --- gradient tracking: what DM-HSGD and DREAM share ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "kind"),
    [
        *(("dm_hsgd", TRACKED["dm_hsgd"], kind) for kind in GRAPHS),
        *(("dream", {"lr_x": 0.05, "lr_y": 0.05, "p": 1.0}, kind) for kind in ("ring", "star")),
        ("dream", {"lr_x": 0.05, "lr_y": 0.05, "p": 0.0, "q": 1.0, "hops": 1}, "star"),
    ],
)
def test_all_nodes_reach_the_saddle_of_mm4(name, settings, kind):
    """(-1.5, -.25) on every node, whatever the graph: the trackers end at the mean gradient, zero there."""
    assert_saddle(settled(name, *quadratic_minimax(), mixing=weights(kind), **settings))


@pytest.mark.slow
def test_dream_reaches_the_saddle_by_its_coins():
    """Rounds differ by chance, so each must be run; what graphs change is seen without coins above."""
    assert_saddle(watched("dream", 400, "ring", **TRACKED["dream"] | {"lr_x": 0.04, "lr_y": 0.04})[-1])


def assert_saddle(state):
    assert close(state.x, [-1.5] * 4, 1e-6)
    assert close(state.y, [-0.25] * 4, 1e-6)
    assert close(state.sx, [0.0] * 4, 1e-6)
    assert close(state.sy, [0.0] * 4, 1e-6)


@pytest.mark.parametrize(("privacy", "wire"), [(None, None), (NOISY, None), (None, CODED), (NOISY, CODED)])
@pytest.mark.parametrize("name", TRACKED)
def test_the_mean_of_the_trackers_is_that_of_what_was_released(name, privacy, wire):
    """Mixing keeps the mean whatever the code; a tracker follows the change of what was released."""
    options = {"privacy": privacy} | ({"compression": wire} if wire else {})
    for state in watched(name, 40, **TRACKED[name], **options):
        assert close(state.sx.mean(0), state.ru.mean(0), 1e-9)
        assert close(state.sy.mean(0), state.rv.mean(0), 1e-9)
        if privacy is None:
            assert close(state.ru, state.u, 1e-12)
            assert close(state.rv, state.v, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKED)
def test_noise_does_not_add_up_in_the_trackers(name):
    """What was released is off by one draw, of standard deviation z * 2 C = 1 * 2 * 10 = 20, in every round alike.

    Over 100 rounds, 4 nodes and 2 variables the mean square is 400 (1 +- 5 sqrt(2 / 800)). Noise on each change
    would make it grow by 400 a round. Gradients stay below the clip norm, as steps are tiny.
    """
    noisy = Privacy.of(1.0, clip=10.0)
    settings = {**TRACKED[name], "lr_x": 1e-6, "lr_y": 1e-6}
    states = watched(name, 100, **settings, privacy=noisy)[1:]
    errors = torch.stack([torch.cat([s.ru - s.u, s.rv - s.v], -1) for s in states]).square()
    assert abs(float(errors.mean()) / 400 - 1) < 0.25
    assert float(errors[-20:].mean()) < 800


@pytest.mark.parametrize("kind", ["ring", "complete"])
@pytest.mark.parametrize(
    ("name", "settings"), [("dm_hsgd", {"beta_x": 1.0, "beta_y": 1.0}), ("dream", {"p": 1.0, "hops": 1})]
)
def test_with_fresh_gradients_both_are_gradient_tracking(name, settings, kind):
    """x <- W (x - lr s), s <- W (s + g(x_new) - g(x)), written out for MM4; on a complete graph s is the mean."""
    found = watched(name, 20, kind, lr_x=0.05, lr_y=0.1, **settings)
    P, B, Q, c, d = torch.tensor(
        [[1, -0.5, 0.5, 1], [1, 2, 1, 0], [1, 2, 1, 4], [2, -2, 1, 3], [0, 4, -2, 2]], dtype=torch.float64
    )
    x, y, mixing = torch.zeros(4).double(), torch.zeros(4).double(), weights(kind)
    gx, gy = P * x + B * y + c, B * x - Q * y + d
    sx, sy = mixing @ gx, mixing @ gy
    for state in found:
        assert close(state.x, x, 1e-12)
        assert close(state.y, y, 1e-12)
        x, y = mixing @ (x - 0.05 * sx), mixing @ (y + 0.1 * sy)
        newx, newy = P * x + B * y + c, B * x - Q * y + d
        sx, sy = mixing @ (sx + newx - gx), mixing @ (sy + newy - gy)
        gx, gy = newx, newy
    if kind == "complete":
        assert_central(found)


def test_dream_with_large_batches_is_central_on_complete_graphs():
    """FastMix on the complete graph (lambda 0, so no momentum) is the plain average, twice."""
    assert_central(watched("dream", 20, "complete", lr_x=0.05, lr_y=0.1, p=1.0, hops=2))


@pytest.mark.parametrize("name", TRACKED)
@pytest.mark.parametrize("steps", [2, None])
def test_a_round_is_one_iteration(name, steps):
    with pytest.raises(UserError, match="local_steps"):
        make_algorithm(name, local_steps=steps)


# --- DM-HSGD ---


def test_dm_hsgd_on_one_node_has_hybrid_momentum():
    """u <- g(x_new) + (1 - b) (u - g(x)). On full batches u stays the gradient, so here the gradients are noisy.

    Batches of 2 of 7 samples, drawn as the algorithm draws them; the recursion is written out.
    """
    problem, federation = fair(), random_federation([7])
    algorithm = make_algorithm(
        "dm_hsgd", lr_x=0.1, lr_y=0.2, beta_x=0.3, beta_y=0.6, batch_size=2, mega_batch=3
    )
    batches = []

    class Spied(type(algorithm)):
        """Notes points and gradients."""

        def round(self, state, clients, channel):
            (batch,) = clients.batches(self)
            new = super().round(state, clients, channel)
            batches.append((clients.grads(state.x, state.y, batch), clients.grads(new.x, new.y, batch)))
            return new

    seen = watched(Spied(**vars(algorithm)), 6, problem=(problem, federation))
    for (old, new), ((gx_old, gy_old), (gx, gy)) in zip(pairwise(seen), batches, strict=True):
        assert close(new.x, old.x - 0.1 * old.u, 1e-12)
        assert close(new.y, problem.project(old.y + 0.2 * old.v), 1e-12)
        assert close(new.u, gx + 0.7 * (old.u - gx_old), 1e-12)
        assert close(new.v, gy + 0.4 * (old.v - gy_old), 1e-12)
    assert largest_difference(seen[1], seen[0]) > 1e-3


def test_the_first_round_of_dm_hsgd_by_hand():
    """Two nodes, P = Q = 1, B = 0, c = (1, 3), d = 0, from (0, 0), lr_x .5, b = 1: W averages both.

    u = (1, 3), sx = (2, 2); x = mean of (0 - 1, 0 - 1) = -1; u = x + c = (0, 2), sx = 2 + mean (-1, -1) = 1.
    """
    problem = quadratic_minimax(Minimax(P=[1, 1], B=[0, 0], Q=[1, 1], c=[1, 3], d=[0, 0]))
    first, second = watched("dm_hsgd", 1, problem=problem, lr_x=0.5, beta_x=1.0, beta_y=1.0)
    assert close(first.u, [1.0, 3.0], 1e-15) and close(first.sx, [2.0, 2.0], 1e-15)
    assert close(second.x, [-1.0, -1.0], 1e-15)
    assert close(second.u, [0.0, 2.0], 1e-15) and close(second.sx, [1.0, 1.0], 1e-15)


@pytest.mark.parametrize("settings", [{"beta_x": 0.0}, {"beta_y": 1.5}, {"mega_batch": 0}, {"lr_x": -1.0}])
def test_dm_hsgd_refuses_what_makes_no_sense(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        make_algorithm("dm_hsgd", **settings)


# --- DREAM ---


def test_dream_without_coins_is_spider_without_restarts():
    """p = 0, q = 1: u <- u + g(x_new) - g(x) on one batch, every round, on every node."""
    states = watched("dream", 12, lr_x=0.02, lr_y=0.02, p=0.0, q=1.0)
    P, B, c = (torch.tensor(v, dtype=torch.float64) for v in ([1, -0.5, 0.5, 1], [1, 2, 1, 0], [2, -2, 1, 3]))
    for state in states:  # full batches, so the recursion keeps u at the gradient
        assert close(state.u, P * state.x[:, 0] + B * state.y[:, 0] + c, 1e-12)


@pytest.mark.slow
def test_the_change_of_dream_s_estimate_is_right_on_average():
    """E[omega / q] = 1. Over 2000 nodes with q = .25 the mean of omega / q has standard deviation sqrt(3 / 2000).

    With p = 0 the change of u in the first round is omega / q times that of the gradient; 5 deviations allowed.
    """
    entries = [1.0] * 2000
    world = quadratic_minimax(Minimax(P=entries, B=entries, Q=entries, c=entries, d=entries))
    options = {"p": 0.0, "lr_x": 0.1, "lr_y": 0.2, "hops": 1}
    start, exact = watched("dream", 1, problem=world, q=1.0, **options)
    _, found = watched("dream", 1, problem=world, q=0.25, **options)
    ratios = (found.u - start.u) / (exact.u - start.u)
    assert abs(float(ratios.mean()) - 1) < 5 * (3 / 2000) ** 0.5
    assert {round(float(r), 9) for r in ratios} == {0.0, 4.0}, "a node stands still, or moves by 1 / q"


@pytest.mark.slow
def test_without_large_batches_idle_nodes_never_catch_up():
    """The trackers still go to zero, but not where the mean gradient does, with which they lost touch."""
    lost = watched("dream", 450, **{**TRACKED["dream"], "p": 0.0, "lr_x": 0.04, "lr_y": 0.04})[-1]
    assert close(lost.sx, [0.0] * 4, 1e-6)
    assert not close(lost.x, [-1.5] * 4, 0.02)


def test_both_variables_of_a_node_follow_one_coin():
    """A node that is idle keeps u and v, an active one changes both."""
    before, after = watched("dream", 1, p=0.0, q=0.5)
    moved = (after.u != before.u), (after.v != before.v)
    assert torch.equal(*moved)
    coins = [rng.key(0, "coin", "each", "active", 0)]
    active = rng.uniform(torch.tensor(coins), torch.arange(4)) < 0.5
    assert torch.equal(moved[0][:, 0], active)
    assert 0 < int(active.sum()) < 4, "the seed shows both cases"


def fair():
    return fair_classifier(nn.Linear(4, 3), 3, "euclidean")


def test_idle_nodes_compute_nothing():
    """A small round costs two gradients on 5 samples a node that is active, a large one 1 gradient on all 12."""
    federation, mixing = random_federation([12, 12, 12, 12]), weights("ring")
    options = {"mixing": mixing, "batch_size": 5, "mega_batch": 12}

    def work(rounds, **coins):
        return int(run_algorithm("dream", fair(), federation, rounds, **options, **coins).cost.flops)

    first = work(0)  # 4 nodes, 12 samples
    sample = first / 48
    assert work(1, p=1.0) - first == 48 * sample
    assert work(1, p=0.0, q=1.0) - first == 4 * 2 * 5 * sample
    active = 0
    for t in range(6):
        keys = torch.tensor([rng.key(0, "coin", "each", "active", t)])
        active += int((rng.uniform(keys, torch.arange(4)) < 0.4).sum())
    assert 0 < active < 24
    assert work(6, p=0.0, q=0.4) - first == active * 2 * 5 * sample


def test_all_nodes_toss_the_first_coin_together():
    """p = .5, q tiny: a round of large batches changes u on all nodes, any other on none."""
    states = watched("dream", 12, p=0.5, q=1e-12)
    changed = [int((new.u != old.u).any(-1).sum()) for old, new in pairwise(states)]
    assert set(changed) == {0, 4}


def test_y_is_projected_after_fast_mix():
    """Neither a step along a tracker nor FastMix, which extrapolates, keeps to the simplex."""
    federation = random_federation([12] * 6, seed=3)
    states = watched("dream", 15, problem=(fair(), federation), lr_y=2.0, hops=4, batch_size=4)
    for state in states[1:]:
        assert float(state.y.min()) >= 0
        assert close(state.y.sum(-1), [1.0] * 6, 1e-12)
    assert float((states[-1].y - 1 / 3).abs().max()) > 0.1


def test_dream_is_refused_where_records_are_protected():
    """One gradient or two: how many releases a round makes would depend on the coin."""
    record = Privacy.of(1.0, clip=1.0, unit="record", sampling="poisson")
    with pytest.raises(Incompatible, match="coin"):
        watched("dream", 1, privacy=record)


@pytest.mark.parametrize("name", ["dm_hsgd", "dream"])
def test_a_round_releases_once_whatever_the_coins_and_hops(name):
    """And once before the first."""
    problem, federation = quadratic_minimax()
    for rounds in range(5):
        ledger = run_algorithm(
            name, problem, federation, rounds, mixing=weights("ring"), privacy=NOISY, **TRACKED[name]
        ).ledger
        assert ledger.made == 1 + rounds


@pytest.mark.parametrize("settings", [{"p": -0.1}, {"p": 1.1}, {"q": 0.0}, {"hops": 0}, {"mega_batch": 0}])
def test_dream_refuses_what_makes_no_sense(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        make_algorithm("dream", **settings)


# --- Theorem 1 ---


@pytest.mark.parametrize("kind", ["ring", "complete"])
def test_theorem_1_decides_the_step_sizes_of_k_gt(kind):
    """p of a ring of four is 8/9, of a complete graph 1; L 2, kappa 3, K 5, v 0.5: lr_y = p / (300 .5 3 5 2), which
    is p / 4500, lr_x = lr_y / 9 and server_lr = p / 2. Runs with these numbers as settings are the same."""
    p = {"ring": 8 / 9, "complete": 1.0}[kind]
    explicit = {"lr_x": p / 4500 / 9, "lr_y": p / 4500, "server_lr": p / 2}
    theorem = {"smoothness": 2.0, "condition": 3.0, "v": 0.5}
    run = {"kind": kind, "local_steps": 5, "batch_size": None}
    found, expected = (watched("k_gt_minimax", 3, **run, **given) for given in (theorem, explicit))
    assert largest_difference(found[-1], expected[-1]) < 1e-12
    plain = watched("k_gt_minimax", 3, **run)
    assert largest_difference(found[-1], plain[-1]) > 1e-4


def test_theorem_1_needs_both_of_its_constants():
    with pytest.raises(UserError, match="both smoothness and condition"):
        KGTMinimax(smoothness=1.0)
