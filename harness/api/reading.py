"""Functions that read results folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness import report
from harness.config import plugins
from harness.config.conditions import read_conditions
from harness.config.recorded import results_folder
from harness.config.report import Pivot, ReportSpec, read_stored, read_target
from harness.core.registry import UserError
from harness.report.data.recommendation import recommend as recommended
from harness.report.folder import Report, report_folder
from harness.report.tables import recommendation
from harness.storage.store import Store


def load_results(folder: str | Path, suite: str | None = None) -> pd.DataFrame:
    """Return the results in a folder as one tidy table, see `harness.report.data.tidy`.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs.

    Raises
    ------
    UserError
        If the folder does not exist or holds no runs.
    """
    return report.tidy(results_folder(Path(folder)).some_records(suite))


def leaderboard(
    folder: str | Path,
    suite: str | None = None,
    *,
    by: str | None = None,
    baseline: str | None = None,
    target: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Return the leaderboard of a folder, one row per cell, see `harness.report.data.leaderboard`.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs, with the report settings of its file as defaults.
    by : str, optional
        Measure to rank by: a metric, bytes, flops, seconds or epsilon. Default: accuracy.
    baseline : str, optional
        Algorithm to compare with, paired by seed.
    target : Mapping, optional
        A measure and the value to reach, such as ``{"accuracy": 0.8}``.

    Raises
    ------
    UserError
        If the folder holds no runs, or a name is unknown.
    """
    plugins.load()
    store = results_folder(Path(folder))
    results = report.Results(store.some_records(suite))
    spec = results.ranked(_settings(store, suite, by=by, baseline=baseline, target=target))
    return report.leaderboard(results, spec.by, spec.baseline, spec.target)


def recommend(
    folder: str | Path, where: Sequence[str], suite: str | None = None, *, by: str | None = None
) -> pd.DataFrame:
    """Return the settings that satisfy bounds, most certain first.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    where : sequence of str
        Bounds on measures or columns of the leaderboard, such as ``"epsilon_total <= 2"``; all must hold.
    suite : str, optional
        Only this suite's runs.
    by : str, optional
        Measure that breaks ties. Default: the suite's, or accuracy.

    Returns
    -------
    DataFrame
        One row per cell within all bounds, with how surely it is. ``attrs["said"]`` is a list of sentences; if
        there is no row, they say which bound excludes most.

    Raises
    ------
    UserError
        If no bound is given, or one is not valid.
    """
    plugins.load()
    if isinstance(where, str) or not where:
        raise UserError(f"where: a list of bounds, as ['epsilon_total <= 2'], given {where!r}")
    store = results_folder(Path(folder))
    results = report.Results(store.some_records(suite))
    spec = results.ranked(_settings(store, suite, by=by))
    frame = report.leaderboard(results, spec.by, spec.baseline, spec.target)
    conditions = read_conditions(where, frame.columns)
    answer = recommended(results, frame, conditions, spec.by)
    answers = pd.DataFrame(recommendation.recommendation_rows(answer, frame, conditions, spec.by))
    answers.attrs["said"] = recommendation.sentences(answer, frame, conditions)
    return answers


def write_report(
    folder: str | Path,
    suite: str | None = None,
    *,
    by: str | None = None,
    baseline: str | None = None,
    target: Mapping[str, float] | None = None,
    pivots: Sequence[Sequence[str]] = (),
) -> Report:
    """Write tables, pictures and page of a folder or a suite, as ``python -m harness report`` does.

    Parameters
    ----------
    folder, suite, by, baseline, target
        As in `leaderboard`.
    pivots : sequence of sequences of str
        Tables by two settings: names of rows and columns, and of a measure if there is a third.

    Returns
    -------
    Report
        Paths of the files, and the leaderboard. In a notebook it shows the pictures.

    Raises
    ------
    UserError
        If the folder holds no runs, or a name is unknown.
    """
    plugins.load()
    store = results_folder(Path(folder))
    if any(isinstance(pivot, str) or not 2 <= len(pivot) <= 3 for pivot in pivots):
        raise UserError(f"pivots: pairs of settings, or these and a measure, given {pivots!r}")
    pivot_tables = tuple(Pivot(*pivot) for pivot in pivots)
    return report_folder(
        store, suite, _settings(store, suite, by=by, baseline=baseline, target=target, pivots=pivot_tables)
    )


def _settings(store: Store, suite: str | None, **options: Any) -> ReportSpec:
    """Return the report settings of a suite, with those given instead."""
    stored = read_stored(store.report_settings(suite)) if suite else ReportSpec()
    options |= {"target": read_target(options.get("target"))}
    return replace(stored, **{name: value for name, value in options.items() if value})
