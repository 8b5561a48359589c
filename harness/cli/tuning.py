"""What a suite runs: its combinations, and before them the search for their settings."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.cli.console import log
from harness.cli.progress import SuiteProgress
from harness.config.run import RunSpec, run_id, versions
from harness.config.suite import Suite
from harness.config.sweep import Combination
from harness.config.tune import Search, TuneSpec, searches, step_sizes
from harness.core.registry import UserError
from harness.executors.scheduler import run_all
from harness.executors.tuning import report_of, tune_all
from harness.simulation.build import Execution, data_digest
from harness.storage.store import Store


def carry_out(
    given: argparse.Namespace, title: str, store: Store, runs: Mapping[str, RunSpec], execution: Execution
) -> Counter[str]:
    """Carry out runs, show their progress, and return how many ended in which way."""
    with SuiteProgress(title, store, runs) as board:
        run_all(
            list(runs.values()),
            given.out,
            jobs=given.jobs,
            executor=given.executor,
            address=given.address,
            execution=execution,
            retry=given.retry,
            begin=board.begin,
            report=board.finished,
        )
    return board.ends


def tuned(
    given: argparse.Namespace,
    suite: Suite,
    tune: TuneSpec,
    cells: Sequence[Combination],
    store: Store,
    execution: Execution,
) -> tuple[list[Combination], dict[str, Any]]:
    """Search for the settings of a suite's combinations.

    The runs of the search are a suite of their own, NAME-tuning.

    Returns
    -------
    cells : list of Combination
        With the chosen settings; combinations without a usable setting are skipped.
    tuning : dict
        What ``suite.json`` keeps.
    """
    name, found = f"{suite.name}-tuning", searches(cells, tune)
    listed: dict[str, dict[str, Any]] = {}
    sizes = " + ".join(map(str, tune.sizes()))
    log.print(f"tuning {suite.name}: {len(found)} searches of {sizes} runs by {tune.measure}")
    if missed := _untuned(found):
        log.print(f"tuning {suite.name}: step sizes that are not tuned: {'; '.join(missed)}")

    def start(specs: Sequence[RunSpec]) -> None:
        fresh = {str(one["id"]): one for one in (in_suite(Combination({}, spec)) for spec in specs)}
        listed.update(fresh)
        content = {"suite": name, "profile": suite.profile, "title": f"The search of {suite.name}"}
        report = {**suite.report.stored(), "by": tune.measure, "baseline": None}
        store.write_suite(
            name, {**content, "report": report, "searches_for": suite.name, "cells": list(listed.values())}
        )
        runs = {id: spec for id, spec in zip(fresh, specs, strict=True)}
        if carry_out(given, f"tuning {suite.name}", store, runs, execution)["running"]:
            raise UserError(
                "runs of the search are in another process; repeat the command when they are done"
            )

    tune_all(found, tune, store, start)
    chosen: dict[int, Combination] = {}
    for number, search in enumerate(found):
        for cell, fields in zip(search.cells, search.chosen(tune.measure), strict=True):
            chosen[id(cell)] = replace(cell, search=number, **fields)
    tuning = {"tuning": {"tune": tune.stored(), "searches": report_of(found, tune)}}
    return [chosen.get(id(cell), cell) for cell in cells], tuning


def _untuned(found: Sequence[Search]) -> list[str]:
    """Return the algorithms that have step sizes which are not searched, with these."""
    missed: dict[str, list[str]] = {}
    for search in found:
        spec = search.cells[0].spec
        assert spec is not None
        names = [name.partition(".")[2] for name in step_sizes(spec) if name not in search.paths]
        if names:
            missed[str(spec.algorithm["name"])] = names
    return [f"{name} {' '.join(names)}" for name, names in sorted(missed.items())]


def in_suite(cell: Combination) -> dict[str, Any]:
    """Return what a suite records of a combination."""
    searched = {} if cell.search is None else {"search": cell.search}
    if cell.spec is None:
        return {"id": None, "spec": {"seed": 0, **cell.given}, "reason": cell.reason, **searched}
    spec, digest = cell.spec.model_dump(mode="json"), data_digest(cell.spec)
    return {
        "id": run_id(spec, digest, versions(spec)),
        "spec": spec,
        "reason": cell.reason,
        "digest": digest,
        "versions": versions(spec),
        **searched,
    }
