"""Command ``list``. Each list imports what it lists, and nothing else."""

from __future__ import annotations

import argparse
from typing import Any

from harness.cli.console import out, print_rows, show

Rows = list[dict[str, Any]]


def list_command(given: argparse.Namespace) -> int:
    """List the algorithms, data sets or other parts of one kind."""
    if given.what == "data":
        list_data(given.json)
    else:
        show(LISTS[given.what](), given.json, given.what)
    return 0


def _algorithms() -> Rows:
    from harness.core.algorithm import ALGORITHMS

    return [
        {"name": m.name, "family": m.family, "solves": ", ".join(m.solves), "paper": m.paper, "url": m.url}
        for m in (ALGORITHMS[name].meta for name in ALGORITHMS)
    ]


def _codecs() -> Rows:
    from compression import CODECS

    formats = {name: getattr(codec, "defined", type(codec.values)) for name, codec in CODECS.items()}
    return [{"name": name, "about": (cls.__doc__ or "").splitlines()[0]} for name, cls in formats.items()]


def list_data(as_json: bool) -> None:
    """Print a line for every data set; as JSON also its source, cleaning and what to do to get it."""
    from datasets.catalog import describe

    if as_json:
        show([dict(row) for row in describe()], as_json, "data sets")
    else:
        print_rows(_data(), "data sets", expendable=("licence",))  # a line for each in 80 columns
        out.print(
            "data fetch NAME downloads; --json has sources, cleaning and what to do offline", markup=False
        )


def _data() -> Rows:
    from datasets.catalog import describe

    return [
        {
            "name": row["name"],
            "samples": row["size"].rpartition(",")[0] or row["size"],
            "clients": row["clients"],
            "licence": row["licence"],
            "here": "yes" if row["available"] else "no",
        }
        for row in describe()
    ]


def _mechanisms() -> Rows:
    from privacy.own_mechanism import MECHANISMS

    ours = {
        "independent": "Gaussian noise, of its own for every release.",
        "banded": "Gaussian noise that is correlated between rounds.",
    }
    users = {name: (noise.defined.__doc__ or "").split("\n")[0] for name, noise in MECHANISMS.items()}
    return [{"name": name, "about": about} for name, about in (ours | users).items()]


def _metrics() -> Rows:
    from harness.metrics import METRICS

    return [{"name": m.name, "better": m.direction, "about": m.description} for m in METRICS.values()]


def _models() -> Rows:
    from harness import models

    return [dict(row) for row in models.describe()]


def _partitions() -> Rows:
    from datasets.partition import PARTITIONS
    from datasets.vertical import VERTICAL

    return _documented({**PARTITIONS, **VERTICAL})


def _problems() -> Rows:
    from harness.problems import PROBLEMS

    return [
        {"name": name, "kind": p.kind, "data": p.data, "about": p.about}
        for name, p in ((name, PROBLEMS[name]) for name in PROBLEMS)
    ]


def _suites() -> Rows:
    from harness.config import builtin

    return [{"name": name, "title": builtin.title_of(name)} for name in builtin.names()]


def _topologies() -> Rows:
    from datasets.topology import TOPOLOGIES

    return _documented(dict(TOPOLOGIES))


def _documented(kinds: dict[str, Any]) -> Rows:
    """Return names and the first lines of docstrings."""
    return [
        {"name": kind, "about": (cls.__doc__ or "").splitlines()[0]} for kind, cls in sorted(kinds.items())
    ]


LISTS = {
    "algorithms": _algorithms,
    "codecs": _codecs,
    "data": _data,
    "mechanisms": _mechanisms,
    "metrics": _metrics,
    "models": _models,
    "partitions": _partitions,
    "problems": _problems,
    "suites": _suites,
    "topologies": _topologies,
}
