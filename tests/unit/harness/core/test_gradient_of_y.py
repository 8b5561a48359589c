"""`Clients.grad_y`: the ascent direction alone, at the price of it alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from harness.core.algorithm import ALGORITHMS
from harness.core.clients.pruning import prune_models
from harness.problems.fair import fair_classifier
from tests.support.wire import cohort, record, rows
from tests.support.worlds import iid_federation

WORK = ALGORITHMS["local_sgda"](local_steps=1, batch_size=None)


def problem():
    return fair_classifier(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 2, "euclidean")


def both_and_one(**options):
    """Return the gradients by x and y, that by y alone, and what each cost."""
    x, y = rows(26), rows(2, seed=5)
    found, cost = [], []
    for verb in ("grads", "grad_y"):
        # Class means are no sums over samples; whether the loss suits record-level privacy is not the question
        # here.
        clients = cohort(problem=replace(problem(), per_sample=True), data=iid_federation(), **options)
        (batch,) = clients.batches(WORK)
        found.append(getattr(clients, verb)(x, y, batch))
        cost.append(int(clients.cost.flops))
        ledger = clients.ledger
    return found, cost, ledger


@pytest.mark.parametrize("mode", ["vmap", "loop"])
@pytest.mark.parametrize("pruned", [None, 0.5, torch.tensor([0.0, 0.5, 0.75, 0.5])])
def test_it_is_the_second_of_both_gradients_and_takes_less_work(mode, pruned) -> None:
    """Without the backward pass through the network a third of the products is left."""
    start = problem().init(torch.Generator().manual_seed(0))["x"].double()
    left = None if pruned is None else prune_models(problem(), start, pruned, None)
    (both, alone), (dear, cheap), _ = both_and_one(mode=mode, pruned=left)
    torch.testing.assert_close(alone, both[1])
    assert 0 < 2 * cheap < dear


def test_with_recorded_operations_it_is_the_same() -> None:
    """After a hundred calls the operations are replayed."""
    clients = cohort(problem=problem(), data=iid_federation())
    (batch,) = clients.batches(WORK)
    x, y = rows(26), rows(2, seed=5)
    first = clients.grad_y(x, y, batch)
    for _ in range(110):
        last = clients.grad_y(x, y, batch)
    assert torch.equal(first, last)
    assert not torch.equal(clients.grad_y(x + 1, y, batch), last)


def test_under_record_privacy_it_is_clipped_and_booked_once() -> None:
    """With a clip norm far above them nothing changes; a record's part of a mean over n is at most clip / n."""
    (both, alone), _, ledger = both_and_one(mechanism=record(clip=1e9))
    torch.testing.assert_close(alone, both[1])
    assert ledger.made == 1
    (_, small), _, _ = both_and_one(mechanism=record(clip=1e-3))
    assert (small.norm(dim=-1) <= 1e-3).all() and small.any()
