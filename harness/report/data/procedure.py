"""Intervals of a whole procedure: the search for settings, and the seeds of what it has chosen.

A search might have chosen otherwise. How often resampled searches choose each of their finalists is on record, and
so are reported runs of all finalists. A draw takes a finalist by its share and resamples the seeds of its runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from harness.core import rng
from harness.report.data.results import Cell
from harness.report.data.statistics import ALPHA, FEWEST, RESAMPLES, resamples

Figures = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Choice:
    """A setting that a search chooses with some probability.

    Attributes
    ----------
    share : float
        The share of resampled searches that choose it.
    figures : Mapping
        Seed of the reported runs -> figure.
    """

    share: float
    figures: Figures


def choices_of(cell: Cell, measure: str) -> list[Choice]:
    """Return what the search of a cell could have chosen; of a cell without one the cell alone.

    Empty if the cell, or a finalist, has no reported runs with the measure, as where cells share a search.
    """
    values = cell.values(measure)
    search = cell.records[0].search
    finalists = search.get("finalists") or [{"trial": None, "share": 1.0}]
    choices = []
    for finalist in finalists:
        if finalist["trial"] in (None, search.get("chosen")):
            figures: Figures = values
        else:
            figures = {
                int(seed): metrics[measure]
                for seed, metrics in finalist["metrics"].items()
                if measure in metrics
            }
        if not figures:
            return []
        choices.append(Choice(finalist["share"], figures))
    return choices


def procedure_difference(cell: Cell, other: Cell, measure: str) -> tuple[float, float] | None:
    """Return the 95 % interval of the paired difference of two cells over searches and seeds.

    None if neither has a search with finalists, or figures are missing.
    """
    if not any(each.records[0].search.get("finalists") for each in (cell, other)):
        return None
    choices = choices_of(cell, measure), choices_of(other, measure)
    return procedure_interval(*choices, key=f"{cell.key} {other.key}") if all(choices) else None


def procedure_interval(
    choices: Sequence[Choice], baseline: Sequence[Choice] = (), *, key: str = ""
) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean over searches and seeds; with a baseline, of the paired difference.

    The bootstrap's percentiles, expanded for few seeds as an interval of t is (Hesterberg 2015,
    https://doi.org/10.1080/00031305.2015.1089789). Only seeds that all settings have count.

    Parameters
    ----------
    choices : sequence of Choice
        What the search could have chosen.
    baseline : sequence of Choice, optional
        The same of another row.
    key : str
        Of the draws; rows with different keys choose independently.

    Returns
    -------
    tuple of float or None
        The ends; None with fewer seeds than `FEWEST`.
    """
    known = [set(choice.figures) for choice in (*choices, *baseline)]
    seeds = sorted(set.intersection(*known)) if known else []
    if len(seeds) < FEWEST:
        return None
    draws = _draws(choices, seeds, f"{key} row")
    if baseline:
        draws = draws - _draws(baseline, seeds, f"{key} baseline")
    reach = float(scipy.special.stdtrit(len(seeds) - 1, 1 - ALPHA / 2)) * math.sqrt(
        len(seeds) / (len(seeds) - 1)
    )
    low, high = np.quantile(draws, scipy.special.ndtr([-reach, reach]))
    return float(low), float(high)


def _draws(choices: Sequence[Choice], seeds: Sequence[int], key: str) -> np.ndarray:
    """Return means of resampled seeds of settings drawn by their shares, ``(RESAMPLES,)``."""
    shares = np.array([choice.share for choice in choices])
    which = rng.numpy_stream(0, "procedure", key).choice(len(choices), RESAMPLES, p=shares / shares.sum())
    figures = np.array([[choice.figures[seed] for seed in seeds] for choice in choices])
    means: np.ndarray = (resamples(len(seeds)) * figures[which]).sum(-1)
    return means
