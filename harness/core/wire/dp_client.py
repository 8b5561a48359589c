"""Mechanisms on messages: fixed or adaptive clipping, Gaussian or a user's noise, and bookings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from datasets.errors import warn_once
from harness.core import rng
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.errors import Incompatible
from harness.core.per_run import PerRun
from harness.core.settings.privacy import Privacy
from privacy.clipping import NORMS, AdaptiveClip, Clipped, clip, clip_each
from privacy.event import SECRET
from privacy.gaussian import gaussian_noise
from privacy.own_mechanism import Noise

G = TypeVar("G")  # a generator of torch or of numpy
ADAPTIVE_START = 1.0  # first adaptive clip norm


class Mechanism:
    """The Gaussian mechanism for a cohort's messages in one round.

    Parameters
    ----------
    privacy : Privacy
        The calibrated settings, with unit client.
    clients : Clients
        The cohort.
    memory : dict[str, Tensor]
        State kept between rounds: adaptive clip norms ``(...)`` by message slot.
    """

    by_sample: ClassVar[bool] = False  # whether each sample is clipped separately

    def __init__(self, privacy: Privacy, clients: Clients, memory: dict[str, Tensor]) -> None:
        self.privacy = privacy
        self.averages = privacy.placement != "local"  # whether only averages are protected
        self._clients = clients
        self._memory = memory

    def of(self, clients: Clients, memory: dict[str, Tensor]) -> Mechanism:
        """Return the mechanism for a part of the cohort."""
        return type(self)(self.privacy, clients, memory)

    def clip(self, slot: int, parts: Sequence[Tensor], samples: LocalBatch | None = None) -> Clipped:
        """Bound the norm of every client's message."""
        limit = self.privacy.clip
        if isinstance(limit, tuple):
            if len(limit) != len(parts):
                raise Incompatible(
                    f"privacy.clip has {len(limit)} norms, but the message has {len(parts)} parts; give one norm "
                    "for each part, or a single one"
                )
            return clip_each(parts, limit)
        if not isinstance(limit, str):
            fixed = limit if isinstance(limit, float) else _values(limit).unsqueeze(-1)
            return clip(parts, fixed, self.privacy.order)
        norm = self._adaptive_norm(slot)
        clipped = clip(parts, norm.unsqueeze(-1))
        self._adapt(slot, norm, clipped.norms)
        return clipped

    def _adapt(self, slot: int, norm: Tensor, norms: Tensor) -> None:
        """Release the noisy share of short messages, and choose the slot's next clip norm by it."""
        rule, mask = self._rule(), self._clients.participation_mask
        count = self._streams("clip count", slot, norm, "server")
        share = rule.share(norm, norms, float(self._clients.n), count, mask.to(norms))
        later = rule.update(norm, share)
        for end in NORMS:
            if bool((later == end).any()):
                warn_once(
                    f"privacy.clip: an adaptive clip norm has reached {end:g}, the end of its range; give clip as "
                    "a number"
                )
        self._memory |= {f"clip {slot}": later, f"clip now {slot}": norm, f"clip share {slot}": share}

    def _rule(self) -> AdaptiveClip:
        return self.privacy.adaptive(float(self._clients.n))

    def limits(self, slot: int) -> float | tuple[float, ...] | Tensor:
        """Return the clip norm of a slot's messages: one, one per part, or adaptive ones ``(...)``."""
        limit = self.privacy.clip
        return self._memory[f"clip now {slot}"] if isinstance(limit, str) else _values(limit)

    def _adaptive_norm(self, slot: int) -> Tensor:
        start = torch.full(self._clients.ids.shape[:-1], ADAPTIVE_START, dtype=torch.float64)
        return self._memory.get(f"clip {slot}", start)

    def sensitivity(self, slot: int) -> float | Tensor:
        """Return the sensitivity of the sum of a slot's clipped messages to one client, in the norm of the clip."""
        limits = self.limits(slot)
        return limits * self.privacy.factor if isinstance(limits, Tensor) else self.privacy.sensitivity

    @property
    def noisy(self) -> bool:
        """Whether noise is added."""
        return self._multiplier() > 0

    def scale(self, sensitivity: float | Tensor) -> float | Tensor:
        """Return the scale of the noise; ``(R,)`` if stacked runs differ in it."""
        scale: float | Tensor = _values(self._multiplier() * sensitivity)
        return scale

    def deviation(self, sensitivity: float | Tensor) -> float | Tensor:
        """Return the standard deviation of the noise, which is the scale of Gaussian noise."""
        return self.scale(sensitivity)

    @property
    def spread(self) -> float:
        """Standard deviation of this round's noise over that of independent noise."""
        return 1.0

    def noise(
        self,
        like: Tensor,
        slot: int,
        sensitivity: float | Tensor,
        sender: str,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Draw the noise of one message per row, on the entries of the mask ``shared``."""
        if not self.noisy:
            return torch.zeros_like(like)
        std = self.deviation(sensitivity)
        if isinstance(std, Tensor) and like.ndim > std.ndim + 1:
            std = std.unsqueeze(-1)
        noise = gaussian_noise(like, std, self._streams("noise", slot, like, sender))
        return noise if shared is None else noise * shared

    def _multiplier(self) -> float:
        """Return a message's noise multiplier; adaptive clipping spends a part of the budget on its count."""
        z = self.privacy.noise_multiplier
        if self.privacy.clip != "adaptive":
            return z
        return self._rule().update_multiplier(z, replaced=self.privacy.count_replaced)

    def _streams(self, purpose: str, slot: int, rows: Tensor, sender: str) -> list[rng.NoiseStream]:
        return generators(
            self._clients, rng.noise_stream, self._clients.noise_keys, purpose, slot, rows, sender
        )

    def book(self, samples: LocalBatch | None = None) -> None:
        """Book one release of this round's draw."""
        privacy, z = self.privacy, self.privacy.noise_multiplier
        if privacy.clip != "adaptive" or z == 0:
            self._book(1.0)
            return
        self._book(self._multiplier() / z)
        self._book(self._rule().count_multiplier(replaced=privacy.count_replaced) / z)

    def _book(self, multiplier: float) -> None:
        """Book a release with a noise multiplier relative to the run's."""
        ledger, round, rate = self._clients.ledger, self._clients.round, self.privacy.rate
        drawn = round >= 0 and not self._clients.chosen  # everybody takes part in the initialization
        if drawn and self.privacy.sampling in SECRET and rate < 1:
            sampling: Any = self.privacy.sampling
            ledger.book(("round", round), multiplier, sampling=sampling, rate=rate)
        else:
            ledger.book(("round", round), multiplier)

    def clip_average(self, average: Tensor) -> Tensor:
        """Bound the norm of the average: post-processing, which costs no privacy."""
        limit = self.privacy.server_clip
        return average if limit is None else clip([average], _values(limit)).parts[0]


class AdditiveMechanism(Mechanism):
    """A user's noise, the same for every entry, on messages of bounded L1 norm; see `privacy.own_mechanism`."""

    def deviation(self, sensitivity: float | Tensor) -> float | Tensor:
        """Return the standard deviation of the noise; ``(R,)`` if stacked runs differ in it."""
        return self.scale(sensitivity) * self._user_noise.std

    def noise(
        self,
        like: Tensor,
        slot: int,
        sensitivity: float | Tensor,
        sender: str,
        shared: Tensor | None = None,
    ) -> Tensor:
        """Draw the noise of one message per row, in float64, on the entries of the mask ``shared``."""
        if not self.noisy or not like.numel():
            return torch.zeros_like(like)
        streams = self._streams("noise", slot, like, sender)
        drawn = np.stack([self._user_noise.draw(like.shape[-1], stream.generator()) for stream in streams])
        scale = torch.as_tensor(self.scale(sensitivity), dtype=torch.float64)
        scale = scale.view(*scale.shape, *[1] * (like.ndim - scale.ndim))
        noise = (torch.from_numpy(drawn).reshape(like.shape) * scale).to(like)
        return noise if shared is None else noise * shared

    @property
    def _user_noise(self) -> Noise:
        assert self.privacy.user_noise is not None
        return self.privacy.user_noise


class SampleMechanism(Mechanism):
    """The mechanism for messages of parties with unit record: samples are clipped and booked separately."""

    by_sample = True

    def clip(self, slot: int, parts: Sequence[Tensor], samples: LocalBatch | None = None) -> Clipped:
        """Bound the norm of each sample's vector; the norms returned are those of all samples, ``(..., C B)``."""
        if samples is None:
            raise Incompatible(
                "record-level privacy of parties protects gradients and embeddings of gather(per_sample=...); "
                "the algorithm sends something else"
            )
        (joint,) = parts
        clipped = clip([joint.unflatten(-1, (samples.weight.shape[-1], -1))], self.privacy.bound())
        flat = (part.flatten(-2) for part in clipped.parts)
        return Clipped(tuple(flat), clipped.norms.flatten(-2), clipped.exceeded.flatten(-2))

    def limits(self, slot: int) -> float:
        """Return the clip norm of a sample."""
        return self.privacy.bound()

    def book(self, samples: LocalBatch | None = None) -> None:
        """Charge the records of the batch."""
        assert samples is not None
        self._clients.charge(samples)


def _values(setting: Any) -> Any:
    """Return a setting as a number, or as a float64 tensor of the stacked runs' values, ``(R,)``."""
    return torch.tensor(setting.values, dtype=torch.float64) if isinstance(setting, PerRun) else setting


def generators(
    clients: Clients,
    make: Callable[..., G],
    keys: Sequence[int | str],
    purpose: str,
    slot: int,
    rows: Tensor,
    sender: str,
) -> list[G]:
    """Return one generator per row: for the server's message, or for each client's; one key per run."""
    round = clients.round
    if sender == "server" and rows.ndim <= clients.axes:
        return [make(key, purpose, round, slot, "server") for key in keys]
    ids = clients.ids.view(len(keys), -1).tolist()
    pairs = [(key, client) for key, members in zip(keys, ids, strict=True) for client in members]
    return [make(key, purpose, round, slot, sender, client) for key, client in pairs]
