"""Record-level privacy: noisy gradients of private batches, booked to the draws of the batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core import rng
from harness.core.clients import sampling
from harness.core.clients.local_batch import Drawn, LocalBatch
from harness.core.errors import Incompatible
from harness.core.problem import Problem
from harness.core.settings.privacy import Privacy
from privacy.gaussian import gaussian_noise
from privacy.ledger import Ledger


class Records:
    """Private batches of a cohort: algorithms get them without samples and pass them back for gradients.

    Records are drawn by Poisson sampling. With adjacency zero-out, counts of samples are public, and a client with
    ``n`` samples draws each with probability ``batch_size / n`` and divides by ``min(n, batch_size)``. With
    add-remove they are private: the rate is the setting's and the divisor ``batch_size``.

    Parameters
    ----------
    privacy : Privacy
        The mechanism, with unit record.
    problem : Problem
        The problem.
    ledger : Ledger
        Record of the releases.

    Raises
    ------
    Incompatible
        If a sample's contribution depends on the other samples, or the sampling does not fit the problem.
    """

    def __init__(self, privacy: Privacy, problem: Problem, ledger: Ledger) -> None:
        self.privacy = privacy
        self.users = privacy.user_records is not None
        self.each = privacy.user_records or 1  # slots of a batch that one draw fills
        self.public = privacy.sampling == "full"  # the members of a batch are public
        self._ledger = ledger
        self._calls: dict[tuple[str, int], int] = {}  # number of releases from each draw
        self._rates: dict[str, float | str] = {}  # of each stream
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
        if self.public:
            return sampling.draw_batches
        return partial(sampling.draw_poisson_batches, rate=self.privacy.record_rate)

    def counts(self, federation: Federation, split: str) -> Tensor:
        """Return how many records, or users, may be drawn at each client, ``(total,)``."""
        if not self.users:
            return federation.counts(split)
        return (federation.by_user(split, self.each)[..., 0] >= 0).sum(-1)

    def places(self, order: Tensor, federation: Federation, split: str, ids: Tensor) -> Tensor:
        """Return the samples ``(S, C, n)`` of what was drawn, ``(S, C, B)``; -1 = padding."""
        if not self.users:
            return order
        table = federation.by_user(split, self.each)[ids]
        rows = table[torch.arange(len(ids))[:, None], order.clamp(min=0)]
        return torch.where(order.unsqueeze(-1) >= 0, rows, -1).flatten(-2)

    def redaction(
        self,
        stream: str,
        order: Tensor,
        num_steps: Tensor,
        counts: Tensor,
        federation: Federation,
        split: str,
        batch_size: int | None,
    ) -> Callable[[int, LocalBatch], LocalBatch]:
        """Return the function that removes protected samples from the batches of a stream.

        Parameters
        ----------
        stream : str
            Name of the stream.
        order, num_steps : Tensor
            Sample numbers returned by `draw`, and steps of each client, ``(..., C, 1)``.
        counts : Tensor
            Records or users of each client, ``(..., C)``.
        federation, split : Federation, str
            Whose samples are drawn, and from which of its splits.
        batch_size : int or None
            Samples per batch.

        Raises
        ------
        Incompatible
            If adjacency add-remove lacks a batch size.
        """

        def public(step: int, batch: LocalBatch) -> LocalBatch:
            samples = Batch(*batch.samples[:4])
            number = samples.weight.sum(-1, keepdim=True).clamp(min=1)
            people = order[step].flatten(0, -2)[0]  # the same for all parties
            drawn = Drawn(stream, step, samples, number, numbers=people)
            hidden = batch.with_samples(x=torch.full_like(samples.x, torch.nan), group=samples.group * 0)
            return replace(hidden, private=drawn)

        if self.public:
            return public
        rate, divisor = self._rate(counts, federation, split, batch_size)
        divisor, stream = divisor.to(num_steps), f"{split} {stream}"
        if self._rates.setdefault(stream, rate) != rate:
            raise Incompatible(
                f"record-level privacy: the algorithm draws two batch sizes from stream {stream!r}, and the "
                "smaller batches would be parts of the larger; draw from another stream"
            )

        def secret(step: int, batch: LocalBatch) -> LocalBatch:
            x, y, group, weight = batch.samples[:4]
            taken = step < num_steps
            weight = weight * taken
            drawn = Drawn(stream, step, Batch(x, y, group, weight), divisor, rate)
            step_weight = taken.to(weight).expand_as(weight)  # whatever was drawn
            hidden = Batch(torch.full_like(x, torch.nan), y * 0, group * 0, step_weight)
            return LocalBatch(hidden, taken=taken, private=drawn)

        return secret

    def _rate(
        self, counts: Tensor, federation: Federation, split: str, batch_size: int | None
    ) -> tuple[float | str, Tensor]:
        """Return the rate of records, and the divisor of sums of gradients."""
        if self.privacy.record_rate is not None:
            if batch_size is None:
                raise Incompatible(
                    "privacy.adjacency: add-remove of records divides gradients by algorithm.batch_size, as "
                    "counts of samples are private; give it"
                )
            return self.privacy.record_rate, torch.tensor(batch_size)
        name, samples = f"{split} {batch_size}", self.counts(federation, split)
        if batch_size is not None and bool((samples > batch_size).any()):
            rates = (batch_size / samples.double().clamp(min=1)).clamp(max=1.0)
            self._ledger.rates[name] = rates.cpu().numpy()
        return name if name in self._ledger.rates else 1.0, counts.unsqueeze(-1).clamp(min=1, max=batch_size)

    def of(self, batch: LocalBatch) -> Drawn:
        """Return the private side of a batch."""
        private = LocalBatch.drawn(batch).private
        if private is None:
            raise Incompatible("record-level privacy needs batches drawn by Clients.batches, unchanged")
        return private

    def charge(self, batch: LocalBatch) -> None:
        """Book a release about the records of a public batch."""
        numbers = self.of(batch).numbers
        assert numbers is not None
        self._ledger.charge(numbers[numbers >= 0].cpu().numpy())

    def book(self, batch: LocalBatch, round: int) -> int:
        """Book one more release from a batch, at its sampling rate, and return the number of earlier ones."""
        drawn = self.of(batch)
        call = self._calls.get((drawn.stream, drawn.step), 0)
        self._calls[drawn.stream, drawn.step] = call + 1
        if self.public:
            self.charge(batch)
            return call
        self._ledger.book(
            ("batch", drawn.stream, round, drawn.step),
            sampling="none" if drawn.rate == 1.0 else "poisson",
            rate=drawn.rate,
            active=batch.active[..., 0].long().cpu().numpy(),
        )
        return call

    def noised(
        self,
        sums: Sequence[Tensor],
        batch: LocalBatch,
        call: int,
        *,
        noise_keys: Sequence[str],
        round: int,
        ids: Tensor,
        mask: Tensor | None,
    ) -> list[Tensor]:
        """Add noise to sums of clipped gradients, ``(..., C, P)`` each, and divide by the expected batch size.

        Abadi et al. 2016, Algorithm 1, at every client. Coordinates outside the mask of a client's pruned model get
        no noise.
        """
        privacy, drawn, joint = self.privacy, self.of(batch), torch.cat(list(sums), -1)
        each = torch.as_tensor(privacy.noise_multipliers)  # for all clients, or (total,)
        if bool((each > 0).any()):
            members = zip(noise_keys, ids.view(len(noise_keys), -1).tolist(), strict=True)
            streams = [
                rng.noise_stream(key, "record noise", drawn.stream, round, drawn.step, call, client)
                for key, clients in members
                for client in clients
            ]
            noise = gaussian_noise(
                joint, (each[ids] if each.ndim else float(each)) * privacy.sensitivity, streams
            )
            joint = joint + (noise if mask is None else noise * mask)
        joint = joint / drawn.divisor * batch.active
        return list(joint.split([gradient.shape[-1] for gradient in sums], -1))
