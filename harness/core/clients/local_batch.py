"""Batches of the clients of a cohort, with all that goes with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from torch import Tensor

from datasets.federation import Batch
from harness.core.errors import Incompatible
from harness.core.execution.exact.sharing import Shared, for_runs, without_sharing


class PartyBatch(NamedTuple):
    """A batch of a vertical problem with the information a party has received about its samples.

    Attributes
    ----------
    x, y, group, weight : Tensor
        As in `Batch`.
    received : Tensor
        All parties' embeddings ``(..., B, K, d)``, or the gradient by this party's embeddings ``(..., B, d)``.
    own : Tensor
        True at the party's own number, ``(..., B, K)``.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    weight: Tensor
    received: Tensor
    own: Tensor


@dataclass(frozen=True)
class Drawn:
    """The private side of a batch.

    Attributes
    ----------
    stream, step : str, int
        Identification of the draw within the round; the stream with its split.
    samples : Batch
        The samples, which algorithms do not see.
    divisor : Tensor
        What sums of gradients are divided by, ``(..., C, 1)`` or ``()``. Depends on nothing that neighbors
        differ in.
    rate : float or str
        Rate at which records are drawn, or the name of the clients' own rates in the ledger.
    numbers : Tensor or None
        Numbers of the records where they are public, -1 = no record.
    """

    stream: str
    step: int
    samples: Batch
    divisor: Tensor
    rate: float | str = 1.0
    numbers: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LocalBatch:
    """A batch of each client of a cohort.

    Attributes
    ----------
    samples : Batch or PartyBatch
        The samples that algorithms see, ``(..., C, B, ...)``; if the runs of each of S seeds share them,
        ``(S, C, B, ...)``.
    runs : int or None
        Number R of all stacked runs where some share samples, a multiple of those that do; None: every run
        has its own.
    taken : Tensor or None
        1 for clients that take the step, ``(..., C, 1)``; None: those with samples. A secret draw may be empty,
        which nobody may see, so it is a step all the same.
    public_size : int or None
        Number of samples that the batch counts as, where the number that clients hold is private.
    private : Drawn or None
        The samples that record-level privacy protects; the others are without them then.
    """

    samples: Batch | PartyBatch
    runs: int | None = None
    taken: Tensor | None = None
    public_size: int | None = None
    private: Drawn | None = None

    @property
    def argument(self) -> Any:
        """The samples, as an argument of one-client functions."""
        return self.samples if self.runs is None else Shared(self.samples, self.runs)

    @property
    def of_runs(self) -> Batch | PartyBatch:
        """The samples of every run, ``(..., C, B, ...)``: copies, where runs of several seeds share them."""
        samples: Batch | PartyBatch = without_sharing(self.argument)
        return samples

    def _of_runs(self, column: Tensor) -> Tensor:
        return column if self.runs is None else for_runs(column, self.runs)

    @property
    def x(self) -> Tensor:
        """Features, ``(..., C, B, ...)``."""
        return self._of_runs(self.samples.x)

    @property
    def y(self) -> Tensor:
        """Labels, ``(..., C, B)``."""
        return self._of_runs(self.samples.y)

    @property
    def group(self) -> Tensor:
        """Sensitive groups, ``(..., C, B)``."""
        return self._of_runs(self.samples.group)

    @cached_property
    def weight(self) -> Tensor:
        """1 for samples, 0 for padding, ``(..., C, B)``."""
        return self._of_runs(self.samples.weight)

    @cached_property
    def active(self) -> Tensor:
        """1 for clients that take the step, 0 for those without a batch left, ``(..., C, 1)``."""
        weight = self.weight
        present = weight.sum(-1, keepdim=True) > 0 if self.taken is None else self.taken
        return present.to(weight.dtype)

    def only(self, active: Tensor) -> LocalBatch:
        """Return the batch for clients where ``active (..., C, 1)`` is 1, and padding for the others.

        Record-level privacy refuses its gradients.
        """
        samples = self.of_runs
        return LocalBatch(samples._replace(weight=samples.weight * active), public_size=self.public_size)

    def with_samples(self, **fields: Tensor) -> Self:
        """Return the batch with other fields of its samples."""
        return replace(self, samples=self.samples._replace(**fields))

    def with_received(self, received: Tensor, own: Tensor) -> LocalBatch:
        """Return the batch with what the parties have received about its samples; see `PartyBatch`."""
        return replace(self, samples=PartyBatch(*self.of_runs[:4], received=received, own=own), runs=None)

    @classmethod
    def drawn(cls, batch: object) -> LocalBatch:
        """Return a batch that was drawn; refuse one made by hand, whose work nobody counts."""
        if not isinstance(batch, LocalBatch):
            raise Incompatible(
                "the algorithm computes on samples of its own; it needs batches drawn by Clients.batches"
            )
        return batch

    def revealed(self) -> LocalBatch:
        """Return the batch with the samples that record-level privacy protects."""
        assert self.private is not None
        return self.with_samples(**self.private.samples._asdict())
