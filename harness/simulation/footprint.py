"""Memory of a run before it is run: two rounds and an evaluation are gone through without memory, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from datasets.federation import Batch
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.row_table import RowTable
from harness.core.execution.ghost import clipped_sums as ghost_sums
from harness.core.execution.memory import MOST_KEPT
from harness.core.execution.vectorize import ClientExecutor, Points, _clipped_sum, _gradient
from harness.core.units import size
from harness.core.wire.message import Message
from harness.metrics import consensus_distance
from harness.simulation.build import Prepared, Setup
from harness.simulation.dry_run import DryChannel, DryClients, DryStages, with_some_noise
from harness.simulation.evaluation import EvaluatedClients, applied, joint_gradient_norm, outer_loss
from harness.simulation.hollow import Hollow, Valued, as_hollow, by_shapes
from harness.simulation.simulation import Simulation

BASELINE = 300 * 10**6  # bytes of the interpreter with torch and this package
COMPILER = 100 * 10**6  # of what torch imports for gradients of single samples, and for shapes without values
LABELS = {"client_rows": "rows that clients keep", "steps": "copies in steps", "baseline": "Python and torch"}
STEPS = 3  # local steps that are gone through; later ones take the same memory
NOISED = 5  # copies of sums of clipped gradients while noise is added to them
COPIES = 8  # of the outputs on test samples, in double precision, that an evaluation makes


class Footprint(NamedTuple):
    """Bytes that a run takes at its peak, by part.

    Attributes
    ----------
    data : int
        Samples, who holds them, and the frozen part of the model: one copy for all clients and runs.
    state : int
        Start values and what the server keeps.
    client_rows : int
        Rows that clients keep between rounds.
    messages : int
        What the channel keeps between rounds.
    batches : int
        Batches, at the peak of a round.
    gradients : int
        Gradients and the activations they need, at the peak.
    steps : int
        Copies of the models in local steps and messages, at the peak.
    evaluation : int
        What an evaluation takes beyond the peak of a round.
    freed : int
        Blocks that the C library keeps for reuse (`harness.core.execution.memory.keep_freed_memory`).
    baseline : int
        The interpreter with torch and this package.
    """

    data: int
    state: int
    client_rows: int
    messages: int
    batches: int
    gradients: int
    steps: int
    evaluation: int
    freed: int
    baseline: int = BASELINE

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self)

    @property
    def to_come(self) -> int:
        """Bytes that a process takes in addition, once its data are there."""
        return self.total - self.data - self.baseline

    def times(self, runs: int) -> Footprint:
        """Return what a stack of such runs takes, which share their data."""
        each = {name: runs * size for name, size in self._asdict().items()}
        return Footprint(**{**each, "data": self.data, "baseline": self.baseline})

    def __str__(self) -> str:
        """Return the parts that matter, the largest first."""
        parts = sorted(self._asdict().items(), key=lambda part: -part[1])
        shown = [(name, bytes) for name, bytes in parts if bytes >= self.total / 50]
        return ", ".join(f"{LABELS.get(name, name)} {size(bytes)}" for name, bytes in shown)


def footprint(setup: Prepared) -> Footprint:
    """Return what a run, or a stack of runs, takes at its peak; attacks and what callbacks keep are not counted."""
    return by_shapes(with_some_noise(setup), _counted, counted=True)


def _counted(setup: Setup, mode: Hollow | None) -> Footprint:
    assert mode is not None
    count = Count(mode)
    run = Simulation.from_setup(
        setup,
        clients=partial(CountedClients, count=count),
        evaluated_clients=partial(CountedAtEvaluation, count=count),
        channel=partial(DryChannel, stages=NoisyStages),
        rows=ClientExecutor(setup.rows.mode),
    )
    for _ in range(min(2, setup.spec.rounds)):  # the second has states before and after
        run.step()
    kept = _kept(run, setup.spec.rounds)
    in_rounds, brief = mode.peak + kept.growth, mode.brief
    mode.peak = mode.live
    _evaluate(run, mode)
    batches = count.batches
    by_sample = setup.privacy is not None and setup.privacy.by_gradient and not setup.privacy.ghost
    start = sum(value.nbytes for value in setup.start.values())
    freed = min(mode.heap, MOST_KEPT)
    return Footprint(
        data=_data(setup),
        state=start + kept.state,
        client_rows=kept.client_rows,
        messages=kept.messages,
        batches=batches,
        gradients=brief * setup.rows.threads if run._chunked else brief,
        steps=max(0, in_rounds - kept.state - kept.client_rows - kept.messages - batches - brief),
        evaluation=max(0, mode.peak + kept.growth - in_rounds - freed),  # kept blocks are taken first
        freed=freed,
        baseline=BASELINE + (COMPILER if by_sample or _hollow(setup.start) else 0),
    )


def _hollow(start: Mapping[str, Tensor]) -> bool:
    return any(value.is_meta for value in start.values())


class Kept(NamedTuple):
    """Bytes that are kept between rounds, and how much more rows of clients will take after the last one."""

    state: int
    client_rows: int
    messages: int
    growth: int


def _kept(run: Simulation, rounds: int) -> Kept:
    rows = state = growth = 0
    share = min(1.0, (run.cohorts.size or run.total) * rounds / run.total)
    for part in run.state:
        by_client = part.ndim > len(run._runs) + 1
        if isinstance(part, RowTable):
            written = part.packed()["rows"].nbytes
            rows += max(written, int(share * part.numel() * part.element_size()))
            growth += max(0, int(share * part.numel() * part.element_size()) - written)
        else:
            bytes = part.untyped_storage().nbytes()
            rows, state = rows + bytes * by_client, state + bytes * (not by_client)
    return Kept(state, rows, sum(part.nbytes for part in run.channel_state.values()), growth)


def _data(setup: Setup) -> int:
    """Return the bytes of the samples, as they are read and as the clients hold them, and of frozen parameters."""
    held = {part.untyped_storage().data_ptr(): part for run in setup.each for part in run.federation.pool}
    splits = [part for run in setup.each for part in run.federation.splits.values()]
    frozen = () if setup.problem.module is None else setup.problem.module.buffers()
    return sum(part.nbytes for part in (*held.values(), *splits, *frozen))


def _evaluate(run: Simulation, mode: Hollow) -> None:
    """Go through the parts of an evaluation; each up to where it looks at values, when most of it is done."""
    problem, federation, rows = run.problem, run.federations[0], run.rows
    state, model = run._state_of(0), run.personal()
    if _hollow(run.start):
        federation = replace(federation, pool=federation.pool._replace(x=as_hollow(federation.pool.x)))
        state, model = type(run.state)(*map(as_hollow, state)), tree_map(as_hollow, model)
    if run.algorithm.meta.gossip:
        _up_to_values(lambda: consensus_distance(state.x))
    if problem.predict is None:
        if problem.measure is not None:
            mode.needs(federation.pool.x[:1].nbytes * federation.splits["train"].numel())
        return
    if problem.kind == "bilevel":
        _up_to_values(lambda: outer_loss(problem, federation, rows, state))
    if problem.kind == "vertical":
        _up_to_values(lambda: joint_gradient_norm(problem, federation, model))

    def apply() -> None:
        mode.needs(COPIES * applied(problem, federation, rows, model, "test").outputs.numel() * 8)

    _up_to_values(apply)


def _up_to_values(go: Callable[[], object]) -> None:
    with suppress(Valued, TypeError):
        go()


class Count:
    """The counts that clients keep of their gradients.

    Attributes
    ----------
    mode : Hollow
        Where tensors are counted.
    batches : int
        Bytes of the largest batch.
    """

    def __init__(self, mode: Hollow) -> None:
        self.mode, self.batches = mode, 0
        self._rows: dict[object, int] = {}

    def row(self, key: object, go: Callable[[], object]) -> int:
        """Return what one row takes, by what it depends on."""
        if key not in self._rows:
            self._rows[key] = self.mode.alone(go)
        return self._rows[key]


class CountedClients(DryClients):
    """Clients that count what their gradients take, of which they compute one row.

    Parameters
    ----------
    count : Count
        Where they note it.
    """

    def __init__(self, *arguments: Any, count: Count, **options: Any) -> None:
        self._count = count
        super().__init__(*arguments, **options)

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Draw the batches of the first steps."""
        batches = super()._drawn(plan)
        return replace(batches, positions=batches.positions[:STEPS], num_steps=batches.num_steps, runs=None)

    def _nothing(
        self, loss: Callable[..., Tensor], axes: int, points: Sequence[Tensor], batch: Batch, by: Points
    ) -> list[Tensor]:
        places = by or tuple(range(len(points)))
        first = [point[(0,) * axes].detach() for point in points]
        sample = type(batch)(*(part[(0,) * axes] for part in batch))
        if first[0].is_meta:
            sample = tree_map(lambda part: as_hollow(part) if part.is_floating_point() else part, sample)
        key = loss, places, *((part.shape, part.dtype) for part in (*first, *sample))
        row = self._count.row(key, lambda: self._row(loss, first, sample, places))
        self._count.batches = max(self._count.batches, sum(part.nbytes for part in batch))
        count, moved = batch.weight.shape[:axes].numel(), sum(first[place].nbytes for place in places)
        self._needs(count, row, moved)
        if self._records is not None:
            self._count.mode.needs(NOISED * count * moved)
        return super()._nothing(loss, axes, points, batch, by)

    def _needs(self, count: int, row: int, result: int) -> None:
        """Note what a function takes on many rows, if it takes ``one`` on a single one."""
        loop = max(2 * count * result, (count - 1) * result + row)
        self._count.mode.needs(count * row if self._rows.mode == "vmap" else loop)

    def _row(
        self, loss: Callable[..., Tensor], points: Sequence[Tensor], batch: Batch, places: Points
    ) -> object:
        if self._records is None:
            return _gradient(loss, points, batch, places)
        privacy, many = self._records.privacy, self._records.each
        plan = None
        if privacy.ghost:
            lead = [point.unsqueeze(0) for point in points]
            plan = self._rows.layout(loss, 1, lead, type(batch)(*(p.unsqueeze(0) for p in batch)), places)
        if plan is not None:
            rows = [part.unsqueeze(0) for part in (*points, *batch)]
            return ghost_sums(loss, type(batch), len(points), places, plan, privacy.bound())(*rows)
        return _clipped_sum(loss, places, privacy.bound(), many, self._rows.singly)(tuple(points), batch)

    def _mapped(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        first = tree_map(lambda t: t[(0,) * self.axes], arguments)
        leaves = [(part.shape, part.dtype) for part in tree_leaves(first)]
        row = self._count.row((fn, *leaves), lambda: fn(*first))
        result = super()._mapped(fn, arguments)
        count = self.ids.numel()
        self._needs(count, row, sum(part.nbytes for part in tree_leaves(result)) // count)
        return result


class CountedAtEvaluation(CountedClients, EvaluatedClients):
    """Counted clients that may train their models further before an evaluation."""


class NoisyStages(DryStages):
    """Dry stages with noise of zero, which takes memory like any, and with the norms of an evaluated round."""

    def clip(self, message: Message, row: Tensor) -> Tensor:
        """Clip; without a mechanism take the norms for diagnostics."""
        row = super().clip(message, row)
        if self.mechanism is None:
            torch.linalg.vector_norm(row, dim=-1, dtype=torch.float64)
        return row

    def add_noise(self, message: Message, row: Tensor) -> Tensor:
        """Add zeros."""
        return row if self.mechanism is None else row + torch.zeros_like(row)
