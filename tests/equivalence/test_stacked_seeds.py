"""Runs that differ in their seed, side by side on a leading axis, are the runs one by one."""

import pytest
import torch

from datasets.federation import stack
from harness.core import ALGORITHMS
from harness.core.execution.vectorize import ClientExecutor
from harness.core.settings.compression import Compression
from tests.support.wire import privacy as mechanism
from tests.support.worlds import (
    EXACT,
    largest_difference,
    quadratic_bilevel,
    quadratic_minimax,
    run_algorithm,
    small_task,
)

SEEDS = (0, 1, 2)
# Those that read how many steps a client takes, that have epochs of their own, and that gossip. Of the others a
# client with fewer steps stands still, which the conformance check `_idle` shows of each.
EPOCHS = ["fedavg", "scaffold", "fednova", "drfa", "pfedme", "ditto", "fedrep", "choco_sgd"]
# One of every kind, and those that combine the rows of a cohort by themselves. That rows of absent clients stay is
# the check `_partial`; that stacks have the bits of their runs is `settings_side_by_side`.
COHORTS = ["fedavg", "scaffold", "ditto", "fedpac", "fairfed", "drfa", "fedsgda_m", "fednest", "fedbio"]
LOCAL = mechanism(z=0.5)
CENTRAL = mechanism("central", z=0.5, adjacency="replace", sampling="full")


def world(name):
    """Return a problem and one federation per seed."""
    meta = ALGORITHMS[name].meta
    if "minimax" in meta.solves:
        problem, federation = quadratic_minimax()
        return problem, [federation] * 3
    if "bilevel" in meta.solves:
        problem, federation = quadratic_bilevel()
        return problem, [federation] * 3
    made = [small_task(name, [7 + seed, 12, 3, 9], seed) for seed in SEEDS]
    return made[0][0], [one.merged() if meta.pooled else one for _, one in made]


def compare(name, within=0.0, rounds=3, **options):
    problem, federations = world(name)
    options = {"local_steps": ALGORITHMS[name].meta.steps or 3, "batch_size": 4} | options
    if name == "fedbio":
        options["neumann_terms"] = 2
    together = run_algorithm(name, problem, stack(federations), rounds, seeds=SEEDS, **options)
    for number, (seed, federation) in enumerate(zip(SEEDS, federations, strict=True)):
        apart = run_algorithm(name, problem, federation, rounds, seeds=(seed,), **options)
        mine = type(together.state)(*(part[number] for part in together.state))
        assert largest_difference(mine, apart.state) <= within
        for counter in ("up", "down", "flops", "oracle_calls"):
            assert int(getattr(together.cost, counter)[number]) == int(getattr(apart.cost, counter))


@pytest.mark.parametrize("name", ["fedavg", "k_gt", "fedsgda_m", "k_gt_minimax", "fedbio"])
def test_steps_of_every_kind(name):
    """States of all other algorithms are compared by the conformance check `settings_side_by_side`."""
    compare(name)


@pytest.mark.parametrize("name", EPOCHS)
def test_epochs_of_uneven_clients(name):
    """What the first round leaves is what the second begins with."""
    compare(name, rounds=2, local_steps=None, local_epochs=2)


@pytest.mark.parametrize("name", COHORTS)
def test_each_run_draws_its_own_cohort(name, monkeypatch):
    """Also where cohorts have batches of different width, which a run refuses, as their sums round differently."""
    monkeypatch.setattr("harness.core.clients.local_data.mismatched_batches", lambda *_: False)
    size = 1 if "bilevel" in ALGORITHMS[name].meta.solves else 2
    compare(name, within=1e-10, rounds=2, cohort=size)


def test_in_a_loop():
    compare("scaffold", executor=ClientExecutor("loop"))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsgda_m"])
@pytest.mark.parametrize("privacy", [LOCAL, CENTRAL])
def test_with_noise(name, privacy):
    """Noise is keyed by seed, round, message and sender, so each run has its own."""
    compare(name, privacy=privacy)


@pytest.mark.parametrize(
    "compression",
    [
        Compression(beta=0.5, codec="float64", error_feedback=True),
        Compression(beta=0.5, codec="float64", select="random_k"),
        Compression(codec="q4"),
        Compression(beta=0.5, codec="q8", error_feedback=True),
        Compression(beta=0.5, codec="q8", shift=0.5),
        Compression(rank=1, codec="q8", error_feedback=True),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_with_pruned_and_quantized_messages(name, compression):
    compare(name, compression=compression, cohort=2)


@pytest.mark.parametrize("name", ["d_sgd", "k_gt", "choco_sgd"])
def test_with_factors_of_differences(name):
    compare(name, compression=Compression(rank=1, codec="q8"))


def test_seeds_are_really_different_runs():
    problem, federations = world("fedavg")
    together = run_algorithm(
        "fedavg", problem, stack(federations), 1, seeds=SEEDS, start=None, compression=EXACT, batch_size=4
    ).state.x
    assert not torch.allclose(together[0], together[1])
