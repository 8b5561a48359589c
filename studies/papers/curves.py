"""Curves behind the claims of a suite, for the picture of a page: ``curves.csv``, a row for every evaluation.

``claims.yaml`` names them: a measure, and of every line its panel and the settings of its runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from harness.core.errors import UserError
from harness.report.data.results import Results, Run
from harness.report.data.statistics import paired_statistics
from harness.storage.cells import as_csv, from_csv
from studies.papers.claims import PaperClaims
from studies.papers.evidence import runs_with

FILE = "curves.csv"


class Point(NamedTuple):
    """Runs of one line at one evaluation.

    Attributes
    ----------
    panel, line : str
        Where it is drawn.
    round : int
        Rounds so far.
    oracle_calls : float
        Gradients of all clients so far, mean over seeds.
    value, low, high : float
        Geometric mean of the measure over seeds, and its 95 % interval.
    seeds : int
        Number of runs.
    """

    panel: str
    line: str
    round: int
    oracle_calls: float
    value: float
    low: float
    high: float
    seeds: int


def gather_curves(claims: PaperClaims, results: Results) -> list[Point]:
    """Read the curves that the claims of a suite name.

    Raises
    ------
    UserError
        If no run has the settings of a line, or its runs are evaluated at different rounds.
    """
    points: list[Point] = []
    for curve in claims.curves:
        where = {**claims.curves_at, **curve.of}
        runs = runs_with(f"curve {curve.line} of {claims.suite}", where, claims.suite, results)
        points += _points(curve.panel, curve.line, claims.curves_measure, runs)
    return points


def _points(panel: str, line: str, measure: str, runs: Sequence[Run]) -> list[Point]:
    rounds = {tuple(run.curve("round")) for run in runs}
    if len(rounds) > 1:
        raise UserError(f"{FILE}: runs of {line} are not evaluated at the same rounds")
    points = []
    for number, after in enumerate(rounds.pop()):
        values = [run.curve(measure)[number] for run in runs]
        if after == 0 or any(not value for value in values):  # not on a scale of logarithms
            continue
        (sample,) = paired_statistics([[math.log(value) for value in values]])
        half = sample.half or 0.0
        mean, low, high = (math.exp(sample.mean + shift) for shift in (0.0, -half, half))
        calls = fmean(run.curve("oracle_calls")[number] for run in runs)
        points.append(Point(panel, line, after, calls, mean, low, high, len(runs)))
    return points


def curves_csv(points: Sequence[Point]) -> str:
    """Return the file of some curves."""
    rows: list[list[Any]] = [list(Point._fields)]
    for point in points:
        rows.append([f"{each:.6g}" if isinstance(each, float) else each for each in point])
    return as_csv(rows)


def read_curves(path: Path) -> list[Point]:
    """Read ``curves.csv``."""
    names, *rows = from_csv(path.read_text(encoding="utf-8"))
    if tuple(names) != Point._fields:
        raise UserError(f"{path}: the columns {', '.join(Point._fields)} are needed")
    return [_point(dict(zip(names, row, strict=True))) for row in rows]


def _point(row: Mapping[str, str]) -> Point:
    calls, mean, low, high = (float(row[name]) for name in ("oracle_calls", "value", "low", "high"))
    return Point(row["panel"], row["line"], int(row["round"]), calls, mean, low, high, int(row["seeds"]))
