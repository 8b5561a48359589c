"""Imports of the fork server, which its workers inherit."""

# ruff: noqa: F401
import gc
from contextlib import suppress

gc.disable()  # what is imported stays; a collection would also copy its memory in every worker
with suppress(Exception):  # the command itself reports a broken algorithm file
    import harness.executors.processes
gc.freeze()
gc.enable()
