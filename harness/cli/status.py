"""Command ``status``."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cli.console import ago, amount, figures, log, print_rows
from harness.config.recorded import results_folder
from harness.core.errors import UserError
from harness.core.units import counted
from harness.simulation.status import overview
from harness.storage.store import SEARCH

MAX_ROWS = 60  # more runs are counted by algorithm


def status_command(given: argparse.Namespace) -> int:
    """Print the progress of the runs of a folder."""
    if not given.dir.exists():
        raise UserError(f"no results folder {given.dir}")
    store = results_folder(given.dir)
    rows = list(overview(store, given.suite))
    if given.suite and not rows:
        raise store.none(given.suite)
    counts = Counter(row["status"] for row in rows)
    title = ", ".join(
        [counted(len(rows), "run"), *(f"{count} {status}" for status, count in sorted(counts.items()))]
    )
    if given.json:
        print(json.dumps(rows, indent=1))
    elif len(rows) <= MAX_ROWS:
        print_rows(_readable(rows), title)
    else:
        print_rows(_by_algorithm(rows), f"{title}; each run: --json")
        others = [row for row in rows if row["status"] not in ("done", "missing", "skipped")]
        if others:
            left = f", the first {MAX_ROWS} of {len(others)}" if len(others) > MAX_ROWS else ""
            print_rows(_readable(others[:MAX_ROWS]), f"running, failed or damaged{left}")
    searches = {name + SEARCH: name for name in store.unfinished_searches()}
    begun = [searches[name] for name in dict.fromkeys(row["suite"] for row in rows) if name in searches]
    if not given.json and (step := next_step(given.dir, given.suite, counts, begun)):
        log.print(step, markup=False)
    return 1 if counts["failed"] or counts["damaged"] else 0


def next_step(folder: Path, suite: str | None, counts: Counter[str], searches: Sequence[str] = ()) -> str:
    """Return what to do with the runs of a folder, as a command; empty where there are none.

    Suites whose ``searches`` are unfinished go on by their own command.
    """
    of = shlex.join([str(folder), *(["--suite", suite] if suite else [])])
    unfinished = sum(counts[status] for status in ("missing", "interrupted", "damaged"))
    repeated = sum(counts[status] for status in ("failed", "stopped"))
    if counts["running"]:
        return (
            f"Next: python -m harness status {of} again; {counted(counts['running'], 'run')} still running."
        )
    if searches:
        return f"Next: repeat the command of suite {' and '.join(searches)}; its search is unfinished."
    if unfinished:
        return f"Next: python -m harness resume {of} finishes {counted(unfinished, 'run')}."
    if repeated:
        return f"Next: python -m harness retry {of} repeats {counted(repeated, 'run')}."
    return f"Next: python -m harness report {of} shows the results." if counts["done"] else ""


def _by_algorithm(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the number of runs of every algorithm by status."""
    statuses = sorted({row["status"] for row in rows})
    counts = Counter((row["suite"], row["algorithm"], row["status"]) for row in rows)
    groups = dict.fromkeys((row["suite"], row["algorithm"]) for row in rows)
    return [
        {"suite": suite, "algorithm": name, **{one: counts[suite, name, one] or None for one in statuses}}
        for suite, name in groups
    ]


def _readable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return status rows with rounded figures and without empty columns."""
    readable = [
        {
            "suite": row["suite"] if len({row["suite"] for row in rows}) > 1 else None,
            "run": row["id"] and row["id"][:8],
            "algorithm": row["algorithm"],
            "seed": row["seed"],
            "status": row["status"],
            "round": f"{row.get('round', 0)}/{row['of']}",
            "figure": figures({"metrics": row.get("metrics") or {}}).split(", ")[0] or None,
            "ε": amount(row.get("epsilon")) and f"{amount(row['epsilon'])}{'†' * ('extrapolated' in row)}",
            "last write": None if row.get("written") is None else ago(row["written"]),
            "reason": row["reason"],
        }
        for row in rows
    ]
    return [
        {key: value for key, value in row.items() if any(one[key] is not None for one in readable)}
        for row in readable
    ]
