"""The Gaussian mechanism on messages: clip norms, fixed or adaptive, noise, and what is booked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from numpy.random import Generator
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients import Clients
from harness.core.registry import Incompatible
from harness.core.wire.settings import Privacy
from privacy import clip, clip_each, gaussian_noise

G = TypeVar("G")  # a generator of torch or of numpy
ADAPTIVE_START = 1.0  # first adaptive clip norm


class Mechanism:
    """What protects the messages of a cohort in one round; the channel says when.

    Parameters
    ----------
    privacy : Privacy
        The settled mechanism, with unit client.
    clients : Clients
        The cohort.
    memory : dict[str, Tensor]
        Where adaptive clip norms are kept from round to round, by message slot, ``(...)``.
    multipliers : Tensor or None
        Of stacked runs, each one's noise multiplier, ``(R,)``; None: all have that of `privacy`.
    """

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

    def clipped(self, slot: int, parts: Sequence[Tensor]) -> list[Tensor]:
        """Bound the norm of every client's message."""
        limit = self.privacy.clip
        if isinstance(limit, tuple):
            if len(limit) != len(parts):
                raise Incompatible(f"privacy.clip names {len(limit)} parts, the message has {len(parts)}")
            return list(clip_each(parts, limit).parts)
        if limit != "adaptive":
            return list(clip(parts, limit).parts)
        rule, norm, participation_mask = (
            self.privacy.adaptive,
            self._adaptive_norm(slot),
            self._clients.participation_mask,
        )
        clipped = clip(parts, norm.unsqueeze(-1))
        count = self._streams("clip count", slot, norm, "server")
        self._memory[f"clip {slot}"] = rule.update(
            norm, clipped.norms, float(self._clients.n), count, participation_mask.to(clipped.norms)
        )
        self._memory[f"clip now {slot}"] = norm
        return list(clipped.parts)

    def _adaptive_norm(self, slot: int) -> Tensor:
        start = torch.full(self._clients.ids.shape[:-1], ADAPTIVE_START, dtype=torch.float64)
        return self._memory.get(f"clip {slot}", start)

    def sensitivity(self, slot: int) -> float | Tensor:
        """Return how far one client can move what is released of the clipped messages of a slot."""
        if self.privacy.clip == "adaptive":
            return self._memory[f"clip now {slot}"] * self.privacy.factor
        return self.privacy.bound() * self.privacy.factor

    def noise(
        self,
        like: Tensor,
        slot: int,
        sensitivity: float | Tensor,
        sender: str,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Draw the noise of one message per row, on the kept positions."""
        z = self._multiplier()
        if z == 0:
            return torch.zeros_like(like)
        std = (z if self._multipliers is None else self._multipliers) * sensitivity
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

    def book(self) -> None:
        """Book one release of this round's draw."""
        privacy, privacy_log, round = self.privacy, self._clients.privacy_log, self._clients.round
        if round < 0:  # before the first round everybody takes part
            privacy = replace(privacy, rate=1.0)
        draw = ("round", round)
        privacy_log.ledger = privacy.book(privacy_log.ledger, draw, self._multiplier())
        if privacy.clip == "adaptive" and privacy.noise_multiplier > 0:
            count = privacy.adaptive.count_multiplier(replaced=privacy.factor == 2.0)
            privacy_log.ledger = privacy.book(privacy_log.ledger, draw, count)

    def clipped_by_server(self, total: Tensor) -> Tensor:
        """Bound the norm of what is released, which costs nothing."""
        limit = self.privacy.server_clip
        return total if limit is None else clip([total], limit).parts[0]


def protected_by_sample(
    privacy: Privacy, clients: Clients, joint: Tensor, slot: int, about: Batch | None, shared: Tensor | None
) -> Tensor:
    """Clip and noise what parties' messages say of each sample by itself, and charge the records."""
    if about is None:
        raise Incompatible(
            "record-level privacy of parties covers gradients, and embeddings gathered sample by sample; the "
            "algorithm sends something else"
        )
    (h,) = clip([joint.unflatten(-1, (about.weight.shape[-1], -1))], privacy.bound()).parts
    joint = h.flatten(-2)
    clients.charge(about)
    if privacy.noise_multiplier == 0:
        return joint
    streams = generators(clients, privacy.stream, "noise", slot, joint, "client")
    noise = gaussian_noise(joint, privacy.deviation(), streams)
    return joint + (noise if shared is None else noise * shared)


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
