"""Mean ranks over tasks, with intervals over seeds and the critical difference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.report.data.ranks import ranks
from harness.report.plots.figure import COLORS, Pictures, canvas, save
from harness.report.tables.text import words

if TYPE_CHECKING:
    from harness.storage.store import RunRecord


def rank_diagram(records: Iterable[RunRecord], path: Path, by: str) -> Pictures | None:
    """Draw the mean rank of every method over all federations of the records.

    Bars on the left join methods whose mean ranks differ by less than the critical difference.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records; only finished runs count.
    path : Path
        Where to write, without suffix.
    by : str
        Measure that ranks.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None with fewer than two tasks or three methods that all have.
    """
    found = ranks(records, by)
    if found is None:
        return None
    count = len(found.methods)
    with canvas((7.2, 1.5 + 0.26 * count), **{"axes.grid.axis": "x"}) as figure:
        ax = figure.subplots()
        rows = range(count)
        look: Any = {"linestyle": "none", "marker": "o", "color": COLORS[0]}
        if found.low is not None and found.high is not None:
            ends = zip(found.low, found.means, found.high, strict=True)
            off = [(max(0.0, mean - low), max(0.0, high - mean)) for low, mean, high in ends]
            ax.errorbar(found.means, rows, xerr=list(zip(*off, strict=True)), elinewidth=1, **look)
        else:
            ax.plot(found.means, rows, **look)
        for number, (first, last) in enumerate(
            _cliques(found.means, found.critical) if found.critical else []
        ):
            x = 0.75 - 0.18 * (number % 3)
            ax.plot([x, x], [first - 0.2, last + 0.2], color="#333333", linewidth=2.5, solid_capstyle="butt")
        ax.set_yticks(list(rows), found.methods)
        ax.set_ylim(count - 0.5, -0.5)
        ax.set_xlim(0.2, count + 0.3)
        where = f"{found.tasks} tasks of {found.federations} federation{'s' * (found.federations > 1)}"
        ax.set_xlabel(f"mean rank by {words(by)} over {where}; 1 is best")
        note = (
            f"intervals: 95 % over {found.seeds} seeds" if found.low else f"{found.seeds} seeds: no intervals"
        )
        if found.critical is None:
            note += "; too few federations for a test"
        else:
            note += f"; bars: closer than the critical difference, {found.critical:.2f}; Friedman p = {found.p:.2g}"
        return save(figure, path, note)


def _cliques(means: tuple[float, ...], critical: float) -> list[tuple[int, int]]:
    """Return the largest stretches of methods that do not differ, as first and last number."""
    found: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(number for number, other in enumerate(means) if other - mean < critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
