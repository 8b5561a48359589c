"""Lists of the registered parts, a row each: ours and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import algorithms
from compression import CODECS
from datasets.partition import PARTITIONS
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config import builtin
from harness.core.algorithm import ALGORITHMS
from harness.metrics import METRICS
from harness.problems import PROBLEMS
from privacy.own_mechanism import MECHANISMS

algorithms.load()

Row = dict[str, Any]
OUR_MECHANISMS = {
    "independent": "Gaussian noise, of its own for every release.",
    "banded": "Gaussian noise that is correlated between rounds.",
}


def _algorithms() -> list[Row]:
    return [
        {"name": m.name, "family": m.family, "solves": ", ".join(m.solves), "paper": m.paper, "url": m.url}
        for m in (ALGORITHMS[name].meta for name in ALGORITHMS)
    ]


def _codecs() -> list[Row]:
    formats = {name: getattr(codec, "defined", type(codec.values)) for name, codec in CODECS.items()}
    return [{"name": name, "about": _title(cls)} for name, cls in formats.items()]


def _mechanisms() -> list[Row]:
    users = {name: _title(noise.defined) for name, noise in MECHANISMS.items()}
    return [{"name": name, "about": about} for name, about in (OUR_MECHANISMS | users).items()]


def _metrics() -> list[Row]:
    return [{"name": m.name, "better": m.direction, "about": m.description} for m in METRICS.values()]


def _models() -> list[Row]:
    return [dict(row) for row in models.describe()]


def _problems() -> list[Row]:
    named = {name: PROBLEMS[name] for name in PROBLEMS}
    return [{"name": name, "kind": p.kind, "data": p.data, "about": p.about} for name, p in named.items()]


def _suites() -> list[Row]:
    return [{"name": name, "title": builtin.title_of(name)} for name in builtin.names()]


def _summary(kinds: Mapping[str, Any]) -> list[Row]:
    return [{"name": kind, "about": _title(cls)} for kind, cls in sorted(kinds.items())]


def _title(thing: object) -> str:
    """Return the first line of a docstring."""
    return (thing.__doc__ or "").partition("\n")[0]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "algorithms": _algorithms,
    "codecs": _codecs,
    "mechanisms": _mechanisms,
    "metrics": _metrics,
    "models": _models,
    "partitions": lambda: _summary({**PARTITIONS, **VERTICAL}),
    "problems": _problems,
    "suites": _suites,
    "topologies": lambda: _summary(dict(TOPOLOGIES)),
}
