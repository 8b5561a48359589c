"""The tuning of a suite: its searches, and the runs that are reported because of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

from harness.config.run import RunSpec
from harness.config.searches import Search, families, searches, step_sizes
from harness.config.suite import Suite
from harness.config.sweep import Combination
from harness.config.tune import SPLIT, SurfaceTune, TuneSpec
from harness.config.tuned_runs import estimate
from harness.core.errors import UserError
from harness.core.units import counted
from harness.executors.tuning.search import metrics_of, report_of, tune_all
from harness.executors.work import Work, in_suite
from harness.simulation.build import identify
from harness.storage.store import SEARCH, Store, read_suite


class Tuning:
    """The searches of a suite; their runs are a suite of their own, NAME-tuning.

    Parameters
    ----------
    suite, tune : Suite, TuneSpec
        The suite, and how its settings are searched.
    work : Work
        Where and how runs are carried out.
    combinations : sequence of Combination
        The combinations of the suite that can be run here.

    Raises
    ------
    UserError
        If they cannot be tuned so, or the folder holds another suite of the search's name.
    """

    def __init__(self, suite: Suite, tune: TuneSpec, work: Work, combinations: Sequence[Combination]) -> None:
        self._suite, self._tune, self._work, self._combinations = suite, tune, work, combinations
        self._name, self._store = f"{suite.name}{SEARCH}", Store(work.root)
        self._searches = searches(combinations, tune)
        planned = estimate(combinations, tune)
        self._expected = len(planned.reported) + len(planned.searched)  # runs, at least
        self._entries: dict[str, dict[str, Any]] = {}
        existing = work.root / self._name / "suite.json"
        if existing.exists() and read_suite(existing)[0].get("searches_for") != suite.name:
            raise UserError(
                f"suite {suite.name}: its search is called {self._name}, and {work.root} holds another suite of "
                "that name; give --name, or another --out"
            )

    def search(self) -> list[Combination]:
        """Search, and return combinations with the chosen settings; those without a usable one are skipped."""
        suite, tune, say = self._suite, self._tune, self._work.say
        say(f"tuning {suite.name}: {_announced(self._searches, tune)}")
        if missed := _untuned_algorithms(self._searches):
            say(f"tuning {suite.name}: step sizes that are not tuned: {'; '.join(missed)}")
        tune_all(self._searches, tune, self._store, self._carry_out)
        self._expected = 0  # other finalists come last
        chosen: dict[Combination, Combination] = {}
        for number, search in enumerate(self._searches):
            for combination, fields in zip(search.cells, search.chosen(tune.measure), strict=True):
                chosen[combination] = replace(combination, search=number, **fields)
        return [chosen.get(combination, combination) for combination in self._combinations]

    def further(self, combinations: Sequence[Combination]) -> list[Combination]:
        """Return combinations with further seeds, where the standard error of a reported mean is too large.

        They follow all seeds of the suite, so a seed that it skips is not run after all.
        """
        tune, added = self._tune, list[Combination]()
        if not isinstance(tune, SurfaceTune) or tune.standard_error is None:
            return added
        last = max(combination.parts.seed for combination in self._combinations)
        for by_seed in _cells(combinations):
            values = [self._metrics(spec).get(tune.metric) for spec in _specs(by_seed)]
            known = [value for value in values if value is not None and math.isfinite(value)]
            if len(known) < 2:
                continue
            error = stdev(known) / math.sqrt(len(known))
            # As many of the further runs are taken to have no value as of those so far.
            needed = math.ceil(len(by_seed) * (error / tune.standard_error) ** 2)
            first = max(last, *by_seed) + 1
            for seed in range(first, first + min(needed, tune.most_seeds) - len(by_seed)):
                added.append(_with_seed(next(iter(by_seed.values())), seed))
        return added

    def try_finalists(self, combinations: Sequence[Combination]) -> bool:
        """Run with the reported seeds what searches could have chosen as well; return whether there is any.

        Cells that share a search (``once_for``) borrow its choice, so they have no interval of a procedure.
        """
        seeds_by_search: dict[int, list[list[int]]] = {}
        for by_seed in _cells(combinations):
            number = next(iter(by_seed.values())).search
            assert number is not None
            seeds_by_search.setdefault(number, []).append(list(by_seed))
        reported = {number: cells[0] for number, cells in seeds_by_search.items() if len(cells) == 1}
        wanted: list[tuple[Search, int, int, RunSpec]] = []
        for number, seeds in reported.items():
            search = self._searches[number]
            for place, finalist in enumerate(search.finalists):
                if finalist.trial != search.best:
                    settings = search.trials[finalist.trial].settings
                    wanted += [(search, place, seed, search.spec(settings, seed)) for seed in seeds]
        if wanted:
            runs = counted(len(wanted), "run")
            self._work.say(f"tuning {self._suite.name}: {runs} of other finalists, with the reported seeds")
        self._carry_out([spec for *_, spec in wanted])
        for search, place, seed, spec in wanted:
            search.finalists[place].metrics[seed] = self._metrics(spec)
        return bool(wanted)

    def recorded(self) -> dict[str, Any]:
        """Return what ``suite.json`` keeps of the searches."""
        return {"tune": self._tune.stored(), "searches": report_of(self._searches, self._tune)}

    def _carry_out(self, specs: Sequence[RunSpec]) -> None:
        """Carry out runs of the searches; those that are done already excepted."""
        if not specs:
            return
        suite, by = self._suite, {"by": self._tune.measure, "baseline": None}
        fresh = {str(entry["id"]): entry for entry in (in_suite(Combination({}, spec)) for spec in specs)}
        self._entries.update(fresh)
        content = {
            "suite": self._name,
            "profile": suite.profile,
            "title": f"The search of {suite.name}",
            "report": {**suite.report.stored(), **by},
            "searches_for": suite.name,
            "cells": list(self._entries.values()),
        }
        self._store.write_suite(self._name, content)
        runs = dict(zip(fresh, specs, strict=True))
        later = max(0, self._expected - len(self._entries))
        if self._work.carry_out(f"tuning {suite.name}", runs, later)["running"]:
            raise UserError(
                "runs of the search are in another process; repeat the command when they are done"
            )

    def _metrics(self, spec: RunSpec) -> dict[str, float]:
        """Return the metrics on test samples at the end of a run."""
        metrics = metrics_of(self._store, identify(spec)).items()
        numbers = {name: value for name, value in metrics if isinstance(value, int | float)}
        return {name: value for name, value in numbers.items() if not name.startswith(SPLIT)}


def _cells(combinations: Sequence[Combination]) -> list[dict[int, Combination]]:
    """Return the combinations that have searched and can run, by their seeds, a dictionary for each cell."""
    cells: dict[str, dict[int, Combination]] = {}
    for combination in combinations:
        if combination.search is not None and combination.spec is not None:
            rest = combination.spec.model_dump_json(exclude={"seed"})
            cells.setdefault(f"{combination.search} {rest}", {})[combination.spec.seed] = combination
    return list(cells.values())


def _specs(by_seed: Mapping[int, Combination]) -> Iterator[RunSpec]:
    """Yield the runs of a cell."""
    for combination in by_seed.values():
        assert combination.spec is not None
        yield combination.spec


def _with_seed(combination: Combination, seed: int) -> Combination:
    """Return a combination of another seed."""
    assert combination.spec is not None
    spec = combination.spec.model_copy(update={"seed": seed})
    return replace(combination, given={**combination.given, "seed": seed}, spec=spec)


def _announced(searches: Sequence[Search], tune: TuneSpec) -> str:
    """Return how many searches there are, and how many runs they take."""
    runs = counted(" + ".join(map(str, tune.sizes())), "run")
    if isinstance(tune, SurfaceTune):
        count = counted(len(families(searches)), "search")
        return f"{count} by {tune.measure}, {runs} for each budget; more where a range is widened"
    return f"{counted(len(searches), 'search')} of {runs} by {tune.measure}"


def _untuned_algorithms(results: Sequence[Search]) -> list[str]:
    """Return the algorithms that have step sizes which are not searched, with these."""
    missed: dict[str, list[str]] = {}
    for search in results:
        names = [name.partition(".")[2] for name in step_sizes(search.run) if name not in search.paths]
        if names:
            missed[search.algorithm] = names
    return [f"{name} {' '.join(names)}" for name, names in sorted(missed.items())]
