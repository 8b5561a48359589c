"""Record-level privacy: noisy gradients of private batches, booked to the draws of the batches."""

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

LIVE = 1e-30  # weight of an empty slot in a step that takes place


@dataclass(frozen=True)
class Drawn:
    """The private side of a batch.

    Attributes
    ----------
    stream, step : str, int
        Identification of the draw within the round.
    batch : Batch
        The samples, which algorithms do not see.
    expected : Tensor
        Expected number of samples of each client, ``(..., C, 1)``.
    rate : float
        Sampling rate of the records of the smallest client.
    numbers : Tensor or None
        Numbers of the records where they are public, -1 = no record.
    """

    stream: str
    step: int
    batch: Batch
    expected: Tensor
    rate: float
    numbers: Tensor | None = None


class Records:
    """Private batches of a cohort: algorithms get them without samples and pass them back for gradients.

    Parameters
    ----------
    privacy : Privacy
        The mechanism, with unit record.
    problem : Problem
        The problem.
    privacy_log : PrivacyLog
        Record of the releases.

    Raises
    ------
    Incompatible
        If a sample's contribution depends on the other samples, or the sampling does not fit the problem.
    """

    def __init__(self, privacy: Privacy, problem: Problem, privacy_log: PrivacyLog) -> None:
        self.privacy = privacy
        self.public = privacy.sampling == "full"  # the members of a batch are public
        self._log = privacy_log
        self._drawn: WeakIdKeyDictionary = WeakIdKeyDictionary()  # a batch's weights -> its private side
        self._calls: dict[tuple[str, int], int] = {}  # number of releases from each draw
        if not problem.per_sample:
            raise Incompatible(
                "record-level privacy clips each sample's contribution, but with these settings of problem "
                f"{problem.name} a sample also changes the contributions of others"
            )
        if self.public != (problem.kind == "vertical"):
            raise Incompatible(
                "record-level privacy: vertical problems need sampling full, all others sampling poisson; given "
                f"problem {problem.name} with sampling {privacy.sampling}"
            )

    @property
    def draw(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """The function that draws the batches."""
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
        """Return the function that removes protected samples from the batches of a stream.

        Parameters
        ----------
        stream : str
            Name of the stream.
        order, num_steps : Tensor
            Sample numbers returned by `draw`, and steps of each client, ``(..., C, 1)``.
        counts, fewest : Tensor, int
            Samples of each client, ``(..., C)``, and of the smallest client of the federation.
        batch_size : int or None
            Samples per batch.
        """
        rate = 1.0 if batch_size is None else min(1.0, batch_size / max(1, fewest))
        expected = counts.unsqueeze(-1).clamp(min=1, max=batch_size).to(num_steps)

        def public(step: int, batch: Batch) -> Batch:
            batch = batch._replace(weight=batch.weight.clone())  # a new key in every step
            number = batch.weight.sum(-1, keepdim=True).clamp(min=1)
            people = order[step].flatten(0, -2)[0]  # the same for all parties
            self._drawn[batch.weight] = Drawn(stream, step, batch, number, 1.0, people)
            return batch._replace(x=torch.full_like(batch.x, torch.nan), group=batch.group * 0)

        def secret(step: int, batch: Batch) -> Batch:
            # An empty draw is still a step, so its slots keep a tiny positive weight. Samples are removed: only
            # protected gradients depend on them.
            batch = batch._replace(weight=batch.weight.clamp(min=LIVE) * (step < num_steps))
            self._drawn[batch.weight] = Drawn(stream, step, batch, expected, rate)
            return Batch(torch.full_like(batch.x, torch.nan), batch.y * 0, batch.group * 0, batch.weight)

        return public if self.public else secret

    def of(self, batch: Batch) -> Drawn:
        """Return the private side of a batch."""
        if batch.weight not in self._drawn:
            raise Incompatible("record-level privacy needs batches drawn by Clients.batches, unchanged")
        drawn: Drawn = self._drawn[batch.weight]
        return drawn

    def charge(self, batch: Batch, largest: int) -> None:
        """Book a release about the records of a public batch, numbered below ``largest``."""
        numbers = self.of(batch).numbers
        assert numbers is not None
        self._log.charge(numbers[numbers >= 0], largest, self.privacy)

    def book(self, batch: Batch, round: int, largest: int) -> int:
        """Book one more release from a batch, at its sampling rate, and return the number of earlier ones."""
        drawn = self.of(batch)
        call = self._calls.get((drawn.stream, drawn.step), 0)
        self._calls[drawn.stream, drawn.step] = call + 1
        if self.public:
            self.charge(batch, largest)
            return call
        draw = ("batch", drawn.stream, round, drawn.step)
        if call and self._log.ledger.key != draw:
            # Booked as two draws, the releases of one draw would be amplified twice.
            raise Incompatible(
                f"record-level privacy: the batches of stream {drawn.stream!r} can be iterated only once; draw "
                "from another stream"
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
        """Add noise to sums of clipped gradients, ``(..., C, P)`` each, and divide by the expected batch size.

        Abadi et al. 2016, Algorithm 1, at every client. Coordinates outside the mask of a client's pruned model get
        no noise.
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
