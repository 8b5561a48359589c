"""The change that protection makes to a row: its mean less that of the same row without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from harness.report.data.procedure import Interval
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, grouped
from harness.report.data.statistics import paired_statistics
from harness.report.data.tested import seed_pairs


class Change(NamedTuple):
    """The change from an unprotected row.

    Attributes
    ----------
    mean : float
        The change.
    interval : tuple of float, or None
        Its 95 % interval.
    level : bool
        Whether it is no larger than that of one method under two names.
    """

    mean: float
    interval: Interval | None
    level: bool


def change_from(plain: Cell, cell: Cell, resolution: Resolution) -> Change | None:
    """Return the change of a measure from an unprotected cell; None if no seed was tested alike.

    Of searched cells all seeds count: both have some in common, which the interval, over searches and seeds, knows,
    and the less certain one has further seeds. Of others common seeds count, and the interval is over these.
    """
    measure = resolution.measure
    if not (pairs := seed_pairs(cell, plain, measure).differences):
        return None
    mean = cell.mean(measure) - plain.mean(measure)
    if (interval := resolution.procedures.of_means(cell, plain)) is None:
        (paired,) = paired_statistics([list(pairs.values())])
        mean, interval = paired.mean, paired.interval
    return Change(mean, interval, abs(mean) <= resolution.of(plain, cell))


def privacy_changes(cells: Sequence[Cell], resolution: Resolution) -> pd.DataFrame:
    """Return the change of a measure from the same row without privacy, and its 95 % interval, see `change_from`.

    Rows are the same if they differ in nothing but their privacy and what a search has chosen; of several without
    privacy the best counts.

    Parameters
    ----------
    cells : sequence of Cell
        The cells of a leaderboard.
    resolution : Resolution
        Of the table and the measure.

    Returns
    -------
    pd.DataFrame
        Columns ``privacy_change``, ``privacy_change_low`` and ``privacy_change_high``; no row for a cell without
        a change.
    """
    by = resolution.measure
    rows: dict[str, tuple[float | None, ...]] = {}
    for members in grouped(cells, lambda cell: cell.shared_key(("privacy",))).values():
        free = [cell for cell in members if not cell.spec.get("privacy") and cell.values(by)]
        if not free:
            continue
        best = max(free, key=lambda cell: cell.score(by))
        for cell in members:
            change = change_from(best, cell, resolution) if cell.spec.get("privacy") else None
            if change is not None:
                rows[cell.key] = change.mean, *(change.interval or (None, None))
    columns = ["privacy_change", "privacy_change_low", "privacy_change_high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=object)
