"""Imports of the fork server, which its workers inherit; collections would also copy its memory in each of them."""

# ruff: noqa: F401
from contextlib import suppress

from harness.core.garbage import first_imports

with suppress(Exception), first_imports():  # the command itself reports a broken algorithm file
    import pandas  # of data sets in tables
    import scipy.special  # of noise

    import harness.executors.processes
