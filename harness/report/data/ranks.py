"""Ranks of methods over federations, and the difference of ranks that tells two methods apart.

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
from itertools import combinations
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use, as they are slow to import
from numpy.typing import NDArray

from harness.core import rng
from harness.metrics import better_is_higher
from harness.report.data.comparison import METHOD, RIVALS
from harness.report.data.leaderboard import model_for
from harness.report.data.procedure import WeightedFinalist, draw_means, finalists_of
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, grouped
from harness.report.data.specs import part_name
from harness.report.data.statistics import ALPHA, RESAMPLES, Array, expanded_reach, largest_of

DRAWS = 1000
FEWEST_TASKS, FEWEST_METHODS = 2, 3
FEWEST_SEEDS = 5  # for the luck of searches and seeds
FEWEST_FEDERATIONS = 5  # for a test
CHANCE = {"auroc": 0.5}  # what a model that has learned nothing has; of other measures it depends on the data
EVERYBODY = "everybody"
ROUNDING = 1e-12  # of equal means
ABOVE = 2  # standard deviations of its runs that the best method of a task is above chance


@dataclass(frozen=True)
class Ranks:
    """Ranks of the methods that all tasks have, the best first.

    Attributes
    ----------
    methods : tuple of str
        Algorithms, with their models where one has several.
    means : tuple of float
        Mean over federations of the mean rank over their tasks, of means over seeds. Methods whose means differ by
        no more than the table's resolution share their ranks in that task.
    federations, tasks, seeds : int
        Numbers of federations and tasks; smallest number of seeds that all methods of a task share.
    by_chance : int
        Number of tasks left out, in which the best method is not clearly above chance.
    p : float or None
        Friedman's test of equal ranks over federations; None below five.
    of_federations : float or None
        Nemenyi's critical difference of mean ranks at 5 %: what other federations may change (Demsar 2006,
        https://www.jmlr.org/papers/v7/demsar06a.html). None below five federations.
    of_searches : float or None
        Difference that no two methods exceed by luck in 95 of 100 draws of searches and seeds. None below five
        seeds.
    of_namesakes : float or None
        Largest difference of a method from itself under another name; None if none has two.
    """

    methods: tuple[str, ...]
    means: tuple[float, ...]
    federations: int
    tasks: int
    seeds: int
    by_chance: int
    p: float | None
    of_federations: float | None
    of_searches: float | None
    of_namesakes: float | None

    @property
    def critical(self) -> float | None:
        """The difference above which two methods are told apart: the largest of all; None if there is no test."""
        if self.of_federations is None and self.of_searches is None:
            return None
        return max(each or 0.0 for each in (self.of_federations, self.of_searches, self.of_namesakes))

    @property
    def distinct(self) -> bool:
        """Whether any two methods are told apart."""
        spread = self.means[-1] - self.means[0]
        return self.critical is not None and spread > self.critical and (self.p is None or self.p < ALPHA)


class _Task(NamedTuple):
    """Losses of the methods in a task: of means, ``(M,)``, and drawn, ``(DRAWS, M)``."""

    losses: Array
    drawn: Array | None
    resolution: float
    seeds: int


def ranks(cells: Sequence[Cell], by: str) -> Ranks | None:
    """Return the ranks over federations; None with fewer than two tasks or three methods that they share."""
    names, resolution = method_names(cells), Resolution(cells, by)
    federations = grouped((cell for cell in cells if cell.values(by)), lambda cell: cell.shared_key(METHOD))
    blocks: dict[str, list[dict[str, Cell]]] = {}  # federation -> of each task the method's best setting
    left_out = 0
    for federation, members in federations.items():
        for rivals in grouped(members, lambda cell: cell.shared_key(RIVALS)).values():
            own = grouped(rivals, lambda cell: names[cell.key])
            block = {name: best_setting(settings, by) for name, settings in own.items()}
            if _above_chance(list(block.values()), by):
                blocks.setdefault(federation, []).append(block)
            else:
                left_out += 1
    counts = Counter(name for own_blocks in blocks.values() for block in own_blocks for name in block)
    methods = sorted(name for name, count in counts.items() if count == max(counts.values()))
    tables: dict[str, list[_Task]] = {}
    for federation, own_blocks in blocks.items():
        # Federations have seeds of their own, so they share no draw of them.
        order = rng.numpy_stream(0, "ranks", federation).permutation(RESAMPLES)[:DRAWS]
        for block in own_blocks:
            if (task := _task(block, methods, by, resolution, order)) is not None:
                tables.setdefault(federation, []).append(task)
    every = [task for tasks in tables.values() for task in tasks]
    if len(every) < FEWEST_TASKS or len(methods) < FEWEST_METHODS:
        return None
    whole = np.array([_mean_ranks([(t.losses, t.resolution) for t in tasks]) for tasks in tables.values()])
    means, seeds = whole.mean(0), min(task.seeds for task in every)
    order_of_methods = np.argsort(means, kind="stable").tolist()
    tested = len(tables) >= FEWEST_FEDERATIONS
    return Ranks(
        methods=tuple(methods[number] for number in order_of_methods),
        means=tuple(float(means[number]) for number in order_of_methods),
        federations=len(tables),
        tasks=len(every),
        seeds=seeds,
        by_chance=left_out,
        p=_friedman(whole) if tested else None,
        of_federations=critical_difference(len(methods), len(tables)) if tested else None,
        of_searches=_of_searches(list(tables.values()), seeds),
        of_namesakes=_of_namesakes(cells, names, dict(zip(methods, means.tolist(), strict=True))),
    )


def ranks_by_kind(cells: Sequence[Cell], by: str) -> dict[str, Ranks]:
    """Return the ranks of methods among those of their purpose and objective, by both in words.

    Models for everybody are no rivals of models for each client, nor are minimax methods, which weigh classes or
    groups, of those that minimize the mean loss.
    """
    kinds = grouped(cells, lambda cell: (_purpose(cell), part_name(cell.spec.get("problem")) or ""))
    objectives = {objective for _, objective in kinds}
    found: dict[str, Ranks] = {}
    for (purpose, objective), members in sorted(
        kinds.items(), key=lambda item: (item[0][0] != EVERYBODY, item[0])
    ):
        if (result := ranks(members, by)) is not None:
            found[f"A model for {purpose}{f', {objective}' if len(objectives) > 1 else ''}"] = result
    return found


def _purpose(cell: Cell) -> str:
    """Return whom a model is for; references that share nothing or everything are among their kind."""
    return "each client" if (model_for(cell) or "").startswith("each client") else EVERYBODY


def _above_chance(rivals: Sequence[Cell], by: str) -> bool:
    """Return whether the best of some cells is clearly above chance, as far as chance is known."""
    if by not in CHANCE:
        return True
    best = max((list(cell.values(by).values()) for cell in rivals), key=fmean)
    return fmean(best) - ABOVE * (stdev(best) if len(best) > 1 else 0.0) > CHANCE[by]


def _task(
    block: Mapping[str, Cell],
    methods: Sequence[str],
    by: str,
    resolution: Resolution,
    order: NDArray[np.int64],
) -> _Task | None:
    """Return the losses of a task; None if it lacks a method, or a seed that all have."""
    if not all(name in block for name in methods):
        return None
    cells = [block[name] for name in methods]
    sign = -1 if better_is_higher(by) else 1
    values = [{seed: v for seed, v in cell.values(by).items() if not math.isnan(v)} for cell in cells]
    seeds = tuple(sorted(set.intersection(*map(set, values))))
    if not seeds:
        return None
    losses = np.array([sign * fmean(own[seed] for seed in seeds) for own in values])
    # Cells that borrow a choice have no finalists, and the luck of their seeds alone.
    finalists = [
        finalists_of(cell, by) or [WeightedFinalist(1.0, own)]
        for cell, own in zip(cells, values, strict=True)
    ]
    common = [seed for seed in seeds if all(seed in finalist.values for own in finalists for finalist in own)]
    drawn = None
    if len(common) >= FEWEST_SEEDS:
        columns = [draw_means(own, common, cell.key) for cell, own in zip(cells, finalists, strict=True)]
        drawn = sign * np.stack(columns, axis=-1)[order]
    return _Task(losses, drawn, resolution.of(*cells), len(seeds if drawn is None else common))


def _mean_ranks(tasks: Sequence[tuple[Array, float]]) -> Array:
    """Return mean ranks over tasks, of losses along the last axis; those within a resolution share their places."""
    ranks_by_task = []
    for losses, resolution in tasks:
        differences, least = losses[..., :, None] - losses[..., None, :], max(resolution, ROUNDING)
        ranks_by_task.append(
            (differences > least).sum(-1) + 0.5 * (np.abs(differences) <= least).sum(-1) + 0.5
        )
    mean: Array = np.mean(ranks_by_task, axis=0)
    return mean


def _of_searches(federations: Sequence[Sequence[_Task]], seeds: int) -> float | None:
    """Return the 95 % quantile of the largest difference of mean ranks that draws of searches and seeds add.

    Around the mean of the draws, as noise draws all ranks to the middle; expanded for few seeds as intervals are.
    """
    drawn_losses = [[(t.drawn, t.resolution) for t in tasks if t.drawn is not None] for tasks in federations]
    if any(len(drawn) < len(tasks) for drawn, tasks in zip(drawn_losses, federations, strict=True)):
        return None
    drawn = np.mean([_mean_ranks(losses) for losses in drawn_losses], axis=0)
    off = drawn - drawn.mean(0)
    few = expanded_reach(seeds) / float(scipy.special.ndtri(1 - ALPHA / 2))
    return few * float(np.quantile(np.ptp(off, axis=-1), 1 - ALPHA))


def _of_namesakes(
    cells: Sequence[Cell], names: Mapping[str, str], means: Mapping[str, float]
) -> float | None:
    """Return the largest difference of mean ranks of methods that are one; None without any."""
    algorithms = {names[cell.key]: (cell.algorithm, part_name(cell.spec.get("model"))) for cell in cells}
    same = {pair for cell in cells for own in cell.records[0].same for pair in combinations(sorted(own), 2)}
    differences = []
    for one, other in combinations(means, 2):
        (first, model), (second, other_model) = algorithms[one], algorithms[other]
        if model == other_model and tuple(sorted((first, second))) in same:
            differences.append(abs(means[one] - means[other]))
    return max(differences, default=None)


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
    return largest_of(methods) * math.sqrt(methods * (methods + 1) / (6 * federations))
