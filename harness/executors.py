"""Carry out runs: one after the other, or in worker processes. Who runs a run never shows in its result."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from harness import plugins
from harness.journal import Diverged, Journal
from harness.setup import Execution, identify, prepare
from harness.simulate import simulate_all
from harness.spec import RunSpec
from harness.stacking import LARGEST, alike, at, obstacle, signature, worthwhile
from harness.store import Busy, Store

log = logging.getLogger(__name__)

ATTEMPTS = 3  # at a run whose worker process dies


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes
    ----------
    id : str
        The run.
    status : str
        done, failed or running (another process has it).
    reason : str or None
        Why it failed.
    """

    id: str
    status: str
    reason: str | None = None


Report = Callable[[Outcome], None]
Progress = Callable[[RunSpec, int, dict[str, Any]], None]


def run_one(
    spec: RunSpec,
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Progress | None = None,
    save_predictions: bool = False,
) -> Outcome:
    """Run a run to its end, unless it has been already; whatever goes wrong is written into its folder."""
    (outcome,) = run_together(
        [spec], root, execution, retry=retry, progress=progress, save_predictions=save_predictions
    )
    return outcome


def run_together(
    specs: Sequence[RunSpec],
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Progress | None = None,
    save_predictions: bool = False,
) -> list[Outcome]:
    """Run runs to their ends as `run_one` does, side by side where they can be and where it pays."""
    store, execution = Store(root).open(), execution or Execution()
    ids = [identify(spec) for spec in specs]
    folders = [store.folder(id) for id in ids]
    found: dict[int, Outcome] = {}
    ready: dict[int, Journal] = {}

    def journal(number: int) -> Journal:
        spec, folder = specs[number], folders[number]
        predictions = folder.path / "predictions.csv" if save_predictions else None
        observe = partial(progress, spec) if progress else None
        kept = None if folder.status == "done" else folder
        return Journal(prepare(spec, execution), kept, observe, predictions)

    def failed(number: int, error: Exception) -> Outcome:
        reason = f"{type(error).__name__}: {error}"
        folders[number].fail({"reason": reason, "timing": {"traceback": traceback.format_exc()}})
        return Outcome(ids[number], "failed", reason)

    def carry_out(numbers: Sequence[int]) -> None:
        try:
            ends = simulate_all([ready[number] for number in numbers])
        except Exception as error:
            if len(numbers) == 1:
                found[numbers[0]] = failed(numbers[0], error)
                return
            for number in numbers:  # whose fault it is shows when they run apart, each from its checkpoint
                ready[number] = journal(number)
                carry_out([number])
            return
        for number, end in zip(numbers, ends, strict=True):
            lost = isinstance(end, Diverged)
            found[number] = Outcome(ids[number], "failed" if lost else "done", str(end) if lost else None)

    with ExitStack() as claims:
        for number, folder in enumerate(folders):
            try:
                claims.enter_context(folder.claim())
            except Busy:
                found[number] = Outcome(ids[number], "running")
                continue
            again = save_predictions and not (folder.path / "predictions.csv").exists()
            if folder.status == "done" and not again:
                found[number] = Outcome(ids[number], "done")
            elif folder.status == "failed" and not retry:
                found[number] = failure(root, ids[number])
            else:
                folder.retry()
                try:
                    ready[number] = journal(number)
                except Exception as error:
                    found[number] = failed(number, error)
        for numbers in _stacks(ready, execution.stack):
            carry_out(numbers)
    return [found[number] for number in range(len(specs))]


def _stacks(ready: Mapping[int, Journal], most: int | None) -> list[list[int]]:
    """Say which runs are carried out side by side; those that cannot be are alone."""
    groups: dict[Hashable, list[int]] = {}
    for number, journal in ready.items():
        why = obstacle(journal.setup)
        if why is not None and len(ready) > 1:
            log.info("%s runs alone: %s", journal.setup.id, why)
        key = number if why is not None else (signature(journal.setup), at(journal.checkpoint))
        groups.setdefault(key, []).append(number)
    return [
        list(numbers)
        for group in groups.values()
        for numbers in _chunks(group, most or worthwhile([ready[number].setup for number in group]))
    ]


def _chunks(numbers: Sequence[int], most: int) -> list[Sequence[int]]:
    """Cut a list into as few pieces of at most that length as possible, of about one length."""
    count = -(-len(numbers) // most)
    ends = [round(len(numbers) * n / count) for n in range(count + 1)]
    return [numbers[first:last] for first, last in pairwise(ends)]


def failure(root: Path, id: str) -> Outcome:
    """Return the outcome of a run that failed before."""
    (record,) = [record for record in Store(root).records() if record.id == id][:1]
    return Outcome(id, "failed", record.reason)


def run_all(
    specs: Sequence[RunSpec],
    root: Path,
    *,
    jobs: int = 1,
    execution: Execution | None = None,
    retry: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run all runs, in ``jobs`` processes of one torch thread each; 1: in this process.

    Runs that differ in seed and noise only are handed out together. A run whose worker process dies is tried again,
    up to three times; its neighbors lose nothing.
    """
    units = _units(specs, jobs, (execution or Execution()).stack)
    found: dict[int, Outcome] = {}
    if jobs == 1:
        for unit in units:
            these = [specs[number] for number in unit]
            ends = run_together(these, root, execution, retry=retry, progress=progress)
            found |= zip(unit, ends, strict=True)
            for end in ends:
                if report:
                    report(end)
        return [found[number] for number in range(len(specs))]
    deaths = dict.fromkeys(range(len(specs)), 0)
    while len(found) < len(specs):
        missing = [number for number in deaths if number not in found]
        alone = any(deaths[number] for number in missing)  # find out which one kills its worker
        waiting = [[missing[0]]] if alone else units
        for number, outcome in _in_processes(specs, waiting, root, jobs, execution, retry):
            if outcome is None:
                deaths[number] += 1
                if deaths[number] < ATTEMPTS:
                    continue
                id = identify(specs[number])
                outcome = Outcome(id, "failed", f"its worker process died {ATTEMPTS} times")
                Store(root).folder(id).fail({"reason": outcome.reason})
            found[number] = outcome
            if report:
                report(outcome)
    return [found[number] for number in range(len(specs))]


def _units(specs: Sequence[RunSpec], jobs: int, most: int | None) -> list[Sequence[int]]:
    """Put the numbers of runs that differ in seed and noise only together, in pieces that keep all workers busy."""
    groups: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        groups.setdefault(alike(spec).model_dump_json(), []).append(number)
    share = max(1, -(-len(specs) // jobs))
    return [piece for group in groups.values() for piece in _chunks(group, min(most or LARGEST, share))]


def _in_processes(
    specs: Sequence[RunSpec],
    units: Sequence[Sequence[int]],
    root: Path,
    jobs: int,
    execution: Execution | None,
    retry: bool,
) -> Iterable[tuple[int, Outcome | None]]:
    """Yield outcomes as they come; None for the runs that were lost when a worker died."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _prepare_worker, (plugins.loaded(),)) as pool:
        waiting = {
            pool.submit(_work, [specs[number] for number in unit], root, execution, retry): unit
            for unit in units
        }
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    unit = waiting.pop(future)
                    try:
                        outcomes: Sequence[Outcome | None] = future.result()
                    except BrokenProcessPool:
                        outcomes = [None] * len(unit)
                    yield from zip(unit, outcomes, strict=True)
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _prepare_worker(given: Sequence[plugins.Plugin]) -> None:
    """Ctrl-C reaches every process of a terminal: the parent alone answers it, and tells its workers to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    plugins.restore(given)


def _work(specs: Sequence[RunSpec], root: Path, execution: Execution | None, retry: bool) -> list[Outcome]:
    idle = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_together(specs, root, execution, retry=retry)
    except KeyboardInterrupt:  # the checkpoint is written; the pool would hand out the next run
        os._exit(130)
    finally:
        signal.signal(signal.SIGTERM, idle)
