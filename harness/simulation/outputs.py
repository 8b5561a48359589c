"""Outputs of the models of stacked runs, which runs with equal samples compute together."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.core.execution.exact.row_product import rounds_alike
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import Problem
from harness.simulation.evaluation import Applied, applied, applied_together


class Outputs:
    """The outputs of the models of a state on the samples of every split.

    Parameters
    ----------
    problem : Problem
        The problem.
    rows : ClientExecutor
        How one-client functions are run.
    federations : sequence of Federation
        The samples of each run.
    """

    def __init__(self, problem: Problem, rows: ClientExecutor, federations: Sequence[Federation]) -> None:
        self._problem, self._rows, self._federations = problem, rows, federations
        self._company: list[list[int]] | None = None
        self.forget()

    def forget(self) -> None:
        """Forget the last state: one that is kept keeps its tables."""
        self._state: Any = None
        self._first = 0  # of the runs whose outputs are known
        self._known: dict[str, list[Applied] | None] = {}

    def of(self, state: Any, number: int, split: str, model: Any, models: Callable[[int], Any]) -> Applied:
        """Return the outputs of a run's model on the samples of a split.

        Parameters
        ----------
        state : NamedTuple of tensors
            The state of all runs.
        number, split : int, str
            The run, and the split.
        model : Tensor or pair of tensors
            Its model.
        models : Callable
            Returns the model of any run.
        """
        company = self._runs_with_equal_samples()[number]
        if self._state is not state or self._first != company[0]:
            self._state, self._first, self._known = state, company[0], {}
        if split not in self._known:
            self._known[split] = None
            if len(company) > 1 and isinstance(model, Tensor) and model.ndim == 1:
                together = torch.stack([models(other) for other in company])
                self._known[split] = applied_together(
                    self._problem, self._federations[number], self._rows, together, split
                )
        outputs = self._known[split]
        if outputs is None:
            return applied(self._problem, self._federations[number], self._rows, model, split)
        return outputs[company.index(number)]

    def _runs_with_equal_samples(self) -> list[list[int]]:
        """Group runs whose models can be evaluated in one batch with identical rounding, by run."""
        if self._company is not None:
            return self._company
        numbers = range(len(self._federations))
        if self._rows.mode != "vmap" or not rounds_alike(self._problem.module):
            self._company = [[number] for number in numbers]
            return self._company
        groups: list[list[int]] = []
        for number, federation in enumerate(self._federations):
            with_equal = (group for group in groups if _same_samples(self._federations[group[0]], federation))
            group = next(with_equal, [])
            if not group:
                groups.append(group)
            group.append(number)
        of_run = {number: group for group in groups for number in group}
        self._company = [of_run[number] for number in numbers]
        return self._company


def _same_samples(one: Federation, other: Federation) -> bool:
    """Whether all splits hold the same samples of one pool."""
    if not all(map(operator.is_, one.pool, other.pool)) or one.splits.keys() != other.splits.keys():
        return False
    return one.splits is other.splits or all(
        torch.equal(index, other.splits[name]) for name, index in one.splits.items()
    )
