"""The fork server of worker processes. It is started first, so this module must not import torch."""

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
MAKE_RUNS = ("suite", "sweep", "resume", "retry")  # commands that may use workers
NO_WORKERS = re.compile(r"\s(-h|--help|--jobs[ =]1|--executor[ =](serial|ray))\s")


def likely(arguments: Sequence[str]) -> bool:
    """Guess whether a command line uses worker processes; a wrong guess costs a second."""
    line = f" {' '.join(arguments)} "
    made = bool(arguments) and arguments[0] in MAKE_RUNS
    return made and not NO_WORKERS.search(line) and cores() > 1


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0))


def start_server() -> None:
    """Start the fork server, if the system has one and it is not running, and let it import in the background.

    The server computes nothing, so that it can be forked. It has this process's module path and ignores Ctrl-C.
    """
    if METHOD != "forkserver":
        return
    multiprocessing.get_context(METHOD).set_forkserver_preload(["harness.executors.preload"])
    before, answer = dict(os.environ), signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread() and answer is not None
    places = os.pathsep.join(path or os.getcwd() for path in sys.path)
    os.environ.update(PYTHONPATH=places, PYTHONSAFEPATH="1")
    try:
        if main:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        forkserver.ensure_running()
    finally:
        if main:
            signal.signal(signal.SIGINT, answer)
        os.environ.clear()
        os.environ.update(before)
