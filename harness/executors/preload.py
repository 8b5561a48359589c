"""Imports of the fork server, which its workers inherit."""

# ruff: noqa: F401
from contextlib import suppress

with suppress(Exception):  # the command itself reports a broken algorithm file
    import harness.executors.processes
