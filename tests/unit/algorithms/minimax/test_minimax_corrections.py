"""What minimax methods correct their clients with: anchors, control variates, first directions."""

import pytest
import torch

from harness.core import Channel
from tests.support.wire import cohort
from tests.support.worlds import (
    EXACT,
    close,
    make_algorithm,
    quadratic_minimax,
    run_algorithm,
    weighed_logistic,
)

TINY = 1e-10
MINIBATCH = {"lr_x": 0.3, "lr_y": 0.2, "local_steps": 1, "batch_size": 3}


def first_gradients(world, stream):
    """Return the start, and everybody's mean gradients there on the batches of a stream of round 0."""
    problem, federation = world()
    clients = cohort(data=federation, problem=problem)
    start = run_algorithm("local_sgda", problem, federation, 0).state
    (batch,) = clients.batches(make_algorithm("sagda", **MINIBATCH), steps=1, stream=stream)
    gx, gy = clients.grads(clients.rows(start.x), clients.rows(start.y), batch)
    return start, gx.mean(0), gy.mean(0)


def test_resampling_sagda_starts_along_the_mean_anchor_gradient():
    """g(z; B) - g(z_0; B) = 0 at z = z_0: both gradients must be on one batch."""
    start, gx, gy = first_gradients(weighed_logistic, "anchor")
    found = run_algorithm("sagda", *weighed_logistic(), 1, resample_cv=True, **MINIBATCH).state
    assert close(found.x, start.x - 0.3 * gx, TINY)
    assert close(found.y, start.y + 0.2 * gy, TINY)
    stored = run_algorithm("sagda", *weighed_logistic(), 1, resample_cv=False, **MINIBATCH).state
    assert not close(stored.x, start.x - 0.3 * gx, 1e-4)


def test_fednest_starts_along_the_mean_anchor_gradient():
    """As above; y goes first, at the x of the start."""
    start, _, gy = first_gradients(weighed_logistic, "inner anchor 0")
    found = run_algorithm("fednest", *weighed_logistic(), 1, **MINIBATCH).state
    assert close(found.y, start.y + 0.2 * gy, TINY)
    plain = run_algorithm("fednest", *weighed_logistic(), 1, svrg=False, **MINIBATCH).state
    assert not close(plain.y, start.y + 0.2 * gy, 1e-4)


@pytest.mark.parametrize("client", [0, 1, 3])
def test_codascas_control_variate_is_a_difference_of_points(client):
    """c_k - c + (x - x_k) / (Q lr), and (y_k - y) / (Q lr) for the ascent; a cohort of one shows x_k.

    The others' control variates stay, the server's move by a quarter of the change.
    """
    problem, federation = quadratic_minimax()
    settings = {"lr_x": 0.05, "lr_y": 0.04, "local_steps": 5, "prox": 0.3, "stage_rounds": 2}
    algorithm = make_algorithm("codasca", **settings)
    old = run_algorithm(algorithm, problem, federation, 3).state
    clients = cohort(
        data=federation, problem=problem, round=3, ids=[client]
    )  # the second round of the second stage: lr / 3
    new = algorithm.round(old, clients, Channel(clients, compression=EXACT))
    cx = old.cxi[client] - old.cx + (old.x - new.x) / (5 * 0.05 / 3)
    cy = old.cyi[client] - old.cy + (new.y - old.y) / (5 * 0.04 / 3)
    assert close(new.cxi[client], cx, 1e-12)
    assert close(new.cyi[client], cy, 1e-12)
    others = torch.arange(4) != client
    assert torch.equal(new.cxi[others], old.cxi[others]) and torch.equal(new.cyi[others], old.cyi[others])
    assert close(new.cx - old.cx, (cx - old.cxi[client]) / 4, 1e-12)
    assert close(new.cy, new.cyi.mean(0), 1e-12)
