"""Gain by tuning: the expected result of a search against its number of settings."""

from __future__ import annotations

from pathlib import Path

from harness.metrics import better_is_higher
from harness.report.data.budgets import budget_of
from harness.report.data.results import Results, first_of_each, grouped
from harness.report.data.tuning import Searched, searched
from harness.report.plots.figure import (
    MOST_LINES,
    PANELS_A_ROW,
    Pictures,
    canvas,
    panel_axes,
    save,
    write_title,
)
from harness.report.plots.methods import Styles
from harness.report.tables.text import words

MOST_PANELS = 9


def tuning_curves(results: Results, path: Path) -> Pictures | None:
    """Draw the expected test figure of the best of 1, 2, ... settings, a panel for each task and budget.

    Parameters
    ----------
    results : Results
        Runs of tuned suites.
    path : Path
        Where to write, without suffix.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None without searches of several settings.
    """
    several = (
        one for one in searched(results) if len(one.found["trials"]) > 1 and one.best_of(1) is not None
    )
    panels = grouped(several, lambda search: (search.cells[0].task, _title(search)))
    shown = list(panels.items())[:MOST_PANELS]
    if not shown:
        return None
    names = sorted({search.cells[0].algorithm for _, own in shown for search in own})
    styles = Styles(results, (), ((name, name) for name in names))
    across = min(PANELS_A_ROW, len(shown))
    down = -(-len(shown) // across)
    with canvas((max(7.2, 4.4 * across), 3.9 * down)) as figure:
        axes = panel_axes(figure, down, across, len(shown))
        for ax, ((_, title), own) in zip(axes, shown, strict=True):
            firsts = first_of_each(own, lambda search: search.cells[0].algorithm)
            best = {name: _curve(search) for name, search in firsts.items()}
            higher = better_is_higher(own[0].tune["metric"])
            order = sorted(best, key=lambda name: best[name][-1], reverse=higher)[:MOST_LINES]
            for name in order:
                look = styles.of(name, name)
                ax.plot(range(1, len(best[name]) + 1), best[name], label=name, **{**look, "marker": None})
            ax.set_xscale("log")
            longest = max(len(curve) for curve in best.values())
            ticks = [size for size in (1, 2, 5, 10, 25, 50, 100) if size <= longest]
            ax.set_xticks(ticks, [str(size) for size in ticks])
            ax.minorticks_off()
            ax.set_xlabel("settings tried")
            ax.set_ylabel(f"{words(own[0].tune['metric'])} of the best")
            write_title(ax, title)
            ax.legend(fontsize=8)
        note = "expected on test samples, by the first run of each setting"
        note += f"; {len(shown)} of {len(panels)} panels" if len(panels) > len(shown) else ""
        return save(figure, path, note)


def _curve(search: Searched) -> list[float]:
    found = (search.best_of(size) for size in range(1, len(search.found["trials"]) + 1))
    return [value for value in found if value is not None]


def _title(search: Searched) -> str:
    cell = search.cells[0]
    budget = budget_of(cell)
    problem = cell.given.get("problem.kind", "")
    parts = [
        cell.data,
        "" if problem == "classify" else problem,
        f"ε {budget.epsilon:g}" if budget.kind else "no privacy",
    ]
    return " · ".join(part for part in parts if part)
