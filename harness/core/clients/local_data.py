"""The data of a cohort at home: batches, and numbers of local steps that everybody may know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from harness.core import rng
from harness.core.clients.batches import (
    Batches,
    BatchPlan,
    LocalWork,
    common,
    look_up,
    public_size,
    shorten,
    unchanged,
)
from harness.core.clients.cohort import Cohort
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.private_batches import Records
from harness.core.clients.sampling import draw_batches, full_batches
from harness.core.errors import Incompatible
from harness.core.execution.exact.widths import mismatched_batches, uneven_batches
from harness.core.public import Public
from harness.core.steps import reach


class Holders(NamedTuple):
    """Rows of the clients that draw samples, once for the runs that draw the same.

    Attributes
    ----------
    ids, counts : Tensor
        Clients and their samples, ``(..., C)``.
    held : Tensor
        Positions of all clients' samples in the pool, ``(..., total, N)``.
    entropy : tuple of int or str
        What determines the draws of each run.
    runs : int or None
        Number of runs, if they draw the same; see `Batches`.
    """

    ids: Tensor
    counts: Tensor
    held: Tensor
    entropy: tuple[int | str, ...]
    runs: int | None


@dataclass(slots=True)
class LocalData:
    """The data that the members of a cohort hold.

    Attributes
    ----------
    cohort : Cohort
        The clients.
    records : Records or None
        The private side of batches, under record-level privacy.
    secret : bool
        Whether nobody may know who is in the cohort.
    shared : bool
        Whether runs that draw the same batches share them in memory.
    """

    cohort: Cohort
    records: Records | None = None
    secret: bool = False
    shared: bool = False

    def completed(self, plan: BatchPlan, work: LocalWork | None) -> BatchPlan:
        """Return a plan with what is not given taken from an algorithm's settings."""
        if work is None:
            return plan
        plan = replace(plan, batch_size=plan.batch_size or work.batch_size)
        if plan.steps is not None or plan.epochs is not None:
            return plan
        self._refuse_epochs(work)
        return replace(plan, steps=work.local_steps, epochs=work.local_epochs)

    def batches(self, plan: BatchPlan) -> Batches:
        """Draw the batches of this round."""
        cohort, records, steps = self.cohort, self.records, plan.steps
        split, stream = plan.split, plan.stream
        holders, mismatched = self._holders(plan)
        users = records is not None and records.users
        named = f"{split} {stream}" if users else stream
        keys = torch.tensor([rng.key(source, "batch", named, cohort.round) for source in holders.entropy])
        keys = keys[:, None].expand(len(keys), holders.ids.shape[-1]).flatten()
        who, counts = torch.zeros_like(holders.ids) if plan.aligned else holders.ids, holders.counts
        if records is not None and users:  # users are drawn, not samples
            counts = records.counts(cohort.federation, split)[holders.ids]
        most = int(steps.max()) if isinstance(steps, Tensor) else steps
        draw = draw_batches if records is None else records.draw
        length = {"steps": most, "epochs": plan.epochs, "batch_size": plan.batch_size}
        order, num_steps = draw(counts.flatten(), keys, who.flatten(), **length)
        same = draw is draw_batches and full_batches(counts, plan.batch_size)
        if isinstance(steps, Tensor):
            order, num_steps = shorten(order, num_steps, steps.flatten())
            same = False
        pool = cohort.federation.pool
        num_steps = num_steps.view(*holders.ids.shape, 1).to(pool.x)
        redact: Callable[[int, LocalBatch], LocalBatch] = unchanged
        if records is not None:
            sizes = cohort.federation, split, plan.batch_size
            redact = records.redaction(stream, order, num_steps, counts, *sizes)
            if not records.public:
                order = records.places(order, cohort.federation, split, holders.ids)
        elif cohort.counts_private:
            redact = partial(_sized, plan.batch_size)
        positions = look_up(order, cohort.members(holders.held, holders.ids)).to(pool.x.device)
        return Batches(
            pool, positions, num_steps, same, redact, holders.runs, shared=self.shared, mismatched=mismatched
        )

    @property
    def largest(self) -> int:
        """Number of training samples of the client that has most."""
        return int(self.cohort.federation.counts().max())

    def held(self) -> LocalBatch | None:
        """Return all training data as one batch, if it need not be drawn."""
        cohort = self.cohort
        if self.records is not None and self.records.privacy.record_rate is not None:
            raise Incompatible(
                "privacy.adjacency: the algorithm uses all samples of a client at once, whose number add-remove "
                "protects; use zero-out"
            )
        if cohort.axes > 1 or not cohort.everybody or self.records is not None or cohort.counts_private:
            return None
        held = cohort.federation.held
        return None if held is None or held.x._version else LocalBatch(held)  # a network may have changed it

    def sized(self, size: int | None, batch: LocalBatch) -> LocalBatch:
        """Return a batch that counts as ``size`` samples where counts are private."""
        return _sized(size, 0, batch) if self.cohort.counts_private else batch

    def _holders(self, plan: BatchPlan) -> tuple[Holders, bool]:
        """Return the clients that draw samples, and whether stacking has changed the shapes of their batches."""
        cohort, records, split = self.cohort, self.records, plan.split
        federation, each = cohort.federation, cohort.federation.repeats
        own_draws = records is not None and not records.public and records.privacy.own_draws
        entropy: tuple[int | str, ...] = cohort.noise_keys if own_draws else cohort.seeds
        ids, counts, held = cohort.ids, cohort.samples(split), federation.splits[split]
        if each == 1 or records is not None or isinstance(plan.steps, Tensor) or not _draw_alike(cohort):
            mismatched = cohort.axes > 1 and self._mismatched(counts, split, plan.batch_size)
            return Holders(ids, counts, held, entropy, None), mismatched
        mismatched = each != len(entropy) and self._mismatched(counts, split, plan.batch_size)
        first = slice(None, None, each)
        once = Holders(ids[first], counts[first], federation.distinct[split], entropy[first], len(entropy))
        return once, mismatched

    def _mismatched(self, counts: Tensor, split: str, batch_size: int | None) -> bool:
        """Whether stacking changes the shapes of batches; for a secret cohort, whether it might, for any cohort."""
        if self.secret and self.cohort.share < 1:
            return uneven_batches(self.cohort.federation.sizes(split), batch_size)
        return mismatched_batches(counts, self.cohort.participation_mask.bool(), batch_size)

    def most_steps(self, work: LocalWork) -> Public:
        """Return the largest number of local steps; see `Clients.most_steps`."""
        if work.local_steps is not None:
            return Public(work.local_steps)
        # Nobody with fewer samples takes more steps.
        largest = self.cohort.federation.counts().amax(-1, keepdim=True)
        return common(self._all_steps(work, largest).squeeze(-1))

    def mean_steps(self, work: LocalWork, momentum: float) -> Public:
        """Return the mean number of local steps; see `Clients.mean_steps`."""
        samples = self.cohort.federation.counts()
        counts = (torch.ones_like(samples) if self.cohort.counts_private else samples).double()
        taken = reach(self._all_steps(work, samples).double(), momentum)
        return common((counts * taken).sum(-1) / counts.sum(-1).clamp(min=1))

    def _all_steps(self, work: LocalWork, counts: Tensor) -> Tensor:
        """Return the numbers of local steps of clients with ``counts (..., n)`` samples."""
        self._refuse_epochs(work)
        rate = None if self.records is None else self.records.privacy.record_rate
        return BatchPlan.of(work).all_steps(counts, rate)

    def _refuse_epochs(self, work: LocalWork) -> None:
        """Refuse epochs where they would tell private numbers of samples."""
        if work.local_steps is None and self.cohort.counts_private and self.records is None:
            raise Incompatible(
                "local_epochs: numbers of samples are private, and the number of steps in an epoch depends on "
                "them; use local_steps"
            )
        if work.local_steps is None and self.records is not None and self.records.users:
            raise Incompatible(
                "algorithm.local_steps: missing; under unit user a batch is of users, and the usual length, an "
                "epoch, of samples; give a number of steps"
            )


def _draw_alike(cohort: Cohort) -> bool:
    """Whether runs that share their data draw the same batches: they have one seed, and one cohort."""
    each = cohort.federation.repeats
    seeds = all(seed == cohort.seeds[number - number % each] for number, seed in enumerate(cohort.seeds))
    rows = (rows.unflatten(0, (-1, each)) for rows in (cohort.ids, cohort.participation_mask))
    return seeds and all(bool((of_seed == of_seed[:, :1]).all()) for of_seed in rows)


def _sized(size: int | None, step: int, batch: LocalBatch) -> LocalBatch:
    """Note the public number of samples that a batch counts as."""
    return replace(batch, public_size=public_size(size))
