"""Privacy mechanisms, cohorts and channels for the tests of single messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from datasets.federation import Federation, stack
from harness.core.clients.clients import Clients
from harness.core.cost import Cost
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import Problem
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.core.wire.channel import Channel
from harness.core.wire.known_terms import Round
from harness.problems.classify import classifier
from privacy.ledger import Ledger, PrivacyReport
from tests.support.worlds import COUNTS, EXACT, VECTORIZED, iid_federation

SOFTMAX = classifier(nn.Linear(3, 2))  # of two classes by three features


def privacy(placement: Any = "local", clip: Any = 1.0, z: float = 0.0, **others: Any) -> Privacy:
    """Return a mechanism: replacement for local placement, Poisson cohorts of everybody for central."""
    sampling = "poisson" if placement == "central" else "full"
    return Privacy.of(z, **{"placement": placement, "clip": clip, "sampling": sampling, **others})


def record(clip: float = 1.0, z: float = 0.0) -> Privacy:
    """Return DP-SGD."""
    return privacy("local", clip, z, unit="record", sampling="poisson")


def cohort(
    *,
    ids: Sequence[int] | None = None,
    counts: Sequence[int] = COUNTS,
    round: int = 0,
    seeds: tuple[int, ...] = (0,),
    participation_mask: Sequence[int] | None = None,
    problem: Problem | None = None,
    mechanism: Privacy | None = None,
    mode: Any = "vmap",
    data: Federation | None = None,
    **others: Any,
) -> Clients:
    """Return a cohort, by default of everybody; ``others`` are further arguments of `Clients`."""
    data = data or iid_federation(counts)
    numbers = torch.arange(data.clients) if ids is None else torch.tensor(ids)
    if len(seeds) > 1:
        numbers = numbers.expand(len(seeds), -1)
        data = stack([data] * len(seeds))
    ledger = Ledger(data.clients, tuple(numbers.shape[:-1]))
    ledger.begin()
    return Clients(
        data,
        problem or SOFTMAX,
        VECTORIZED if mode == "vmap" else ClientExecutor(mode),
        seeds=seeds,
        round=round,
        ids=numbers,
        cost=Cost(tuple(numbers.shape[:-1])),
        participation_mask=None if participation_mask is None else torch.tensor(participation_mask),
        ledger=ledger,
        privacy=mechanism,
        **others,
    )


def channel(
    mechanism: Privacy | None = None,
    compression: Compression = EXACT,
    *,
    state: dict[str, Tensor] | None = None,
    mixing: Tensor | None = None,
    again: Round | None = None,
    **members: Any,
) -> Channel:
    """Return the way out of such a cohort."""
    clients = cohort(mechanism=mechanism, **members)
    options: Any = {"privacy": mechanism, "compression": compression, "state": state}
    return Channel(clients, mixing=mixing, again=again, **options)


def booked(way: Channel, z: float = 1.0) -> PrivacyReport:
    """Return the report of what has passed a channel, at delta 1e-5."""
    way.ledger.end()
    return way.ledger.report(1e-5, noise_multiplier=z)


def rows(size: int, *, clients: int = len(COUNTS), scale: float = 1.0, seed: int = 1) -> Tensor:
    """Return messages ``(clients, size)``."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(clients, size, generator=generator, dtype=torch.float64)


def clipped(messages: Tensor, norm: float) -> Tensor:
    """Clip each row, by hand."""
    return messages * (norm / messages.norm(dim=-1, keepdim=True)).clamp(max=1.0)


def largest(messages: Tensor, count: int) -> Tensor:
    """Keep the so many largest entries of each row, by hand."""
    places = messages.abs().argsort(-1, descending=True)[..., :count]
    return torch.zeros_like(messages).scatter(-1, places, messages.gather(-1, places))
