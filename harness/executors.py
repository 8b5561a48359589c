"""Carry out runs: one after the other, or in worker processes. Who runs a run never shows in its result."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.setup import Execution, identify, prepare
from harness.simulate import Diverged, simulate
from harness.spec import RunSpec
from harness.store import Busy, Store

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
    id = identify(spec)
    folder = Store(root).open().folder(id)
    predictions = folder.path / "predictions.csv" if save_predictions else None
    try:
        with folder.claim():
            again = predictions is not None and not predictions.exists()
            if folder.status == "done" and not again:
                return Outcome(id, "done")
            if folder.status == "failed":
                if not retry:
                    return failure(root, id)
                folder.retry()
            observe = (lambda round, line: progress(spec, round, line)) if progress else None
            try:
                setup = prepare(spec, execution)
                simulate(setup, None if folder.status == "done" else folder, observe, predictions)
            except Exception as error:
                reason = str(error) if isinstance(error, Diverged) else f"{type(error).__name__}: {error}"
                at = {"round": error.round} if isinstance(error, Diverged) else {}
                folder.fail({"reason": reason, **at, "timing": {"traceback": traceback.format_exc()}})
                return Outcome(id, "failed", reason)
    except Busy:
        return Outcome(id, "running")
    return Outcome(id, "done")


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

    A run whose worker process dies is tried again, up to three times; its neighbors lose nothing.
    """
    if jobs == 1:
        outcomes = []
        for spec in specs:
            outcomes.append(run_one(spec, root, execution, retry=retry, progress=progress))
            if report:
                report(outcomes[-1])
        return outcomes
    found: dict[int, Outcome] = {}
    deaths = dict.fromkeys(range(len(specs)), 0)
    while len(found) < len(specs):
        missing = [number for number in deaths if number not in found]
        alone = any(deaths[number] for number in missing)  # find out which one kills its worker
        for number, outcome in _in_processes(
            specs, missing[:1] if alone else missing, root, jobs, execution, retry
        ):
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


def _in_processes(
    specs: Sequence[RunSpec],
    numbers: Sequence[int],
    root: Path,
    jobs: int,
    execution: Execution | None,
    retry: bool,
) -> Iterable[tuple[int, Outcome | None]]:
    """Yield outcomes as they come; None for the runs that were lost when a worker died."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_prepare_worker) as pool:
        waiting = {pool.submit(_work, specs[n], root, execution, retry): n for n in numbers}
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    number = waiting.pop(future)
                    try:
                        yield number, future.result()
                    except BrokenProcessPool:
                        yield number, None
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _prepare_worker() -> None:
    """Ctrl-C reaches every process of a terminal: the parent alone answers it, and tells its workers to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(spec: RunSpec, root: Path, execution: Execution | None, retry: bool) -> Outcome:
    idle = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_one(spec, root, execution, retry=retry)
    except KeyboardInterrupt:  # the checkpoint is written; the pool would hand out the next run
        os._exit(130)
    finally:
        signal.signal(signal.SIGTERM, idle)
