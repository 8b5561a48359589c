"""Dry runs: releases, bytes and operations from the shapes of messages alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from compression import Codec, kept_count, ratio_at
from datasets.federation import Batch
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, problem_loss
from harness.core.wire import masks
from harness.core.wire.message import Message
from harness.core.wire.settings import PrivacyLog
from harness.core.wire.stages import Stages
from harness.simulation.build import Setup
from harness.simulation.simulation import Simulation
from privacy import Ledger

Count = Literal["expected", "largest"]


class DryRun(NamedTuple):
    """Totals of a run.

    Attributes
    ----------
    ledger : Ledger
        All releases, with the noise of the setup.
    releases : int
        Largest number of releases in one round.
    cost : dict[str, Tensor]
        Bytes, operations and oracle calls, as `harness.core.wire.cost.Cost.state` returns them.
    """

    ledger: Ledger
    releases: int
    cost: dict[str, Tensor]


def dry_run(setup: Setup, count: Count = "expected", *, every_stage: bool = True) -> DryRun:
    """Go through the rounds of a run without computing anything.

    Parameters
    ----------
    setup : Setup
        A run or a stack of runs.
    count : {"expected", "largest"}
        Whether to count the expected or the largest possible number of bytes, where chance decides.
    every_stage : bool
        Make one round for every stretch of equal stage and pruning ratios; otherwise the first round represents
        all of them. If persons are charged by appearance, all rounds are made in any case.

    Raises
    ------
    Incompatible
        If parts of the run are incompatible.
    """
    run = Simulation.from_setup(
        setup,
        clients=DryClients,
        channel=partial(DryChannel, count=count),
        poisson=partial(_poisson, count=count),
    )
    rounds, most = setup.spec.rounds, 0
    if setup.privacy is not None and setup.privacy.unit == "record" and setup.problem.kind == "vertical":
        while run.round < rounds:
            before = run.privacy_log.ledger.releases
            run.step()
            most = max(most, run.privacy_log.ledger.releases - before)
        return DryRun(run.privacy_log.ledger, most, run.cost.state())
    ledger = run.privacy_log.ledger
    for length in _stretches(setup) if every_stage else [rounds]:
        cost, first = run.cost.state(), run.round
        run.privacy_log = PrivacyLog()
        run.step()
        ledger = ledger.merge(run.privacy_log.ledger.repeat(length))
        most = max(most, run.privacy_log.ledger.releases)
        run.cost.restore({name: old + length * (run.cost.state()[name] - old) for name, old in cost.items()})
        run.round = first + length
    return DryRun(ledger, most, run.cost.state())


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


def _poisson(keys: Tensor, total: int, rate: float, count: Count) -> tuple[Tensor, Tensor]:
    """Return cohorts of the expected size, or of all clients."""
    size = round(rate * total) if count == "expected" else total
    ids = torch.arange(size).expand(len(keys), -1)
    return ids, torch.ones_like(ids)


class DryClients(Clients):
    """Clients that send messages of the right shape without computing them; the work is still counted."""

    def _gradients(
        self, points: tuple[Tensor, ...], batch: Batch, by: Points = (), objective: Objective = problem_loss
    ) -> list[Tensor]:
        if self._records is not None:
            self._book(self._records, batch)
        return self._of_models(_nothing, points, batch, by, objective)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(()).expand(*self.ids.shape, *shape).to(self.federation.pool.x)

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        one = Batch(*(part[0, :1] for part in batch))  # one sample shows the length of an embedding
        return y.new_zeros(*batch.weight.shape, embed(y[0], one).shape[-1])


def _nothing(loss: object, axes: int, points: Sequence[Tensor], batch: Batch, by: Points) -> list[Tensor]:
    return [torch.zeros_like(points[place]) for place in by or range(len(points))]


class DryStages(Stages):
    """Stages that draw no noise and derive encoded sizes from the shape of a message."""

    largest = False

    def add_noise(self, message: Message) -> None:
        """Draw nothing."""

    def add_noise_to_average(self, message: Message) -> None:
        """Draw nothing."""

    def add_residual(self, message: Message) -> None:
        """Add nothing."""

    def encode(self, message: Message) -> None:
        """Set the encoded size."""
        codec = self.down if message.sender == "server" else self.up
        lead = message.joint.shape[:-1]
        n = torch.tensor(message.joint.shape[-1]) if message.mask is None else message.mask.sum(-1).cpu()
        entries = n.expand(lead).flatten().tolist()
        ratios = self._ratios(message, lead)
        size = {pair: self._size(codec, *pair) for pair in set(zip(entries, ratios, strict=True))}
        sizes = [size[pair] for pair in zip(entries, ratios, strict=True)]
        message.sizes = torch.tensor(sizes).view(lead)

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
        return (
            codec.largest_size(entries, kept) if self.largest else round(codec.expected_size(entries, kept))
        )


class LargestStages(DryStages):
    """Dry stages with the largest possible sizes."""

    largest = True


class DryChannel(Channel):
    """A channel that counts bytes from the shapes of messages alone.

    Parameters
    ----------
    count : {"expected", "largest"}
        Expected or largest size of a message; equal for codes of fixed length.
    """

    def __init__(self, *arguments: Any, count: Count, **options: Any) -> None:
        self.stages = LargestStages if count == "largest" else DryStages  # type: ignore[misc]
        super().__init__(*arguments, **options)
