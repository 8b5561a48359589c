"""The server that worker processes of this machine are copies of. It is started first, so this imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing import forkserver

METHOD = "forkserver" if sys.platform == "linux" else "spawn"
OTHERWISE = re.compile(r"\s(-h|--help|--jobs[ =]1|--executor[ =](serial|ray))\s")  # no workers, or elsewhere


def likely(arguments: Sequence[str]) -> bool:
    """Whether a command line hands runs to workers, as it seems; a wrong guess costs or saves a second."""
    line = f" {' '.join(arguments)} "
    return arguments[:1] in (["suite"], ["sweep"]) and not OTHERWISE.search(line) and cores() > 1


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def start_server() -> None:
    """Let a server of worker processes begin to import, where the system has one, while this process goes on.

    It computes nothing, so that it can be copied; it looks for modules where this process does, and leaves Ctrl-C
    to it. Where it runs already nothing happens.
    """
    if METHOD != "forkserver":
        return
    multiprocessing.get_context(METHOD).set_forkserver_preload(["harness.executors.preload"])
    before, answer = dict(os.environ), signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread() and answer is not None
    places = os.pathsep.join(path or os.getcwd() for path in sys.path)
    os.environ.update(PYTHONPATH=places, PYTHONSAFEPATH="1")
    try:
        if here:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        forkserver.ensure_running()
    finally:
        if here:
            signal.signal(signal.SIGINT, answer)
        os.environ.clear()
        os.environ.update(before)
