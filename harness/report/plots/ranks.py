"""Mean ranks over tasks, with intervals over seeds and the critical difference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.registry import counted
from harness.report.data.leaderboard import model_for
from harness.report.data.ranks import Ranks, ranks
from harness.report.data.results import Results, grouped
from harness.report.plots.figure import COLORS, Pictures, canvas, save
from harness.report.tables.text import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.storage.store import RunRecord


def rank_diagram(records: Iterable[RunRecord], path: Path, by: str) -> Pictures | None:
    """Draw the mean rank of every method over all federations of the records.

    Methods that end with a model for each client are ranked among themselves, as they are no rivals of the others.
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
    kinds = grouped(
        Results.of(records).cells,
        lambda cell: "each client" if (model_for(cell) or "").startswith("each client") else "everybody",
    )
    diagrams = {
        user: result for user in sorted(kinds, reverse=True) if (result := ranks(kinds[user], by)) is not None
    }
    if not diagrams:
        return None
    counts = [len(result.methods) for result in diagrams.values()]
    with canvas((7.2, 1.5 * len(diagrams) + 0.26 * sum(counts)), **{"axes.grid.axis": "x"}) as figure:
        axes = figure.subplots(len(diagrams), 1, squeeze=False, height_ratios=counts)
        notes = []
        for (user, result), ax in zip(diagrams.items(), axes[:, 0], strict=True):
            if len(kinds) > 1:
                ax.set_title(f"A model for {user}")
            notes.append(_draw(ax, result, by))
        return save(figure, path, "\n".join(dict.fromkeys(notes)))


def _draw(ax: Axes, result: Ranks, by: str) -> str:
    """Draw the ranks of methods of one kind, and return a note on them."""
    count = len(result.methods)
    rows = range(count)
    look: Any = {"linestyle": "none", "marker": "o", "color": COLORS[0]}
    if result.low is not None and result.high is not None:
        ends = zip(result.low, result.means, result.high, strict=True)
        off = [(max(0.0, mean - low), max(0.0, high - mean)) for low, mean, high in ends]
        ax.errorbar(result.means, rows, xerr=list(zip(*off, strict=True)), elinewidth=1, **look)
    else:
        ax.plot(result.means, rows, **look)
    for number, (first, last) in enumerate(
        _cliques(result.means, result.critical) if result.critical else []
    ):
        x = 0.75 - 0.18 * (number % 3)
        ax.plot([x, x], [first - 0.2, last + 0.2], color="#333333", linewidth=2.5, solid_capstyle="butt")
    ax.set_yticks(list(rows), result.methods)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_xlim(0.2, count + 0.3)
    where = f"{counted(result.tasks, 'task')} of {counted(result.federations, 'federation')}"
    ax.set_xlabel(f"mean rank by {words(by)} over {where}; 1 is best")
    note = (
        f"intervals: 95 % over {counted(result.seeds, 'seed')}"
        if result.low
        else f"{counted(result.seeds, 'seed')}: no intervals"
    )
    if result.critical is None:
        return note + "; too few federations for a test"
    return (
        note
        + f"; bars: closer than the critical difference, {result.critical:.2f}; Friedman p = {result.p:.2g}"
    )


def _cliques(means: tuple[float, ...], critical: float) -> list[tuple[int, int]]:
    """Return the largest stretches of methods that do not differ, as first and last number."""
    cliques: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(number for number, other in enumerate(means) if other - mean < critical)
        if last > first and (not cliques or last > cliques[-1][1]):
            cliques.append((first, last))
    return cliques
