"""Workers on a Ray cluster: one task per unit, with a shared results folder.

Ray starts the processes and reports their deaths; runs, claims and checkpoints work as on one machine. The extra
``ray`` is imported only when a cluster is used.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from harness.config import plugins
from harness.config.run import RunSpec
from harness.core.errors import Interrupted, UserError
from harness.executors.local import Ended, Outcome, Unit, run_together
from harness.simulation.setup import Execution
from harness.storage.store import Store

CODE = str(Path(__file__).parents[2])
LOST = "the Ray cluster is lost ({}); what has ended is kept, and the same command continues from here"
PASSED_ON = ("FEDFRONTIER_CACHE", "FEDFRONTIER_DATA")  # where data are stored
CONNECT_SECONDS = 10.0
ALIVE_SECONDS = 5.0  # between looks whether a node is left; Ray would wait for one without end
STOP_SECONDS = 10.0  # for saving checkpoints before Ray ends the workers


class Cluster:
    """A running Ray cluster.

    All nodes must see the results folder under one path, on a file system that shares file locks (see
    `harness.storage.store`), and likewise the code and data files. Each task checks the folder.

    Parameters
    ----------
    address : str
        Address of the cluster's head, ``host:port`` or ``auto``.
    size : int or None
        Number of units at a time; None: one per CPU of the cluster.
    root, execution, retry : Path, Execution, bool
        As in `harness.executors.scheduler.run_all`.

    Raises
    ------
    UserError
        If Ray is not installed, no cluster answers, or the execution names one of several GPUs.
    """

    def __init__(self, address: str, size: int | None, root: Path, execution: Execution, retry: bool) -> None:
        kind, _, index = execution.device.partition(":")
        if index:
            raise UserError(
                f"device: with executor ray, Ray chooses the GPU; use {kind}, given {execution.device}"
            )
        self._ray = ray = _connected(address)
        gone = ray.exceptions
        self._deaths: tuple[type[Exception], ...] = (
            *(gone.WorkerCrashedError, gone.NodeDiedError, gone.OutOfMemoryError, gone.ObjectLostError),
        )
        self._options = execution, retry
        self._folder = str(root.resolve()), Store(root).open().made, os.getcwd()
        self._busy: dict[Any, Unit] = {}
        self.size = size or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray must not retry a task that dies: the scheduler retries its runs one by one and counts the attempts.
        self._task = ray.remote(num_cpus=1, num_gpus=int(kind == "cuda"), max_retries=0)(work)

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Start a unit, if fewer than ``size`` are running."""
        with self._losses():
            task = self._task.remote(list(specs), self._folder, plugins.loaded(), *self._options, patience)
            self._busy[task] = unit

    def ended(self) -> Ended:
        """Wait for units to end and return their outcomes, None if the worker died; raise a worker's error."""
        ended: Ended = []
        for task in self._ready():
            unit = self._busy.pop(task)
            try:
                with self._losses():
                    ended.append((unit, self._ray.get(task)))
            except self._deaths:
                ended.append((unit, None))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
        return ended

    def _ready(self) -> list[Any]:
        """Wait until tasks have ended, and return them."""
        ready: list[Any] = []
        while not ready:
            with self._losses():
                ready, _ = self._ray.wait(list(self._busy), timeout=ALIVE_SECONDS)
                alive = ready or any(node["Alive"] for node in self._ray.nodes())
            if not alive:
                raise Interrupted(LOST.format("no node is alive"))
        return ready

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """Raise `Interrupted` if the cluster is lost; what tasks raise, and deaths of workers, are passed on."""
        try:
            yield
        except (self._ray.exceptions.RayTaskError, *self._deaths):
            raise
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise Interrupted(LOST.format(" ".join(str(error).split())[:200])) from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Interrupted), self._losses():
            for task in self._busy:  # interrupted tasks save checkpoints
                self._ray.cancel(task)
            if self._busy and not isinstance(error, Interrupted):
                self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=STOP_SECONDS)
        self._ray.shutdown()


def _connected(address: str) -> Any:
    """Return the module ``ray``, connected to a cluster."""
    try:
        import ray
    except ImportError:
        raise UserError("executor ray needs the extra 'ray': pip install 'fedfrontier[ray]'") from None
    _check_address(address)
    path = os.pathsep.join(path for path in (CODE, os.environ.get("PYTHONPATH")) if path)
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment = {"env_vars": {"PYTHONPATH": path, **variables}}
    try:
        ray.init(address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"address: no Ray cluster answers at {address}: {reason}") from None
    return ray


def _check_address(address: str) -> None:
    """Raise UserError if nothing listens at an address, where Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not colon or not host or "/" in host or not port.isdecimal():
        raise UserError(f"address: expected HOST:PORT of a Ray cluster's head, or auto, given {address!r}")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"address: no Ray cluster answers at {address}: {error}") from None


def work(
    specs: list[RunSpec],
    folder: tuple[str, int | None, str],
    plugged: Sequence[plugins.Plugin],
    execution: Execution,
    retry: bool,
    patience: float,
) -> list[Outcome]:
    """Call `run_together` in a worker of the cluster.

    ``folder`` is the results folder, the time when it was made, and the working directory, as the scheduler sees
    them.
    """
    path, written, working_directory = folder
    host = socket.gethostname()
    for needed in (path, working_directory):
        if not Path(needed).is_dir():
            raise UserError(f"node {host} has no folder {needed}; all nodes need to see the same files")
    os.chdir(working_directory)  # relative paths of data must have the same meaning
    root = Path(path)
    if Store(root).made != written:
        raise UserError(
            f"node {host} sees another folder at {root}, without the store.json that was written there; the "
            "results folder must be one that all nodes share"
        )
    # Ray cancels tasks by this signal, which processes ignore if the suite runs in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    plugins.restore(plugged)
    return run_together(specs, root, execution, retry=retry, patience=patience)
