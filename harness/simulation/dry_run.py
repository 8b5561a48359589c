"""Dry runs: releases, bytes and operations from the shapes of messages alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from compression.codec import Codec
from compression.select import kept_count, ratio_at
from datasets.federation import Batch
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, problem_loss
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.core.settings.privacy_kinds import LARGEST_BUDGET
from harness.core.wire import gossip, low_rank, masks
from harness.core.wire.channel import Channel
from harness.core.wire.known_terms import Round
from harness.core.wire.message import Average, Code, Message
from harness.core.wire.stages import Stages
from harness.simulation.hollow import by_shapes
from harness.simulation.setup import Prepared, Setup
from harness.simulation.simulation import Simulation
from harness.simulation.totals import DryRun

BLOCK_ENTRIES = 2**24  # of the models of clients that are run at once


def dry_run(setup: Prepared, *, everybody: bool = False) -> DryRun:
    """Go through the rounds of a run without computing anything.

    Its ledger holds noise relative to that of the run, so a run without noise of its own is given some.

    One round is made for every stretch of equal stage and pruning ratios. If persons are charged by appearance, all
    rounds are made. Bytes are expected values where they depend on what a message holds. Under central placement
    costs are those of all clients, times the rate of the cohort. So they tell nothing about who took part, or
    about messages.

    Parameters
    ----------
    setup : Prepared
        A run or a stack of runs.
    everybody : bool
        Whether all clients take part in the rounds that are made, as their releases differ. Each is still
        charged only for the rounds it takes part in.

    Raises
    ------
    Incompatible
        If parts of the run are incompatible.
    """
    return by_shapes(with_some_noise(setup), lambda setup: _gone_through(setup, everybody))


def with_some_noise(setup: Prepared) -> Setup:
    """Return a run with noise that is good enough for counting where a budget has yet to decide it.

    The bits of a sum grow with the noise: there it is the least, which refuses no run that its budget allows.
    """

    def some(privacy: PrivacyTerms, _: int) -> Privacy:
        least = 1 / LARGEST_BUDGET if privacy.placement == "distributed" else 1.0
        multiplier = privacy.spec.noise_multiplier
        return privacy.with_noise(least if multiplier is None else multiplier)

    return setup if isinstance(setup, Setup) else setup.with_noise(some)


def _gone_through(setup: Setup, everybody: bool) -> DryRun:
    tally = Tally()
    run = Simulation.from_setup(setup, clients=partial(DryClients, tally=tally), channel=DryChannel)
    privacy, begun, most = setup.privacy, run.cost.state(), 0
    record = privacy is not None and privacy.by_gradient
    by_appearance = record and setup.problem.kind == "vertical"
    secret = privacy is not None and privacy.secret_cohorts
    averaged = privacy is not None and privacy.costs_expected
    share = run.cohorts.expected_share if averaged else 1.0
    if (
        averaged and run.cohorts.everybody_counts is not None
    ):  # the public number stands for all clients here too
        begun = {
            name: count * (run.cohorts.everybody_counts / run.cohorts.total) for name, count in begun.items()
        }
    lengths = [1] * setup.spec.rounds if by_appearance else _stretches(setup)
    stretches = []
    for length in lengths:
        first, cost, counts = run.round, run.cost.state(), dict(run.ledger.counts)
        for ids in (
            _blocks(run) if secret or averaged else [torch.arange(run.cohorts.total) if everybody else None]
        ):
            run.round = first
            counted = dict(run.ledger.counts)
            run.step(ids, drawn=True)
        new = {name: count - cost[name] for name, count in run.cost.state().items()}
        stretches.append((length, {name: share * count for name, count in new.items()}))
        most = max(most, run.ledger.last)
        if not by_appearance:
            # Of the last block: what a round charges a client that takes part.
            new_draws = {draw: times - counted.get(draw, 0) for draw, times in run.ledger.counts.items()}
            run.ledger.counts = counts
            times = run.cohorts.charged(first, length)
            took = (times if len(run.each) > 1 else times[0]).numpy()
            for draw, each in new_draws.items():
                run.ledger.add(draw, took * (each if record else each.max()))
        run.round = first + length
    if record and setup.problem.predict is not None:
        run.personal()  # refuses models that would train on records for an evaluation
    return DryRun(run.ledger, most, begun, stretches, tally.tossed, everybody)


def expected_cost(setup: Setup) -> Callable[[int, int], dict[str, int]] | None:
    """Return the expected cost of a run after a round, if that is what is recorded; None for actual costs.

    The result maps the number of the run in its stack and the round to bytes, operations and oracle calls.
    """
    if setup.privacy is None or not setup.privacy.costs_expected:
        return None
    dry = of_cohorts(setup)

    return lambda number, round: {
        name: int(count.reshape(-1)[number]) for name, count in dry.cost_after(round).items()
    }


def of_cohorts(setup: Setup) -> DryRun:
    """Return a dry run with the cohorts of a run: that of its calibration, unless everybody took part in it."""
    return dry_run(setup) if setup.dry is None or setup.dry.everybody else setup.dry


def _blocks(run: Simulation) -> list[Tensor]:
    """Return all clients in blocks whose models fit into memory."""
    entries = max(value.shape[-1] for value in run.start.values())
    return list(torch.arange(run.cohorts.total).split(max(1, BLOCK_ENTRIES // entries)))


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


@dataclass
class Tally:
    """Facts that the clients of a dry run note.

    Attributes
    ----------
    tossed : bool
        Whether public coins were tossed.
    """

    tossed: bool = False


class DryClients(Clients):
    """Clients that send messages of the right shape without computing them; the work is still counted.

    Parameters
    ----------
    tally : Tally, optional
        Where they note what they do.
    """

    def __init__(self, *arguments: Any, tally: Tally | None = None, **options: Any) -> None:
        self._tally = tally or Tally()
        super().__init__(*arguments, **options)

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a public coin, and note that one was tossed."""
        self._tally.tossed = True
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
            if self._records.privacy.ghost:  # refuses losses without a formula
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
            smaller = points if model is None else tuple(map(model.take, points))
            self._executor.layout(objective(problem), self.axes, smaller, batch.samples, places)

    def _mapped(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return for every client what the first one in the first such call has computed."""
        lead, result = self.ids.shape, self._executor.measured(fn, self.axes, *arguments).result
        return tree_map(lambda t: t.expand(*lead, *t.shape).clone(), result)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(()).expand(*self.ids.shape, *shape).to(self.federation.pool.x)

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        sample = Batch(*(column[0, :1] for column in batch))  # one sample shows the length of an embedding
        return y.new_zeros(*batch.weight.shape, embed(y[0], sample).shape[-1])


class DryStages(Stages):
    """Stages that draw no noise and derive encoded sizes from the shape of a message."""

    def add_noise(self, message: Message, row: Tensor) -> Tensor:
        """Draw nothing."""
        return row

    def add_noise_to_average(self, message: Message, average: Average) -> Average:
        """Draw nothing."""
        return average

    def discretize(self, message: Message, row: Tensor) -> Tensor:
        """Draw nothing."""
        return row

    def add_up(self, message: Message, row: Tensor, integers: Tensor) -> Average:
        """Take the average."""
        return self.average(message, row)

    def recall(self, message: Message, row: Tensor) -> Tensor:
        """Recall nothing."""
        return row

    def remember(self, message: Message, entered: Tensor, code: Code) -> Tensor:
        """Remember nothing."""
        return code.row

    def encode(self, message: Message, row: Tensor) -> Code:
        """Return the row with its encoded size."""
        codec = self.coding.down if message.sender == "server" else self.coding.up
        lead = row.shape[:-1]
        if (factors := self.coding.factors(message)) is not None:
            answers = None
            if message.together:
                lengths = factors.left_size, factors.right_size
                answers = torch.full(lead[:-1], sum(self._size(self.coding.down, n, None) for n in lengths))
            first, second = low_rank.lengths(factors)
            both = self._size(codec, first, None) + self._size(codec, second, None)
            return Code(row, torch.full(lead, both), answers)
        n = torch.tensor(row.shape[-1]) if message.mask is None else message.mask.sum(-1).cpu()
        entries = n.expand(lead).flatten().tolist()
        ratios = self._ratios(message, lead)
        size = {pair: self._size(codec, *pair) for pair in set(zip(entries, ratios, strict=True))}
        sizes = [size[pair] for pair in zip(entries, ratios, strict=True)]
        return Code(row, torch.tensor(sizes).view(lead))

    def approach(self, message: Message, row: Tensor) -> Code:
        """Return the rows where they are, with the size of what each node sends."""
        factors = self.coding.factors(message)
        assert factors is not None and message.mixing is not None
        each = sum(self._size(self.coding.up, length, None) for length in low_rank.lengths(factors))
        return Code(row, (each * gossip.neighbors(message.mixing)).expand(row.shape[:-1]).cpu())

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
        return round(codec.expected_size(entries, None if ratio is None else kept_count(entries, ratio)))


class DryChannel(Channel):
    """A channel that counts bytes from the shapes of messages alone."""

    def __init__(
        self,
        *arguments: Any,
        stages: Callable[..., Stages] = DryStages,
        again: Round | None = None,  # not gone through: sizes do not depend on it
        **options: Any,
    ) -> None:
        super().__init__(*arguments, stages=stages, **options)
