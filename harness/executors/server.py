"""The fork server, of which worker processes are copies.

A worker that imports torch and this package itself takes 3 s of a core and 200 MB, which copies of a server share.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker

METHOD = "forkserver" if sys.platform == "linux" else "spawn"
# Imported once for all workers.
PRELOADED = ("pandas", "scipy.special", "datasets.catalog", "harness.executors.processes")


def start_server() -> None:
    """Start the server, if the system has one and it is not running.

    It imports what workers need, from the places where this process finds modules, and leaves Ctrl-C to it. It does
    so beside this process: what starts it early waits for it less.
    """
    if METHOD != "forkserver":
        return
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    resource_tracker.ensure_running()  # or the server starts it, which unblocks Ctrl-C
    variables, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    places = os.pathsep.join(path or os.getcwd() for path in sys.path)
    os.environ.update(PYTHONPATH=places, PYTHONSAFEPATH="1")
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        replace_environment(variables)


def replace_environment(variables: Mapping[str, str]) -> None:
    """Give this process other environment variables."""
    os.environ.clear()
    os.environ.update(variables)
