"""A Ray cluster on this machine, which starts while the command imports and checks.

The cluster takes seconds to start. This module must not import torch.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.registry import UserError
from harness.executors.forkserver import MAKE_RUNS

CODE = str(Path(__file__).parents[2])
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # do not lower the priority of runs
    # The node connects to its own store before that listens; it would try again after a second.
    "RAY_raylet_client_connect_timeout_milliseconds": "50",
    "RAY_raylet_client_num_connect_attempts": "200",
}
ON_RAY = re.compile(r"\s--executor[ =]ray\s")
NOT_HERE = re.compile(r"\s(-h|--help|--address[ =]\S+)\s")
JOBS = re.compile(r"\s--jobs[ =](\d+)\s")


class LocalRay:
    """A Ray cluster on this machine.

    It lives in a thread of its own: Ray's processes end with the thread that has started them.

    Parameters
    ----------
    size : int or None
        Number of CPUs, which is that of workers; None: as many as the machine has.
    """

    def __init__(self, size: int | None) -> None:
        self._ready, self._closing = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, args=(size,), daemon=True)
        with suppress(Exception):  # the thread tells it
            import_ray()  # takes twice as long beside the imports of the command
        self._thread.start()

    def ready(self) -> None:
        """Wait until the cluster has started.

        Raises
        ------
        UserError
            If Ray is not installed, or does not start.
        """
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def close(self, *, wait: bool) -> None:
        """End the cluster. Without waiting it ends in the background, and at the latest when this process exits."""
        self._closing.set()
        if wait:
            self._thread.join()

    def _live(self, size: int | None) -> None:
        before: dict[str, str | None] = {}
        try:
            ray = import_ray()
            atexit.register(self._end)  # before Ray's own function, which waits
            for name, value in DEFAULTS.items():
                os.environ.setdefault(name, value)
            before = _guarded()
            _as_batch()
            # Workers inherit it. A runtime environment would take two more processes and two seconds.
            path = _set({"PYTHONPATH": code()})
            try:
                ray.init("local", include_dashboard=False, num_cpus=size, **QUIET)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(f"executor ray: Ray does not start: {' '.join(str(error).split())}") from None
            finally:
                _set(path)
        except BaseException as error:
            self._error = error
        self._ready.set()
        if self._error is None:
            self._closing.wait()
            ray.shutdown()
        if before:
            _set(before)
            _read_again()
        atexit.unregister(self._end)

    def _end(self) -> None:
        self.close(wait=True)


def code() -> str:
    """Return the path of modules for workers."""
    return os.pathsep.join(path for path in (CODE, os.environ.get("PYTHONPATH")) if path)


def import_ray() -> Any:
    """Import Ray."""
    try:
        import ray
    except ImportError:
        raise UserError("executor ray needs the extra 'ray': pip install 'fedfrontier[ray]'") from None
    return ray


def begin(arguments: Sequence[str]) -> None:
    """Start the cluster that a command line asks for; a wrong guess costs some seconds at the end."""
    line = f" {' '.join(arguments)} "
    made = bool(arguments) and arguments[0] in MAKE_RUNS
    if made and ON_RAY.search(line) and not NOT_HERE.search(line):
        jobs = JOBS.search(line)
        _of_command.append(LocalRay(int(jobs[1]) if jobs else None))


def of_command() -> LocalRay | None:
    """Return the cluster that was started for this command, if there is one."""
    return _of_command[-1] if _of_command else None


def end() -> None:
    """Let this command's cluster end while the command goes on, as no runs will follow."""
    while _of_command:
        _of_command.pop().close(wait=False)


_of_command: list[LocalRay] = []


def _guarded() -> dict[str, str | None]:
    """Let the next cluster on this machine answer to a token of its own only; return the variables as they were.

    Its ports listen on all interfaces, whatever address is asked for. The token is in no file; tasks inherit it.
    """
    before = _set({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()})
    _read_again()
    return before


def _as_batch() -> None:
    """Let this thread, and the processes that it starts, not interrupt others when they wake up; only on Linux.

    Ray has over ten processes, whose threads wake up hundreds of times a second beside the runs. A thread whose
    scheduling is not the usual one stays as it is, as do its processes.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some containers forbid it
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _set(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set variables of this process, or remove those that are None; return them as they were."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _read_again() -> None:
    """Let Ray read its variables, which it does when it is imported."""
    from ray import _raylet

    compiled: Any = _raylet
    compiled.Config.initialize("")
    compiled.AuthenticationTokenLoader.instance().reset_cache()
