"""A transcript of a run under privacy: the noise in every release, who was drawn, and who must be charged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core import rng
from harness.core.clients.local_batch import PartyBatch
from harness.core.execution.vectorize import Points
from harness.core.settings.privacy import Privacy

ROWS = 64  # clients whose noise is kept, at most
LARGEST = 2**24  # entries of gradients of samples that are computed at once

Key = tuple[str | int, ...]
Limit = float | tuple[float, ...] | Tensor


@dataclass
class Transcript:
    """Record of a run's releases.

    Attributes
    ----------
    privacy : Privacy
        The mechanism that the run claims.
    entries : int
        Largest number of entries of a release that are kept.
    noise : dict
        For every kind of release and round the noise divided by the sensitivity, ``(rows, entries)``; nan where
        nothing was sent.
    included : dict
        For every kind of draw (samples, rate) the members of each client's draws, ``(units,)`` boolean, in order.
    charges : dict
        For every draw the number of releases about each client (or person), and its sampling rate.
    wrong : list of str
        Contradictions that leave no room for chance.
    """

    privacy: Privacy
    entries: int
    noise: dict[Key, dict[int, Tensor]] = field(default_factory=dict)
    included: dict[tuple[str, int, float], dict[int, list[Tensor]]] = field(default_factory=dict)
    charges: dict[Key, tuple[Tensor, Tensor]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def release(self, key: Key, round: int, noise: Tensor, rows: Tensor, total: int) -> None:
        """Keep the noise ``(C, n)`` of some entries; ``rows (C,)`` are clients, of ``total``."""
        few = min(total, ROWS)
        if total > ROWS:  # by position in the cohort
            rows, noise = torch.arange(min(len(rows), ROWS)), noise[:ROWS]
        places = _places(noise.shape[-1], max(4, self.entries // few))
        kept = torch.full((few, len(places)), torch.nan, dtype=torch.float64)
        kept[rows] = noise[:, places].detach().cpu().double()
        self.noise.setdefault(key, {})[round] = kept

    def draw(self, kind: str, rate: float, client: int, members: Tensor) -> None:
        """Keep the members of a draw."""
        sequences = self.included.setdefault((kind, len(members), rate), {})
        sequences.setdefault(client, []).append(members)

    def charge(self, draw: Key, who: Tensor, rates: Tensor | float = 1.0) -> None:
        """Charge clients or persons for one more release; ``who`` counts it, ``(total,)``."""
        rates = torch.as_tensor(rates, dtype=torch.float64).expand(len(who))
        before = self.charges[draw][0] if draw in self.charges else torch.zeros_like(who)
        self.charges[draw] = before + who, rates

    def spent(self) -> set[tuple[float, tuple[tuple[tuple[float, float], int], ...]]]:
        """Return what clients or persons must be charged for: (releases of a draw, rate) with their numbers.

        Each is preceded by the noise multiplier. Equal charges of several clients are one entry.
        """
        if not self.charges:
            return set()
        counts = torch.stack([count for count, _ in self.charges.values()]).T.tolist()
        rates = torch.stack([rate for _, rate in self.charges.values()]).T.tolist()
        each = (
            Counter((count, rate) for count, rate in zip(*pair, strict=True) if count)
            for pair in zip(counts, rates, strict=True)
        )
        noise = (
            torch.as_tensor(self.privacy.noise_multipliers, dtype=torch.float64).expand(len(counts)).tolist()
        )
        return {(z, tuple(sorted(charges.items()))) for z, charges in zip(noise, each, strict=True)}


def clipped(parts: Sequence[Tensor], limit: Limit, order: int = 2) -> list[Tensor]:
    """Clip rows ``(..., n)`` jointly, or each part to its own norm; rows that are not finite become zeros."""
    if isinstance(limit, tuple):
        return [clipped([part], bound, order)[0] for part, bound in zip(parts, limit, strict=True)]
    norm = torch.cat([part.double() for part in parts], -1).norm(order, dim=-1, keepdim=True)
    factor = torch.where(norm.isfinite(), (limit / norm).clamp(max=1.0), 0.0)
    return [(part.double() * factor).nan_to_num(0.0, 0.0, 0.0) for part in parts]


def clipped_sums(
    loss: Callable[..., Tensor],
    points: tuple[Tensor, ...],
    batch: Batch | PartyBatch,
    by: Points,
    norm: float,
    group: int = 1,
) -> list[Tensor]:
    """Return each client's sum of clipped gradients of its samples, ``(C, n)`` by every moving point.

    Of ``group`` neighboring samples, a user's, the mean is clipped.
    """
    moving = by or tuple(range(len(points)))

    def of_sample(points: tuple[Tensor, ...], sample: Batch | PartyBatch) -> tuple[Tensor, ...]:
        def value(*at: Tensor) -> Tensor:
            return loss(*at, type(sample)(*(part.unsqueeze(0) for part in sample)))

        gradients: tuple[Tensor, ...] = torch.func.grad(value, argnums=moving)(*points)
        return gradients

    def of_client(points: tuple[Tensor, ...], batch: Batch | PartyBatch) -> tuple[Tensor, ...]:
        each = torch.func.vmap(of_sample, (None, 0))(points, batch)
        present = (batch.weight > 0.5).unsqueeze(-1)
        real = [torch.where(present, part, 0.0) for part in each]
        number = present.unflatten(0, (-1, group)).sum(1).clamp(min=1)
        means = [part.unflatten(0, (-1, group)).sum(1) / number for part in real]
        return tuple(part.sum(0) for part in clipped(means, norm))

    entries = batch.weight.shape[-1] * sum(points[place].shape[-1] for place in moving)
    at_once = max(1, LARGEST // entries)
    return list(torch.func.vmap(of_client, chunk_size=at_once)(tuple(p.detach() for p in points), batch))


def _places(length: int, most: int) -> Tensor:
    """Return the entries of a row that are kept: the first ones, and a random choice of the others."""
    if length <= most:
        return torch.arange(length)
    others = torch.randperm(length - most // 2, generator=rng.stream(length, "audit entries"))
    return torch.cat([torch.arange(most // 2), most // 2 + others[: most - most // 2]])
