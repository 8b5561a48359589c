"""Memory: what is left of it, and what the C library does with freed memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KEPT = 2**25  # largest freed block that is kept for reuse, in bytes
MOST_KEPT = 8 * KEPT  # bytes of all of them


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, because model-sized vectors are allocated many times per step.

    Fresh pages from the system cost 6 % of a step of a 3-million-parameter network (benchmarks, W1) and 5 % of a
    round of FedBiOAcc with ten stacked runs. Without ``mallopt`` in the library nothing changes.
    """
    trim_threshold, mmap_threshold = -1, -3
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None and adjust(mmap_threshold, KEPT):  # 0 if the library refuses
        adjust(trim_threshold, MOST_KEPT)


class Room(NamedTuple):
    """Bytes that this process can still take, and what limits them."""

    bytes: int
    limit: str


def room() -> Room | None:
    """Return the memory that is left: of the machine, of its control groups and of the process; None if unknown."""
    limits = [*_of_machine(), *_of_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")), *_of_process()]
    return min(limits, default=None)


def resident() -> int:
    """Return the bytes of this process in memory; 0 if unknown."""
    return _values(Path("/proc/self/status")).get("VmRSS", 0) * 1024


def _of_machine() -> Iterator[Room]:
    values = _values(Path("/proc/meminfo"))
    if "MemAvailable" in values:
        yield Room(values["MemAvailable"] * 1024, "free memory of the machine")


def _of_process() -> Iterator[Room]:
    try:
        import resource  # not on every system
    except ImportError:
        return
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _values(Path("/proc/self/status")).get("VmSize")
    if most != resource.RLIM_INFINITY and used is not None:
        yield Room(max(0, most - used * 1024), "limit of the process, ulimit -v")


def _of_groups(membership: Path, root: Path) -> Iterator[Room]:
    """Yield what each control group of this process leaves, in version 1 and 2; a container sees its own as root.

    Pages of files that nobody uses count as free.
    """
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
        if not version:
            continue
        top = root if version == 2 else root / "memory"
        names = ("memory.max", "memory.current", "inactive_file")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        process = top / path.lstrip("/")
        for group in {
            folder for folder in (top, process, *process.parents) if folder == top or top in folder.parents
        }:
            most, used = ("".join(_lines(group / name)) for name in names[:2])
            if most.isdigit() and used.isdigit():
                idle = _values(group / "memory.stat").get(names[2], 0)
                yield Room(max(0, int(most) - int(used) + idle), "limit of the control group")


def _values(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number a line."""
    lines = [line.replace(":", " ").split() for line in _lines(path)]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
