"""The change that privacy, or compression, makes to a row: its mean less that of the same row without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from harness.report.data.procedure import Interval
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, grouped
from harness.report.data.specs import is_compressed
from harness.report.data.statistics import paired_statistics
from harness.report.data.tested import seed_pairs

#: Section of a spec -> whether a spec has what it is about.
SECTIONS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "privacy": lambda spec: bool(spec.get("privacy")),
    "compression": is_compressed,
}


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


def protection_changes(cells: Sequence[Cell], resolution: Resolution) -> pd.DataFrame:
    """Return the change of a measure from the same row without privacy, and from that without compression.

    Two rows are the same if they differ in nothing but that section and what a search has chosen; of several
    without it the best counts. See `change_from` for the interval.

    Parameters
    ----------
    cells : sequence of Cell
        The cells of a leaderboard.
    resolution : Resolution
        Of the table and the measure.

    Returns
    -------
    pd.DataFrame
        Columns ``privacy_change``, ``privacy_change_low`` and ``privacy_change_high``, with the ends of the 95 %
        interval, and the same of ``compression_change``; no row for a cell without a change.
    """
    columns: dict[str, dict[str, float | None]] = {}
    for section in SECTIONS:
        changes = dict(_changes(cells, section, resolution))
        ends = {key: change.interval or (None, None) for key, change in changes.items()}
        columns[f"{section}_change"] = {key: change.mean for key, change in changes.items()}
        columns[f"{section}_change_low"] = {key: low for key, (low, _) in ends.items()}
        columns[f"{section}_change_high"] = {key: high for key, (_, high) in ends.items()}
    return pd.DataFrame(columns, dtype=object)


def _changes(cells: Sequence[Cell], section: str, resolution: Resolution) -> Iterator[tuple[str, Change]]:
    """Yield the keys of cells with a section, and their changes from the best cell without it."""
    by, has_it = resolution.measure, SECTIONS[section]
    for members in grouped(cells, lambda cell: cell.shared_key((section,))).values():
        plain = [cell for cell in members if not has_it(cell.spec) and cell.values(by)]
        if not plain:
            continue
        best = max(plain, key=lambda cell: cell.score(by))
        for cell in members:
            if has_it(cell.spec) and (change := change_from(best, cell, resolution)):
                yield cell.key, change
