"""Provenance of results: data, versions, machines, seeds and time, as the runs recorded them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from harness.core.units import counted, duration
from harness.storage.store import RunRecord

MOST_VALUES = 4  # of one field; the rest are counted
NAMES = {
    "commit": "git commit",
    "machine": "architecture",
    "cpu": "processor",
    "memory_gib": "memory, GiB",
    "noise": "noise drawn from",
    "stacked": "runs side by side",
    "threads": "threads a run",
    "vectorize": "clients computed by",
}


def provenance(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return field -> the value that all runs have, or the values with the number of runs of each."""
    seconds = [float(r.final["timing"]["seconds"]) for r in records if "seconds" in r.final.get("timing", {})]
    facts = pd.DataFrame([_facts(record) for record in records], dtype=object)
    texts = {str(name): _values(facts[name].dropna().tolist()) for name in facts}
    if seconds:
        texts["wall time"] = f"{duration(sum(seconds))} in {counted(len(seconds), 'finished run')}"
    return texts


def differing_provenance(records: Sequence[RunRecord], whole: Mapping[str, str]) -> dict[str, str]:
    """Return the provenance of a cell's runs that differs from the page's."""
    return {name: text for name, text in provenance(records).items() if whole.get(name) != text}


def command_for_seeds(records: Sequence[RunRecord], first: str) -> str:
    """Return the command that repeats the runs of a cell: `first`, that of its first seed, in a shell's loop."""
    before, seed, after = first.rpartition(f"--seed {records[0].spec['seed']}")
    seeds = [str(record.spec["seed"]) for record in records if record.id]
    if not seed or len(seeds) < 2:
        return first
    return f"for seed in {' '.join(seeds)}; do {before}--seed $seed{after}; done"


def _facts(record: RunRecord) -> dict[str, str]:
    """Return what one run recorded; nothing of hosts and folders is in it."""
    facts = {"profile": record.profile, "seeds": str(record.spec["seed"])}
    facts["data"] = f"{record.source}, SHA-256 {record.digest}" if record.digest else record.source
    facts["positive class"] = str(record.tested.get("positive", ""))
    timing: dict[str, Any] = {k: v for k, v in record.final.get("timing", {}).items() if k != "seconds"}
    facts |= {NAMES.get(name, name): str(value) for name, value in timing.items()}
    facts["assumed public"] = "; ".join(record.final.get("public") or [])
    return {name: value for name, value in facts.items() if value}


def _values(values: Sequence[str]) -> str:
    """Return the different values, numbers in order and all else with the number of its runs."""
    if len(set(values)) == 1:  # as in nearly all cells
        return values[0]
    counts = Counter(values)
    if all(value.isdigit() for value in counts):
        return ", ".join(sorted(counts, key=lambda value: (len(value), value)))
    texts = [f"{value} ({counted(n, 'run')})" for value, n in counts.items()]
    rest = len(texts) - MOST_VALUES
    return "; ".join([*texts[:MOST_VALUES], *([f"and {rest} more"] if rest > 0 else [])])
