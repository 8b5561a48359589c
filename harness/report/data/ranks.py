"""Ranks of methods over federations: means, intervals over seeds, and the critical difference.

A task is a data set with its partition, a budget and a pruning ratio. A federation is a data set with its
partition: its tasks share clients and test samples, so their ranks are averaged and count once in the tests. A
method is an algorithm with a model. Of several settings of a method the one with the best selection measure counts,
and without a search the best on test samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.core import rng
from harness.metrics import better_is_higher
from harness.report.data.comparison import METHOD, RIVALS
from harness.report.data.results import Cell
from harness.report.data.specs import part_name
from harness.report.data.statistics import ALPHA

RESAMPLES = 1000
FEWEST_TASKS, FEWEST_METHODS = 2, 3
FEWEST_SEEDS = 5  # for an interval
FEWEST_FEDERATIONS = 5  # for a test

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranks:
    """Ranks of the methods that all tasks have, the best first.

    Attributes
    ----------
    methods : tuple of str
        Algorithms, with their models where one has several.
    means : tuple of float
        Mean over federations of the mean rank over their tasks, of means over seeds.
    low, high : tuple of float, or None
        Ends of the 95 % interval over seeds, which are drawn again for every federation; None below five seeds.
    federations, tasks, seeds : int
        Numbers of federations and tasks; smallest number of seeds that all methods of a task share.
    p : float or None
        Friedman's test of equal ranks over federations; None below five.
    critical : float or None
        Difference of mean ranks above which two methods differ at 5 % (Nemenyi; Demsar 2006,
        https://www.jmlr.org/papers/v7/demsar06a.html); None below five federations.
    """

    methods: tuple[str, ...]
    means: tuple[float, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    federations: int
    tasks: int
    seeds: int
    p: float | None
    critical: float | None


def ranks(cells: Sequence[Cell], by: str) -> Ranks | None:
    """Return the ranks over federations; None with fewer than two tasks or three methods that they share."""
    names = method_names(cells)
    # Federation and task -> method -> what chooses among its settings, and the losses of the best one.
    blocks: dict[tuple[str, str], dict[str, tuple[float, dict[int, float]]]] = {}
    sign = -1 if better_is_higher(by) else 1
    for cell in cells:
        values = {seed: sign * float(value) for seed, value in cell.values(by).items()}
        if values:
            rivals = blocks.setdefault((cell.shared_key(METHOD), cell.shared_key(RIVALS)), {})
            score = _score(cell, values)
            if names[cell.key] not in rivals or score < rivals[names[cell.key]][0]:
                rivals[names[cell.key]] = score, values
    counts = Counter(name for block in blocks.values() for name in block)
    methods = sorted(name for name, count in counts.items() if count == max(counts.values()))
    tables: dict[str, list[Array]] = {}  # of each task the losses of the seeds that all methods share
    for (federation, _), block in blocks.items():
        losses = pd.DataFrame({name: values for name, (_, values) in block.items()}, dtype="float64")
        table = losses.reindex(columns=methods).dropna().sort_index()
        if len(table):
            tables.setdefault(federation, []).append(table.to_numpy())
    every = [table for seed_tables in tables.values() for table in seed_tables]
    if len(every) < FEWEST_TASKS or len(methods) < FEWEST_METHODS:
        return None
    whole = _ranks(list(tables.values()), None)
    seeds = min(len(table) for table in every)
    low = high = None
    if seeds >= FEWEST_SEEDS:
        random = rng.numpy_stream(0, "ranks")
        resampled = [_ranks(list(tables.values()), random).mean(0) for _ in range(RESAMPLES)]
        low, high = np.quantile(np.array(resampled), [ALPHA / 2, 1 - ALPHA / 2], axis=0)
    means = whole.mean(0)
    order = np.argsort(means, kind="stable").tolist()

    def sorted_by_rank(values: Array | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(float(values[number]) for number in order)

    tested = len(tables) >= FEWEST_FEDERATIONS
    return Ranks(
        methods=tuple(methods[number] for number in order),
        means=sorted_by_rank(means) or (),
        low=sorted_by_rank(low),
        high=sorted_by_rank(high),
        federations=len(tables),
        tasks=len(every),
        seeds=seeds,
        p=_friedman(whole) if tested else None,
        critical=critical_difference(len(methods), len(tables)) if tested else None,
    )


def method_names(cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell -> its method: the algorithm, with the model where it has several."""
    models: dict[str, set[str]] = {}
    for cell in cells:
        models.setdefault(cell.algorithm, set()).add(part_name(cell.spec.get("model")) or "")
    return {
        cell.key: cell.algorithm
        if len(models[cell.algorithm]) == 1
        else f"{cell.algorithm} {part_name(cell.spec.get('model')) or ''}".strip()
        for cell in cells
    }


def best_setting(cells: Sequence[Cell], by: str) -> Cell:
    """Return the best of a method's settings, by what chooses; the first of equal ones."""
    sign = -1 if better_is_higher(by) else 1
    return min(cells, key=lambda cell: _score(cell, {s: sign * v for s, v in cell.values(by).items()}))


def _score(cell: Cell, values: Mapping[int, float]) -> float:
    """Return what chooses among the settings of a method, less being better."""
    search = cell.records[0].search
    if search and search["chosen"] is not None:
        scores = [value for value in search["trials"][search["chosen"]]["values"] if value is not None]
        return float((-1 if better_is_higher(search["tune"]["metric"]) else 1) * sum(scores) / len(scores))
    return sum(values.values()) / len(values)


def _friedman(table: Array) -> float:
    from scipy.stats import friedmanchisquare  # slow to import

    p = float(friedmanchisquare(*table.T).pvalue)
    return 1.0 if math.isnan(p) else p


def critical_difference(methods: int, federations: int) -> float:
    """Return the critical difference of mean ranks at 5 %, of Nemenyi's test."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * federations))


def _ranks(federations: Sequence[Sequence[Array]], random: np.random.Generator | None) -> Array:
    """Return mean ranks ``(federations, methods)``, ties sharing theirs; `random` draws seeds again.

    Tasks of a federation share its partitions, so they draw the same seeds.
    """
    from scipy.stats import rankdata

    mean_ranks = []
    for tables in federations:
        shares = None if random is None else random.random(max(map(len, tables)))
        losses = [
            table.mean(0)
            if shares is None
            else table[(shares[: len(table)] * len(table)).astype(int)].mean(0)
            for table in tables
        ]
        mean_ranks.append(rankdata(np.array(losses), axis=-1).mean(0))
    return np.array(mean_ranks)
