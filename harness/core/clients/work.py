"""Counts of the work of clients, if numbers of samples are private too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.core.clients.batches import public_size
from harness.core.clients.cohort import Cohort
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.private_batches import Records
from harness.core.execution.exact.sharing import Shared


@dataclass(slots=True)
class CountedWork:
    """The work of a cohort.

    Attributes
    ----------
    cohort : Cohort
        The clients.
    records : Records or None
        The private side of batches, under record-level privacy.
    batch_size : int or None
        Samples that all data of a client count as, where counts of samples are private.
    """

    cohort: Cohort
    records: Records | None = None
    batch_size: int | None = None

    @property
    def sizes_private(self) -> bool:
        """Whether the number of samples in a batch is private."""
        return self.cohort.counts_private if self.records is None else not self.records.public

    def times(self, batch: LocalBatch) -> Tensor:
        """Return how often work on one sample is counted for a batch of each client.

        Numbers ``(..., C, 1)``. Every sample of a participating client counts. Where the sizes of batches are
        private, the expected or the nominal size counts for everybody who takes the step.
        """
        batch = LocalBatch.drawn(batch)
        members = self.cohort.participation_mask.unsqueeze(-1).to(batch.weight.device)
        if not self.sizes_private:
            one_seed = batch.runs is not None and len(batch.samples.weight) == 1  # whose samples runs share
            weight = batch.samples.weight if one_seed else batch.weight
            return (weight > 0.5).sum(-1, keepdim=True) * members
        if self.records is None:
            return members * public_size(batch.public_size or self.batch_size)
        return self.records.each * self.records.of(batch).divisor.long() * batch.active.long() * members

    def shown(self, argument: Any, axes: int) -> Any:
        """Return an argument to measure operations on: a batch one slot wide where its width is private."""
        if not isinstance(argument, LocalBatch):
            return argument
        samples: Any = argument.samples
        if self.sizes_private:
            samples = type(samples)(*(column.narrow(axes, 0, 1) for column in samples))
        return samples if argument.runs is None else Shared(samples, argument.runs)

    def among(self, where: Tensor | slice) -> Tensor:
        """Return which members of the cohort are selected by ``where``, flattened, ``(..., C, 1)``."""
        ids = self.cohort.ids
        selected = torch.zeros(ids.numel(), dtype=torch.bool, device=self.cohort.federation.pool.x.device)
        selected[where] = True
        return selected.view(*ids.shape, 1)
