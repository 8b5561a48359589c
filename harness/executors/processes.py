"""Worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType

import torch

from harness.config import plugins
from harness.config.run import RunSpec
from harness.executors.forkserver import METHOD, start_server
from harness.executors.local import Outcome, run_together
from harness.simulation.build import Execution

Unit = Sequence[int]


class Processes:
    """So many processes, each a pool of its own: when one dies it is known what it did, and nobody else stops.

    Parameters
    ----------
    size : int
        How many.
    root, execution, retry : Path, Execution, bool
        As in `run_all`.
    """

    def __init__(self, size: int, root: Path, execution: Execution, retry: bool) -> None:
        self.size = size
        self._root, self._execution, self._retry = root, execution, retry
        start_server()
        self._others = set(multiprocessing.active_children())
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[list[Outcome]], tuple[Unit, ProcessPoolExecutor]] = {}

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Hand out a unit; at most ``size`` may be under way."""
        pool = self._idle.pop() if self._idle else self._pool()
        try:
            future = pool.submit(_work, specs, self._root, self._execution, self._retry, patience)
        except BrokenProcessPool:  # it died while it had nothing to do
            pool.shutdown(wait=True)
            self.start(unit, specs, patience)
        else:
            self._busy[future] = unit, pool

    def _pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(METHOD)
        return ProcessPoolExecutor(1, context, _prepare, (plugins.loaded(), dict(os.environ)))

    def ended(self) -> list[tuple[Unit, list[Outcome] | None]]:
        """Wait until units end and return them; None: their worker died. What a worker could not do is raised."""
        found: list[tuple[Unit, list[Outcome] | None]] = []
        for future in wait(self._busy, return_when=FIRST_COMPLETED).done:
            unit, pool = self._busy.pop(future)
            try:
                found.append((unit, future.result()))
                self._idle.append(pool)
            except BrokenProcessPool:
                pool.shutdown(wait=True)
                found.append((unit, None))
            except BaseException:
                self._idle.append(pool)  # the process is well; it is told to go with the others
                raise
        return found

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pools = [*self._idle, *(pool for _, pool in self._busy.values())]
        if kind is not None:  # they save what they have and go
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - self._others:
                worker.terminate()
        for pool in pools:
            pool.shutdown(wait=True)


def _prepare(given: Sequence[plugins.Plugin], variables: Mapping[str, str]) -> None:
    """Take over the parent's plugins and environment (the server has that of its start), and follow the parent.

    Ctrl-C reaches every process of a terminal: the parent alone answers it, and tells its workers to stop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(variables)
    plugins.restore(given)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Stop when the parent is gone, killed or crashed: nobody would take another result, or end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _work(
    specs: Sequence[RunSpec], root: Path, execution: Execution, retry: bool, patience: float
) -> list[Outcome]:
    idle = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_together(specs, root, execution, retry=retry, patience=patience)
    except KeyboardInterrupt:  # the checkpoint is written; the pool would hand out the next run
        os._exit(130)
    finally:
        signal.signal(signal.SIGTERM, idle)
