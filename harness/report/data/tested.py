"""Pairs of runs that were tested on the same samples: differences of others are not paired by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.report.data.results import Cell, Run

APART = "other test samples"


class SeedPairs(NamedTuple):
    """Differences of the runs of two cells, seed by seed.

    Attributes
    ----------
    differences : dict[int, float]
        Seed -> difference of a cell's value to the other's, where both were tested on the same samples.
    apart : int
        Number of further seeds that both have, with other test samples.
    """

    differences: dict[int, float]
    apart: int


def seed_pairs(cell: Cell, rival: Cell, measure: str) -> SeedPairs:
    """Return the differences of a cell to another by seed."""
    runs_by_seed: tuple[dict[int, Run], dict[int, Run]] = (
        {run.seed: run for run in cell.done},
        {run.seed: run for run in rival.done},
    )
    return paired_values(cell.values(measure), rival.values(measure), *runs_by_seed)


def paired_values(
    values: Mapping[int, float],
    reference: Mapping[int, float],
    runs: Mapping[int, Run],
    others: Mapping[int, Run],
) -> SeedPairs:
    """Return differences to a reference by seed, given the runs that they are of."""
    both = [seed for seed in values if seed in reference]
    same = {seed: values[seed] - reference[seed] for seed in both if tested_alike(runs[seed], others[seed])}
    return SeedPairs(same, len(both) - len(same))


def tested_alike(run: Run, other: Run) -> bool:
    """Return whether two runs on the same data were tested on the same samples, as far as their records say."""
    digest, other_digest = run.record.tested.get("digest"), other.record.tested.get("digest")
    if digest and other_digest:
        return bool(digest == other_digest)
    sizes = _number(run), _number(other)
    return None in sizes or sizes[0] == sizes[1]


def _number(run: Run) -> int | None:
    """Return the number of test samples; older records have it by client or by group."""
    if "samples" in run.record.tested:
        return int(run.record.tested["samples"])
    final = run.record.final
    by_client, groups = final.get("by_client") or {}, final.get("groups") or []
    counts = by_client.get("n") or [row["n"] for row in groups if row.get("n") is not None]
    return sum(counts) or None
