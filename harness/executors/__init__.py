"""Execution of runs in this process, in worker processes or on a Ray cluster."""

import os

EXECUTORS = ("serial", "processes", "ray")


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0))
