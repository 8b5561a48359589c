"""Carry out runs: one after the other, in worker processes, or on a Ray cluster.

Who runs a run never shows in its result. Workers get a few runs at a time, write into the results folder
themselves, and say how the runs ended; there is no other channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from harness.config.run import RunSpec
from harness.core.registry import UserError, unknown
from harness.executors.forkserver import cores
from harness.executors.local import Outcome, Progress, chunks, run_one, run_together
from harness.executors.processes import Processes
from harness.executors.ray import Cluster
from harness.simulation.build import Execution, identify
from harness.simulation.stacking import LARGEST, stack_key
from harness.storage.store import Store

__all__ = [
    "EXECUTORS",
    "Outcome",
    "Progress",
    "choose",
    "cores",
    "run_all",
    "run_one",
    "run_together",
]

EXECUTORS = ("serial", "processes", "ray")
ATTEMPTS = 3  # at a run whose worker dies
PATIENCE_SECONDS = (
    60.0  # with the dead worker of a run that is tried again: its claim may outlive it a little
)

Report = Callable[[Outcome], None]
Begin = Callable[[Sequence[int]], None]
Unit = Sequence[int]


class Workers(Protocol):
    """Whoever computes elsewhere.

    Attributes
    ----------
    size : int
        How many units are worked on at once.
    """

    size: int

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Hand out a unit; at most ``size`` may be under way."""

    def ended(self) -> list[tuple[Unit, list[Outcome] | None]]:
        """Wait until units end and return them; None: their worker died. What a worker could not do is raised."""


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
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run all runs.

    Runs that differ in seed and noise only are handed out together. A run whose worker dies is tried again alone,
    three times in all, and goes on from its checkpoint; the runs of other workers are not disturbed.

    Parameters
    ----------
    specs, root : sequence of RunSpec, Path
        The runs and the results folder.
    jobs : int or None
        How many workers, of one torch thread each. None: one a core, of a cluster one a CPU.
    executor : {"serial", "processes", "ray"}, optional
        Who computes. Default: processes if there is more than one worker, else this process.
    address : str, optional
        Of a Ray cluster; without it Ray uses this machine.
    execution : Execution, optional
        Device and the like.
    retry : bool
        Run failed runs again.
    begin : Callable, optional
        Called with the numbers of runs that are handed out.
    report : Callable, optional
        Called with each outcome as it comes.
    progress : Callable, optional
        Called after every round; of use only in this process.
    """
    chosen, execution = choose(executor, jobs, address, len(specs)), execution or Execution()
    wanted = None if jobs is None else min(jobs, len(specs))
    found: dict[int, Outcome] = {}

    def end(numbers: Unit, outcomes: Sequence[Outcome]) -> None:
        for number, outcome in zip(numbers, outcomes, strict=True):
            found[number] = outcome
            if report:
                report(outcome)

    if chosen == "serial":
        for unit in units(specs, 1, execution.stack):
            if begin:
                begin(unit)
            these = [specs[number] for number in unit]
            end(unit, run_together(these, root, execution, retry=retry, progress=progress))
    elif specs:
        workers: AbstractContextManager[Workers] = (
            Cluster(address, wanted, root, execution, retry)
            if chosen == "ray"
            else Processes(wanted or min(cores(), len(specs)), root, execution, retry)
        )
        with workers as found_workers:
            _share_out(specs, root, found_workers, execution, begin, end)
    return [found[number] for number in range(len(specs))]


def choose(executor: str | None, jobs: int | None, address: str | None, runs: int) -> str:
    """Return who computes so many runs; refuse what does not go together."""
    if address is not None and executor != "ray":
        raise UserError(f"address: of a Ray cluster, goes with executor ray only, given {address!r}")
    if executor == "serial" and jobs is not None and jobs > 1:
        raise UserError(f"jobs: executor serial is this process alone, given {jobs}")
    if executor is None:
        return "processes" if min(jobs or cores(), runs) > 1 else "serial"
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    return executor


def _share_out(
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
                    waiting.appendleft([number])  # which of them kills its worker shows when they are alone
                else:
                    end([number], [_given_up(specs[number], root)])


def _given_up(spec: RunSpec, root: Path) -> Outcome:
    """Write down that a run has lost too many workers."""
    outcome = Outcome(identify(spec), "failed", f"its worker died {ATTEMPTS} times")
    folder = Store(root).folder(outcome.id)
    with folder.claim(PATIENCE_SECONDS):
        folder.fail({"reason": outcome.reason})
    return outcome


def units(specs: Sequence[RunSpec], workers: int, most: int | None) -> list[Unit]:
    """Put the numbers of runs that differ in seed and noise only together, in pieces that keep all workers busy."""
    groups: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        groups.setdefault(stack_key(spec).model_dump_json(), []).append(number)
    share = max(1, -(-len(specs) // workers))
    most = min(most or LARGEST, share)
    found: list[Unit] = []
    for group in groups.values():
        group.sort(key=lambda number: specs[number].seed)  # those of one seed share their clients' data
        pieces = -(-len(group) // most)
        if pieces > 1 and len(groups) == 1:  # as many for every worker; other groups would keep them busy
            pieces = min(len(group), -(-pieces // workers) * workers)
        found += chunks(group, pieces)
    return found
