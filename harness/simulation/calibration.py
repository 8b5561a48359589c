"""Settle a run's privacy before it starts: how much it will release, and the noise that its budget asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from datasets.federation import Batch, Federation
from harness.core.clients import Clients
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, its_loss
from harness.core.wire.settings import Privacy
from privacy import Draw, Event, Ledger, account, analytic_sigma, classic_sigma, compose
from privacy.gaussian import lowest

if TYPE_CHECKING:
    from harness.config.fields import PrivacySpec
    from harness.config.run import RunSpec


class Dry(Clients):
    """Clients that send messages of the right shape and compute nothing; work is counted as if it were done."""

    def _gradients(
        self, points: tuple[Tensor, ...], batch: Batch, by: Points = (), objective: Objective = its_loss
    ) -> list[Tensor]:
        if self._records is not None:
            self._book(self._records, batch)
        return self._of_models(_nothing, points, batch, by, objective)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Return zeros."""
        return torch.zeros(()).expand(*self.ids.shape, *shape).to(self.federation.pool.x)

    def _embedded(self, embed: Callable[..., Tensor], y: Tensor, batch: Batch) -> Tensor:
        one = Batch(*(part[0, :1] for part in batch))  # a single sample tells how long an embedding is
        return y.new_zeros(*batch.weight.shape, embed(y[0], one).shape[-1])


def _nothing(loss: object, axes: int, points: Sequence[Tensor], batch: Batch, by: Points) -> list[Tensor]:
    return [torch.zeros_like(points[place]) for place in by or range(len(points))]


def draft(given: PrivacySpec, spec: RunSpec, federation: Federation) -> Privacy:
    """Return a run's mechanism with the noise still open (a multiplier of 1, or the one that was given).

    The rate at which a record is drawn is that of the client with the fewest.
    """
    total = federation.clients
    assert given.sampling is not None and given.adjacency is not None  # the spec has settled them
    size = spec.cohort.size if spec.cohort is not None else total
    rate = size / total if given.placement == "central" else 1.0
    if given.unit == "record" and given.sampling != "full":
        batch, fewest = spec.algorithm["batch_size"], int(federation.counts().min())
        rate = 1.0 if batch is None else min(1.0, batch / max(1, fewest))
    return Privacy(
        unit=given.unit,
        placement=given.placement,
        clip=given.clip,
        noise_multiplier=1.0 if given.noise_multiplier is None else given.noise_multiplier,
        adjacency=given.adjacency,
        sampling=given.sampling,
        rate=rate,
        delta=given.delta,
        accountant=given.accountant,
        server_clip=given.server_clip,
        strict=given.strict,
    )


def settle(mechanism: Privacy, given: PrivacySpec, whole: Ledger) -> float:
    """Return the noise multiplier that a spec asks for, of a run that releases so much with that of its draft.

    The classic formula takes the clip norm as sensitivity; what its noise is really worth is in the ledger.
    """
    if given.noise_multiplier is not None:
        return given.noise_multiplier
    if given.epsilon_nominal is not None:
        return classic_sigma(given.epsilon_nominal, given.delta, 1.0) / mechanism.factor
    if given.epsilon_release is not None:
        return analytic_sigma(given.epsilon_release, given.delta, 1.0)
    assert given.epsilon is not None
    return mechanism.noise_multiplier * _smallest(
        whole.all_draws, given.epsilon, given.delta, given.accountant
    )


def _smallest(draws: Sequence[Draw], budget: float, delta: float, accountant: str) -> float:
    """Return the factor, to 1e-6, by which all noise multipliers must grow to stay within a budget."""
    if not draws:
        return 0.0

    def within(log_factor: float) -> bool:
        factor = math.exp(log_factor)
        events = [Event(factor * draw.noise_multiplier, draw.rate, draw.times) for draw in draws]
        return account(events, delta, accountant).epsilon <= budget

    # Closed without amplification, and sampling only lowers it. The margin is for rounding.
    together = compose(draw.noise_multiplier / math.sqrt(draw.times) for draw in draws)
    high = math.log(analytic_sigma(budget, delta, 1.0) / together * (1 + 1e-9))
    if all(draw.rate == 1 for draw in draws):
        return math.exp(high)
    low = high - 1.0
    while within(low):
        low, high = low - 1.0, low
    return math.exp(lowest(within, low, high, tolerance=5e-7))
