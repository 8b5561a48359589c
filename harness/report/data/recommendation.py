"""Rows of a leaderboard within given bounds: on each federation the best, and what cannot be told apart from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import scipy  # its parts are imported at their first use, as they are slow to import

from harness.config.conditions import UNBOUNDED, Condition
from harness.config.report import known
from harness.metrics import better_is_higher
from harness.report.data.evidence import Estimate, Evidence, Federation, Loss, Row
from harness.report.data.results import first_of_each, grouped
from harness.report.data.specs import settings_of
from harness.report.data.statistics import ALPHA

POOLED, ALONE, COMMON = "everybody, from pooled data", "each client alone, nothing shared", "everybody"
#: FedNova is FedAvg where all clients take equally many steps: what their rows differ by is luck of the procedure.
#: The second is a control and no answer.
SAME = ("fedavg", "fednova")
BUDGET = ("dp_unit", "dp_placement", "dp_mechanism", "epsilon_asked")
#: Columns that say which federation a row is of: bounds on them choose what the question is about.
SCOPE = ("suite", "dataset", "partition", "clients")


@dataclass(frozen=True)
class RatedRow:
    """A row and how it stands to the bounds.

    Attributes
    ----------
    row : Mapping
        The row of the leaderboard.
    values : dict
        Name of every bound, and of the measure that ranks -> mean over seeds.
    within : int
        Number of seeds that satisfy all bounds.
    seeds : int
        Number of seeds that ended; one that failed is within no bound.
    counted : bool
        Whether `within` was counted. Of a published row it is the number expected by its means and deviations, if
        seeds differ in what is bounded.
    """

    row: Row
    values: dict[str, Any]
    within: int
    seeds: int
    counted: bool

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return str(self.row["algorithm"])

    @property
    def key(self) -> str:
        """The row's column ``cell``."""
        return str(self.row["cell"])

    @property
    def is_federated(self) -> bool:
        """Whether clients keep their data."""
        return str(self.row["model_for"]) != POOLED

    @property
    def share(self) -> float:
        """Share of the seeds within all bounds."""
        return self.within / self.seeds

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of that share for a further seed (Clopper and Pearson 1934)."""
        k, n = self.within, self.seeds
        low = 0.0 if k == 0 else float(scipy.special.betaincinv(k, n - k + 1, ALPHA / 2))
        high = 1.0 if k == n else float(scipy.special.betaincinv(k + 1, n - k, 1 - ALPHA / 2))
        return low, high


@dataclass(frozen=True)
class Obstacle:
    """A bound that excludes every row within the others.

    Attributes
    ----------
    condition : Condition
        The bound.
    nearest : RatedRow
        The row within all other bounds that misses it by the least.
    off : float
        By how much, in units of the bound.
    """

    condition: Condition
    nearest: RatedRow
    off: float


@dataclass(frozen=True)
class Absence:
    """A value asked for that no row within the other conditions has.

    Attributes
    ----------
    condition : Condition
        The condition.
    values : tuple
        The values that such rows have; None is an empty field.
    """

    condition: Condition
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """The rows of one federation within the bounds, and what they are compared with.

    Attributes
    ----------
    federation : Federation
        Its data.
    rows : tuple of RatedRow
        Rows within all bounds on average, the surest first, equally sure ones by the measure; may be empty.
    losses : dict
        Cell -> by how much the row is worse than the first.
    estimates : dict
        Cell -> the row's value of the measure that ranks.
    luck : float or None
        Difference of two rows of the same method under the first row's privacy; None without such rows.
    without_privacy, alone, pooled : Estimate or None
        Best values of federated methods without privacy, of clients that learn alone and are within all bounds but
        those on privacy (of which they spend none), and of pooled data.
    loss_alone : Loss or None
        By how much clients that learn alone are worse than the first row.
    budgets : tuple of float
        Epsilons that were run.
    obstacles : tuple of Obstacle
        Bounds each of which alone excludes the rows within all others, where there are no rows.
    """

    federation: Federation
    rows: tuple[RatedRow, ...]
    losses: Mapping[str, Loss]
    estimates: Mapping[str, Estimate]
    luck: float | None
    without_privacy: Estimate | None
    alone: Estimate | None
    pooled: Estimate | None
    loss_alone: Loss | None
    budgets: tuple[float, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def best(self) -> RatedRow:
        """The first row."""
        return self.rows[0]

    def is_apart(self, row: RatedRow) -> bool:
        """Return whether a row can be told apart from the first."""
        return self.is_difference(self.losses[row.key])

    def is_difference(self, loss: Loss) -> bool:
        """Return whether a loss is one: it excludes 0, and is larger than that of two rows of the same method."""
        return (loss.low > 0 or loss.high < 0) and abs(loss.mean) > (self.luck or 0.0)

    @property
    def rivals(self) -> list[RatedRow]:
        """The rows of other methods, without lone clients, whose comparison is `loss_alone`."""
        best = self.best.algorithm
        return [row for row in self.rows if row.algorithm != best and row.row["model_for"] != ALONE]

    @property
    def alone_is_better(self) -> bool:
        """Whether clients that learn alone are better than the first row, beyond doubt."""
        return (
            self.loss_alone is not None and self.loss_alone.mean < 0 and self.is_difference(self.loss_alone)
        )

    @cached_property
    def equal(self) -> list[RatedRow]:
        """Rows that cannot be told apart from the first: of each other method the best."""
        level = (row for row in self.rivals if not self.is_apart(row))
        return list(first_of_each(level, lambda row: row.algorithm).values())

    @property
    def candidates(self) -> list[str]:
        """Methods that are first, or cannot be told apart from the first."""
        return [self.best.algorithm, *(row.algorithm for row in self.equal)] if self.rows else []


@dataclass(frozen=True)
class Recommendation:
    """The answers for each federation; if no row is within all bounds, what excludes them.

    Attributes
    ----------
    by : str
        Measure that ranks.
    conditions : tuple of Condition
        The bounds.
    answers : tuple of Answer
        Of every federation.
    obstacles : tuple of Obstacle
        Bounds each of which alone excludes the rows within all others, where there are no rows.
    absences : tuple of Absence
        Values asked for that alone exclude the rows within all others, where there are no rows.
    considered : int
        Number of rows with the measure.
    """

    by: str
    conditions: tuple[Condition, ...]
    answers: tuple[Answer, ...]
    obstacles: tuple[Obstacle, ...]
    absences: tuple[Absence, ...]
    considered: int

    @property
    def found(self) -> list[Answer]:
        """The answers of federations that have rows within the bounds."""
        return [answer for answer in self.answers if answer.rows]

    @property
    def rows(self) -> list[RatedRow]:
        """All rows within the bounds, by federation."""
        return [row for answer in self.answers for row in answer.rows]


def rated_rows(evidence: Evidence, conditions: Sequence[Condition]) -> list[RatedRow]:
    """Return every row that has the measure, and how it stands to the bounds."""
    measured = (row for row in evidence.rows if evidence.value(row, evidence.by) is not None)
    return [_rated(evidence, row, conditions) for row in measured]


def within_bounds(rows: Iterable[RatedRow], conditions: Sequence[Condition]) -> list[RatedRow]:
    """Return the rows that satisfy all bounds on average."""
    return [row for row in rows if all(c.holds(row.values[c.name]) for c in conditions)]


def recommend(evidence: Evidence, conditions: Sequence[Condition]) -> Recommendation:
    """Return what satisfies the conditions on each federation.

    Training on pooled data is no answer, as nothing is federated; it is a yardstick. FedNova is left out where it
    is FedAvg under another name and both were run.

    Parameters
    ----------
    evidence : Evidence
        The leaderboard.
    conditions : sequence of Condition
        Bounds, all of which must hold.
    """
    scope = [condition for condition in conditions if condition.name in SCOPE]
    rated = rated_rows(evidence, conditions)
    asked = [row for row in rated if all(c.holds(row.values[c.name]) for c in scope)] or rated
    answers = [
        _answer(evidence, federation, rows, conditions)
        for federation, rows in grouped(asked, lambda row: Federation.of(row.row)).items()
    ]
    rows = [row for row in asked if row.is_federated]
    found = any(answer.rows for answer in answers)
    obstacles = () if found else _obstacles(rows, conditions)
    absences = () if found else _absences(rows, conditions)
    return Recommendation(evidence.by, tuple(conditions), tuple(answers), obstacles, absences, len(rows))


def _answer(
    evidence: Evidence, federation: Federation, rated: Sequence[RatedRow], conditions: Sequence[Condition]
) -> Answer:
    """Return the answer for a federation, given all of its rows."""
    sign = -1 if better_is_higher(evidence.by) else 1
    every = [row.row for row in rated]
    controls = [row["cell"] for pair in _pairs(every) for row in pair.values() if row["algorithm"] == SAME[1]]
    lone = [row for row in rated if row.row["model_for"] == ALONE]
    quiet = any(row.row["dp_unit"] is None for row in lone)  # clients alone send nothing, and need no noise
    noisy = [row.key for row in lone if quiet and (row.row["epsilon_total"] or 0) > 0]
    federated = [row for row in rated if row.is_federated and row.key not in (*controls, *noisy)]

    def order(row: RatedRow) -> tuple[float, float, str]:
        return -row.share, sign * row.values[evidence.by], row.key

    fitting = tuple(sorted(within_bounds(federated, conditions), key=order))

    def best(rows: Iterable[Row]) -> Row | None:
        return min(rows, key=lambda row: sign * evidence.value(row, evidence.by), default=None)

    others = [one for one in conditions if one.name not in UNBOUNDED and not one.name.startswith("dp_")]
    alone = best(row.row for row in within_bounds(lone, others))
    plain = best(row for row in every if row["dp_unit"] is None and row["model_for"] not in (POOLED, ALONE))
    pooled = best(row for row in every if row["model_for"] == POOLED)
    asked = (row["epsilon_asked"] or row["epsilon_total"] for row in every)
    return Answer(
        federation,
        fitting,
        {row.key: evidence.loss(fitting[0].row, row.row) for row in fitting},
        {row.key: evidence.estimate(row.row) for row in fitting},
        _luck(evidence, fitting[0].row, every) if fitting else None,
        None if plain is None else evidence.estimate(plain),
        None if alone is None else evidence.estimate(alone),
        None if pooled is None else evidence.estimate(pooled),
        evidence.loss(fitting[0].row, alone) if fitting and alone is not None else None,
        tuple(sorted({float(f"{epsilon:.4g}") for epsilon in asked if epsilon is not None})),
        () if fitting else _obstacles(federated, conditions),
    )


def _luck(evidence: Evidence, best: Row, every: Sequence[Row]) -> float | None:
    """Return the largest difference of two rows that are one method, under the privacy of the best row."""
    differences = []
    for pair in _pairs(every):
        first, second = (evidence.value(row, evidence.by) for row in pair.values())
        if all(pair[SAME[0]][name] == best[name] for name in BUDGET):
            differences.append(abs(first - second))
    return max(differences, default=None)


def _pairs(rows: Sequence[Row]) -> Iterator[dict[str, Row]]:
    """Yield the two rows, by algorithm, of what is one method under two names, in each setting that has both."""
    same = (row for row in rows if row["algorithm"] in SAME and _takes_equal_steps(row))
    for members in grouped(same, _setting).values():
        pair = {row["algorithm"]: row for row in members}
        if len(members) == len(pair) == len(SAME):
            yield pair


def _setting(row: Row) -> tuple[Any, ...]:
    """Return what rows have in common apart from the method and its tuned settings."""
    columns = (*BUDGET, "problem", "model", "alpha", "beta", "codec")
    compression = [item for item in settings_of(row).items() if item[0].startswith("compression.")]
    return (*(row[name] for name in columns), *sorted(compression))


def _takes_equal_steps(row: Row) -> bool:
    """Return whether all clients take equally many steps, not epochs over data of unequal size."""
    settings = settings_of(row)
    return "local_steps" in settings and "local_epochs" not in settings


def _rated(evidence: Evidence, row: Row, conditions: Sequence[Condition]) -> RatedRow:
    measures = (evidence.by, "bytes", *(condition.name for condition in conditions))
    values = {name: evidence.value(row, name) for name in measures}
    cell = evidence.cells.get(row["cell"])
    ended = (row["done"] or 0) + (row["failed"] or 0)
    if cell is None:
        shares = [_share(row, condition, values[condition.name]) for condition in conditions]
        within = round((row["done"] or 0) * min(shares, default=1.0))
        return RatedRow(row, values, within, ended, all(share in (0.0, 1.0) for share in shares))
    # The epsilon of a row is that of its worst seed.
    names = {c.name for c in conditions if known(c.name) and not c.name.startswith("epsilon")}
    by_seed = {name: cell.values(name) for name in names}
    within = sum(
        all(
            c.holds(by_seed[c.name].get(run.seed) if c.name in by_seed else values[c.name])
            for c in conditions
        )
        for run in cell.done
    )
    return RatedRow(row, values, within, ended, True)


def _share(row: Row, condition: Condition, mean: Any) -> float:
    """Return the share of seeds that satisfy a condition, if they are normal with the row's mean and deviation."""
    deviation = row.get(f"{condition.name}_std")
    if mean is None or isinstance(condition.value, str) or not deviation or condition.upper is None:
        return float(condition.holds(mean))
    beyond = (condition.value - mean) / deviation * (1 if condition.upper else -1)
    return float(scipy.special.ndtr(beyond))


def _obstacles(rows: Sequence[RatedRow], conditions: Sequence[Condition]) -> tuple[Obstacle, ...]:
    """Return the bounds each of which alone excludes what is within all others, the nearest miss first."""
    obstacles = []
    for condition in conditions:
        others = [c for c in conditions if c is not condition]
        if condition.upper is None:
            continue
        missed = [
            (off, row) for row in within_bounds(rows, others) if (off := _off(condition, row)) is not None
        ]
        if missed:
            off, nearest = min(missed, key=lambda entry: (entry[0], entry[1].key))
            obstacles.append(Obstacle(condition, nearest, off))
    return tuple(
        sorted(obstacles, key=lambda obstacle: obstacle.off / (abs(float(obstacle.condition.value)) or 1.0))
    )


def _absences(rows: Sequence[RatedRow], conditions: Sequence[Condition]) -> tuple[Absence, ...]:
    """Return the conditions that are no bounds and that no row within all others satisfies."""
    absences = []
    for condition in conditions:
        if condition.upper is None:
            left = within_bounds(rows, [c for c in conditions if c is not condition])
            values = {row.values[condition.name]: None for row in left}
            if values and not any(map(condition.holds, values)):
                absences.append(Absence(condition, tuple(sorted(values, key=str))))
    return tuple(absences)


def _off(condition: Condition, rated: RatedRow) -> float | None:
    """Return by how much a row misses a bound; None if it has no value."""
    value = rated.values[condition.name]
    if value is None or isinstance(condition.value, str) or isinstance(value, str):
        return None
    return math.inf if math.isinf(value) else abs(float(value) - condition.value)
