"""Embeddings of parties, by their own models, which may be pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.core.clients.cohort import Cohort
from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.parties import embedding
from harness.core.clients.pruning import SubModel
from harness.core.clients.work import CountedWork
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import Problem


@dataclass(slots=True)
class PartyModels:
    """The models of the parties of a vertical problem.

    Attributes
    ----------
    cohort : Cohort
        The parties, and their pruned models.
    problem : Problem
        The problem.
    executor : ClientExecutor
        Executor of one-client functions, which measures operations.
    work : CountedWork
        Counts the operations.
    embed : Callable
        ``(function of one party, models, samples) -> embeddings`` of parties with models of one size.
    """

    cohort: Cohort
    problem: Problem
    executor: ClientExecutor
    work: CountedWork
    embed: Callable[[Callable[..., Tensor], Tensor, Any], Tensor]

    def embeddings(self, y: Tensor, batch: LocalBatch, *, count: bool) -> Tensor:
        """Compute embeddings ``(..., C, B, d)``, with the smaller models where models are pruned."""
        cohort = self.cohort
        times = self.work.times(batch) if count else None
        batch = batch if batch.private is None else batch.revealed()

        def flat(column: Tensor) -> Tensor:
            return column.flatten(0, cohort.axes - 1)

        models: list[tuple[SubModel | None, Tensor | slice]] = [(None, slice(None))]
        if cohort.pruned is not None:
            models = [*cohort.pruned.groups(cohort.ids)]
        embeddings: Tensor | None = None
        for model, where in models:
            group = type(batch.samples)(*(flat(column)[where] for column in batch.of_runs))
            rows, problem = flat(y)[where], self.problem
            if model is not None:
                rows, problem = model.take(rows), model.problem
            function = embedding(problem)
            if times is not None:
                flops = self.executor.flops(function, 1, rows, group) / group.weight.shape[-1]
                cohort.cost.work(flops, times * self.work.among(where), oracle=True)
            h = self.embed(function, rows, group)
            if embeddings is None:
                embeddings = h.new_empty(cohort.ids.numel(), *h.shape[1:])
            embeddings[where] = h
        assert embeddings is not None
        shaped: Tensor = embeddings.unflatten(0, cohort.ids.shape)
        return shaped
