"""Runs side by side: which may be stacked in front of the client axis, how many of them, and how they part again.

Ten runs that differ in their seed, or in how much noise they add, are ten times the same operations on small
tensors, of which most of the time is spent on telling torch what to do. Stacked they are the same operations
once, on tensors with an axis of runs in front. Nothing else of a run changes: it keeps its folder, its
evaluations and its checkpoint, which is the one it would have alone, so a stacked run can be taken up apart or
in another stack.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from datasets.federation import Federation, one_pool, stack
from harness.config.run import RunSpec
from harness.core.wire.settings import BUDGETS, Privacy
from harness.simulation.build import Setup
from privacy import Ledger

Checkpoint = dict[str, Any]
LARGEST = 32  # runs in a stack
STEP_BYTES = 16 * 2**20  # of all clients' models and batches in one step: beyond, arithmetic dominates
POOL_BYTES = 2**30  # of the runs' samples, where each has standardized its own
EVALUATED = frozenset({"test", "selection"})  # splits from which no batch is drawn
PARTS = frozenset(
    {"round", "state", "channel", "ledger", "charged", "cost", "errors", "pruned", "lines", "seconds"}
)
PER_RUN = (
    "state",
    "channel",
    "cost",
    "errors",
    "diagnostics",
)  # parts of a checkpoint that hold a tensor a run


def obstacle(setup: Setup) -> str | None:
    """Return why a run cannot be stacked with others; None if it can."""
    meta, problem, spec = setup.algorithm.meta, setup.problem, setup.spec
    if not meta.stackable:
        return f"algorithm {meta.name} takes decisions for a run as a whole"
    if setup.rows.mode == "loop":
        return "clients are run in a loop; runs would be as well"
    if setup.compression.alpha != 0.0:
        return "every run prunes a model of its own"
    if setup.privacy is not None and setup.privacy.unit == "record":
        return "the rate at which a record is drawn is each run's own"
    if problem.constants is None:
        return f"problem {problem.name} does not say what it has taken from the clients' data"
    if _in_epochs(setup) and not meta.parts and spec.cohort is not None:
        return "a cohort takes as many steps as its largest client's epochs, which is each run's own number"
    return None


def signature(setup: Setup) -> Hashable:
    """Return what runs must agree in to be stacked: everything but seed and noise, and what the seed makes uneven.

    Clients of unlike sizes are padded. But where the largest client decides how wide a batch is, or how many
    steps all of them go through, it must be of one size in all runs: what is counted, and what algorithms make of
    the number of steps, would be that of the largest run. Only who holds more than a batch is shuffled.
    """
    drawn = sorted(setup.training.splits.keys() - EVALUATED)
    batches = tuple((width, most <= width) for width, most in (_batch(setup, split) for split in drawn))
    width, largest = _batch(setup)
    counted = _in_epochs(setup) and not setup.algorithm.meta.parts
    steps = -(-largest // width) if counted else None
    rate = setup.privacy and setup.privacy.rate
    secure = setup.privacy is not None and setup.privacy.secure
    spec = stack_key(setup.spec).model_dump_json()
    return (spec, rate, secure, setup.problem.constants, setup.federation.clients, batches, steps)


def stack_key(spec: RunSpec) -> RunSpec:
    """Return a run as all are that may be stacked with it: the first seed, and a budget of 1.

    Without noise, or with a clip norm that follows noisy counts, a run computes something else.
    """
    given = spec.privacy
    if given is not None and given.clip != "adaptive" and given.noise_multiplier != 0:
        some = {name: 1.0 for name in BUDGETS if getattr(given, name) is not None}
        spec = spec.model_copy(update={"privacy": given.model_copy(update=some)})
    return spec.model_copy(update={"seed": 0})


def own_ledger(ledger: Ledger, privacies: Sequence[Privacy], number: int) -> Ledger:
    """Return the ledger of one run of a stack, from that of the first: the same releases, with its own noise."""
    if not privacies:
        return ledger
    first, own = privacies[0].noise_multiplier, privacies[number].noise_multiplier
    return ledger if first == own else ledger.exchanged({first: own})


def _batch(setup: Setup, split: str = "train") -> tuple[int, int]:
    """Return how many samples a batch has room for, and how many the largest client holds."""
    largest = int(setup.training.counts(split).max())
    return min(setup.algorithm.batch_size or largest, largest), largest


def _in_epochs(setup: Setup) -> bool:
    return setup.algorithm.local_steps is None


def worthwhile(setups: Sequence[Setup]) -> int:
    """Return how many runs of one signature are worth stacking.

    What stacking saves is the time of telling torch what to do. It is lost again where a step's tensors outgrow the
    cache: ten runs of 20 perceptrons of 159,010 parameters take twice as long side by side as one after the other.
    """
    setup, pools = setups[0], [run.federation.pool.x for run in setups]
    training, cohort = setup.training, setup.spec.cohort
    clients = training.clients if cohort is None else cohort.size
    width, _ = _batch(setup)
    entries = sum(value.numel() for value in setup.start.values()) + width * pools[0][0].numel()
    step = clients * entries * pools[0].element_size()
    unlike = len({id(x) for x in pools})
    own = pools[0].nbytes * unlike / len(pools) if unlike > 1 else 1
    return max(1, min(LARGEST, STEP_BYTES // step, int(POOL_BYTES / own)))


def together(setups: Sequence[Setup]) -> Setup:
    """Return runs of one signature as one setup with a leading axis of runs; a single one as it is.

    The runs of the result look at their data in the common pool, so that the samples are in memory once.
    """
    first = setups[0]
    if len(setups) == 1:
        return first
    shared = one_pool([setup.federation for setup in setups])
    members = tuple(replace(setup, federation=own) for setup, own in zip(setups, shared, strict=True))
    return replace(
        first,
        federation=stack(shared),
        start={name: torch.stack([setup.start[name] for setup in setups]) for name in first.start},
        mixing=None if first.mixing is None else torch.stack([_mixing(setup) for setup in setups]),
        members=members,
    )


def _mixing(setup: Setup) -> Tensor:
    assert setup.mixing is not None
    return setup.mixing


def slices(federation: Federation, count: int) -> list[Federation]:
    """Return the federations of a stack."""
    if count == 1:
        return [federation]
    each = ({name: index[number] for name, index in federation.splits.items()} for number in range(count))
    return [replace(federation, splits=splits) for splits in each]


def split(checkpoint: Checkpoint, number: int, setup: Setup) -> Checkpoint:
    """Return the checkpoint of one run of a stack; a single run's as it is."""
    if not setup.members:
        return checkpoint
    # Cloned: what is written to disk would otherwise be all runs' memory.
    own = {name: {key: part[number].clone() for key, part in checkpoint[name].items()} for name in PER_RUN}
    privacies = [one.privacy for one in setup.each if one.privacy is not None]
    ledger = own_ledger(Ledger.from_json(checkpoint["ledger"]), privacies, number)
    return {**checkpoint, **own, "ledger": ledger.to_json()}


def join(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Return the checkpoint of a stack of runs that stand `at` one point."""
    first = checkpoints[0]
    if len(checkpoints) == 1:
        return first
    every = {
        name: {key: torch.stack([one[name][key] for one in checkpoints]) for key in first.get(name, {})}
        for name in PER_RUN
    }
    return {**first, **every}


def at(checkpoint: Checkpoint | None) -> Hashable:
    """Return where a run stands: runs are taken up in one stack only from one point."""
    if checkpoint is None:
        return None
    ledger = Ledger.from_json(checkpoint["ledger"])
    multipliers = sorted({noise for draw in ledger.all_draws for noise, _ in draw.releases})
    releases = ledger.exchanged(dict(zip(multipliers, range(1, len(multipliers) + 1), strict=True)))
    seen = checkpoint.get("diagnostics", {})  # older checkpoints have none
    return checkpoint["round"], releases, tuple(sorted(checkpoint["channel"])), tuple(sorted(seen))
