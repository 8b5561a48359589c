"""Workers on a Ray cluster: one task per unit, with a shared results folder.

Ray starts the processes and reports their deaths; runs, claims and checkpoints work as on one machine. The extra
``ray`` is imported only when a cluster is used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.config import plugins
from harness.config.run import RunSpec
from harness.core.registry import Interrupted, UserError
from harness.executors.local import Outcome
from harness.executors.local_ray import QUIET, LocalRay, code, import_ray, of_command
from harness.executors.ray_task import work
from harness.simulation.build import Execution
from harness.storage.store import Store

Unit = Sequence[int]
LOST = "the Ray cluster is lost ({}); what has ended is kept, and the same command continues from here"
PASSED_ON = ("FEDFRONTIER_CACHE", "FEDFRONTIER_DATA")  # where data are stored
CONNECT_SECONDS = 10.0
ALIVE_SECONDS = 5.0  # between looks whether a node is left; Ray would wait for one without end
STOP_SECONDS = 10.0  # for saving checkpoints before Ray ends the workers


class Cluster:
    """A Ray cluster, by default on this machine.

    All nodes must see the results folder under one path, on a file system that shares file locks (see
    `harness.storage.store`), and likewise the code and data files. Each task checks the folder.

    Parameters
    ----------
    address : str or None
        Address of a running cluster, ``host:port`` or ``auto``; None: start one on this machine.
    size : int or None
        Number of units at a time; None: one per CPU of the cluster.
    root, execution, retry : Path, Execution, bool
        As in `harness.executors.scheduler.run_all`.
    """

    def __init__(
        self, address: str | None, size: int | None, root: Path, execution: Execution, retry: bool
    ) -> None:
        self._ray = ray = import_ray()
        kind, _, index = execution.device.partition(":")
        if index:
            raise UserError(
                f"device: with executor ray, Ray chooses the GPU; use {kind}, given {execution.device}"
            )
        gone = ray.exceptions
        self._deaths: tuple[type[Exception], ...] = (
            *(gone.WorkerCrashedError, gone.NodeDiedError, gone.OutOfMemoryError, gone.ObjectLostError),
        )
        self._root, self._execution, self._retry = root.resolve(), execution, retry
        self._made = Store(root).open().made
        self._busy: dict[Any, Unit] = {}
        self._own: LocalRay | None = None  # a cluster to end with this object
        if address is None:
            started = of_command()
            if started is None:
                started = self._own = LocalRay(size)
            started.ready()
        else:
            _check_address(address)
            variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
            own = {"env_vars": {"PYTHONPATH": code(), **variables}}
            try:
                ray.init(address, runtime_env=own, **QUIET)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"address: no Ray cluster answers at {address}: {reason}") from None
        self._joined = address is not None
        self.size = size or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray must not retry a task that dies: the scheduler retries its runs one by one and counts the attempts.
        self._task = ray.remote(num_cpus=1, num_gpus=int(kind == "cuda"), max_retries=0)(work)

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Start a unit; at most ``size`` may be running."""
        folder = (str(self._root), self._made, os.getcwd())
        options = (self._execution, self._retry, patience)
        with self._told():
            self._busy[self._task.remote(list(specs), folder, plugins.loaded(), *options)] = unit

    def ended(self) -> list[tuple[Unit, list[Outcome] | None]]:
        """Wait for units to end and return their outcomes, None if the worker died; raise a worker's error."""
        ended: list[tuple[Unit, list[Outcome] | None]] = []
        for task in self._ready():
            unit = self._busy.pop(task)
            try:
                with self._told():
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
            with self._told():
                ready, _ = self._ray.wait(list(self._busy), timeout=ALIVE_SECONDS)
                alive = ready or any(node["Alive"] for node in self._ray.nodes())
            if not alive:
                raise Interrupted(LOST.format("no node is alive"))
        return ready

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell in one sentence that the cluster is lost; what tasks raise, and that workers died, is passed on."""
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
        with suppress(Interrupted), self._told():
            for task in self._busy:  # interrupted tasks save checkpoints
                self._ray.cancel(task)
            if self._busy and not isinstance(error, Interrupted):
                self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=STOP_SECONDS)
        if self._joined:
            self._ray.shutdown()
        elif self._own is not None:
            self._own.close(wait=True)


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
