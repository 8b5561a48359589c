"""Versions and hardware of a run: recorded but never hashed, without names of hosts or folders."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, torch, numpy and the harness, with the commit in a checkout."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    try:
        versions["fedfrontier"] = metadata.version("fedfrontier")
    except metadata.PackageNotFoundError:
        versions["fedfrontier"] = "not installed"
    commit = _commit()
    return versions | ({"commit": commit} if commit else {})


@cache
def machine() -> dict[str, str | int | float]:
    """Return architecture, processor, cores and memory in GiB, if known."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": platform.machine(),
        **({"cpu": cpu} if (cpu := _processor()) else {}),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(memory / 2**30, 1),
    }


def _processor() -> str | None:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None)


def _commit() -> str | None:
    """Return the commit of this checkout, marked if files differ from it; None outside of a checkout."""
    if _git("rev-parse", "--show-toplevel") != str(ROOT):  # installed inside another checkout
        return None
    return _git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
