"""What travels with a batch, and what stacked runs share, is said by types."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from datasets.federation import Batch
from harness.core.algorithm import ALGORITHMS
from harness.core.clients.local_batch import LocalBatch
from harness.core.errors import Incompatible
from harness.core.execution.exact.sharing import Shared, leaves_of
from harness.core.execution.vectorize import ClientExecutor
from tests.support.wire import cohort, record

FEDAVG = ALGORITHMS["fedavg"]


def test_an_empty_draw_looks_like_any_other_step():
    """Of one sample in 1/50 of draws most are empty; algorithms see neither that nor how many were drawn."""
    batches = list(cohort(mechanism=record()).batches(FEDAVG(local_steps=40, batch_size=1)))
    drawn = torch.stack([batch.revealed().weight.sum(-1) for batch in batches])
    assert {0.0, 1.0, 2.0} <= set(drawn.unique().tolist())
    for batch in batches:
        assert bool((batch.active == 1).all()) and bool((batch.weight == 1).all())


def test_the_private_side_travels_with_a_copy_of_a_batch():
    clients = cohort(mechanism=record())
    x = clients.rows(torch.randn(8, dtype=torch.float64))
    (batch,) = clients.batches(FEDAVG(local_steps=1, batch_size=None))
    assert batch.samples.x.isnan().all() and not batch.revealed().x.isnan().any()
    copied = batch.with_samples(weight=batch.weight.clone())
    assert torch.equal(clients.grad(x, copied), clients.grad(x, batch))
    with pytest.raises(Incompatible, match="needs batches drawn"):
        clients.grad(x, LocalBatch(batch.samples))


def test_clients_that_stay_idle_get_padding():
    clients = cohort()
    (batch,) = clients.batches(FEDAVG(local_steps=1, batch_size=None))
    active = torch.arange(len(clients.ids)).unsqueeze(-1).clamp(max=1).double()
    idle = batch.only(active)
    assert torch.equal(idle.active, active)
    gradient = clients.grad(clients.rows(torch.randn(8, dtype=torch.float64)), idle)
    assert not gradient[0].any() and gradient[1:].any(-1).all()


RUNS, CLIENTS = 4, 2


def test_weights_of_runs_need_no_copies_of_features():
    """Features are large: of two seeds, each run would have a copy of its own."""
    x = torch.ones(2, CLIENTS, 3, 2)
    batch = LocalBatch(Batch(x, x[..., 0], x[..., 0], torch.ones(2, CLIENTS, 3)), RUNS)
    with Copied() as copied:
        assert batch.weight.shape == (RUNS, CLIENTS, 3) and batch.active.shape == (RUNS, CLIENTS, 1)
    assert copied.most <= RUNS * CLIENTS * 3


class Copied(TorchDispatchMode):
    """Notes the size of the largest result."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_what_is_shared_gives_what_copies_give(seeds, mode):
    """Four runs of one seed, or of two: gradients at points of their own, or at one view for all."""
    x = torch.randn(seeds, CLIENTS, 3, 2, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, x[..., 0], torch.zeros_like(x[..., 0]), torch.ones(seeds, CLIENTS, 3))
    shared = Shared(batch, RUNS)
    copies = Batch(*(part.repeat_interleave(RUNS // seeds, 0) for part in batch))
    own = torch.randn(RUNS, CLIENTS, 2, generator=torch.Generator().manual_seed(1))
    for points in (own, own[:1].expand(RUNS, -1, -1)):
        one, other = (ClientExecutor(mode).gradient(_loss, 2, [points], each)[0] for each in (shared, copies))
        torch.testing.assert_close(one, other)
        one, other = (ClientExecutor(mode).map(_loss, 2, points, each) for each in (shared, copies))
        torch.testing.assert_close(one, other)
        one, other = (ClientExecutor(mode).map(_mean, 2, each) for each in (shared, copies))
        torch.testing.assert_close(one, other)


def test_a_view_for_all_runs_is_not_taken_for_shared():
    points = torch.ones(1, CLIENTS, 2).expand(RUNS, -1, -1)
    assert leaves_of([points, torch.ones(RUNS, CLIENTS, 3)])[2] == ()
    assert leaves_of([points, Shared(torch.ones(1, CLIENTS, 3), RUNS)])[2] == (False, True)


def _loss(point, batch):
    return ((batch.x @ point - batch.y).square() * batch.weight).sum()


def _mean(batch):
    return batch.x.mean(0)
