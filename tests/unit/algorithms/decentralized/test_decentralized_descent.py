"""Gossip for minimization: recursions written out, limits on quadratics, and special cases."""

import numpy as np
import pytest
import torch

from algorithms.decentralized.k_gt import KGT
from datasets.topology import TOPOLOGIES, mixing_matrix
from harness.core import Problem, UserError
from harness.core.losses import weighted_mean
from harness.core.settings.compression import Compression
from tests.support.wire import privacy
from tests.support.worlds import (
    EXACT,
    close,
    federation_of,
    logistic,
    make_algorithm,
    random_federation,
    run_algorithm,
    settled,
)

GRAPHS = ["ring", "erdos-renyi", "star", "complete"]
TWO = ["ring", "star"]  # all that a method sees of a graph is W; D-SGD is tried on every kind
NODES, LENGTH = 5, 3
A = np.random.default_rng(1).uniform(0.5, 2.0, (NODES, LENGTH))
Z = np.random.default_rng(2).normal(size=(NODES, LENGTH))
BEST = (A * Z).sum(0) / A.sum(0)  # where the mean gradient is zero


def weights(kind, nodes=NODES):
    return mixing_matrix(TOPOLOGIES[kind](), nodes, np.random.default_rng(0))


def bowls():
    """Return f_i(w) = (w - o_i)' diag(a_i) (w - o_i) / 2, whose gradient is a_i (w - o_i)."""

    def loss(w, batch):
        a, o = batch.x.split(LENGTH, -1)
        return weighted_mean(0.5 * (a * (w - o) ** 2).sum(-1), batch.weight)

    start = {"x": torch.zeros(LENGTH, dtype=torch.float64)}
    rows = torch.from_numpy(np.concatenate([A, Z], 1)).split(1)
    return Problem("bowls", "erm", lambda generator: start, loss), federation_of(rows)


def watched(name, rounds, kind="ring", **options):
    """Run and return the states before the first and after every round."""
    seen = []
    run_algorithm(name, *bowls(), rounds, mixing=weights(kind), watch=seen.append, **options)
    return seen


# --- D-SGD ---


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", GRAPHS)
def test_d_sgd_is_local_steps_and_a_product_with_w(kind, steps):
    x, mixing = np.zeros((NODES, LENGTH)), weights(kind).numpy()
    for state in watched("d_sgd", 10, kind, lr=0.2, local_steps=steps):
        assert close(state.x, x, 1e-12)
        for _ in range(steps):
            x = x - 0.2 * A * (x - Z)
        x = mixing @ x


@pytest.mark.parametrize("kind", ["ring", "star", "complete"])
def test_d_sgd_stops_at_its_fixed_point(kind):
    """x = W (x - lr a (x - o)), so (I - W + lr W a) x = lr W a o, coordinate by coordinate.

    With one step only the complete graph ends at the minimum.
    """
    mixing, lr, expected = weights(kind).numpy(), 0.2, np.zeros((NODES, LENGTH))
    for k in range(LENGTH):
        left = np.eye(NODES) - mixing + lr * mixing * A[:, k]
        expected[:, k] = np.linalg.solve(left, lr * mixing @ (A[:, k] * Z[:, k]))
    state = settled("d_sgd", *bowls(), mixing=weights(kind), lr=lr, local_steps=1)
    assert close(state.x, expected, 1e-9)
    assert close(state.x, np.tile(BEST, (NODES, 1)), 1e-9) == (kind == "complete")


@pytest.mark.parametrize("protected", [None, privacy(clip=0.05, z=0.0)])
def test_d_sgd_on_a_complete_graph_is_fedavg(protected):
    """With equal sizes the server's average is the product with W, also of clipped increments."""
    task = logistic(), random_federation([9] * NODES)
    work = {"lr": 0.3, "momentum": 0.5, "local_epochs": 1, "batch_size": 4, "privacy": protected}
    mine = run_algorithm("d_sgd", *task, 6, mixing=weights("complete"), **work).state
    theirs = run_algorithm("fedavg", *task, 6, **work).state
    assert close(mine.x, theirs.x.expand(NODES, -1), 1e-12)


# --- K-GT ---


@pytest.mark.parametrize("zero_init", [False, True])
@pytest.mark.parametrize("kind", TWO)
def test_k_gt_is_its_recursion(kind, zero_init):
    """x_i takes K steps along a (x - o) + c; z is the mean step: c <- c - z + W z, x <- W (x - K lr s z)."""
    lr, steps, outer, mixing = 0.1, 4, 0.7, weights(kind).numpy()
    x, gradient = np.zeros((NODES, LENGTH)), -A * Z
    c = np.zeros_like(x) if zero_init else gradient.mean(0) - gradient
    work = {"lr": lr, "local_steps": steps, "server_lr": outer, "zero_init": zero_init}
    for state in watched("k_gt", 8, kind, **work):
        assert close(state.x, x, 1e-12) and close(state.c, c, 1e-12)
        moved = x
        for _ in range(steps):
            moved = moved - lr * (A * (moved - Z) + c)
        z = (x - moved) / (steps * lr)
        x, c = mixing @ (x - steps * lr * outer * z), c - z + mixing @ z


@pytest.mark.slow
@pytest.mark.parametrize("kind", TWO)
def test_k_gt_reaches_the_minimum(kind):
    """There the correction cancels a node's own gradient, so local steps stand still."""
    state = watched("k_gt", 160, kind, lr=0.1, local_steps=3, server_lr=0.4)[-1]
    assert close(state.x, np.tile(BEST, (NODES, 1)), 1e-5)
    assert close(state.c, -A * (BEST - Z), 1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("wire", [EXACT, Compression(beta=0.5, codec="q4")])
def test_k_gt_s_corrections_keep_mean_zero(noise, wire):
    options = {"privacy": privacy(clip=0.1, z=noise), "compression": wire}
    states = watched("k_gt", 20, lr=0.1, local_steps=2, zero_init=True, **options)
    assert all(close(state.c.mean(0), np.zeros(LENGTH), 1e-10) for state in states)
    assert float(states[-1].c.abs().max()) > 0.01


def test_k_gt_clips_gradients_and_not_its_corrections():
    """The first gradients are shorter than .2 and corrections longer than 17; a clip norm of 1 changes neither."""
    problem, federation = bowls()
    federation.pool.x[:, LENGTH:] *= 0.02

    class Corrected(KGT):
        """Starts with corrections of length 17 and mean zero, as heavy noise would make them."""

        def init(self, start, clients, channel):
            c = 10 * torch.tensor([[2.0], [-1.0], [-1.0], [1.0], [-1.0]]).double().expand(-1, LENGTH)
            return self.State(clients.rows(start["x"]), c)

    kept, plain = (
        run_algorithm(
            Corrected(lr=1e-6, local_steps=2), problem, federation, 1, mixing=weights("ring"), privacy=p
        )
        for p in (privacy(clip=1.0, z=0.0), None)
    )
    assert close(kept.state.c, plain.state.c, 1e-9)
    assert close(kept.state.x, plain.state.x, 1e-14)


def test_k_gt_without_tracking_or_damping_is_d_sgd_for_a_round():
    """From zero corrections the first round is W times local SGD."""
    work = {"lr": 0.1, "local_steps": 3, "momentum": 0.4}
    tracked = watched("k_gt", 1, server_lr=1.0, zero_init=True, **work)[-1].x
    assert close(watched("d_sgd", 1, **work)[-1].x, tracked, 1e-12)


# --- CHOCO-SGD ---


@pytest.mark.parametrize("protected", [None, privacy(clip=0.5, z=0.3)])
def test_choco_sgd_without_compression_is_d_sgd(protected):
    """With gamma 1 all of a model is known, so x - m + W m is W x; clip and noise fall on the same increments."""
    work = {"lr": 0.2, "local_steps": 2, "privacy": protected}
    for mine, plain in zip(
        watched("choco_sgd", 8, gamma=1.0, **work), watched("d_sgd", 8, **work), strict=True
    ):
        assert close(mine.x, plain.x, 1e-12)


@pytest.mark.parametrize("kind", TWO)
def test_choco_sgd_is_its_recursion(kind):
    """x <- x - lr g; m <- m + top_1(x - m), the largest of three entries; x <- x + gamma (W - I) m."""
    x, gamma, mixing = np.zeros((NODES, LENGTH)), 0.4, weights(kind).numpy()
    known = x
    wire = Compression(beta=2 / 3, codec="float64")
    for state in watched("choco_sgd", 12, kind, lr=0.1, local_steps=1, gamma=gamma, compression=wire):
        assert close(state.x, x, 1e-12) and close(state.known, known, 1e-12)
        x = x - 0.1 * A * (x - Z)
        known = known + largest(x - known)
        x = x + gamma * (mixing @ known - known)


def largest(rows):
    """Keep the largest entry of each row."""
    return np.where(abs(rows) == abs(rows).max(1, keepdims=True), rows, 0)


@pytest.mark.slow
def test_errors_of_a_code_vanish_with_the_changes():
    """All nodes have one minimum, so differences go to zero; D-SGD rounds whole models, and never comes to rest."""
    problem, federation = bowls()
    together = torch.tensor(BEST).expand(NODES, -1)
    federation.pool.x[:, LENGTH:] = together
    work = {"lr": 0.3, "local_steps": 1, "compression": Compression(codec="q4"), "mixing": weights("ring")}
    coded = run_algorithm("choco_sgd", problem, federation, 120, gamma=0.3, **work).state.x
    plain = run_algorithm("d_sgd", problem, federation, 120, **work).state.x
    assert float((coded - together).abs().max()) < 1e-7
    assert float((plain - together).abs().max()) > 1e-3


@pytest.mark.parametrize("gamma", [0.0, 1.5])
def test_choco_sgd_refuses_a_gamma_beyond_one(gamma):
    with pytest.raises(UserError, match="gamma"):
        make_algorithm("choco_sgd", gamma=gamma)


# --- BEER ---


@pytest.mark.parametrize("kind", TWO)
def test_beer_is_its_recursion(kind):
    """The five lines of the paper, with the largest of three entries for C; V_0 is the gradient at X_0 = H_0.

    A state holds the next X and V + gamma (W - I) G.
    """
    lr, gamma, x = 0.05, 0.4, np.zeros((NODES, LENGTH))
    pull = weights(kind).numpy() - np.eye(NODES)
    h, v = x, A * (x - Z)
    g = largest(v)
    wire = Compression(beta=2 / 3, codec="float64")
    for state in watched("beer", 12, kind, lr=lr, gamma=gamma, compression=wire)[1:]:
        assert close(state.known_x, h, 1e-12) and close(state.known_v, g, 1e-12)
        new = x + gamma * pull @ h - lr * v
        assert close(state.x, new, 1e-12) and close(state.v, v + gamma * pull @ g, 1e-12)
        h = h + largest(new - h)
        v = v + gamma * pull @ g + A * (new - Z) - A * (x - Z)
        g, x = g + largest(v - g), new


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "complete"])
def test_beer_reaches_the_minimum_through_a_third_of_the_entries(kind):
    """Though nodes differ; CHOCO-SGD stays away from it, as each node pulls to its own minimum."""
    options = {"compression": Compression(beta=2 / 3, codec="float64"), "gamma": 0.4}
    goal = np.tile(BEST, (NODES, 1))
    assert close(watched("beer", 250, kind, lr=0.08, **options)[-1].x, goal, 1e-6)
    assert not close(watched("choco_sgd", 250, kind, lr=0.08, local_steps=1, **options)[-1].x, goal, 1e-2)


@pytest.mark.parametrize("wire", [EXACT, Compression(beta=0.5, codec="q4")])
@pytest.mark.parametrize("protected", [None, privacy(clip=0.1, z=0.5)])
def test_the_mean_tracker_of_beer_is_the_mean_release(protected, wire):
    for state in watched("beer", 15, lr=0.05, privacy=protected, compression=wire):
        assert close(state.v.mean(0), state.g.mean(0), 1e-9)


def test_beer_on_one_graph_of_all_is_gradient_descent():
    """With gamma 1 and nothing left out: W averages, v is the mean gradient, at points that agree after a round."""
    states = watched("beer", 6, "complete", lr=0.1, gamma=1.0)
    x = np.zeros(LENGTH)
    for state in states:
        assert close(state.x.mean(0), x, 1e-12)
        x = x - 0.1 * (A * (state.x.numpy() - Z)).mean(0)


def test_clipped_gradients_are_what_beer_tracks():
    """As in PORTER: a tracker takes in the clipped gradient, first at X_0 = 0, then at the points that follow."""
    before, *states = watched("beer", 5, lr=0.05, grad_clip=0.3)
    for state in states:
        gradient = A * (before.x.numpy() - Z)
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        assert close(state.g, gradient * np.minimum(1, 0.3 / norms), 1e-12)
        assert close(state.v.mean(0), state.g.mean(0), 1e-12)
        before = state
    assert norms.max() > 0.3
