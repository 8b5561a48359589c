"""Carrying out a suite: the search for settings, the runs, and what ``suite.json`` keeps of them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datasets.errors import DataError
from harness.config.recorded import check_current, run_id, versions
from harness.config.run import RunSpec, read_spec
from harness.config.suite import Suite
from harness.config.sweep import Combination
from harness.config.tune import Search, TuneSpec, runs_of, searches, step_sizes
from harness.core.registry import UserError, counted, unknown
from harness.executors import cores
from harness.executors.scheduler import Outcome, choose, run_all
from harness.executors.tuning import report_of, tune_all
from harness.metrics import plugin_metrics
from harness.simulation.build import Execution, data_digest, identify
from harness.simulation.callbacks import Callback, observed
from harness.simulation.plan import affordable, vetted
from harness.storage.store import SEARCH, UNKNOWN_SPEC, Store, read_suite

log = logging.getLogger(__name__)


class Follower:
    """A receiver of the progress of runs; this one ignores it."""

    def begin(self, numbers: Sequence[int]) -> None:
        """Note that runs have started."""

    def finished(self, outcome: Outcome) -> None:
        """Note that a run has ended."""


Follow = Callable[[str, Store, Mapping[str, RunSpec]], AbstractContextManager[Follower]]


@contextmanager
def unfollowed(title: str, store: Store, runs: Mapping[str, RunSpec]) -> Iterator[Follower]:
    """Follow nothing."""
    yield Follower()


@dataclass(frozen=True)
class Work:
    """Where runs are written and how they are computed; results do not depend on the latter.

    Attributes
    ----------
    root : Path
        Results folder.
    follow : Callable
        Called with a title, the folder and the runs by id; its context follows them.
    say, busy : Callable
        Called with sentences for the user; the second returns a context that lasts while it is true.
    callbacks : sequence of Callback
        What users have called; at rounds and evaluations with the serial executor only.
    jobs, executor, address, execution, retry
        As in `harness.executors.scheduler.run_all`.
    """

    root: Path
    follow: Follow = unfollowed
    say: Callable[[str], object] = log.info
    busy: Callable[[str], AbstractContextManager[object]] = nullcontext
    callbacks: Sequence[Callback] = ()
    jobs: int | None = 1
    executor: str | None = None
    address: str | None = None
    execution: Execution = field(default_factory=Execution)
    retry: bool = False

    def carry_out(self, title: str, runs: Mapping[str, RunSpec]) -> Counter[str]:
        """Carry out runs, given by id, and return how many ended in which way."""
        ends: Counter[str] = Counter()
        store = Store(self.root)
        with self.follow(title, store, runs) as follower:

            def report(outcome: Outcome) -> None:
                ends[outcome.status] += 1
                follower.finished(outcome)
                if self.callbacks:
                    record = store.record(outcome.id, runs[outcome.id].model_dump(mode="json"), title)
                    for callback in self.callbacks:
                        callback.on_run_end(record)

            run_all(
                list(runs.values()),
                self.root,
                jobs=self.jobs,
                executor=self.executor,
                address=self.address,
                execution=self.execution,
                retry=self.retry,
                begin=follower.begin,
                report=report,
                progress=observed(self.callbacks),
            )
        return ends


def run_suite(
    suite: Suite,
    work: Work,
    *,
    limit_hours: float | None = None,
    trim: bool = False,
) -> Counter[str]:
    """Carry out a suite, and return how many of its runs ended in which way.

    Parameters
    ----------
    suite : Suite
        The suite.
    work : Work
        Where and how.
    limit_hours, trim : float, bool
        As in `within_limit`.

    Raises
    ------
    UserError
        If the suite cannot be carried out as asked; then nothing has been run.
    """
    algorithms = {
        combination.spec.algorithm["name"] for combination in suite.combinations if combination.spec
    }
    if suite.report.baseline is not None and suite.report.baseline not in algorithms:
        raise unknown("baseline", suite.report.baseline, algorithms)
    executor = choose(work.executor, work.jobs, work.address, len(suite.combinations))
    with work.busy(f"checking {len(suite.combinations)} combinations"):
        combinations: Sequence[Combination] = vetted(suite.combinations)
    workers = work.jobs or (1 if executor == "serial" else cores())
    store = Store(work.root).open()
    combinations = within_limit(combinations, suite.tune, limit_hours, trim, workers, work)
    tuning: dict[str, Any] = {}
    if suite.tune is not None:
        combinations, tuning = _tune(suite, suite.tune, combinations, work)
    entries = [in_suite(combination) for combination in combinations]
    store.write_suite(suite.name, {**_suite_fields(suite), **tuning, "cells": entries})
    runs = {
        str(entry["id"]): combination.spec
        for entry, combination in zip(entries, combinations, strict=True)
        if combination.spec
    }
    skipped, profile = len(combinations) - len(runs), f" ({suite.profile})" if suite.profile else ""
    work.say(
        f"suite {suite.name}{profile}: {counted(len(runs), 'run')}, {counted(skipped, 'combination')} skipped"
    )
    ends = work.carry_out(suite.name, runs)
    if ends["running"]:
        work.say(f"{counted(ends['running'], 'run')} in another process; repeat the command when done")
    return ends


def _suite_fields(suite: Suite) -> dict[str, Any]:
    """Return what ``suite.json`` keeps of a suite besides its runs."""
    plugged = plugin_metrics()
    report = {**suite.report.stored(), **({"metrics": plugged} if plugged else {})}
    return {"suite": suite.name, "profile": suite.profile, "title": suite.title, "report": report}


def recorded_runs(
    store: Store, suite: str | None, statuses: Collection[str]
) -> tuple[dict[str, dict[str, RunSpec]], dict[str, str]]:
    """Return the runs of a folder that have some status, from what the folder says of them.

    Parameters
    ----------
    store : Store
        The folder.
    suite : str or None
        Only this suite's; None: all, also those in no suite.
    statuses : collection of str
        See `RunRecord.status`.

    Returns
    -------
    runs : dict
        Suite (empty for runs in none) -> id -> spec.
    left : dict
        Ids of those that cannot be made again under their id, and why.
    """
    runs: dict[str, dict[str, RunSpec]] = {}
    skipped: dict[str, str] = {}
    for name, _, entry in store.cells(suite):
        id = entry["id"]
        if id is None:
            continue
        contents = store.contents(entry)
        if contents.status not in statuses:
            continue
        try:
            spec = read_spec(contents.started.get("spec", UNKNOWN_SPEC))
            if identify(spec) != id:
                skipped[id] = "it was made by another version of the code, the data or a plugin"
                continue
        except (UserError, DataError) as error:
            skipped[id] = str(error)
            continue
        runs.setdefault(name, {})[id] = spec
    return runs, skipped


def carry_on(work: Work, suite: str | None = None) -> tuple[Counter[str], list[str]]:
    """Carry out the runs of a folder that have not ended, or with ``work.retry`` those that have no result.

    Parameters
    ----------
    work : Work
        The folder, and how runs are computed.
    suite : str, optional
        Only this suite's runs.

    Returns
    -------
    ends : Counter
        How many ended in which way; ``skipped`` are those that cannot be made again here, and searches.
    suites : list of str
        Suites whose runs were made.

    Raises
    ------
    UserError
        If there is no such folder or suite.
    """
    store = Store(work.root)
    if not work.root.exists():
        raise UserError(f"no results folder {work.root}")
    if suite is not None and not (work.root / suite / "suite.json").exists():
        raise UserError(f"{work.root} holds no runs of suite {suite}")
    statuses = ("failed", "stopped") if work.retry else ("interrupted", "missing", "damaged")
    runs_by_suite, skipped = recorded_runs(store, suite, statuses)
    for id, why in skipped.items():
        work.say(f"run {id} is skipped: {why}")
    ends: Counter[str] = Counter({"left": len(skipped)} if skipped else {})
    for path in sorted(work.root.glob(f"*{SEARCH}/suite.json")):
        name = read_suite(path)[0].get("searches_for")
        if name is not None and not (work.root / name / "suite.json").exists():
            work.say(f"the search of suite {name} is unfinished; repeat the command of the suite")
            ends["left"] += 1
    for name, runs in runs_by_suite.items():
        work.say(f"{name or 'runs in no suite'}: {counted(len(runs), 'run')}")
        ends += work.carry_out(name or "runs", runs)
    return ends, [name for name in runs_by_suite if name]


def within_limit(
    combinations: Sequence[Combination],
    tune: TuneSpec | None,
    hours: float | None,
    trim: bool,
    jobs: int = 1,
    work: Work | None = None,
) -> Sequence[Combination]:
    """Return the combinations that fit into a number of hours; runs that have ended take none.

    Parameters
    ----------
    combinations, tune : sequence of Combination, TuneSpec or None
        The combinations, and how their settings are searched.
    hours : float or None
        The limit, if there is one.
    trim : bool
        Leave out seeds until the rest fits.
    jobs : int
        Number of workers.
    work : Work, optional
        Where runs may have ended already, and how they are computed.

    Raises
    ------
    UserError
        If the limit is no number above 0, is missing though `trim` needs it, or too small.
    """
    if hours is None:
        if trim:
            raise UserError("--trim needs --limit-hours")
        return combinations
    if not 0 < hours < math.inf:
        raise UserError(f"--limit-hours: a number above 0, given {hours:g}")
    ended: set[str] = set()
    if work is not None:
        final = ("done",) if work.retry else ("done", "failed", "stopped")
        store, ids = (
            Store(work.root),
            {identify(combination.spec) for combination in combinations if combination.spec},
        )
        ended = {id for id in ids if store.folder(id).status in final}
    fit = vetted(combinations)
    execution = None if work is None else work.execution
    return affordable(fit, hours, jobs, ended, trim, execution, runs_of(fit, tune))


def _tune(
    suite: Suite, tune: TuneSpec, combinations: Sequence[Combination], work: Work
) -> tuple[list[Combination], dict[str, Any]]:
    """Search for the settings of a suite's combinations.

    The runs of the search are a suite of their own, NAME-tuning.

    Returns
    -------
    combinations : list of Combination
        With the chosen settings; combinations without a usable setting are skipped.
    tuning : dict
        What ``suite.json`` keeps.
    """
    name, tried, store = f"{suite.name}{SEARCH}", searches(combinations, tune), Store(work.root)
    _check_name(name, suite, work.root)
    sizes = " + ".join(map(str, tune.sizes()))
    work.say(
        f"tuning {suite.name}: {counted(len(tried), 'search')} of {counted(sizes, 'run')} by {tune.measure}"
    )
    if missed := _untuned_algorithms(tried):
        work.say(f"tuning {suite.name}: step sizes that are not tuned: {'; '.join(missed)}")
    report = {**suite.report.stored(), "by": tune.measure, "baseline": None}
    title = f"The search of {suite.name}"
    content = {"suite": name, "profile": suite.profile, "title": title, "report": report}
    entries: dict[str, dict[str, Any]] = {}

    def start(specs: Sequence[RunSpec]) -> None:
        fresh = {str(entry["id"]): entry for entry in (in_suite(Combination({}, spec)) for spec in specs)}
        entries.update(fresh)
        store.write_suite(name, {**content, "searches_for": suite.name, "cells": list(entries.values())})
        if work.carry_out(f"tuning {suite.name}", dict(zip(fresh, specs, strict=True)))["running"]:
            raise UserError(
                "runs of the search are in another process; repeat the command when they are done"
            )

    tune_all(tried, tune, store, start)
    tuning = {"tuning": {"tune": tune.stored(), "searches": report_of(tried, tune)}}
    return _with_chosen_settings(combinations, tried, tune), tuning


def _check_name(name: str, suite: Suite, root: Path) -> None:
    """Raise UserError if another suite has the name of a suite's search."""
    existing = root / name / "suite.json"
    if existing.exists() and read_suite(existing)[0].get("searches_for") != suite.name:
        raise UserError(
            f"suite {suite.name}: its search is called {name}, and {root} holds another suite of that name; "
            "give --name, or another --out"
        )


def _with_chosen_settings(
    combinations: Sequence[Combination], results: Sequence[Search], tune: TuneSpec
) -> list[Combination]:
    """Return combinations with the settings that searches have chosen."""
    chosen: dict[int, Combination] = {}
    for number, search in enumerate(results):
        for combination, fields in zip(search.cells, search.chosen(tune.measure), strict=True):
            chosen[id(combination)] = replace(combination, search=number, **fields)
    return [chosen.get(id(combination), combination) for combination in combinations]


def _untuned_algorithms(results: Sequence[Search]) -> list[str]:
    """Return the algorithms that have step sizes which are not searched, with these."""
    missed: dict[str, list[str]] = {}
    for search in results:
        spec = search.cells[0].spec
        assert spec is not None
        names = [name.partition(".")[2] for name in step_sizes(spec) if name not in search.paths]
        if names:
            missed[str(spec.algorithm["name"])] = names
    return [f"{name} {' '.join(names)}" for name, names in sorted(missed.items())]


def in_suite(combination: Combination) -> dict[str, Any]:
    """Return what a suite records of a combination.

    Of a skipped one too: with the defaults, data and versions of the others its row stands among theirs.
    """
    parts = combination.parts
    spec = parts.model_dump(mode="json")
    check_current(spec)
    searched = {} if combination.search is None else {"search": combination.search}
    code = versions(spec)
    content = {"id": None, "spec": spec, "reason": combination.reason, "versions": code, **searched}
    if combination.spec is None:
        with suppress(UserError, DataError):
            content["digest"] = data_digest(parts)
        return content
    digest = data_digest(parts)
    return content | {"id": run_id(spec, digest, code), "digest": digest}
