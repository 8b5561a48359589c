"""Lists of parts, a row each: ours and those of plugins."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.config import builtin
from harness.config.recorded import BUILT_IN, part
from harness.core.registry import PLUGGED
from harness.metrics import METRICS

Row = dict[str, Any]


def _parts(section: str) -> list[Row]:
    """Return the parts that a section of a run file may name."""
    names = sorted([*BUILT_IN[section], *(name for kind, name in PLUGGED if kind == section)])
    return [{"name": name, **part(section, name)["row"]} for name in names]


def _metrics() -> list[Row]:
    return [{"name": m.name, "better": m.direction, "about": m.description} for m in METRICS.values()]


def _suites() -> list[Row]:
    return [{"name": name, "title": builtin.title_of(name)} for name in builtin.names()]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "algorithms": partial(_parts, "algorithm"),
    "codecs": partial(_parts, "compression"),
    "encoders": partial(_parts, "encoder"),
    "mechanisms": partial(_parts, "privacy"),
    "metrics": _metrics,
    "models": partial(_parts, "model"),
    "partitions": partial(_parts, "partition"),
    "problems": partial(_parts, "problem"),
    "suites": _suites,
    "topologies": partial(_parts, "topology"),
}
