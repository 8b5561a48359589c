"""``run``, ``suite``, ``plan``, ``status``: make runs, say what they would cost and how far they are."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from typing import Any

from harness.commands.asked import given_execution, given_spec, given_suite
from harness.commands.reports import read_look, write_all
from harness.commands.show import figures, log, out, print_rows, progress_bar, short, show
from harness.core.registry import UserError, unknown
from harness.executors import Outcome, run_all, run_one
from harness.metrics import written_down
from harness.plan import affordable, plan, vetted
from harness.report import leaderboard
from harness.setup import identify, prepare
from harness.simulate import settled
from harness.spec import RunSpec
from harness.store import Store
from harness.sweep import Cell

CELL = ("data", "model", "algorithm", "alpha", "beta", "epsilon_total", "clients", "rounds", "reason")


MEANS = ("bytes_up", "bytes_down", "flops", "oracle_calls", "seconds")


def run_command(given: argparse.Namespace) -> int:
    """Run one benchmark."""
    spec, execution = given_spec(given), given_execution(given)
    settled(prepare(spec, execution))  # what cannot work is refused before anything is written
    store, id = Store(given.out).open(), identify(spec)
    with progress_bar() as bar:
        task = bar.add_task(spec.algorithm["name"], total=spec.rounds, status="")

        def progress(_: RunSpec, round: int, line: dict[str, Any]) -> None:
            bar.update(task, completed=round, status=figures(line))

        outcome = run_one(
            spec,
            given.out,
            execution,
            retry=given.retry,
            progress=progress,
            save_predictions=given.save_predictions,
        )
    if outcome.status != "done":
        log.print(f"{id} {outcome.status}: {outcome.reason or 'another process has it'}", markup=False)
        return 1
    final = json.loads((store.folder(id).path / "done.json").read_text())
    if given.json:
        print(json.dumps({"id": id, **final}))
    else:
        out.print(f"{store.folder(id).path}: {figures(final)}", markup=False)
    return 0


def suite_command(given: argparse.Namespace) -> int:
    """Run a suite, or a sweep over one run, and write its report."""
    execution, chosen = given_execution(given), given_suite(given)
    wanted = {
        "by": chosen.by,
        "baseline": chosen.baseline,
        "target": chosen.target,
        "pivot": [list(pivot) for pivot in chosen.pivots],
        "curves": [list(pair) for pair in chosen.curves],
        "select": chosen.select,
        "along": chosen.along,
        **({"metrics": own} if (own := written_down()) else {}),
    }
    look = read_look(wanted)
    leaderboard([], look.by, target=look.target)  # what cannot be reported is refused before anything runs
    algorithms = {cell.spec.algorithm["name"] for cell in chosen.cells if cell.spec}
    if look.baseline is not None and look.baseline not in algorithms:
        raise unknown("baseline", look.baseline, algorithms)
    store = Store(given.out).open()
    cells: Sequence[Cell] = vetted(chosen.cells)
    jobs = min(given.jobs, max(1, len(cells)))
    cells = _within_limit(given, cells, jobs, store)
    specs = [cell.spec for cell in cells if cell.spec is not None]
    listed = [
        {
            "id": identify(cell.spec) if cell.spec else None,
            "spec": cell.spec.model_dump(mode="json") if cell.spec else {"seed": 0, **cell.given},
            "reason": cell.reason,
        }
        for cell in cells
    ]
    store.write_suite(
        chosen.name,
        {
            "suite": chosen.name,
            "profile": chosen.profile,
            "title": chosen.title,
            "report": wanted,
            "cells": listed,
        },
    )
    skipped = len(cells) - len(specs)
    log.print(f"suite {chosen.name} ({chosen.profile}): {len(specs)} runs, {skipped} combinations skipped")
    with progress_bar() as bar:
        task = bar.add_task(chosen.name, total=len(specs), status="")
        done = {"failed": 0, "done": 0, "running": 0}

        def finished(outcome: Outcome) -> None:
            done[outcome.status] += 1
            bar.update(task, advance=1, status=f"{done['failed']} failed" if done["failed"] else "")
            if not log.is_terminal:
                log.print(f"{sum(done.values())}/{len(specs)} {outcome.id} {outcome.status}", markup=False)
            if outcome.reason:
                log.print(f"{outcome.id} {outcome.status}: {outcome.reason}", markup=False)

        run_all(specs, given.out, jobs=jobs, execution=execution, retry=given.retry, report=finished)
    paths = write_all(store, chosen.name, look)
    for name, path in paths.items():
        out.print(f"{name}: {path}", markup=False)
    return 1 if done["failed"] else 0


def _within_limit(
    given: argparse.Namespace, cells: Sequence[Cell], jobs: int = 1, store: Store | None = None
) -> Sequence[Cell]:
    """Return what the option --limit-hours leaves of a suite, or refuse it; runs that are done cost nothing."""
    if given.limit_hours is None:
        if given.trim:
            raise UserError("--trim leaves out seeds until the others fit: give --limit-hours")
        return cells
    records = store.records() if store else []
    done = {record.id for record in records if record.id and record.status == "done"}
    return affordable(vetted(cells), given.limit_hours, jobs, done, given.trim)


def plan_command(given: argparse.Namespace) -> int:
    """Print what runs would cost."""
    cells = given_suite(given).cells
    rows = plan(_within_limit(given, cells))
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        print_rows(*_condensed(rows))
    return 0


def status_command(given: argparse.Namespace) -> int:
    """Print how far the runs of a folder are."""
    if not given.dir.exists():
        raise UserError(f"no results folder {given.dir}")
    rows = [
        {
            "suite": record.suite or "-",
            "algorithm": record.spec["algorithm"]["name"] if record.id else "-",
            "seed": record.spec.get("seed", "-"),
            "status": record.status,
            "round": record.rounds[-1]["round"] if record.rounds else 0,
            "of": record.spec.get("rounds", "-"),
            "reason": record.reason,
            "id": record.id,
        }
        for record in Store(given.dir).records()
    ]
    show(rows, given.json, f"{len(rows)} runs")
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def _condensed(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return a plan as a person reads it: seeds together, what all rows share in the title, rounded figures.

    Everything is in --json.
    """
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(str([row.get(name) for name in CELL]), []).append(row)
    found: list[dict[str, Any]] = []
    for runs in cells.values():
        mean = {name: statistics.mean([run.get(name, 0) for run in runs]) for name in MEANS}
        found.append({**{name: runs[0].get(name) for name in CELL}, **mean, "runs": len(runs)})
    seconds = sum(cell["seconds"] * cell["runs"] for cell in found)
    values = {key: {short(cell[key]) for cell in found} for key in found[0]}
    said = [key for key in values if len(values[key]) == 1 and len(found) > 1]
    shared = [f"{key} {values[key].pop()}" for key in said if found[0][key] is not None]
    empty = [key for key in values if all(cell[key] is None for cell in found)]
    left = [{k: short(v) for k, v in cell.items() if k not in [*said, *empty]} for cell in found]
    if len(left) == 1:
        left = [{"": name.replace("_", " "), "planned": value} for name, value in left[0].items()]
    return left, ", ".join([f"{len(rows)} runs, about {seconds:.0f} s one after the other", *shared])
