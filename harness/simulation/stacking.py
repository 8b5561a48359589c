"""Stacking of runs that differ only in seed, noise and numbers such as step sizes.

Such runs perform the same operations on small tensors, where most of the time is torch's dispatch. Stacked, the
operations are performed once, on tensors with a leading axis of runs. Each run keeps its own folder, evaluations
and checkpoint. The checkpoint equals that of an unstacked run, so a run can be resumed alone or in another stack.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from datasets.federation import Federation, one_pool, stack
from harness.config.run import RunSpec
from harness.core.algorithm import ALGORITHMS
from harness.core.clients.row_table import of_run, stacked
from harness.core.execution.exact.widths import uneven_batches
from harness.core.per_run import kind
from harness.core.settings.privacy_kinds import BUDGETS
from harness.models import MODELS
from harness.simulation.setup import Prepared, Setup

Checkpoint = dict[str, Any]
T = TypeVar("T")
P = TypeVar("P", bound=Prepared)

LARGEST_STACK = 64  # runs in a stack
STEP_BYTES = 16 * 2**20  # of all models and batches in one step; beyond this, arithmetic dominates
POOL_BYTES = 2**30  # of the runs' samples, if each run standardizes its own
SHARED_ENTRIES = 2**18  # of the batches of a step, of all seeds of a stack whose runs share them
EVALUATED = frozenset({"test", "selection"})  # splits from which no batch is drawn
FIELDS = frozenset(
    {"round", "state", "channel", "draws", "participation", "cost", "errors", "pruned", "lines", "seconds"}
)
# Checkpoint fields with a leading axis of runs.
PER_RUN = ("state", "channel", "participation", "cost", "errors", "diagnostics")


def obstacle(setup: Prepared) -> str | None:
    """Return why a run cannot be stacked with others; None if it can."""
    meta, problem, spec = setup.algorithm.meta, setup.problem, setup.spec
    if not meta.stackable:
        return f"algorithm {meta.name} decides per run"
    if setup.executor.mode == "loop":
        return "clients are run in a loop"
    if spec.model is not None and not MODELS[spec.model["name"]].ours:
        return "operations of a plugin's model may round by where an entry lies in memory"
    if setup.compression.alpha != 0.0:
        return "every run prunes its own model"
    if setup.privacy is not None and setup.privacy.by_gradient:
        return "every run has its own sampling rate of records"
    if setup.compression.rank is not None:
        return "factors of matrices round by where they lie in memory"
    privacy = setup.privacy
    if privacy is not None and privacy.clip == "adaptive" and spec.cohort and not privacy.secret_cohorts:
        return "every run has its own noise, and an adaptive clip norm follows noisy counts"
    if privacy is not None and privacy.secret_cohorts and spec.cohort is not None:
        size, splits = setup.algorithm.batch_size, setup.training.splits.keys() - EVALUATED
        if any(uneven_batches(setup.training.counts(split), size) for split in splits):
            return "the width of a batch depends on who is in the cohort, which is secret"
    if problem.constants is None:
        return f"problem {problem.name} does not declare its constants"
    if _in_epochs(setup) and not meta.chunks and spec.cohort is not None:
        return "the number of steps of a cohort depends on its largest client, which differs between runs"
    if torch.get_num_threads() > 1:
        return (
            "several torch threads split a sum by how many runs are stacked; use --jobs instead of --threads"
        )
    return None


def signature(setup: Prepared) -> Hashable:
    """Return the key that stacked runs must share: that of `stack_key`, and sizes that depend on the seed.

    Clients of different sizes are padded. If the largest client determines the width of a batch or the number of
    steps, these must agree in all runs: otherwise costs and step counts would be those of the largest run. Batches
    are shuffled only if the largest client holds more than one.
    """
    splits = sorted(setup.training.splits.keys() - EVALUATED)
    batches = tuple((width, most <= width) for width, most in (_batch(setup, split) for split in splits))
    width, largest = _batch(setup)
    steps = -(-largest // width) if _in_epochs(setup) and not setup.algorithm.meta.chunks else None
    rate = setup.privacy and setup.privacy.rate
    return (stack_key(setup.spec), rate, setup.problem.constants, setup.federation.clients, batches, steps)


def stack_key(spec: RunSpec) -> str:
    """Return the key of a spec without its seed and the numbers in which stacked runs may differ.

    These are the numbers of the algorithm that only enter by arithmetic (all but `Meta.apart`), budgets, clip
    norms, and the ratio and the threshold of messages. Of each only the sign counts. Budgets are
    kept with an adaptive clip norm, where they change more than the scale of the noise.
    """
    fields = spec.model_dump(mode="json", exclude={"seed"})
    algorithm, compression, privacy = fields["algorithm"], fields["compression"], fields["privacy"]
    apart = ALGORITHMS[algorithm["name"]].meta.apart
    fields["algorithm"] = {name: value if name in apart else kind(value) for name, value in algorithm.items()}
    free = ["threshold", "shift"]
    if compression["select"] == "top_k" and not compression["downlink"]:
        free.append("beta")
    fields["compression"] = compression | {name: kind(compression[name]) for name in free}
    if privacy is not None and privacy["clip"] != "adaptive":
        free = [*BUDGETS, "clip", "server_clip"]
        fields["privacy"] = privacy | {name: kind(privacy[name]) for name in free}
    return json.dumps(fields, sort_keys=True)


def _batch(setup: Prepared, split: str = "train") -> tuple[int, int]:
    """Return the width of a batch and the number of samples of the largest client."""
    largest = int(setup.training.counts(split).max())
    return min(setup.algorithm.batch_size or largest, largest), largest


def _in_epochs(setup: Prepared) -> bool:
    return setup.algorithm.local_steps is None


def cut(setups: Sequence[Prepared], most: int | None = None, fitting: int = LARGEST_STACK) -> list[list[int]]:
    """Cut runs of one signature into stacks, and return the numbers of the runs of each.

    Runs of one seed share their batches, also beside those of other seeds, if each seed of the stack has as many.
    Stacking saves dispatch time, but loses it again if the tensors of a step outgrow the cache: ten runs of 20
    perceptrons with 159,010 parameters take twice as long stacked as one after the other.

    Parameters
    ----------
    setups : sequence of Prepared
        Runs of one signature.
    most : int, optional
        Largest number of runs in a stack; default: as many as is faster.
    fitting : int
        Number of runs that fit into memory.
    """
    setup, pools = setups[0], [run.federation.pool.x for run in setups]
    clients, model, batches = sizes(setup)
    seeds: dict[int, list[int]] = {}
    for number, run in enumerate(setups):
        seeds.setdefault(run.spec.seed, []).append(number)
    runs_of_seed = max(map(len, seeds.values()))
    share = pools[0].nbytes if any(x is not pools[0] for x in pools) else 0  # of the pools, a seed's
    fit = max(1, int(POOL_BYTES / share)) if share else LARGEST_STACK

    def largest(entries: int) -> int:
        return min(fitting, most or _most(clients * entries, pools[0]))

    own_draws = setup.privacy is not None and setup.privacy.own_draws and setup.spec.cohort is not None
    if runs_of_seed == 1 or own_draws:  # and so batches of their own
        together = [number for members_of_seed in seeds.values() for number in members_of_seed]
        count = -(-len(together) // min(fit, largest(model + batches)))
        return [list(some) for some in pieces(together, count)]
    size, stacks = largest(model), []
    beside = max(1, min(fit, SHARED_ENTRIES // (clients * batches)))
    for length, alike in groupby(sorted(seeds.values(), key=len), key=len):
        some = list(alike)
        width = max(1, min(size // length, beside))
        for members in pieces(some, -(-len(some) // width)):
            group = [number for members_of_seed in members for number in members_of_seed]
            stacks += [list(piece) for piece in pieces(group, -(-len(group) // size))]
    return stacks


def largest_stack(setup: Prepared) -> int:
    """Return how many runs such as this one, of different seeds, are stacked at most."""
    clients, model, batches = sizes(setup)
    return 1 if obstacle(setup) else _most(clients * (model + batches), setup.federation.pool.x)


def _most(entries: int, like: Tensor) -> int:
    return max(1, min(LARGEST_STACK, STEP_BYTES // (entries * like.element_size())))


def sizes(setup: Prepared) -> tuple[int, int, int]:
    """Return the number of clients in a round, and the entries of a client's model and of its batch."""
    cohort, (width, _) = setup.spec.cohort, _batch(setup)
    clients = setup.training.clients if cohort is None else math.ceil(cohort.expected)
    model = sum(value.numel() for value in setup.start.values())
    return clients, model, width * setup.federation.pool.x[0].numel()


def pieces(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Split a list into ``count`` pieces of nearly equal length."""
    ends = [round(len(items) * n / count) for n in range(count + 1)]
    return [items[first:last] for first, last in pairwise(ends)]


def stack_setups(setups: Sequence[P]) -> P:
    """Stack runs of one signature into one setup with a leading axis of runs; return a single run unchanged.

    Members index a common pool, so the samples are in memory once.
    """
    first = setups[0]
    if len(setups) == 1:
        return first
    shared = one_pool([setup.federation for setup in setups])
    members = tuple(
        replace(setup, federation=federation) for setup, federation in zip(setups, shared, strict=True)
    )
    mixings = [setup.mixing for setup in setups if setup.mixing is not None]
    whole = replace(
        first,
        federation=stack(shared),
        start={name: torch.stack([setup.start[name] for setup in setups]) for name in first.start},
        mixing=torch.stack(mixings) if mixings else None,
        members=members,
    )
    return replace(whole, dry=None) if isinstance(whole, Setup) else whole  # that of the first is no stack's


def slices(federation: Federation, count: int) -> list[Federation]:
    """Return the federations of a stack."""
    if count == 1:
        return [federation]
    each = ({name: index[number] for name, index in federation.splits.items()} for number in range(count))
    return [replace(federation, splits=splits) for splits in each]


def split(checkpoint: Checkpoint, number: int, setup: Prepared) -> Checkpoint:
    """Return the checkpoint of one run of a stack; that of a single run unchanged."""
    if not setup.members:
        return checkpoint
    # In memory of its own, because saving a view would write the memory of all runs.
    own = {name: {key: of_run(field, number) for key, field in checkpoint[name].items()} for name in PER_RUN}
    return {**checkpoint, **own}


def join(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Return the checkpoint of a stack of runs with equal `stack_point`."""
    first = checkpoints[0]
    if len(checkpoints) == 1:
        return first
    joined = {
        name: {
            key: stacked([checkpoint[name][key] for checkpoint in checkpoints]) for key in first.get(name, {})
        }
        for name in PER_RUN
    }
    return {**first, **joined}


def stack_point(checkpoint: Checkpoint | None) -> Hashable:
    """Return the key that checkpoints must share to be resumed in one stack."""
    if checkpoint is None:
        return None
    diagnostics = checkpoint.get("diagnostics", {})  # older checkpoints have none
    names = (tuple(sorted(entry)) for entry in (checkpoint["channel"], diagnostics))
    return checkpoint["round"], json.dumps(checkpoint["draws"]), *names
