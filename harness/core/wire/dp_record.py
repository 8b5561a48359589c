"""Unit record: releases about single samples, each booked to the draw that its batch came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from datasets.federation import Batch
from harness.core.execution import sampling
from harness.core.problem import Problem
from harness.core.registry import Incompatible
from harness.core.wire.settings import Privacy, PrivacyLog
from privacy import gaussian_noise

LIVE = 1e-30  # weight of a slot without a sample in a step that takes place


@dataclass(frozen=True)
class Drawn:
    """How a batch was drawn.

    Attributes
    ----------
    stream, step : str, int
        Which draw of the round it is.
    batch : Batch
        The samples, which nobody is given.
    expected : Tensor
        Expected samples of each client, ``(..., C, 1)``.
    rate : float
        At which a record of the client with the fewest is drawn.
    numbers : Tensor or None
        Of the records, -1 = none, where everybody knows them.
    """

    stream: str
    step: int
    batch: Batch
    expected: Tensor
    rate: float
    numbers: Tensor | None = None


class Records:
    """The records of a cohort: their batches are handed out without samples in them, and remembered.

    Parameters
    ----------
    privacy : Privacy
        The mechanism, with unit record.
    problem : Problem
        What is optimized.
    privacy_log : PrivacyLog
        Where releases are booked.

    Raises
    ------
    Incompatible
        If a sample's contribution cannot be separated from that of the others.
    """

    def __init__(self, privacy: Privacy, problem: Problem, privacy_log: PrivacyLog) -> None:
        self.privacy = privacy
        self.public = privacy.sampling == "full"  # everybody knows who is in a batch
        self._log = privacy_log
        self._drawn: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a batch's weights -> how it was drawn
        self._calls: dict[tuple[str, int], int] = {}  # how often a draw has been used
        if not problem.per_sample:
            raise Incompatible(
                f"record-level privacy clips what each sample contributes, and in problem {problem.name}, as it is "
                "set, a sample also changes what the others contribute"
            )
        if self.public != (problem.kind == "vertical"):
            raise Incompatible(
                "record-level privacy: parties know who is in a batch (sampling full), other clients draw their "
                f"own (sampling poisson); problem {problem.name}, sampling {privacy.sampling}"
            )

    @property
    def draw(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """How batches are drawn."""
        return sampling.draw_batches if self.public else sampling.draw_poisson_batches

    def redaction(
        self,
        stream: str,
        order: Tensor,
        num_steps: Tensor,
        counts: Tensor,
        fewest: int,
        batch_size: int | None,
    ) -> Callable[[int, Batch], Batch]:
        """Return the function that takes protected samples out of the batches of a stream.

        Parameters
        ----------
        stream : str
            Its name.
        order, num_steps : Tensor
            What `draw` has returned, and steps of each client, ``(..., C, 1)``.
        counts, fewest : Tensor, int
            Samples of each client, ``(..., C)``, and of the client of the federation that has the fewest.
        batch_size : int or None
            Samples a batch.
        """
        rate = 1.0 if batch_size is None else min(1.0, batch_size / max(1, fewest))
        expected = counts.unsqueeze(-1).clamp(min=1, max=batch_size).to(num_steps)

        def public(step: int, batch: Batch) -> Batch:
            batch = batch._replace(weight=batch.weight.clone())  # a key of its own, in every step
            number = batch.weight.sum(-1, keepdim=True).clamp(min=1)
            people = order[step].flatten(0, -2)[0]  # the same everywhere
            self._drawn[batch.weight] = Drawn(stream, step, batch, number, 1.0, people)
            return batch._replace(x=torch.full_like(batch.x, torch.nan), group=batch.group * 0)

        def secret(step: int, batch: Batch) -> Batch:
            # An empty draw is still a step: its slots keep a weight too small to count but above nothing. What
            # is handed out has no samples in it: they leave through `grad` and `grads`, or not at all.
            batch = batch._replace(weight=batch.weight.clamp(min=LIVE) * (step < num_steps))
            self._drawn[batch.weight] = Drawn(stream, step, batch, expected, rate)
            return Batch(torch.full_like(batch.x, torch.nan), batch.y * 0, batch.group * 0, batch.weight)

        return public if self.public else secret

    def of(self, batch: Batch) -> Drawn:
        """Return how a batch that was handed out was drawn."""
        if batch.weight not in self._drawn:
            raise Incompatible("record-level privacy needs batches drawn by Clients.batches, as they come")
        found: Drawn = self._drawn[batch.weight]
        return found

    def charge(self, batch: Batch, largest: int) -> None:
        """Book a release about the records of a batch that everybody knows, numbered below ``largest``."""
        numbers = self.of(batch).numbers
        assert numbers is not None
        self._log.charge(numbers[numbers >= 0], largest, self.privacy)

    def book(self, batch: Batch, round: int, largest: int) -> int:
        """Book one more release from a batch, at the rate at which it was drawn; returns how many it had before."""
        drawn = self.of(batch)
        call = self._calls.get((drawn.stream, drawn.step), 0)
        self._calls[drawn.stream, drawn.step] = call + 1
        if self.public:
            self.charge(batch, largest)
            return call
        draw = ("batch", drawn.stream, round, drawn.step)
        if call and self._log.ledger.key != draw:
            # Booked as two draws, releases of one draw would count as amplified twice.
            raise Incompatible(
                f"record-level privacy: the batches of stream {drawn.stream!r} were gone through before"
            )
        mechanism = replace(self.privacy, rate=drawn.rate)
        self._log.ledger = mechanism.book(self._log.ledger, draw, self.privacy.noise_multiplier)
        return call

    def noised(
        self,
        sums: Sequence[Tensor],
        batch: Batch,
        call: int,
        *,
        seeds: Sequence[int],
        round: int,
        ids: Tensor,
        mask: Tensor | None,
    ) -> list[Tensor]:
        """Return private means of sums of clipped gradients, ``(..., C, P)`` each: noise, over the expected size.

        Abadi et al. 2016, Algorithm 1, at every client. Coordinates that a client's pruned model lacks, false in
        the mask, get no noise.
        """
        privacy, drawn, joint = self.privacy, self.of(batch), torch.cat(list(sums), -1)
        if privacy.noise_multiplier > 0:
            own = zip(seeds, ids.view(len(seeds), -1).tolist(), strict=True)
            streams = [
                privacy.stream(seed, "record noise", drawn.stream, round, drawn.step, call, client)
                for seed, clients in own
                for client in clients
            ]
            noise = gaussian_noise(joint, privacy.deviation(), streams)
            joint = joint + (noise if mask is None else noise * mask)
        joint = joint / drawn.expected * drawn.batch.active
        return list(joint.split([part.shape[-1] for part in sums], -1))
