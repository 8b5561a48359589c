"""Worker processes of this machine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from harness.config import plugins
from harness.config.run import RunSpec
from harness.executors.local import Ended, Outcome, Unit, run_together
from harness.executors.server import METHOD, replace_environment, start_server
from harness.simulation.setup import Execution

STARTS = 5  # of a new worker, at most
PAUSE = 0.2  # seconds between them: a killed server counts as running until its memory is freed


class Processes:
    """A pool of worker processes.

    Each worker is an executor of its own, so that the death of one identifies its unit and stops no other worker.

    Parameters
    ----------
    size : int
        Number of workers.
    root, execution, retry : Path, Execution, bool
        As in `harness.executors.scheduler.run_all`.
    """

    def __init__(self, size: int, root: Path, execution: Execution, retry: bool) -> None:
        self.size = size
        self._root, self._execution, self._retry = root, execution, retry
        start_server()
        self._others = set(multiprocessing.active_children())
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[list[Outcome]], tuple[Unit, ProcessPoolExecutor]] = {}

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Start a unit, if fewer than ``size`` are running.

        Ctrl-C waits for the start: a worker that its parent leaves half started ends with a traceback.
        """
        with _ctrl_c_waits():
            for attempts_left in reversed(range(len(self._idle) + STARTS)):
                pool = self._idle.pop() if self._idle else self._pool()
                try:
                    future = pool.submit(_work, specs, self._root, self._execution, self._retry, patience)
                except (BrokenProcessPool, EOFError, ConnectionError):
                    # The worker died while idle, or the server of whom it is a copy died as it was asked for one.
                    pool.shutdown(wait=True)
                    if not attempts_left:
                        raise
                    time.sleep(PAUSE)
                else:
                    self._busy[future] = unit, pool
                    return

    def _pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context(METHOD)
        return ProcessPoolExecutor(1, context, _prepare, (plugins.loaded(), dict(os.environ)))

    def ended(self) -> Ended:
        """Wait for units to end and return their outcomes, None if the worker died; raise a worker's error."""
        ended: Ended = []
        for future in wait(self._busy, return_when=FIRST_COMPLETED).done:
            unit, pool = self._busy.pop(future)
            try:
                ended.append((unit, future.result()))
                self._idle.append(pool)
            except BrokenProcessPool:
                pool.shutdown(wait=True)
                ended.append((unit, None))
            except BaseException:
                self._idle.append(pool)  # the worker is alive; it is stopped with the others
                raise
        return ended

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pools = [*self._idle, *(pool for _, pool in self._busy.values())]
        if kind is not None:  # workers save checkpoints and exit
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - self._others:
                worker.terminate()
        for pool in pools:
            pool.shutdown(wait=True)


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Hold back Ctrl-C until the block ends; a thread that never receives it goes on as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    strokes: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: strokes.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if strokes:
            signal.raise_signal(signal.SIGINT)


def _prepare(loaded: Sequence[plugins.Plugin], variables: Mapping[str, str]) -> None:
    """Set up a worker: the parent's plugins and current environment, and its end with the parent.

    Workers ignore Ctrl-C, which reaches every process of a terminal; the parent stops them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("datasets").setLevel(logging.ERROR)  # the parent has read the data, and warned
    torch.set_num_threads(1)
    replace_environment(variables)
    plugins.restore(loaded)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Stop this worker when the parent has ended."""
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
    except KeyboardInterrupt:  # the checkpoint is written; do not let the pool start the next unit
        os._exit(130)
    finally:
        signal.signal(signal.SIGTERM, idle)
