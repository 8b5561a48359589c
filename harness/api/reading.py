"""Functions that read results folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config import plugins
from harness.config.conditions import read_conditions
from harness.config.recorded import results_folder
from harness.config.report import ReportSpec, read_pivot, report_settings
from harness.core.errors import UserError
from harness.report.data.evidence import Evidence
from harness.report.data.leaderboard import leaderboard as made_leaderboard
from harness.report.data.published import published_leaderboard
from harness.report.data.recommendation import recommend as recommended
from harness.report.data.references import Shape, ask_references, references
from harness.report.data.results import Results
from harness.report.data.tidy import tidy
from harness.report.folder import Report, report_folder
from harness.report.tables import nearest, rated_rows, recommendation


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
    return tidy(results_folder(Path(folder)).some_records(suite))


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
        Measure to rank by: a metric, bytes, flops, seconds or epsilon. Default: that of the suite or its search,
        else accuracy; AUROC where always predicting one class has an accuracy above 0.8.
    baseline : str, optional
        Algorithm to compare with, paired by seed.
    target : Mapping, optional
        A measure and the value to reach, such as ``{"accuracy": 0.8}``.

    Raises
    ------
    UserError
        If the folder holds no runs, or a name is unknown.
    """
    return _ranked(folder, suite, by=by, baseline=baseline, target=target)[2]


def recommend(
    folder: str | Path | None,
    where: Sequence[str],
    suite: str | None = None,
    *,
    by: str | None = None,
    clients: int | None = None,
    samples: float | None = None,
    skew: float | None = None,
) -> pd.DataFrame:
    """Return the rows within bounds, the best first, and the answer in sentences.

    Parameters
    ----------
    folder : str, Path or None
        Results folder, or a leaderboard in CSV; None for the references that come with the harness.
    where : sequence of str
        Bounds on measures or columns of the leaderboard, such as ``"epsilon_total <= 2"``; all must hold.
    suite : str, optional
        Only this suite's rows.
    by : str, optional
        Measure that ranks. Default: as of `leaderboard`.
    clients, samples, skew : float, optional
        Of data that nothing was run on: number of clients, mean number of samples of a client, and skew of labels,
        see `harness.report.data.references.Shape`. The nearest references then answer.

    Returns
    -------
    DataFrame
        One row per row within all bounds: settings, value, interval, loss to the first row of the federation.
        ``attrs["said"]`` is a list of sentences; if there is no row, they say which bound excludes most.

    Raises
    ------
    UserError
        If no bound is given, or one is not valid.
    """
    if isinstance(where, str) or not where:
        raise UserError(f"where: a list of bounds, as ['epsilon_total <= 2'], given {where!r}")
    own = Shape(clients, samples, skew)
    if own != Shape():
        if folder is not None:
            raise UserError(
                f"clients, samples, skew: for answers from the references, where folder is None, not {folder}"
            )
        evidence = Evidence.of_table(references(), by, clients)
        asked = ask_references(own, evidence, read_conditions(where, evidence.columns))
        answer, said = asked.recommendation, nearest.sentences(asked)
    else:
        evidence = _evidence(folder, suite, by)
        answer = recommended(evidence, read_conditions(where, evidence.columns))
        said = recommendation.sentences(answer)
    answers = pd.DataFrame(rated_rows.recommendation_rows(answer))
    answers.attrs["said"] = [*said, *recommendation.notes(answer)]
    return answers


def _evidence(folder: str | Path | None, suite: str | None, by: str | None) -> Evidence:
    """Return the rows of a results folder, of a published table, or of all references."""
    if folder is None:
        return Evidence.of_table(references(), by)
    table = published_leaderboard(Path(folder), suite)
    if table is not None:
        return Evidence.of_table(table, by)
    results, spec, frame = _ranked(folder, suite, by=by)
    return Evidence(frame, spec.by, results.cells)


def write_report(
    folder: str | Path,
    suite: str | None = None,
    *,
    by: str | None = None,
    baseline: str | None = None,
    target: Mapping[str, float] | None = None,
    pivots: Sequence[Sequence[str]] = (),
    statement: bool = False,
) -> Report:
    """Write tables, pictures and page of a folder or a suite, as ``python -m harness report`` does.

    Parameters
    ----------
    folder, suite, by, baseline, target
        As in `leaderboard`.
    pivots : sequence of sequences of str
        Tables by two settings: names of rows and columns, and of a measure if there is a third.
    statement : bool
        Whether to write two pages for a data protection officer too: ``statement.html`` and, where Chromium or
        Chrome is installed, ``statement.pdf``.

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
    tables = tuple(map(read_pivot, pivots))
    spec = report_settings(store, suite, by=by, baseline=baseline, target=target, pivots=tables)
    return report_folder(store, suite, spec, statement=statement)


def _ranked(
    folder: str | Path, suite: str | None, **options: Any
) -> tuple[Results, ReportSpec, pd.DataFrame]:
    """Return the results of a folder or a suite, the settings of its report, and its leaderboard."""
    plugins.load()
    store = results_folder(Path(folder))
    results = Results(store.some_records(suite))
    spec = results.ranked(report_settings(store, suite, **options))
    return results, spec, made_leaderboard(results, spec.by, spec.baseline, spec.target)
