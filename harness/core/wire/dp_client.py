"""The Gaussian mechanism on messages: clip norms, fixed or adaptive, noise, and what is booked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from numpy.random import Generator
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients import Clients
from harness.core.registry import Incompatible
from harness.core.wire.settings import Privacy
from privacy import Clipped, clip, clip_each, gaussian_noise

G = TypeVar("G")  # a generator of torch or of numpy
ADAPTIVE_START = 1.0  # first adaptive clip norm


class Mechanism:
    """What protects the messages of a cohort in one round; the channel says when.

    Parameters
    ----------
    privacy : Privacy
        The calibrated mechanism, with unit client.
    clients : Clients
        The cohort.
    memory : dict[str, Tensor]
        Where adaptive clip norms are kept from round to round, by message slot, ``(...)``.
    multipliers : Tensor or None
        Of stacked runs, each one's noise multiplier, ``(R,)``; None: all have that of `privacy`.
    """

    by_sample: ClassVar[bool] = False  # whether samples are clipped one by one

    def __init__(
        self, privacy: Privacy, clients: Clients, memory: dict[str, Tensor], multipliers: Tensor | None
    ) -> None:
        self.privacy = privacy
        self.central = privacy.placement == "central"
        self._clients = clients
        self._memory = memory
        self._multipliers = multipliers

    def of(self, clients: Clients, memory: dict[str, Tensor]) -> Mechanism:
        """Return the same for a part of the cohort."""
        return type(self)(self.privacy, clients, memory, self._multipliers)

    def clip(self, slot: int, parts: Sequence[Tensor], samples: Batch | None = None) -> Clipped:
        """Bound the norm of every client's message."""
        limit = self.privacy.clip
        if isinstance(limit, tuple):
            if len(limit) != len(parts):
                raise Incompatible(f"privacy.clip names {len(limit)} parts, the message has {len(parts)}")
            return clip_each(parts, limit)
        if limit != "adaptive":
            return clip(parts, limit)
        rule, norm, here = self.privacy.adaptive, self._adaptive_norm(slot), self._clients.participation_mask
        clipped = clip(parts, norm.unsqueeze(-1))
        count = self._streams("clip count", slot, norm, "server")
        self._memory[f"clip {slot}"] = rule.update(
            norm, clipped.norms, float(self._clients.n), count, here.to(clipped.norms)
        )
        self._memory[f"clip now {slot}"] = norm
        return clipped

    def limits(self, slot: int) -> float | tuple[float, ...] | Tensor:
        """Return the clip norm of a slot's messages in this round: one, one a part, or adaptive ones ``(...)``."""
        return self._memory[f"clip now {slot}"] if isinstance(self.privacy.clip, str) else self.privacy.clip

    def _adaptive_norm(self, slot: int) -> Tensor:
        start = torch.full(self._clients.ids.shape[:-1], ADAPTIVE_START, dtype=torch.float64)
        return self._memory.get(f"clip {slot}", start)

    def sensitivity(self, slot: int) -> float | Tensor:
        """Return how far one client can move what is released of the clipped messages of a slot."""
        limits = self.limits(slot)
        return (limits if isinstance(limits, Tensor) else self.privacy.bound()) * self.privacy.factor

    @property
    def noisy(self) -> bool:
        """Whether noise is added at all."""
        return self._multiplier() > 0

    def deviation(self, sensitivity: float | Tensor) -> float | Tensor:
        """Return the standard deviation of the noise; of stacked runs with noise of their own ``(R,)``."""
        return (self._multiplier() if self._multipliers is None else self._multipliers) * sensitivity

    def noise(
        self,
        like: Tensor,
        slot: int,
        sensitivity: float | Tensor,
        sender: str,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Draw the noise of one message per row, on the kept positions."""
        if not self.noisy:
            return torch.zeros_like(like)
        std = self.deviation(sensitivity)
        if isinstance(std, Tensor) and like.ndim > std.ndim + 1:
            std = std.unsqueeze(-1)
        noise = gaussian_noise(like, std, self._streams("noise", slot, like, sender))
        return noise if shared is None else noise * shared

    def _multiplier(self) -> float:
        """Return the noise multiplier of a message; an adaptive clip norm leaves a little of it to its count."""
        z = self.privacy.noise_multiplier
        if self.privacy.clip != "adaptive":
            return z
        return self.privacy.adaptive.update_multiplier(z, replaced=self.privacy.factor == 2.0)

    def _streams(self, purpose: str, slot: int, rows: Tensor, sender: str) -> list[Generator]:
        return generators(self._clients, self.privacy.stream, purpose, slot, rows, sender)

    def book(self, samples: Batch | None = None) -> None:
        """Book one release of this round's draw."""
        privacy, privacy_log, round = self.privacy, self._clients.privacy_log, self._clients.round
        if round < 0:  # before the first round everybody takes part
            privacy = replace(privacy, rate=1.0)
        draw = ("round", round)
        privacy_log.ledger = privacy.book(privacy_log.ledger, draw, self._multiplier())
        if privacy.clip == "adaptive" and privacy.noise_multiplier > 0:
            count = privacy.adaptive.count_multiplier(replaced=privacy.factor == 2.0)
            privacy_log.ledger = privacy.book(privacy_log.ledger, draw, count)

    def clip_average(self, average: Tensor) -> Tensor:
        """Bound the norm of what is released, which costs no privacy."""
        limit = self.privacy.server_clip
        return average if limit is None else clip([average], limit).parts[0]


class SampleMechanism(Mechanism):
    """What protects the messages of parties with unit record: samples are clipped and booked one by one."""

    by_sample = True

    def clip(self, slot: int, parts: Sequence[Tensor], samples: Batch | None = None) -> Clipped:
        """Bound the norm of what a message says of each sample; norms are those of all samples, ``(..., C B)``."""
        if samples is None:
            raise Incompatible(
                "record-level privacy of parties covers gradients, and embeddings gathered sample by sample; the "
                "algorithm sends something else"
            )
        (joint,) = parts
        found = clip([joint.unflatten(-1, (samples.weight.shape[-1], -1))], self.privacy.bound())
        flat = (part.flatten(-2) for part in found.parts)
        return Clipped(tuple(flat), found.norms.flatten(-2), found.exceeded.flatten(-2))

    def limits(self, slot: int) -> float:
        """Return the clip norm of a sample."""
        return self.privacy.bound()

    def book(self, samples: Batch | None = None) -> None:
        """Charge the records of the batch."""
        assert samples is not None
        self._clients.charge(samples)


def generators(
    clients: Clients, make: Callable[..., G], purpose: str, slot: int, rows: Tensor, sender: str
) -> list[G]:
    """Return one generator a row: of the server's message, or of each client's."""
    round, seeds = clients.round, clients.seeds
    if sender == "server" and rows.ndim <= clients.axes:
        return [make(seed, purpose, round, slot, "server") for seed in seeds]
    ids = clients.ids.view(len(seeds), -1).tolist()
    pairs = [(seed, client) for seed, own in zip(seeds, ids, strict=True) for client in own]
    return [make(seed, purpose, round, slot, sender, client) for seed, client in pairs]
