"""What the server of worker processes imports once: workers, its copies, then have it."""

from contextlib import suppress

with suppress(Exception):  # what is broken, an algorithm file say, the command itself reports
    import harness.executors.processes  # noqa: F401
