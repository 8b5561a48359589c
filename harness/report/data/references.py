"""The published references that come with the harness: what methods reach on federations of known size.

``references.csv.gz`` beside this file has the rows of the leaderboards ``natural`` and ``frontier`` below
``results/reference`` whose intervals cover the search, with fewer columns, five digits and the shape of each
federation. ``make references`` writes it.
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from datasets.client_statistics import ClientCounts
from harness.config.conditions import Condition
from harness.core.errors import UserError
from harness.report.data.evidence import Evidence, Federation, Row
from harness.report.data.published import leaderboard_of
from harness.report.data.recommendation import Recommendation, rated_rows, recommend, within_bounds
from harness.report.data.results import first_of_each

PATH = Path(__file__).with_name("references.csv.gz")
NEAREST = 3  # federations that an answer is taken from
TO_TRY = 4  # methods in a pilot run
LEAST_SKEW = 0.05  # about what chance alone does to a client with 60 samples


class Shape(NamedTuple):
    """The shape of a federation: how many clients hold how many samples, and how their labels differ.

    Attributes
    ----------
    clients : float or None
        Number of clients.
    samples : float or None
        Mean number of samples of a client, in all splits.
    skew : float or None
        How labels differ between clients, from 0 to 1: the mean over samples of half the sum of the absolute
        differences between the shares of labels of the sample's client and those of all clients. Of two classes by
        how much a client's share of positives is off.
    """

    clients: float | None = None
    samples: float | None = None
    skew: float | None = None

    @classmethod
    def of(cls, counts: ClientCounts) -> Shape:
        """Return the shape of a federation, given the number of samples of each client and class."""
        by_client = list(zip(*counts.classes.values(), strict=True))
        total = sum(map(sum, by_client))
        shares = [sum(column) / total for column in counts.classes.values()]
        off = sum(
            sum(abs(number - sum(numbers) * share) for number, share in zip(numbers, shares, strict=True)) / 2
            for numbers in by_client
        )
        return cls(len(by_client), total / len(by_client), off / total)


class ReferenceAnswer(NamedTuple):
    """The answers of the references that are nearest to one's own data.

    Attributes
    ----------
    own : Shape
        One's own data.
    shapes : tuple of Shape
        Of the federations, in the order of the answers.
    recommendation : Recommendation
        Their answers, the nearest first. Sums over clients are scaled to one's own number.
    """

    own: Shape
    shapes: tuple[Shape, ...]
    recommendation: Recommendation

    @property
    def agreed(self) -> list[str]:
        """Methods that are first, or not told apart from the first, on all federations with an answer."""
        answers = [answer.candidates for answer in self.recommendation.found]
        return [method for method in answers[0] if all(method in one for one in answers)] if answers else []

    @property
    def rows_to_try(self) -> list[Row]:
        """Rows of the methods that a pilot run should compare: the first `TO_TRY` of each federation's candidates.

        Methods that are candidates on most federations come first, then those that lose least.
        """
        answers = self.recommendation.found
        rows: dict[str, list[tuple[float, Row]]] = {}
        for answer in answers:
            for rated in (answer.best, *answer.equal):
                rows.setdefault(rated.algorithm, []).append((answer.losses[rated.key].mean, rated.row))
        order = sorted(rows, key=lambda name: (-len(rows[name]), fmean(loss for loss, _ in rows[name]), name))
        firsts = [answer.best.algorithm for answer in answers]
        methods = list(dict.fromkeys([*order[:1], *firsts, *order]))[:TO_TRY]
        return [rows[method][0][1] for method in methods]

    @property
    def to_try(self) -> list[str]:
        """Methods that a pilot run should compare."""
        return [str(row["algorithm"]) for row in self.rows_to_try]


def references() -> pd.DataFrame:
    """Return the rows as a leaderboard, with the columns ``samples_per_client`` and ``label_skew``."""
    return leaderboard_of(gzip.decompress(PATH.read_bytes()).decode(), PATH)


def shapes_of(rows: Iterable[Row]) -> dict[Federation, Shape]:
    """Return the shape of every federation of the references."""
    return {
        Federation.of(row): Shape(row["clients"], row["samples_per_client"], row["label_skew"])
        for row in rows
        if row["clients"]
    }


def distance(own: Shape, other: Shape) -> float:
    """Return how far two shapes are from each other, in doublings.

    The root of the sum of the squares of the binary logarithms of three ratios: of numbers of clients, of samples
    a client, and of skews, where a skew counts as at least `LEAST_SKEW`. What one of the two does not have is left
    out.
    """
    doublings = (
        math.log2(max(mine, least) / max(theirs, least))
        for mine, theirs, least in zip(own, other, (0.0, 0.0, LEAST_SKEW), strict=True)
        if mine is not None and theirs is not None
    )
    return math.hypot(*doublings)


def ask_references(own: Shape, evidence: Evidence, conditions: Sequence[Condition]) -> ReferenceAnswer:
    """Return what the nearest federations say, of those with rows of the kind that is asked for.

    Of federations of the same data the nearest counts; of equally near ones that with most rows within the bounds.

    Parameters
    ----------
    own : Shape
        One's own data.
    evidence : Evidence
        The references.
    conditions : sequence of Condition
        The bounds.

    Raises
    ------
    UserError
        If nothing is known of one's own data, or a number is out of range.
    """
    _check(own)
    rated = rated_rows(evidence, conditions)
    fitting = Counter(Federation.of(row.row) for row in within_bounds(rated, conditions))
    kinds = [condition for condition in conditions if condition.upper is None]  # as dp_unit == client
    of_kind = within_bounds(rated, kinds) or rated
    shapes = shapes_of(row.row for row in of_kind)

    def order(federation: Federation) -> tuple[float, int, Federation]:
        return round(distance(own, shapes[federation]), 1), -fitting[federation], federation

    by_data = first_of_each(sorted(shapes, key=order), lambda federation: federation.dataset)
    chosen = list(by_data.values())[:NEAREST]
    answer = recommend(evidence.only(chosen), conditions)
    answers = sorted(answer.answers, key=lambda one: chosen.index(one.federation))
    return ReferenceAnswer(
        own, tuple(shapes[federation] for federation in chosen), replace(answer, answers=tuple(answers))
    )


def _check(own: Shape) -> None:
    if own.clients is None and own.samples is None and own.skew is None:
        raise UserError("recommend: say something of your data: --clients, --samples, --skew or --data")
    for name in ("clients", "samples"):
        value = getattr(own, name)
        if value is not None and not 1 <= value < math.inf:
            raise UserError(f"--{name}: at least 1, given {value:g}")
    if own.skew is not None and not 0 <= own.skew <= 1:
        raise UserError(f"--skew: from 0 (labels are alike everywhere) to 1, given {own.skew:g}")
