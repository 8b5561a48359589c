"""Gossiping methods with a constrained y: a fair classification in miniature, unlike at every node."""

import pytest
import torch

from algorithms.decentralized.k_gt_minimax import KGTMinimax
from datasets.topology import Ring, mixing_matrix
from harness.core import Problem
from harness.core.methods.derivatives import project_simplex
from tests.support.wire import privacy
from tests.support.worlds import close, federation_of, run_algorithm

SHIFTS = [1.0, -2.0, 0.5, 0.5]  # e_i, sum 0
RING = mixing_matrix(Ring(), 4)
NOISY = privacy(z=0.5)
METHODS = {
    "k_gt_minimax": {"lr_x": 0.02, "lr_y": 0.02, "local_steps": 5},
    "dm_hsgd": {"lr_x": 0.05, "lr_y": 0.05},
    "dream": {"lr_x": 0.05, "lr_y": 0.05, "hops": 3},
    "decentralized_local_sgda": {"lr_x": 0.05, "lr_y": 0.05, "local_steps": 5},
}


def losses(x):
    return torch.cat([x**2 / 2, (x - 2) ** 2 / 2 + 0.5], -1)


def miniature():
    """f_i(x, y) = y_1 (L_1 + e_i x) + y_2 (L_2 + e_i x), L_1 = x^2 / 2, L_2 = (x - 2)^2 / 2 + 1 / 2."""

    def loss(x, y, batch):
        return y @ (losses(x) + batch.x[0, 0] * x)

    def start(generator):
        return {"x": torch.zeros(1, dtype=torch.float64), "y": torch.full((2,), 0.5, dtype=torch.float64)}

    clients = federation_of([torch.tensor([[e]], dtype=torch.float64) for e in SHIFTS])
    return Problem("miniature", "minimax", start, loss, project=project_simplex), clients


def path(name, rounds, **options):
    """Return the states before the first and after every round, on a ring."""
    seen = []
    options = {"mixing": RING, "watch": seen.append} | METHODS[name] | options
    run_algorithm(name, *miniature(), rounds, **options)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["k_gt_minimax", "dm_hsgd", "dream"])
def test_tracking_reaches_the_constrained_saddle(name):
    """x^2 = (x - 2)^2 + 1 at 1.25: both losses are equal; there y_1 x + y_2 (x - 2) = 0 with y = (.375, .625)."""
    state = path(name, 700)[-1]
    assert close(state.x, [1.25] * 4, 1e-6)
    assert close(state.y, [[0.375, 0.625]] * 4, 1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("privacy", [None, NOISY])
def test_y_stays_on_the_simplex(name, privacy):
    """Noise of deviation 1 would carry y out of it; so would steps along trackers, and FastMix."""
    for state in path(name, 25, privacy=privacy):
        assert float(state.y.min()) >= 0
        assert close(state.y.sum(-1), [1.0] * 4, 1e-12)
    assert float((state.y - 0.5).abs().max()) > 0.01


def test_k_gt_corrects_y_by_gradients_not_by_projected_steps():
    """One round of one step from x_i = 2 (i + 1), y_i = (1, 0): every y-step is projected back onto (1, 0).

    cy <- -g + W (g + cy) with g the gradient by y at the start, as if there were no constraint. Mean zero always.
    """
    x = torch.arange(1.0, 5.0, dtype=torch.float64)[:, None]
    y = torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64)
    problem, clients = miniature()
    gradient = losses(2 * x) + torch.tensor(SHIFTS, dtype=torch.float64)[:, None] * 2 * x
    assert bool((gradient[:, 0] > gradient[:, 1]).all()), "ascent goes on into the corner"

    class There(KGTMinimax):
        """Starts there, with corrections of zero."""

        def init(self, start, clients, channel):
            return self.State(2 * x, y, torch.zeros_like(x), torch.zeros_like(y))

    found = run_algorithm(There(local_steps=1, lr_x=0.01, lr_y=0.01), problem, clients, 1, mixing=RING).state
    assert close(found.y, y, 1e-12)
    assert close(found.cy, RING @ gradient - gradient, 1e-12)
    assert all(close(state.cy.mean(0), [0.0, 0.0], 1e-12) for state in path("k_gt_minimax", 30))
