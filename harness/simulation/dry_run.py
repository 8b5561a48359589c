"""Dry runs: releases, bytes and operations from the shapes of messages alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from compression import Codec, kept_count, ratio_at
from datasets.federation import Batch
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, problem_loss
from harness.core.wire import gossip, low_rank, masks
from harness.core.wire.channel import Channel
from harness.core.wire.message import Message
from harness.core.wire.stages import Stages
from harness.simulation.build import Setup
from harness.simulation.hollow import by_shapes
from harness.simulation.simulation import Simulation
from privacy import Ledger

Count = Literal["expected", "largest"]
BLOCK_ENTRIES = 2**24  # of the models of clients that are run at once


class DryRun(NamedTuple):
    """Totals of a run.

    Attributes
    ----------
    ledger : Ledger
        All releases.
    releases : int
        Largest number of releases in one round.
    begun : dict[str, Tensor]
        Bytes, operations and oracle calls before the first round, as `harness.core.cost.Cost.state`
        returns them.
    stretches : list of (int, dict)
        Lengths of stretches of rounds, and the cost of one round of each.
    tossed : bool
        Whether public coins were tossed, so that the run with another seed may send something else.
    exact : bool
        Whether the costs are those of the run: they depend neither on who takes part nor on what messages hold.
    everybody : bool
        Whether the rounds were made with all clients.
    """

    ledger: Ledger
    releases: int
    begun: dict[str, Tensor]
    stretches: list[tuple[int, dict[str, Tensor]]]
    tossed: bool
    exact: bool
    everybody: bool

    @property
    def cost(self) -> dict[str, Tensor]:
        """Cost of the whole run."""
        return self.cost_after(sum(length for length, _ in self.stretches))

    def cost_after(self, rounds: int) -> dict[str, Tensor]:
        """Return the cost of the first rounds, whole numbers."""
        total = {name: part.double() for name, part in self.begun.items()}
        for length, each in self.stretches:
            total = {name: part + min(length, rounds) * each[name] for name, part in total.items()}
            rounds -= min(length, rounds)
        return {name: part.round().long() for name, part in total.items()}


def dry_run(setup: Setup, count: Count = "expected", *, everybody: bool = False) -> DryRun:
    """Go through the rounds of a run without computing anything.

    One round is made for every stretch of equal stage and pruning ratios. If persons are charged by appearance, all
    rounds are made. Under central placement expected costs are those of all clients, times the rate of the cohort.
    So they tell nothing about who took part, or about messages. The largest costs of secret cohorts are those of
    all clients.

    Parameters
    ----------
    setup : Setup
        A run or a stack of runs.
    count : {"expected", "largest"}
        Whether to count the expected or the largest possible number of bytes, where chance decides.
    everybody : bool
        Whether all clients take part in the rounds that are made, as their releases differ. Each is still
        charged only for the rounds it takes part in.

    Raises
    ------
    Incompatible
        If parts of the run are incompatible.
    """
    return by_shapes(setup, lambda setup, _: _gone_through(setup, count, everybody))


def _gone_through(setup: Setup, count: Count, everybody: bool) -> DryRun:
    class ClientsOfRun(DryClients):
        tossed = False
        resized = False

    class StagesOfRun(LargestStages if count == "largest" else DryStages):  # type: ignore[misc]
        varying = False

    run = Simulation.from_setup(setup, clients=ClientsOfRun, channel=partial(DryChannel, stages=StagesOfRun))
    privacy, begun, most = setup.privacy, run.cost.state(), 0
    record = privacy is not None and privacy.by_gradient
    by_appearance = record and setup.problem.kind == "vertical"
    secret = privacy is not None and privacy.secret_cohorts
    averaged = privacy is not None and privacy.costs_expected and count == "expected"
    share = run.cohorts.expected_share if averaged else 1.0
    if averaged and run.everybody_counts is not None:  # the public number stands for all clients here too
        begun = {name: part * (run.everybody_counts / run.total) for name, part in begun.items()}
    lengths = [1] * setup.spec.rounds if by_appearance else _stretches(setup)
    stretches = []
    for length in lengths:
        first, cost, known = run.round, run.cost.state(), dict(run.ledger.counts)
        for ids in _blocks(run) if secret or averaged else [torch.arange(run.total) if everybody else None]:
            run.round = first
            counted = dict(run.ledger.counts)
            run.step(ids, drawn=True)
        new = {name: part - cost[name] for name, part in run.cost.state().items()}
        stretches.append((length, {name: share * part for name, part in new.items()}))
        most = max(most, run.ledger.last)
        if not by_appearance:
            # Of the last block: what a round charges a client that takes part.
            made = {draw: times - counted.get(draw, 0) for draw, times in run.ledger.counts.items()}
            run.ledger.counts = known
            took = run.participation(first, length).numpy()
            for draw, each in made.items():
                run.ledger.add(draw, took * (each if record else each.max()))
        run.round = first + length
    if record and setup.problem.predict is not None:
        run.personal()  # refuses models that would train on records for an evaluation
    exact = not (averaged or StagesOfRun.varying or ClientsOfRun.resized)
    return DryRun(run.ledger, most, begun, stretches, ClientsOfRun.tossed, exact, everybody)


def expected_cost(setup: Setup, made: DryRun | None = None) -> Callable[[int, int], dict[str, int]] | None:
    """Return the expected cost of a run after a round, if that is what is recorded; None for actual costs.

    The result maps the number of the run in its stack and the round to bytes, operations and oracle calls. ``made``
    is a dry run for expected costs, if there is one.
    """
    if setup.privacy is None or not setup.privacy.costs_expected:
        return None
    dry = dry_run(setup) if made is None or made.everybody else made

    def after(number: int, round: int) -> dict[str, int]:
        return {name: int(part.reshape(-1)[number]) for name, part in dry.cost_after(round).items()}

    return after


def _blocks(run: Simulation) -> list[Tensor]:
    """Return all clients in blocks whose models fit into memory."""
    entries = max(value.shape[-1] for value in run.start.values())
    return list(torch.arange(run.total).split(max(1, BLOCK_ENTRIES // entries)))


def _stretches(setup: Setup) -> list[int]:
    """Return the lengths of stretches of rounds that send and compute the same amounts.

    A round in which parties prune their models is a stretch of its own.
    """
    rounds = range(setup.spec.rounds)
    alphas = [str(ratio_at(setup.compression.alpha, t)) for t in rounds]
    betas = [str(ratio_at(setup.compression.beta, t)) for t in rounds]
    prunes = setup.problem.kind == "vertical" and setup.compression.alpha != 0.0
    pruning = [prunes and (t == 0 or alphas[t] != alphas[t - 1]) for t in rounds]
    stages = [setup.algorithm.stage(t) for t in rounds]
    return [len(list(same)) for _, same in groupby(zip(alphas, betas, pruning, stages, strict=True))]


class DryClients(Clients):
    """Clients that send messages of the right shape without computing them; the work is still counted."""

    tossed = False
    resized = False

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a public coin, and note that one was tossed."""
        type(self).tossed = True
        return super().coin(p, name, each=each)

    def _gradients(
        self,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points = (),
        objective: Objective = problem_loss,
    ) -> list[Tensor]:
        if self._records is not None:
            self._records.book(batch, self.round)
            if self._records.privacy.spec.ghost:  # refuses losses without a formula
                self._refuse_ghost(points, batch, by, objective)
            batch = batch.revealed()
        return self._training.of_models(self._nothing, points, batch, by, objective)

    def _nothing(
        self, loss: Callable[..., Tensor], axes: int, points: Sequence[Tensor], batch: Batch, by: Points
    ) -> list[Tensor]:
        """Return gradients of zero."""
        return [torch.zeros_like(points[place]) for place in by or range(len(points))]

    def _refuse_ghost(
        self, points: tuple[Tensor, ...], batch: LocalBatch, by: Points, objective: Objective
    ) -> None:
        places = by or tuple(range(len(points)))
        for model in [None] if self.pruned is None else self.pruned.models:
            problem = self.problem if model is None else model.problem
            own = points if model is None else tuple(map(model.take, points))
            self._rows.layout(objective(problem), self.axes, own, batch.samples, places)

    def restrict(self, kept: Tensor | None) -> None:
        """Restrict the model, and note that sizes depend on what was released."""
        type(self).resized = True
        super().restrict(kept)

    def shrink(self, x: Tensor, ratio: Tensor) -> Tensor:
        """Shrink the models, and note that sizes depend on what was released."""
        type(self).resized = True
        return super().shrink(x, ratio)

    def _mapped(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return for every client what the first one in the first such call has computed."""
        lead, one = self.ids.shape, self._rows.measured(fn, self.axes, *arguments).result
        return tree_map(lambda t: t.expand(*lead, *t.shape).clone(), one)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(()).expand(*self.ids.shape, *shape).to(self.federation.pool.x)

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        one = Batch(*(part[0, :1] for part in batch))  # one sample shows the length of an embedding
        return y.new_zeros(*batch.weight.shape, embed(y[0], one).shape[-1])


class DryStages(Stages):
    """Stages that draw no noise and derive encoded sizes from the shape of a message."""

    largest = False  # or expected sizes
    varying = False  # whether a size depends on what a message holds

    def add_noise(self, message: Message) -> None:
        """Draw nothing."""

    def add_noise_to_average(self, message: Message) -> None:
        """Draw nothing."""

    def discretize(self, message: Message) -> None:
        """Draw nothing."""

    def add_up(self, message: Message) -> None:
        """Take the average."""
        self.average(message)

    def recall(self, message: Message) -> None:
        """Recall nothing."""

    def encode(self, message: Message) -> None:
        """Set the encoded size."""
        codec = self.down if message.sender == "server" else self.up
        lead = message.joint.shape[:-1]
        if (factors := self._factors(message)) is not None:
            first, second = low_rank.lengths(factors)
            message.sizes = torch.full(lead, self._size(codec, first, None) + self._size(codec, second, None))
            if message.together:
                asked = (self._size(self.down, n, None) for n in (factors.left_size, factors.right_size))
                message.answers = torch.full(lead[:-1], sum(asked))
            return
        n = torch.tensor(message.joint.shape[-1]) if message.mask is None else message.mask.sum(-1).cpu()
        entries = n.expand(lead).flatten().tolist()
        ratios = self._ratios(message, lead)
        size = {pair: self._size(codec, *pair) for pair in set(zip(entries, ratios, strict=True))}
        sizes = [size[pair] for pair in zip(entries, ratios, strict=True)]
        message.sizes = torch.tensor(sizes).view(lead)

    def approach(self, message: Message) -> None:
        """Set the size of what each node sends, and stay."""
        factors = self._factors(message)
        assert factors is not None and message.mixing is not None
        each = sum(self._size(self.up, length, None) for length in low_rank.lengths(factors))
        message.sizes = (each * gossip.neighbors(message.mixing)).expand(message.joint.shape[:-1]).cpu()

    def _ratios(self, message: Message, lead: torch.Size) -> list[float | None]:
        """Return the share of entries that each sender drops; None without sparsification."""
        count, select = lead.numel(), self.compression.select
        if message.sparsify and select == "top_k":
            ratio = torch.as_tensor(masks.ratio(self.clients, self.compression), dtype=torch.float64)
            if bool((ratio > 0).any()):
                return list(ratio.expand(lead).flatten().tolist())
        if message.sparsify and select == "threshold":
            return [0.0] * count  # the number that passes is unknown; count all entries
        return [None] * count

    def _size(self, codec: Codec, entries: int, ratio: float | None) -> int:
        kept = None if ratio is None else kept_count(entries, ratio)
        expected, largest = round(codec.expected_size(entries, kept)), codec.largest_size(entries, kept)
        type(self).varying |= expected != largest or not codec.fixed
        return largest if self.largest else expected


class LargestStages(DryStages):
    """Dry stages with the largest possible sizes."""

    largest = True


class DryChannel(Channel):
    """A channel that counts bytes from the shapes of messages alone.

    Parameters
    ----------
    stages : type
        Whether sizes are expected or the largest.
    """

    def __init__(self, *arguments: Any, stages: type[DryStages], **options: Any) -> None:
        self.stages = stages  # type: ignore[misc]
        super().__init__(*arguments, **options)
