"""Workers on a Ray cluster: one task a unit, and the results folder as the only thing they share.

Ray starts the processes and says when one has died; runs, claims and checkpoints are what they are elsewhere.
The extra ``ray`` is imported here, when it is asked for.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from harness.config import plugins
from harness.config.run import RunSpec
from harness.core.registry import UserError
from harness.executors.local import Outcome, run_together
from harness.simulation.build import Execution
from harness.storage.store import Store

Unit = Sequence[int]
CODE = str(Path(__file__).parents[2])
PASSED_ON = ("FEDFRONTIER_CACHE", "FEDFRONTIER_DATA")  # where data lie
CONNECT_SECONDS = 10.0
STOP_SECONDS = 10.0  # for saving checkpoints before Ray ends the workers


class Cluster:
    """A Ray cluster, this machine unless an address is given.

    The results folder must be one folder for all nodes, under one path, and its file system must pass file locks on
    (see `harness.storage.store`). So must the code and the data that are read from files. Each task checks the
    folder.

    Parameters
    ----------
    address : str or None
        Of a running cluster, ``host:port`` or ``auto``; None: one is started on this machine, and ended.
    size : int or None
        How many units are worked on at once; None: one a CPU of the cluster.
    root, execution, retry : Path, Execution, bool
        As in `harness.executors.run_all`.
    """

    def __init__(
        self, address: str | None, size: int | None, root: Path, execution: Execution, retry: bool
    ) -> None:
        self._ray = ray = _ray()
        kind, _, index = execution.device.partition(":")
        if index:
            raise UserError(f"device: with executor ray it is Ray that chooses the GPU; use {kind}")
        if address is not None:
            _answers(address)
        self._root, self._execution, self._retry = root.resolve(), execution, retry
        self._seen = Store(root).open().made
        self._busy: dict[Any, Unit] = {}
        code = os.pathsep.join(path for path in (CODE, os.environ.get("PYTHONPATH")) if path)
        variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        options: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": code, **variables}}}
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # runs are what this machine is asked for
            options |= {"include_dashboard": False, "num_cpus": size}
        try:
            ray.init(address or "local", log_to_driver=False, logging_level="error", **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise UserError(
                f"address: no Ray cluster answers at {address or 'this machine'}: {said}"
            ) from None
        self.size = size or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # A task that dies is not Ray's to try again: its runs go on one by one, and are counted.
        self._task = ray.remote(num_cpus=1, num_gpus=int(kind == "cuda"), max_retries=0)(_work)

    def start(self, unit: Unit, specs: Sequence[RunSpec], patience: float) -> None:
        """Hand out a unit; at most ``size`` may be under way."""
        folder = (str(self._root), self._seen, os.getcwd())
        options = (self._execution, self._retry, patience)
        self._busy[self._task.remote(list(specs), folder, plugins.loaded(), *options)] = unit

    def ended(self) -> list[tuple[Unit, list[Outcome] | None]]:
        """Wait until units end and return them; None: their worker died. What a worker could not do is raised."""
        dead = (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.NodeDiedError)
        found: list[tuple[Unit, list[Outcome] | None]] = []
        for task in self._ray.wait(list(self._busy))[0]:
            unit = self._busy.pop(task)
            try:
                found.append((unit, self._ray.get(task)))
            except (*dead, self._ray.exceptions.OutOfMemoryError, self._ray.exceptions.ObjectLostError):
                found.append((unit, None))
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
        return found

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._busy:  # interrupted, they save what they have
            self._ray.cancel(task)
        if self._busy:
            self._ray.wait(list(self._busy), num_returns=len(self._busy), timeout=STOP_SECONDS)
        self._ray.shutdown()


def _ray() -> Any:
    """Return Ray."""
    try:
        import ray
    except ImportError:
        raise UserError("executor ray needs the extra 'ray': pip install 'fedfrontier[ray]'") from None
    return ray


def _answers(address: str) -> None:
    """Refuse an address at which nobody listens: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not colon or not host or "/" in host or not port.isdecimal():
        raise UserError(f"address: HOST:PORT of a Ray cluster's head, or auto, given {address!r}")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"address: no Ray cluster answers at {address}: {error}") from None


def _work(
    specs: list[RunSpec],
    folder: tuple[str, int | None, str],
    plugged: Sequence[plugins.Plugin],
    execution: Execution,
    retry: bool,
    patience: float,
) -> list[Outcome]:
    """Run in a worker of the cluster what `run_together` runs here."""
    path, made, place = folder
    host = socket.gethostname()
    for needed in (path, place):
        if not Path(needed).is_dir():
            raise UserError(f"node {host} has no folder {needed}; all nodes need to see the same files")
    os.chdir(place)  # relative paths of data mean the same as where the suite was started
    root = Path(path)
    if Store(root).made != made:
        raise UserError(
            f"node {host} sees another folder at {root}, without the store.json that was written there; the "
            "results folder must be one that all nodes share"
        )
    # Ray interrupts by this; where a suite runs in the background of a shell, its processes ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    plugins.restore(plugged)
    return run_together(specs, root, execution, retry=retry, patience=patience)
