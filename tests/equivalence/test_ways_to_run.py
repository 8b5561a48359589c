"""Who computes must not show: vectorized, in a loop, on threads, client by client, with idle steps."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from harness import models
from harness.core import ALGORITHMS, Clients
from harness.core.clients.batches import Batches
from harness.core.errors import UserError
from harness.core.execution import tracing
from harness.core.execution.vectorize import ClientExecutor
from harness.core.settings.compression import Compression
from harness.problems.classify import classifier
from tests.support.wire import privacy as mechanism
from tests.support.worlds import (
    EXACT,
    largest_difference,
    logistic,
    make_algorithm,
    quadratic_minimax,
    random_federation,
    run_algorithm,
    small_task,
    widened,
)

SIZES = [7, 12, 3, 9]
LOOPS = [("loop", 1, False), ("loop", 2, False), ("loop", 1, True), ("loop", 2, True)]
NOISY = mechanism(z=0.5)
CENTRAL = mechanism("central", z=0.5, adjacency="replace", sampling="full")


def convolutional():
    """A small network with every kind of layer, on images of 1 x 6 x 6."""
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    federation = random_federation(SIZES, features=36)
    images = federation.pool._replace(x=federation.pool.x.view(-1, 1, 6, 6))
    return classifier(module), replace(federation, pool=images)


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
@pytest.mark.parametrize(("cohort", "work"), [(None, {"local_epochs": 2}), (3, {"local_steps": 5})])
def test_vectorized_looped_threaded_and_in_chunks_agree(name, cohort, work):
    """On images; on rows every algorithm is compared by the conformance check `_modes`."""
    problem, federation = convolutional()
    options = {"lr": 0.3, "batch_size": 4, "cohort": cohort, **work}
    expected = run_algorithm(name, problem, federation, 3, **options)
    for mode, threads, chunks in LOOPS:
        found = run_algorithm(
            name, problem, federation, 3, executor=ClientExecutor(mode, threads), chunks=chunks, **options
        )
        assert largest_difference(found.state, expected.state) < 1e-10, (mode, threads, chunks)
        counters = ("up", "down", "oracle_calls")
        for counter in counters if chunks else (*counters, "flops"):
            assert int(getattr(found.cost, counter)) == int(getattr(expected.cost, counter)) > 0


def test_parts_do_the_same_work():
    """Client 2 has 3 samples; beside others its batches are padded to 4, alone they are not."""
    problem, federation = logistic(), random_federation([12, 3])
    options = {"local_steps": 2, "batch_size": 4}
    whole = run_algorithm("fedavg", problem, federation, 1, executor=ClientExecutor("loop"), **options).cost
    chunks = run_algorithm(
        "fedavg", problem, federation, 1, executor=ClientExecutor("loop"), chunks=True, **options
    ).cost
    assert int(whole.flops) == int(chunks.flops)
    assert int(whole.oracle_calls) == int(chunks.oracle_calls) == 2 * (4 + 3)


@pytest.mark.parametrize("privacy", [NOISY, CENTRAL])
@pytest.mark.parametrize("compression", [EXACT, Compression(beta=0.5, codec="float64", select="random_k")])
def test_parts_send_through_the_same_channel(privacy, compression):
    """Noise, mask and booking of a cohort in chunks are those of the cohort as a whole."""
    problem, federation = logistic(), random_federation(SIZES)
    options = {"lr": 0.3, "local_steps": 3, "privacy": privacy, "compression": compression}
    whole = run_algorithm("fedavg", problem, federation, 3, **options)
    chunks = run_algorithm(
        "fedavg", problem, federation, 3, executor=ClientExecutor("loop", 2), chunks=True, **options
    )
    assert largest_difference(whole.state, chunks.state) < 1e-10
    assert whole.ledger.report(1e-5) == chunks.ledger.report(1e-5)
    assert whole.ledger.made == chunks.ledger.made
    assert int(whole.cost.up) == int(chunks.cost.up)
    silent = run_algorithm("fedavg", problem, federation, 3, lr=0.3, local_steps=3)
    assert largest_difference(whole.state, silent.state) > 1e-3


def test_the_order_in_which_workers_finish_does_not_show():
    """Parts add their messages in the order of the clients, so threads change not one bit."""
    problem, federation = logistic(), random_federation(SIZES)
    options = {"lr": 0.3, "local_steps": 4, "batch_size": 3, "chunks": True}
    once = run_algorithm("fedavg", problem, federation, 4, executor=ClientExecutor("loop", 1), **options)
    again = [
        run_algorithm("fedavg", problem, federation, 4, executor=ClientExecutor("loop", n), **options)
        for n in (2, 3)
    ]
    assert all(torch.equal(once.state.x, other.state.x) for other in again)


def test_a_failing_part_ends_the_round_with_its_own_error():
    """The workers that wait for the failed part are released."""
    problem, federation = logistic(), random_federation([5, 5, 5])

    def loss(x, batch):
        if float(batch.x.detach().sum()) == poison:
            raise ZeroDivisionError("client 0 is broken")
        return problem.loss(x, batch)

    poison = float(federation.pool.x[:5].sum())
    broken = type(problem)("broken", "erm", problem.init, loss)
    with pytest.raises(ZeroDivisionError, match="client 0 is broken"):
        run_algorithm(
            "fedavg", broken, federation, 1, executor=ClientExecutor("loop", 2), chunks=True, batch_size=None
        )


@pytest.mark.parametrize("name", ["fedavg", "centralized", "afl", "fairfed", "fedpac", "fedala", "choco_sgd"])
def test_wider_padding_of_the_index_changes_nothing(name):
    """Rows of the index are as long as the largest client's; how much longer does not matter.

    One of every kind, and those that look at all data of a client: losses, groups, classes.
    """
    problem, federation = small_task(name, SIZES)
    federation = federation.merged() if ALGORITHMS[name].meta.pooled else federation
    options = {"local_epochs": 2, "batch_size": 4}
    plain = run_algorithm(name, problem, federation, 3, **options).state
    wider = run_algorithm(name, problem, widened(federation, 5), 3, **options).state
    assert all(torch.equal(one, other) for one, other in zip(plain, wider, strict=True))


def add_a_step_of_padding(monkeypatch):
    """After its own batches every client sees one without a sample."""
    draw = Clients.batches

    def idle(self, *arguments, **settings) -> Batches:
        made = draw(self, *arguments, **settings)
        padding = torch.full_like(made.positions[:1], -1)
        return replace(made, positions=torch.cat([made.positions, padding]), same=False)

    monkeypatch.setattr(Clients, "batches", idle)


@pytest.mark.parametrize("name", ["fedavg", "fedala", "fedmp", "fedrep", "pfedme", "scaffold"])
def test_steps_of_padding_only_change_nothing(name, monkeypatch):
    """Clients with little data finish early, and the steps they sit out count as no work.

    That no algorithm moves in them is its conformance check `_idle`.
    """
    problem, federation = small_task(name, SIZES)
    federation = federation.merged() if ALGORITHMS[name].meta.pooled else federation
    options = {"local_epochs": 1, "batch_size": 4}
    plain = run_algorithm(name, problem, federation, 3, **options)
    add_a_step_of_padding(monkeypatch)
    longer = run_algorithm(name, problem, federation, 3, **options)
    assert largest_difference(plain.state, longer.state) < 1e-12
    for counter in ("flops", "oracle_calls"):  # who sits out does no work
        assert int(getattr(plain.cost, counter)) == int(getattr(longer.cost, counter))


@pytest.mark.parametrize("name", ["fedsgda_m", "k_gt_minimax", "fedbio"])
def test_methods_whose_rounds_are_steps_refuse_epochs(name):
    """Momentum and corrections would go on moving a client that has run out of batches."""
    with pytest.raises(UserError, match="local_steps"):
        make_algorithm(name, local_steps=None, local_epochs=1)


def test_a_client_that_finishes_early_is_as_if_it_were_alone():
    """Client 2 has 3 samples, so one step an epoch where the largest client has three."""
    options = {"lr": 0.5, "local_epochs": 2, "batch_size": 4}
    together = run_algorithm("local", logistic(), random_federation([12, 3]), 2, **options).state.x
    federation = random_federation([12, 3])
    alone = {name: index[1:, :3] for name, index in federation.splits.items()}
    federation = replace(federation, splits=alone)
    # 3 samples in batches of 4 are full batches: nothing is drawn, so the client's number does not matter.
    assert torch.allclose(
        together[1],
        run_algorithm("local", logistic(), federation, 2, **options).state.x[0],
        rtol=0,
        atol=1e-12,
    )


def perceptron():
    return classifier(models.build("mlp", (4,), 3)), random_federation(SIZES)


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("fedavg", lambda: (logistic(), random_federation(SIZES))),
        ("scaffold", perceptron),
        ("fedsgda_m", quadratic_minimax),
    ],
)
def test_recorded_gradients_differ_in_not_one_bit(name, world, monkeypatch):
    """A resumed run begins to count anew, so when a gradient was recorded must not show."""
    problem, federation = world()
    ends = []
    for calls in (0, 5, 10_000):
        monkeypatch.setattr(tracing, "CALLS", calls)
        executor = ClientExecutor("vmap")  # one that has recorded nothing
        ends.append(
            run_algorithm(name, problem, federation, 4, executor=executor, local_steps=3, batch_size=5).state
        )
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))
