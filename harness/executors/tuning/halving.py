"""The search by successive halving over seeds, for every budget apart.

With the first seed every setting is tried, with each further one the best share of those left (Jamieson and
Talwalkar 2016, https://arxiv.org/abs/1502.07943, with seeds in place of training time). Settings are points of a
Latin hypercube, or proposed by a sampler of Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from harness.config.ranges import Range
from harness.config.searches import Search, Trial, points
from harness.config.tune import LATIN, SURFACE, HalvingTune
from harness.core import rng
from harness.core.errors import UserError, unknown
from harness.executors.tuning.attempt import Attempt, Carry
from harness.metrics import better_is_higher


def halve(searches: Sequence[Search], tune: HalvingTune, carry_out: Carry) -> None:
    """Carry out searches side by side; their trials are then complete, and their best is known."""
    samplers = [sampler_of(search, tune, number) for number, search in enumerate(searches)]
    batch = tune.budget if tune.sampler == LATIN else tune.batch
    for begun in range(0, tune.budget, batch):
        asked = []
        for search, sampler in zip(searches, samplers, strict=True):
            trials = [Trial(settings) for settings in sampler.ask(min(batch, tune.budget - begun))]
            search.trials += trials
            asked.append((search, trials))
        carry_out([Attempt(search, trial, tune.seeds[0]) for search, trials in asked for trial in trials])
        for sampler, (_, trials) in zip(samplers, asked, strict=True):
            sampler.tell(trials)
    for seed, size in zip(tune.seeds[1:], tune.sizes()[1:], strict=True):
        left = [(search, in_order(search, tune.measure)[:size]) for search in searches]
        carry_out([Attempt(search, search.trials[number], seed) for search, best in left for number in best])
    for search in searches:
        search.best = next(iter(in_order(search, tune.measure)), None)


def in_order(search: Search, measure: str) -> list[int]:
    """Return the numbers of distinct trials that have a value: those with more seeds first, then the better."""
    sign = -1 if better_is_higher(measure) else 1
    scored, seen = [], set()
    for number, trial in enumerate(search.trials):
        values = [value for value in trial.values if value is not None]
        if values and str(trial.settings) not in seen:
            seen.add(str(trial.settings))
            scored.append((-len(values), sign * math.fsum(values) / len(values), number))
    return [number for *_, number in sorted(scored)]


class Sampler(Protocol):
    """A source of the settings of one search."""

    def ask(self, number: int) -> list[dict[str, Any]]:
        """Return the next settings."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn the values of what was asked last."""


class _Latin:
    """The points that all combinations try."""

    def __init__(self, search: Search, tune: HalvingTune) -> None:
        self._left = points(tune, search.paths)

    def ask(self, number: int) -> list[dict[str, Any]]:
        own, self._left = self._left[:number], self._left[number:]
        return own

    def tell(self, trials: Sequence[Trial]) -> None:
        """Ignore the results: the points are fixed."""


class _Optuna:
    """A sampler of Optuna, which learns from the values of the first seed."""

    def __init__(self, search: Search, tune: HalvingTune, number: int) -> None:
        try:
            import optuna
        except ImportError:
            raise UserError(
                f"tune.sampler: {tune.sampler} needs Optuna: pip install 'fedfrontier[tune]'; or use {LATIN}"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        names = [
            name for name in optuna.samplers.__all__ if name.endswith("Sampler") and name != "BaseSampler"
        ]
        if tune.sampler not in names:
            raise unknown("sampler", tune.sampler, [SURFACE, LATIN, *names])
        made = getattr(optuna.samplers, tune.sampler)
        try:
            sampler = made(seed=rng.key(0, "tune", tune.sampler, number) % 2**32)
        except TypeError:
            raise UserError(
                f"tune.sampler: {tune.sampler} needs settings of its own or has no seed; use TPESampler"
            ) from None
        direction: Any = "maximize" if better_is_higher(tune.measure) else "minimize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._over = {path: _distribution(tune.settings[path]) for path in search.paths}
        self._ranges = tune.settings
        self._asked: list[Any] = []

    def ask(self, number: int) -> list[dict[str, Any]]:
        self._asked = [self._study.ask(self._over) for _ in range(number)]
        return [
            {path: _value(self._ranges[path], value) for path, value in trial.params.items()}
            for trial in self._asked
        ]

    def tell(self, trials: Sequence[Trial]) -> None:
        import optuna

        for asked, trial in zip(self._asked, trials, strict=True):
            if trial.values[0] is None:
                self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(asked, trial.values[0])


def _distribution(over: Range) -> Any:
    """Return a range as Optuna has it; choices by their numbers, as it takes no lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if over.kind == "choice":
        return CategoricalDistribution(range(len(over.bounds)))
    low, high = over.bounds
    log = over.kind.startswith("log")
    return (IntDistribution if over.kind.endswith("integer") else FloatDistribution)(low, high, log=log)


def _value(over: Range, value: Any) -> Any:
    return over.value(value) if over.kind == "choice" else value


def sampler_of(search: Search, tune: HalvingTune, number: int) -> Sampler:
    """Return the sampler of one of the searches of a suite, by its number."""
    return _Latin(search, tune) if tune.sampler == LATIN else _Optuna(search, tune, number)
