"""The change that privacy makes: every private row less the same row without privacy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from harness.metrics import better_is_higher
from harness.report.data.procedure import Procedures
from harness.report.data.resolution import difference_interval
from harness.report.data.results import Cell, grouped
from harness.report.data.tested import seed_pairs


def privacy_changes(cells: Sequence[Cell], by: str, procedures: Procedures) -> pd.DataFrame:
    """Return the change of a measure's mean from the same row without privacy, and its 95 % interval.

    Rows are the same if they differ in nothing but their privacy and what a search has chosen; of several without
    privacy the best counts. They have seeds in common, and each may have further ones, all of which count: private
    rows are less certain and have more. Intervals know which are common.

    Parameters
    ----------
    cells : sequence of Cell
        The cells of a leaderboard.
    by : str
        The measure.
    procedures : Procedures
        Of that measure.

    Returns
    -------
    pd.DataFrame
        Columns ``privacy_change``, ``privacy_change_low`` and ``privacy_change_high``; no row for a cell without
        a change.
    """
    sign = 1 if better_is_higher(by) else -1
    rows: dict[str, dict[str, float | None]] = {}
    for members in grouped(cells, lambda cell: cell.shared_key(("privacy",))).values():
        free = [cell for cell in members if not cell.spec.get("privacy") and cell.values(by)]
        if not free:
            continue
        best = max(free, key=lambda cell: sign * fmean(cell.values(by).values()))
        for cell in members:
            if not cell.spec.get("privacy") or not seed_pairs(cell, best, by).differences:
                continue
            low, high = difference_interval(cell, best, procedures, by) or (None, None)
            rows[cell.key] = {
                "privacy_change": fmean(cell.values(by).values()) - fmean(best.values(by).values()),
                "privacy_change_low": low,
                "privacy_change_high": high,
            }
    return pd.DataFrame.from_dict(rows, orient="index", dtype=object)
