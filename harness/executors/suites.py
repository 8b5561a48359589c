"""Carrying out a suite: the search for settings, the runs, and what ``suite.json`` keeps of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from datasets.errors import DataError
from harness.config.run import RunSpec, read_spec
from harness.config.suite import Suite
from harness.config.sweep import Combination
from harness.config.tune import TuneSpec
from harness.config.tuned_runs import estimate
from harness.core.errors import UserError, unknown
from harness.core.units import counted
from harness.executors import cores
from harness.executors.scheduler import choose
from harness.executors.tuning.suite import Tuning
from harness.executors.work import Work, in_suite
from harness.metrics import plugin_metrics
from harness.simulation.build import identify
from harness.simulation.plan import affordable, vetted
from harness.storage.store import UNKNOWN_SPEC, Store, read_suite


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
        # What is tuned may lack a value in the file, or have one that does not go with the data.
        combinations: Sequence[Combination] = vetted(estimate(suite.combinations, suite.tune).reported)
    workers = work.jobs or (1 if executor == "serial" else cores())
    store = Store(work.root).open()
    possible = _possible(combinations)
    if not possible:
        reasons = Counter(str(combination.reason) for combination in combinations)
        told = "; ".join(f"{reason} ({number} of them)" for reason, number in reasons.most_common(3))
        raise UserError(
            f"suite {suite.name}: none of {counted(len(combinations), 'combination')} can be run: {told}"
        )
    combinations = within_limit(combinations, suite.tune, limit_hours, trim, workers, work)
    trimmed = _possible(combinations) < possible  # then there is no time for further seeds
    tuning = None if suite.tune is None else Tuning(suite, suite.tune, work, combinations)
    if tuning is not None:
        combinations = tuning.search()
    ends = _carry_out(suite, combinations, tuning, work)
    while tuning and not trimmed and not ends["running"] and (further := tuning.further(combinations)):
        combinations = [*combinations, *further]
        ends = _carry_out(suite, combinations, tuning, work)
    if tuning is not None and not ends["running"] and tuning.try_finalists(combinations):
        _write(suite, combinations, tuning, store)
    if ends["running"]:
        work.say(f"{counted(ends['running'], 'run')} in another process; repeat the command when done")
    return ends


def _possible(combinations: Sequence[Combination]) -> int:
    """Return how many combinations can be run."""
    return sum(combination.spec is not None for combination in combinations)


def _carry_out(
    suite: Suite, combinations: Sequence[Combination], tuning: Tuning | None, work: Work
) -> Counter[str]:
    """Write down the runs of a suite and carry them out."""
    entries = _write(suite, combinations, tuning, Store(work.root))
    runs = {
        str(entry["id"]): combination.spec
        for entry, combination in zip(entries, combinations, strict=True)
        if combination.spec
    }
    skipped, profile = len(combinations) - len(runs), f" ({suite.profile})" if suite.profile else ""
    work.say(
        f"suite {suite.name}{profile}: {counted(len(runs), 'run')}, {counted(skipped, 'combination')} skipped"
    )
    return work.carry_out(suite.name, runs)


def _write(
    suite: Suite, combinations: Sequence[Combination], tuning: Tuning | None, store: Store
) -> list[dict[str, Any]]:
    """Write ``suite.json``, and return what it says of each combination."""
    entries = [in_suite(combination) for combination in combinations]
    searched = {} if tuning is None else {"tuning": tuning.recorded()}
    store.write_suite(suite.name, {**_suite_fields(suite), **searched, "cells": entries})
    return entries


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
        raise store.none(suite)
    statuses = ("failed", "stopped") if work.retry else ("interrupted", "missing", "damaged")
    runs_by_suite, skipped = recorded_runs(store, suite, statuses)
    for id, why in skipped.items():
        work.say(f"run {id} is skipped: {why}")
    ends: Counter[str] = Counter({"left": len(skipped)} if skipped else {})
    for name in store.unfinished_searches():
        work.say(f"the search of suite {name} is unfinished; repeat the command of the suite")
        ends["left"] += 1
    for path in store.suites():
        content, _ = read_suite(path)
        if suite in (None, content["suite"]) and _lacks_finalists(content):
            work.say(
                f"suite {content['suite']}: runs of other settings that its searches choose are missing; "
                "repeat its command"
            )
            ends["left"] += 1
    for name, runs in runs_by_suite.items():
        work.say(f"{name or 'runs in no suite'}: {counted(len(runs), 'run')}")
        ends += work.carry_out(name or "runs", runs)
    return ends, [name for name in runs_by_suite if name]


def _lacks_finalists(content: Mapping[str, Any]) -> bool:
    """Whether a suite was interrupted before what its searches could have chosen as well had reported runs."""
    return any(
        finalist["trial"] != search["chosen"] and not finalist.get("metrics")
        for search in content.get("tuning", {}).get("searches", ())
        for finalist in search.get("finalists", ())
    )


def within_limit(
    combinations: Sequence[Combination],
    tune: TuneSpec | None,
    hours: float | None,
    trim: bool,
    jobs: int = 1,
    work: Work | None = None,
) -> Sequence[Combination]:
    """Return the combinations that fit into a number of hours; runs that have ended take none.

    Settings that are tuned have the mean of their ranges, so all runs of a tuned suite count, and of those that
    depend on what its searches find none does.

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
    possible = vetted(combinations)
    execution = None if work is None else work.execution
    reported, searched, further = estimate(possible, tune)
    within = affordable(reported, hours, jobs, ended, trim, execution, searched)
    if further and work is not None:
        most = counted(sum(runs for *_, runs in further), "run")
        work.say(f"--limit-hours {hours:g} does not count what searches may need besides, at most {most}")
    return [
        Combination(cell.spec.model_dump(mode="json"), None, fit.reason)
        if cell.spec and not fit.spec
        else cell
        for cell, fit in zip(possible, within, strict=True)
    ]
