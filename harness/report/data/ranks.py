"""Ranks of algorithms over tasks: means, intervals over seeds, and the critical difference.

A task is a data set with its partition, a budget and a pruning ratio; problem and model are the method's own
affair. Of several settings of an algorithm the best counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.core import rng
from harness.metrics import better_is_higher
from harness.report.data.comparison import METHOD
from harness.report.data.results import Cell, Results
from harness.report.data.statistics import ALPHA
from harness.report.data.tidy import shared_key

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

OWN = [part for part in METHOD if part not in ("privacy", "compression")]
RESAMPLES = 1000
FEWEST_TASKS, FEWEST_ALGORITHMS = 2, 3

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranks:
    """Ranks of the algorithms that all tasks have, the best first.

    Attributes
    ----------
    algorithms : tuple of str
        Their names, by mean rank.
    means : tuple of float
        Mean rank over tasks of the mean over seeds.
    low, high : tuple of float
        Ends of the 95 % interval over seeds, which are drawn again in every task.
    tasks, seeds : int
        Number of tasks; smallest number of seeds that all algorithms of a task share.
    p : float
        Friedman's test of equal ranks.
    critical : float
        Difference of mean ranks above which two algorithms differ at 5 % (Nemenyi; Demsar 2006,
        https://www.jmlr.org/papers/v7/demsar06a.html).
    left_out : tuple of str
        Algorithms that some task lacks.
    """

    algorithms: tuple[str, ...]
    means: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    tasks: int
    seeds: int
    p: float
    critical: float
    left_out: tuple[str, ...]


def ranks(records: Iterable[RunRecord], by: str) -> Ranks | None:
    """Return the ranks over tasks; None with fewer than two tasks or three algorithms that they share."""
    blocks: dict[str, dict[str, dict[int, float]]] = {}
    sign = 1 if better_is_higher(by) else -1
    for cell in Results.of(records).cells:
        values = {seed: -sign * float(value) for seed, value in cell.values(by).items()}
        if values:
            own = blocks.setdefault(_task(cell), {})
            if cell.algorithm not in own or _mean(values) < _mean(own[cell.algorithm]):
                own[cell.algorithm] = values
    kept, names = _shared(blocks)
    if len(kept) < FEWEST_TASKS or len(names) < FEWEST_ALGORITHMS:
        return None
    tables = [table for block in kept if (table := _table(block, names)).size]
    if len(tables) < FEWEST_TASKS:
        return None
    from scipy.stats import friedmanchisquare  # slow to import

    means = _mean_ranks([table.mean(0) for table in tables])
    draws = rng.numpy_stream(0, "ranks")
    resampled = np.array(
        [
            _mean_ranks([table[draws.integers(len(table), size=len(table))].mean(0) for table in tables])
            for _ in range(RESAMPLES)
        ]
    )
    low, high = np.quantile(resampled, [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    p = float(friedmanchisquare(*np.array([table.mean(0) for table in tables]).T).pvalue)
    order = np.argsort(means, kind="stable").tolist()
    everybody = {name for block in blocks.values() for name in block}
    return Ranks(
        algorithms=tuple(names[number] for number in order),
        means=tuple(float(means[number]) for number in order),
        low=tuple(float(low[number]) for number in order),
        high=tuple(float(high[number]) for number in order),
        tasks=len(tables),
        seeds=min(len(table) for table in tables),
        p=1.0 if math.isnan(p) else p,
        critical=critical_difference(len(names), len(tables)),
        left_out=tuple(sorted(everybody - set(names))),
    )


def critical_difference(algorithms: int, tasks: int) -> float:
    """Return the critical difference of mean ranks at 5 %, of Nemenyi's test."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - ALPHA, algorithms, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(algorithms * (algorithms + 1) / (6 * tasks))


def _task(cell: Cell) -> str:
    return shared_key(cell.records[0], OWN)


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


def _shared(
    blocks: Mapping[str, Mapping[str, Mapping[int, float]]],
) -> tuple[list[Mapping[str, Mapping[int, float]]], list[str]]:
    """Return the tasks that have the most frequent algorithms, and these: those in the most tasks."""
    counts: dict[str, int] = {}
    for block in blocks.values():
        for name in block:
            counts[name] = counts.get(name, 0) + 1
    most = max(counts.values(), default=0)
    names = sorted(name for name, count in counts.items() if count == most)
    return [block for block in blocks.values() if all(name in block for name in names)], names


def _table(block: Mapping[str, Mapping[int, float]], names: list[str]) -> Array:
    """Return the losses of the seeds that all algorithms share, ``(seeds, algorithms)``."""
    seeds = sorted(set.intersection(*(set(block[name]) for name in names)))
    return np.array([[block[name][seed] for name in names] for seed in seeds], dtype=np.float64)


def _mean_ranks(losses: list[Array]) -> Array:
    """Return the mean over tasks of the ranks, ties sharing theirs."""
    from scipy.stats import rankdata

    found: Array = rankdata(np.array(losses), axis=-1).mean(0)
    return found
