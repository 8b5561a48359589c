"""Versions and hardware behind a run: recorded apart, never hashed, without names of hosts or folders."""

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
    """Return the versions of what computes; without the commit where this is no checkout of ours."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    try:
        found["fedfrontier"] = metadata.version("fedfrontier")
    except metadata.PackageNotFoundError:
        found["fedfrontier"] = "not installed"
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


@cache
def machine() -> dict[str, str | int | float]:
    """Return architecture, processor, its cores and memory in GiB, as far as the system tells."""
    found: dict[str, str | int | float] = {"machine": platform.machine()}
    if (cpu := _processor()) is not None:
        found["cpu"] = cpu
    if (cores := os.cpu_count()) is not None:
        found["cores"] = cores
    if hasattr(os, "sysconf"):
        found["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return found


def _processor() -> str | None:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None)


def _commit() -> str | None:
    """Return the commit of this checkout, marked where files differ from it; None if it is not one."""
    if _git("rev-parse", "--show-toplevel") != str(ROOT):  # installed inside somebody else's
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
