"""What the server of worker processes imports once: workers, its copies, then have it."""

# ruff: noqa: F401
from contextlib import suppress

with suppress(Exception):  # what is broken, an algorithm file say, the command itself reports
    import torch._dynamo  # recordings are made with it

    import harness.executors.processes
