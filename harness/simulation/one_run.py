"""A single run of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from datasets.federation import Federation
from harness.core.algorithm import Algorithm
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy


@dataclass(frozen=True)
class OneRun:
    """A run of a simulation, which may be stacked with others.

    Attributes
    ----------
    seed : int
        Its seed.
    algorithm, privacy, compression : Algorithm, Privacy or None, Compression
        Its settings.
    federation : Federation
        Its data.
    """

    seed: int
    algorithm: Algorithm
    privacy: Privacy | None
    compression: Compression
    federation: Federation

    @cached_property
    def training(self) -> Federation:
        """The clients that train; for the centralized reference, one client with all data."""
        return self.federation.merged() if self.algorithm.meta.pooled else self.federation
