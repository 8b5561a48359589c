"""Mean ranks over federations, with the difference that tells two methods apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.units import counted
from harness.report.data.ranks import Ranks, ranks_by_kind
from harness.report.data.results import Results
from harness.report.plots.figure import COLORS, Pictures, canvas, save
from harness.report.tables.certainty import critical_text
from harness.report.tables.text import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rank_diagram(results: Results, path: Path, by: str) -> Pictures | None:
    """Draw the mean rank of every method over all federations of the records.

    Methods are ranked among those of their purpose and objective. Intervals reach half the critical difference to
    both sides, so those that overlap are of methods that are not told apart, as bars on the left say too.

    Parameters
    ----------
    results : Results
        Runs; only finished runs count.
    path : Path
        Where to write, without suffix.
    by : str
        Measure that ranks.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None where no two methods are told apart.
    """
    diagrams = {kind: result for kind, result in ranks_by_kind(results.cells, by).items() if result.distinct}
    if not diagrams:
        return None
    counts = [len(result.methods) for result in diagrams.values()]
    with canvas((7.2, 1.5 * len(diagrams) + 0.26 * sum(counts)), **{"axes.grid.axis": "x"}) as figure:
        axes = figure.subplots(len(diagrams), 1, squeeze=False, height_ratios=counts)
        for (kind, result), ax in zip(diagrams.items(), axes[:, 0], strict=True):
            ax.set_title(kind)
            _draw(ax, result, by)
        notes = dict.fromkeys(critical_text(result) for result in diagrams.values())
        return save(figure, path, "\n".join(["intervals that overlap, and bars: not told apart", *notes]))


def _draw(ax: Axes, result: Ranks, by: str) -> None:
    """Draw the ranks of methods of one kind."""
    assert result.critical is not None
    count = len(result.methods)
    rows = range(count)
    ax.errorbar(result.means, rows, xerr=result.critical / 2, elinewidth=1, linestyle="none", marker="o",
                color=COLORS[0])  # fmt: skip
    for number, (first, last) in enumerate(_cliques(result.means, result.critical)):
        x = 0.75 - 0.18 * (number % 3)
        ax.plot([x, x], [first - 0.2, last + 0.2], color="#333333", linewidth=2.5, solid_capstyle="butt")
    ax.set_yticks(list(rows), result.methods)
    ax.set_ylim(count - 0.5, -0.5)
    ax.set_xlim(0.2, count + 0.3)
    where = f"{counted(result.tasks, 'task')} of {counted(result.federations, 'federation')}"
    ax.set_xlabel(f"mean rank by {words(by)} over {where}; 1 is best")


def _cliques(means: tuple[float, ...], critical: float) -> list[tuple[int, int]]:
    """Return the largest stretches of methods that do not differ, as first and last number."""
    cliques: list[tuple[int, int]] = []
    for first, mean in enumerate(means):
        last = max(number for number, other in enumerate(means) if other - mean <= critical)
        if last > first and (not cliques or last > cliques[-1][1]):
            cliques.append((first, last))
    return cliques
