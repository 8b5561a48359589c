"""Imports of the fork server, which its workers inherit; collections would also copy its memory in each of them."""

# ruff: noqa: F401
import atexit
import os
import sys
from contextlib import suppress

from harness.core.garbage import first_imports

if any("forkserver" in part for part in sys.orig_argv):
    # The server holds the command's output open until it has ended, and taking torch apart takes long.
    atexit.register(os._exit, 0)

with suppress(Exception), first_imports():  # the command itself reports a broken algorithm file
    import pandas  # of data sets in tables
    import scipy.special  # of noise

    import datasets.catalog
    import harness.executors.processes
