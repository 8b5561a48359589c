"""The change that privacy, or compression, makes to a row: its mean less that of the same row without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from harness.metrics import better_is_higher
from harness.report.data.procedure import Interval, Procedures
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
    """

    mean: float
    interval: Interval | None


def change_from(plain: Cell, cell: Cell, measure: str, procedures: Procedures) -> Change | None:
    """Return the change of a cell from an unprotected one; None if no seed was tested alike.

    Of searched cells all seeds count: both have some in common, which the interval, over searches and seeds, knows,
    and the less certain one has further seeds. Of others common seeds count, and the interval is over these.
    """
    if not (pairs := seed_pairs(cell, plain, measure).differences):
        return None
    if (interval := procedures.of_means(cell, plain)) is not None:
        return Change(cell.mean(measure) - plain.mean(measure), interval)
    (paired,) = paired_statistics([list(pairs.values())])
    return Change(paired.mean, paired.interval)


def protection_changes(cells: Sequence[Cell], by: str, procedures: Procedures) -> pd.DataFrame:
    """Return the change of a measure from the same row without privacy, and from that without compression.

    Two rows are the same if they differ in nothing but that section and what a search has chosen; of several
    without it the best counts. See `change_from` for the interval.

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
        Columns ``privacy_change``, ``privacy_change_low`` and ``privacy_change_high``, with the ends of the 95 %
        interval, and the same of ``compression_change``; no row for a cell without a change.
    """
    rows: dict[str, dict[str, float | None]] = {}
    for section, has_it in SECTIONS.items():
        for key, change in _changes(cells, section, has_it, by, procedures):
            low, high = change.interval or (None, None)
            column = f"{section}_change"
            rows.setdefault(key, {}).update(
                {column: change.mean, f"{column}_low": low, f"{column}_high": high}
            )
    return pd.DataFrame.from_dict(rows, orient="index", dtype=object)


def _changes(
    cells: Sequence[Cell],
    section: str,
    has_it: Callable[[Mapping[str, Any]], bool],
    by: str,
    procedures: Procedures,
) -> Iterator[tuple[str, Change]]:
    """Yield the keys of cells with a section, and their changes from the best cell without it."""
    sign = 1 if better_is_higher(by) else -1
    for members in grouped(cells, lambda cell: cell.shared_key((section,))).values():
        plain = [cell for cell in members if not has_it(cell.spec) and cell.values(by)]
        if not plain:
            continue
        best = max(plain, key=lambda cell: sign * cell.mean(by))
        for cell in members:
            if has_it(cell.spec) and (change := change_from(best, cell, by, procedures)):
                yield cell.key, change
