"""What other frameworks are compared with: they are given the same model, start and local work as we are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.peers import task as tasks
from benchmarks.peers.measure import write_workload
from benchmarks.references import PlainLoop
from benchmarks.workloads import CENTRAL, W1, W2, Ours, Workload
from harness.core.settings.privacy import Privacy
from harness.problems.classify import classifier

# One batch holds all samples of a client, so that their order does not matter.
SMALL = [
    replace(W2, clients=3, samples=20, batch_size=20, signal=0.1),
    replace(W1, clients=2, samples=6, batch_size=6, signal=2.0),
]


def started(work: Workload) -> nn.Module:
    module = tasks.network(work.model, list(work.shape), work.classes)
    vector_to_parameters(work.start(), module.parameters())
    return module


def by_hand(work: Workload) -> Tensor:
    """One round as a peer's script makes it: each client trains, and the models are averaged."""
    task, _ = write_workload(work, dp=False)
    x, y = work.data()
    models = []
    for mine in torch.arange(len(y)).split(work.samples):
        module = started(work)
        task.train(module, x[mine], y[mine])
        models.append(parameters_to_vector(module.parameters()).detach())
    return torch.stack(models).mean(0)


@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.model)
def test_a_peer_is_given_the_model_of_the_workload(work: Workload) -> None:
    x, _ = work.data()
    assert torch.allclose(started(work)(x), classifier(work.module()).predict(work.start(), x), atol=1e-5)


def test_clients_of_one_process_do_not_train_each_others_models(tmp_path: Path) -> None:
    work = SMALL[0]
    task, data = write_workload(work, dp=False)
    tasks.save(tmp_path, task, data)
    one, other = tasks.build(str(tmp_path)), tasks.build(str(tmp_path))
    task.train(one, *tasks.client(str(tmp_path), 1))
    vector = parameters_to_vector(other.parameters())
    assert not torch.equal(parameters_to_vector(one.parameters()), vector)
    for untouched in (vector, tasks.load(str(tmp_path))[1].start):
        assert torch.equal(untouched, work.start())


@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.model)
def test_a_peer_the_plain_loop_and_we_make_the_same_round(work: Workload) -> None:
    plain, ours = PlainLoop(work, 1), Ours(work, "loop")
    plain()
    ours()
    expected = by_hand(work)
    assert not torch.allclose(expected, work.start(), atol=1e-4)
    assert torch.allclose(plain.vector(), expected, atol=1e-6)
    assert torch.allclose(ours.vector(), expected, atol=1e-6)


def test_the_plain_loop_clips_as_we_do() -> None:
    work = SMALL[0]
    plain = PlainLoop(work, 1, clip=0.05)
    ours = Ours(work, "loop", privacy=Privacy.of(0.0, clip=0.05, placement="central"))
    plain()
    ours()
    assert 0 < float((plain.vector() - work.start()).norm()) < 0.0501
    assert torch.allclose(plain.vector(), ours.vector(), atol=1e-6)


def test_the_plain_loop_adds_noise_of_our_size() -> None:
    work = replace(SMALL[0], lr=1e-9)
    plain = PlainLoop(work, 1, clip=1.0, noise=0.5)
    ours = Ours(work, "loop", privacy=replace(CENTRAL, noise_multiplier=0.25))
    for candidate in (plain, ours):
        candidate()
        deviation = float((candidate.vector() - work.start()).std())
        assert deviation == pytest.approx(0.5 / work.clients, rel=0.25)  # of 212 draws: 5 standard errors


def test_steps_end_a_pass_early() -> None:
    task = tasks.Task("logistic", [2], 2, [10], 4, None, 2, 0.1)
    seen = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    task.train(
        Counting(2, 2), torch.randn(10, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(10).long()
    )
    assert seen == [4, 4]
