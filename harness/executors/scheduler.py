"""Scheduling of runs: one after the other, in worker processes, or on a Ray cluster.

Results do not depend on the executor. Workers receive a few runs at a time, write into the results folder and
report the outcomes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from harness.config import notebook
from harness.config.recorded import named_parts
from harness.config.run import RunSpec
from harness.core.errors import UserError, unknown
from harness.core.execution.memory import room
from harness.executors import EXECUTORS, cores
from harness.executors.local import Ended, Outcome, Unit, run_one, run_together
from harness.executors.processes import Processes
from harness.executors.ray import Cluster
from harness.metrics import METRICS
from harness.simulation.build import identify
from harness.simulation.callbacks import Observe
from harness.simulation.setup import Execution
from harness.simulation.stacking import LARGEST_STACK, pieces, stack_key
from harness.storage.files import has_locks
from harness.storage.store import Store

log = logging.getLogger(__name__)

__all__ = [
    "Outcome",
    "check_locks",
    "choose",
    "run_all",
    "run_one",
    "run_together",
]

ATTEMPTS = 3  # per run whose worker dies
PATIENCE_SECONDS = 60.0  # for the claim of a dead worker, which may outlive it a little

Report = Callable[[Outcome], None]
Begin = Callable[[Sequence[int]], None]
T = TypeVar("T")


class Workers(Protocol):
    """Workers of an executor.

    Attributes
    ----------
    size : int
        Number of units at a time.
    """

    size: int

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Start a unit, if fewer than ``size`` are running."""

    def ended(self) -> Ended:
        """Wait for units to end and return their outcomes, None if the worker died; raise a worker's error."""


def run_all(
    specs: Sequence[RunSpec],
    root: Path,
    *,
    jobs: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    execution: Execution | None = None,
    retry: bool = False,
    begin: Begin | None = None,
    report: Report | None = None,
    progress: Observe | None = None,
) -> list[Outcome]:
    """Carry out all runs.

    Runs that can be stacked form units. A run whose worker dies is retried alone from its
    checkpoint, with three attempts in total; other workers are not affected.

    Parameters
    ----------
    specs, root : sequence of RunSpec, Path
        The runs and the results folder.
    jobs : int or None
        Number of workers, with one torch thread each. None: one per core, or per CPU of a cluster.
    executor : {"serial", "processes", "ray"}, optional
        Default: processes if there is more than one worker, else serial.
    address : str, optional
        Address of a running Ray cluster, for executor ray: ``host:port`` of its head, or ``auto``.
    execution : Execution, optional
        Execution options.
    retry : bool
        Run failed runs again.
    begin : Callable, optional
        Called with the numbers of runs that start.
    report : Callable, optional
        Called with each outcome.
    progress : Callable, optional
        Called after every round; serial executor only.
    """
    chosen, execution = choose(executor, jobs, address, len(specs)), execution or Execution()
    ended: dict[int, Outcome] = {}

    def end(numbers: Unit, outcomes: Sequence[Outcome]) -> None:
        for number, outcome in zip(numbers, outcomes, strict=True):
            ended[number] = outcome
            if report:
                report(outcome)

    if chosen == "serial":
        check_locks(Store(root).open().root, alone=True)
        for unit in units(specs, 1, execution.stack):
            if begin:
                begin(unit)
            these = [specs[number] for number in unit]
            end(unit, run_together(these, root, execution, retry=retry, progress=progress))
    elif specs:
        with _workers(specs, root, jobs, address, execution, retry) as running:
            _distribute(specs, root, running, execution, begin, end)
    return [ended[number] for number in range(len(specs))]


def check_locks(root: Path, *, alone: bool) -> None:
    """Refuse several workers in a folder without file locks, where two of them could carry out one run."""
    if has_locks(root):
        return
    problem = (
        f"{root} is on a file system without file locks, so two processes could carry out one run "
        "and damage it"
    )
    if not alone:
        raise UserError(f"{problem}; use another folder, or --jobs 1 and one command at a time")
    log.warning("%s; give no second command while this one works there", problem)


def choose(executor: str | None, jobs: int | None, address: str | None, runs: int) -> str:
    """Return the executor for a number of runs.

    Raises
    ------
    UserError
        If there is no such executor, or the options are incompatible.
    """
    if executor is not None and executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    if address is not None and executor != "ray":
        raise UserError(f"address: needs executor ray, given {address!r}")
    if executor == "ray" and address is None:
        raise UserError(
            "executor ray: give the address of a running cluster, --address HOST:PORT; on one machine processes "
            "are faster: --jobs N"
        )
    if executor == "serial" and jobs is not None and jobs > 1:
        raise UserError(f"jobs: executor serial has one job, given {jobs}")
    return executor or ("processes" if min(jobs or cores(), runs) > 1 else "serial")


def _workers(
    specs: Sequence[RunSpec],
    root: Path,
    jobs: int | None,
    address: str | None,
    execution: Execution,
    retry: bool,
) -> AbstractContextManager[Workers]:
    """Return the workers of runs, which must be able to load all parts and to share the folder."""
    parts = {part for spec in specs for part in named_parts(spec.model_dump()).items()}
    notebook.require_files(parts | {("metric", name) for name in METRICS})
    check_locks(Store(root).open().root, alone=False)
    size = None if jobs is None else min(jobs, len(specs))
    if address is not None:
        return Cluster(address, size, root, execution, retry)
    count = size or min(cores(), len(specs))
    return Processes(count, root, _share_of_memory(execution, count), retry)


def _share_of_memory(execution: Execution, workers: int) -> Execution:
    """Return execution options with a worker's share of the memory that is left."""
    memory = room()
    return execution if memory is None else replace(execution, memory=memory.bytes // workers)


def _distribute(
    specs: Sequence[RunSpec],
    root: Path,
    workers: Workers,
    execution: Execution,
    begin: Begin | None,
    end: Callable[[Unit, Sequence[Outcome]], None],
) -> None:
    """Keep workers busy until all runs have ended."""
    waiting: deque[Unit] = deque(units(specs, workers.size, execution.stack))
    deaths = dict.fromkeys(range(len(specs)), 0)
    under_way = 0
    while waiting or under_way:
        while waiting and under_way < workers.size:
            unit = waiting.popleft()
            under_way += 1
            patience = PATIENCE_SECONDS if any(deaths[number] for number in unit) else 0.0
            if begin:
                begin(unit)
            workers.start(unit, [specs[number] for number in unit], patience)
        for unit, outcomes in workers.ended():
            under_way -= 1
            if outcomes is not None:
                end(unit, outcomes)
                continue
            for number in unit:
                deaths[number] += 1
                if deaths[number] < ATTEMPTS:
                    waiting.appendleft([number])  # alone, to find the run that kills its worker
                else:
                    end([number], [_given_up(specs[number], root)])


def _given_up(spec: RunSpec, root: Path) -> Outcome:
    """Record that a run has lost too many workers."""
    outcome = Outcome(identify(spec), "failed", f"its worker died {ATTEMPTS} times")
    folder = Store(root).folder(outcome.id)
    with folder.claim(PATIENCE_SECONDS):
        folder.fail({"reason": outcome.reason})
    return outcome


def units(specs: Sequence[RunSpec], workers: int, most: int | None) -> list[Unit]:
    """Group runs that can be stacked, in pieces that keep all workers busy.

    The runs of a seed share their data and batches. So they are one piece, with those of other seeds if there is
    room, or pieces of their own if they are too many for one. Of runs of one kind the larger pieces are first, so
    that workers end at about the same time.
    """
    groups: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        groups.setdefault(stack_key(spec), []).append(number)
    most = min(most or LARGEST_STACK, max(1, -(-len(specs) // workers)))
    even = (
        workers if len(groups) == 1 else 1
    )  # as many pieces for every worker, if there is nothing else to do

    def split(items: Sequence[T], width: int) -> list[Sequence[T]]:
        number = -(-len(items) // (most // width))
        return pieces(items, min(len(items), -(-number // even) * even))

    stacks: list[Unit] = []
    for group in groups.values():
        seeds: dict[int, list[int]] = {}
        for number in sorted(group, key=lambda number: specs[number].seed):
            seeds.setdefault(specs[number].seed, []).append(number)
        largest = max(map(len, seeds.values()))
        if largest <= most:
            batches: list[Unit] = [
                [*chain.from_iterable(some)] for some in split(list(seeds.values()), largest)
            ]
        else:
            batches = [some for numbers in seeds.values() for some in split(numbers, 1)]
        stacks += sorted(batches, key=len, reverse=True)
    return stacks
