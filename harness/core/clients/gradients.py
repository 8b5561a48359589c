"""Gradients of a cohort: of the whole model or of pruned ones, with or without record-level privacy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.core.clients.cohort import Cohort
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.private_batches import Records
from harness.core.clients.work import CountedWork
from harness.core.execution.exact.sharing import once
from harness.core.execution.vectorize import ClientExecutor, Points
from harness.core.problem import Objective, Problem, problem_loss

Compute = Callable[
    ..., Sequence[Tensor]
]  # (loss, axes, points, samples, by) -> a tensor for each moving point


class GradientVerbs(ABC):
    """The gradients that algorithms ask for, all of which are those of one method."""

    @abstractmethod
    def _gradients(
        self,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points = (),
        objective: Objective = problem_loss,
    ) -> list[Tensor]:
        """Return the gradients of each client by the points numbered ``by``; by all if it is empty."""

    @abstractmethod
    def _check_objective(self, objective: Objective) -> None:
        """Refuse an objective of an algorithm that is no mean over samples, under record-level privacy."""

    def grad(self, x: Tensor, batch: LocalBatch) -> Tensor:
        """Return the gradient of each client's mean loss on its batch, ``(..., C, P)``."""
        return self._gradients((x,), batch)[0]

    def grads(self, x: Tensor, y: Tensor, batch: LocalBatch) -> tuple[Tensor, Tensor]:
        """Return the gradients by both variables at one point, ``(..., C, P)`` and ``(..., C, Q)``."""
        gx, gy = self._gradients((x, y), batch)
        return gx, gy

    def grad_y(self, x: Tensor, y: Tensor, batch: LocalBatch) -> Tensor:
        """Return the gradient by the second variable, ``(..., C, Q)``: less work than both."""
        return self._gradients((x, y), batch, by=(1,))[0]

    def grad_x(self, x: Tensor, y: Tensor, batch: LocalBatch) -> Tensor:
        """Return the gradient by the first variable, ``(..., C, P)``."""
        return self._gradients((x, y), batch, by=(0,))[0]

    def gradient(
        self,
        objective: Objective,
        *points: Tensor,
        batch: LocalBatch,
        by: int | Points = 0,
    ) -> Any:
        """Return the gradient of an objective other than the problem's loss.

        Parameters
        ----------
        objective : Callable[[Problem], Callable]
            ``objective(problem)(*points, batch)`` is a scalar for one client. It must return the same object
            for equal problems (use `functools.lru_cache`), because its operations are measured once. A pruned
            model's problem is the smaller one.
        *points : Tensor
            The variables, ``(..., C, n)`` each.
        batch : LocalBatch
            The samples.
        by : int or tuple of int
            Numbers of the variables to differentiate by, from 0; several give a tuple of gradients.

        Raises
        ------
        Incompatible
            Under record-level privacy, if the objective is no mean over samples (`harness.core.problem.PerSample`).
        """
        self._check_objective(objective)
        gradients = self._gradients(points, batch, (by,) if isinstance(by, int) else by, objective)
        return gradients[0] if isinstance(by, int) else tuple(gradients)


@dataclass(slots=True)
class Gradients:
    """Gradients of a cohort's losses.

    Attributes
    ----------
    cohort : Cohort
        The clients, and the pruned models that they train.
    problem : Problem
        What they optimize.
    executor : ClientExecutor
        Executor of one-client functions.
    work : CountedWork
        Counts the operations.
    """

    cohort: Cohort
    problem: Problem
    executor: ClientExecutor
    work: CountedWork

    def private(
        self,
        records: Records,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points,
        objective: Objective,
    ) -> list[Tensor]:
        """Return DP-SGD gradients: clipped per sample, summed, noised, divided by the expected batch size.

        A sample's gradients by several variables are clipped jointly.
        """
        cohort = self.cohort
        call = records.book(batch, cohort.round)
        options: Any = {"norm": records.privacy.bound(), "ghost": records.privacy.ghost}
        clipped = partial(self.executor.clipped_sums, group=records.each, **options)
        sums = self.of_models(clipped, points, batch.revealed(), by, objective)
        mask = None if cohort.pruned is None else cohort.pruned.mask_of(sums, cohort.ids)
        return records.noised(
            sums, batch, call, noise_keys=cohort.noise_keys, round=cohort.round, ids=cohort.ids, mask=mask
        )

    def of_models(
        self,
        compute: Compute,
        points: tuple[Tensor, ...],
        batch: LocalBatch,
        by: Points,
        objective: Objective,
    ) -> list[Tensor]:
        """Compute gradients, or sums of them, on the smaller models where models are pruned; count the work.

        Clients with the same model are computed together. Coordinates that a model lacks are zero.
        """
        cohort, times = self.cohort, self.work.times(batch)
        if cohort.pruned is None:
            loss, axes = objective(self.problem), cohort.axes
            self._count(loss, axes, points, self.work.shown(batch, axes), by, times)
            return list(compute(loss, axes, points, batch.argument, by))
        moving = [points[place] for place in by or range(len(points))]
        gradients = [torch.zeros_like(point.flatten(0, cohort.axes - 1)) for point in moving]
        for model, where in cohort.pruned.groups(cohort.ids):

            def pick(rows: Tensor, where: Tensor | slice = where) -> Tensor:
                return rows.flatten(0, cohort.axes - 1)[where]

            group = LocalBatch(type(batch.samples)(*map(pick, batch.of_runs)))
            loss = objective(model.problem)
            small = tuple(model.take(pick(point)) for point in points)
            self._count(loss, 1, small, self.work.shown(group, 1), by, times * self.work.among(where))
            for full, slope in zip(gradients, compute(loss, 1, small, group.samples, by), strict=True):
                full[where] = model.put(slope, full[where])
        return [gradient.unflatten(0, cohort.ids.shape) for gradient in gradients]

    def _count(
        self,
        loss: Callable[..., Tensor],
        axes: int,
        points: tuple[Tensor, ...],
        shown: Any,
        by: Points,
        times: Tensor,
    ) -> None:
        """Count the operations of gradients on the samples counted in ``times``."""
        flops = self.executor.flops(loss, axes, *points, shown, gradient=True, by=by)
        self.cohort.cost.work(flops / slots(shown), times, oracle=True)


def slots(argument: Any) -> int:
    """Return the number of slots of a batch, an argument of one-client functions."""
    weight: Tensor = once(argument).weight
    return weight.shape[-1]
