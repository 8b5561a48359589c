"""Clients with gradients of zero: their messages follow from earlier releases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from datasets.federation import Batch
from harness.core.clients.batches import Batches, BatchPlan, unchanged
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.private_batches import Records
from harness.core.cost import Cost
from harness.core.execution.vectorize import Points
from harness.core.problem import Objective, problem_loss
from privacy.ledger import Ledger


class Silenced(Clients):
    """A cohort that goes through a round without data: gradients, and functions of data, are zero.

    It takes as many steps as the cohort, with the same coins. It counts and books nothing. Rows that clients keep
    to themselves are NaN, so that what depends on them cannot pass for known.

    Parameters
    ----------
    clients : Clients
        The cohort.
    average : bool
        Whether to be a single client instead, the average as the server knows it: its rows are the server's values,
        and its number of steps is the largest in the federation. It depends on nobody in the cohort: what differs
        between clients, such as coins of their own, is NaN.
    """

    def __init__(self, clients: Clients, *, average: bool = False) -> None:
        vars(self).update(vars(clients))  # but for the following, it has all that the cohort has
        self.average = average
        self.cost = Cost(tuple(clients.ids.shape[:-1]))
        self.ledger = Ledger(clients.federation.clients)
        self.errors = {}
        if self._records is not None and self._privacy is not None:
            self._records = Records(self._privacy, self.problem, self.ledger)
        if average:
            self.ids = torch.zeros_like(clients.ids[..., :1])
            self.participation_mask = torch.ones_like(self.ids)
            self.sizes = self.samples("train")

    def take(self, full: Tensor, mean: Tensor | None = None) -> Tensor:
        """Select released rows, or the server's value for their mean; NaN in place of rows that clients keep."""
        if mean is None:
            shape = (*self.ids.shape, full.shape[-1])
            return torch.full(shape, torch.nan, dtype=full.dtype, device=full.device)
        return self.rows(mean) if self.average else super().take(full)

    def put(self, full: Tensor, rows: Tensor) -> Tensor:
        """Change nothing."""
        return full

    def samples(self, split: str) -> Tensor:
        """Return the number of samples of each member; NaN for the average."""
        return self._of_members(super().samples(split))

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss the coin of the round, or those of its members; NaN in place of the latter for the average."""
        tossed = super().coin(p, name, each=each)
        return self._of_members(tossed) if each else tossed

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Draw the numbers of each member; NaN for the average."""
        return self._of_members(super().normal(name, step, *shape))

    def _of_members(self, numbers: Tensor) -> Tensor:
        """Return numbers of the members, which the average does not have."""
        return torch.full(numbers.shape, torch.nan, device=numbers.device) if self.average else numbers

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Return as many batches as the cohort draws, of one blank sample each."""
        public = not (self.average or self.counts_private)
        counts = self.samples(plan.split)
        if not public:
            counts = self.federation.counts(plan.split).amax(-1, keepdim=True)
        taken = plan.all_steps(counts)
        if isinstance(plan.steps, Tensor) and not public:
            taken = taken.amax(-1, keepdim=True)
        taken = torch.where(counts > 0, taken, 0).expand(self.ids.shape)
        most = int(taken.max())
        step = torch.arange(most).view(-1, *[1] * (taken.ndim + 1))
        positions = torch.where(step < taken.unsqueeze(-1), 0, -1)
        pool = self.federation.pool
        return Batches(
            Batch(*(torch.zeros_like(column[:1]) for column in pool)),
            positions.to(pool.x.device),
            taken.unsqueeze(-1).to(pool.x),
            same=bool((taken == most).all()),
            redact=unchanged,
        )

    def data(self) -> LocalBatch:
        """Return one blank sample."""
        return next(iter(self.batches(None, steps=1)))

    def _gradients(
        self,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points = (),
        objective: Objective = problem_loss,
    ) -> list[Tensor]:
        """Return zeros that take no memory."""
        moving = [points[place] for place in by or range(len(points))]
        return [point.new_zeros(()).expand(point.shape) for point in moving]

    def each(self, fn: Any, *arguments: Any) -> Any:
        """Return zeros in the shape of the function's results."""
        plain = [one.argument if isinstance(one, LocalBatch) else one for one in arguments]
        one = self._executor.measured(fn, self.axes, *plain).result
        return tree_map(lambda result: result.new_zeros(()).expand(*self.ids.shape, *result.shape), one)
