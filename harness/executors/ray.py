"""Workers on a Ray cluster: one task per unit, with a shared results folder.

Ray starts the processes and reports their deaths; runs, claims and checkpoints work as on one machine. The extra
``ray`` is imported only when a cluster is used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.config import plugins
from harness.config.run import RunSpec
from harness.core.registry import UserError
from harness.executors.local import Outcome
from harness.executors.local_ray import QUIET, LocalRay, code, import_ray, of_command
from harness.executors.ray_task import work
from harness.simulation.build import Execution
from harness.storage.store import Store

Unit = Sequence[int]
PASSED_ON = ("FEDFRONTIER_CACHE", "FEDFRONTIER_DATA")  # where data are stored
CONNECT_SECONDS = 10.0
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
        self._busy[self._task.remote(list(specs), folder, plugins.loaded(), *options)] = unit

    def ended(self) -> list[tuple[Unit, list[Outcome] | None]]:
        """Wait for units to end and return their outcomes, None if the worker died; raise a worker's error."""
        dead = (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError)
        ended: list[tuple[Unit, list[Outcome] | None]] = []
        for task in self._ray.wait(list(self._busy))[0]:
            unit = self._busy.pop(task)
            try:
                ended.append((unit, self._ray.get(task)))
            except (*dead, self._ray.exceptions.OutOfMemoryError, self._ray.exceptions.ObjectLostError):
                ended.append((unit, None))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
        return ended

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._busy:  # interrupted tasks save checkpoints
            self._ray.cancel(task)
        if self._busy:
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
