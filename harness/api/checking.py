"""Functions that check parts, claims and saved models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.api.making import Given, prepare
from harness.config import plugins
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.executors.local import torch_threads
from harness.simulation.saved_model import SavedModel
from harness.simulation.setup import Execution
from harness.testing.checks import audit_setup, check_named
from privacy import calculator


def check(*names: str) -> pd.DataFrame:
    """Check algorithms and models like ``python -m harness check``.

    Parameters
    ----------
    *names : str
        Algorithms or models; without names all algorithms.

    Returns
    -------
    DataFrame
        One row for each check: ``algorithm`` (or model), ``check``, ``result`` (``passed``, ``failed`` or
        ``warning``) and ``why``.

    Raises
    ------
    UserError
        If there is no such algorithm or model.
    """
    plugins.load()
    with torch_threads(Execution().threads):
        return pd.DataFrame([row for name in names or ALGORITHMS for row in check_named(name)])


def audit(spec: Given, *, trials: int = 20, canaries: int = 100) -> list[dict[str, Any]]:
    """Test a run's claim of privacy like ``python -m harness audit``.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        The run.
    trials : int
        Rounds whose releases are tested.
    canaries : int
        Planted units of the audited run; 0 trains none.

    Returns
    -------
    list of dict
        One for the releases and one for the training; ``findings`` lists what contradicts the claim.

    Raises
    ------
    UserError
        If the run is not valid, or claims no privacy that can be audited.
    """
    with torch_threads(Execution().threads):
        return audit_setup(prepare(spec), trials, canaries)


def predict(
    model: str | Path,
    data: str,
    *,
    client: str | None = None,
    like: str | None = None,
    keep: Sequence[str] = (),
    fill: bool = False,
) -> pd.DataFrame:
    """Apply a saved model to a table like ``python -m harness predict``.

    Parameters
    ----------
    model : str or Path
        Folder of a run with a saved model, or the file of the model.
    data : str
        A table with the columns of the training, or its address, such as ``csv:FILE?decimal=,``.
    client : str, optional
        The client whose model is applied, where each has its own.
    like : str, optional
        The one of the run's files that the table is like: its signs, names of columns and codes.
    keep : sequence of str
        Columns to return beside the predictions.
    fill : bool
        Take the training mean where a number is missing.

    Returns
    -------
    DataFrame
        One row for each row of the table.

    Raises
    ------
    UserError
        If there is no model, or the table lacks a column or a value.
    """
    plugins.load()
    with torch_threads(Execution().threads):
        saved = SavedModel.read(Path(model))
        rows = saved.rows(data, keep, like)
        return pd.DataFrame(saved.predict_beside(rows, client, fill=fill))


def epsilon(
    noise_multiplier: float | None = None,
    *,
    for_epsilon: float | None = None,
    clip: float = 1.0,
    cohort: tuple[int, int] | None = None,
    rate: float | None = None,
    rounds: int = 1,
    sampling: str | None = None,
    delta: float = 1e-5,
    releases_per_round: int = 1,
    unit: str = "client",
    placement: str = "central",
) -> pd.DataFrame:
    """Compute the privacy of a mechanism, or the noise for a budget, like ``python -m harness epsilon``.

    Parameters
    ----------
    noise_multiplier : float, optional
        Standard deviation of the noise on a sum of messages over their clip norm.
    for_epsilon : float, optional
        A budget, in place of the noise: the noise is returned.
    clip : float
        Clip norm.
    cohort : (int, int), optional
        Clients in a round, and all clients. Default: all take part.
    rate : float, optional
        In place of the cohort: the probability that a unit is drawn.
    rounds, releases_per_round : int
        Number of rounds, and of releases in each.
    sampling : {"poisson", "without-replacement", "fixed", "full"}, optional
        How cohorts or batches are drawn. Default: Poisson if there is a draw and nobody sees it.
    delta : float
        The delta of (epsilon, delta).
    unit : {"client", "record", "user"}
        Unit of privacy.
    placement : {"central", "local", "distributed"}
        Who adds the noise.

    Returns
    -------
    DataFrame
        One row for each adjacency and accountant, the tightest of an adjacency last.

    Raises
    ------
    UserError
        If settings are out of range, or do not go together.
    """
    size, total, share = _drawn(cohort, rate)
    try:
        mechanism = calculator.mechanism(
            clip=clip, size=size, total=total, rate=share, rounds=rounds,
            sampling=sampling, delta=delta, releases_per_round=releases_per_round, unit=unit, placement=placement,
        )  # fmt: skip
        return pd.DataFrame(calculator.epsilons(mechanism, noise_multiplier, for_epsilon))
    except ValueError as problem:
        raise UserError(f"epsilon: {problem}") from problem


def _drawn(cohort: tuple[int, int] | None, rate: float | None) -> tuple[int, int, float]:
    """Return size and total of a cohort, and the probability of a unit to be drawn; raise `UserError` if wrong."""
    if cohort is not None and rate is not None:
        raise UserError("epsilon: give either cohort or rate")
    size, total = cohort or ((0, 0) if rate is not None else (1, 1))
    if rate is None and not 1 <= size <= total:
        raise UserError(f"epsilon: cohort {cohort}: between 1 and {total} take part")
    if rate is not None and not 0 < rate <= 1:
        raise UserError(f"epsilon: rate is a probability above 0, given {rate:g}")
    return size, total, size / total if rate is None else rate
