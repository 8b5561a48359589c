"""A measure against the requested privacy budget: one line per algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.report.data.budgets import Budget, budget_of, protection_of
from harness.report.data.procedure import searches
from harness.report.data.results import Cell, Results, first_of_each, grouped
from harness.report.plots.figure import (
    MOST_LINES,
    Panel,
    Pictures,
    extrapolation_note,
    mean_and_reach,
    panels_of,
    reach_note,
    settings_beside,
    write_pictures,
    write_title,
)
from harness.report.plots.methods import Styles
from harness.report.tables.text import distinguishing, without_section, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.13  # opacity
FEWEST = 2  # finite budgets that make a line


def accuracy_against_epsilon(results: Results, path: Path, metric: str = "accuracy") -> Pictures | None:
    """Draw a metric by privacy budget: the mean over seeds, with what `mean_and_reach` gives.

    Lines of which every point has an interval over searches and seeds have it as a band, others have bars.

    The x axis has the requested epsilon (nominal, total or per release), evenly spaced, no privacy on the right.
    Cells that differ only in privacy form a line, labeled with its settings if an algorithm has several; if there
    are too many lines, the best of each of the best algorithms is drawn. Algorithms without messages need no
    privacy: a level line.

    Parameters
    ----------
    results : Results
        Runs; only finished runs are drawn.
    path : Path
        Where to write, without suffix.
    metric : str
        What to draw.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None with fewer than two budgets of one kind.
    """
    panels = [
        panel for panel in panels_of(results, metric) if sum(b.kind != "" for b in _budgets(panel)) >= FEWEST
    ]
    names = {key: name for panel in panels for key, name in _names(panel).items()}
    lines = sorted({(cells[0].algorithm, names[key]) for p in panels for key, cells in _lines(p).items()})
    styles = Styles(results, panels, lines)

    def draw(ax: Axes, panel: Panel) -> None:
        budgets = _budgets(panel)
        for key, cells in _lines(panel).items():
            style = styles.of(cells[0].algorithm, names[key])
            points = sorted(
                (budgets.index(budget_of(cell)), *mean_and_reach(cell, panel.metric)) for cell in cells
            )
            if len(points) == 1:
                ax.axhline(points[0][1], color=style["color"], linestyle=style["linestyle"], label=names[key])
                continue
            _line(ax, points, names[key], style, all(map(searches, cells)))
        texts = ["none" if math.isinf(b.epsilon) else f"{b.epsilon:g}" for b in budgets]
        ax.set_xticks(range(len(budgets)), texts)
        kind = next(b.kind for b in budgets if b.kind).removeprefix("epsilon").replace("_", " ").strip()
        ax.set_xlabel(f"ε asked for ({kind or 'total'}); what it amounts to is in the table")
        ax.set_ylabel(words(panel.metric))
        write_title(ax, panel.title)

    cut = any(len(_lines(panel)) < len(_all_lines(panel)) for panel in panels)
    notes = [
        "the best setting of each algorithm" if cut else "",
        *dict.fromkeys(reach_note(panel.cells, panel.metric) for panel in panels),
        extrapolation_note(c for p in panels for c in p.cells),
    ]
    return write_pictures(panels, draw, path, "; ".join(filter(None, notes)))


def _line(
    ax: Axes, points: Sequence[tuple[float, ...]], name: str, style: Mapping[str, Any], band: bool
) -> None:
    """Draw a line through places, means, and how far intervals reach below and above them."""
    x, y, below, above = map(np.array, zip(*points, strict=True))
    if band:
        ax.plot(x, y, label=name, **style)
        ax.fill_between(x, y - below, y + above, color=style["color"], alpha=BAND, linewidth=0)
    else:
        ax.errorbar(x, y, yerr=(below, above), elinewidth=0.9, label=name, **style)


def _budgets(panel: Panel) -> list[Budget]:
    """Return a panel's budgets of the most frequent kind in ascending order, no privacy last."""
    budgets = [budget_of(cell) for cell in panel.cells]
    kinds = [budget.kind for budget in budgets if budget.kind]
    usual = max(set(kinds), key=kinds.count, default="")
    comparable = {budget for budget in budgets if budget.kind in (usual, "")}
    return sorted(comparable, key=lambda budget: budget.epsilon)


def _all_lines(panel: Panel) -> dict[tuple[str, ...], list[Cell]]:
    """Return the cells of every line; level lines only for algorithms without other lines."""
    budgets = _budgets(panel)
    cells = (cell for cell in panel.cells if budget_of(cell) in budgets)
    lines: dict[tuple[str, ...], list[Cell]] = {}
    for key, members in grouped(cells, lambda cell: settings_beside(cell, "privacy")).items():
        ways = grouped(members, protection_of)  # every way to protect ends without privacy
        plain = ways.pop((), [])
        lines |= {key + way: cells + plain for way, cells in ways.items()} if ways else {key: plain}
    bent = {members[0].algorithm for members in lines.values() if len(members) > 1}
    return {
        key: members for key, members in lines.items() if len(members) > 1 or members[0].algorithm not in bent
    }


def _lines(panel: Panel) -> dict[tuple[str, ...], list[Cell]]:
    """Return the lines to draw: all, or those of the best algorithms, the best of each, if there are too many."""
    lines = _all_lines(panel)
    if len(lines) <= MOST_LINES:
        return lines
    # The panel's cells are in order, the best first.
    best = first_of_each(lines, lambda key: lines[key][0].algorithm)
    return {key: lines[key] for key in list(best.values())[:MOST_LINES]}


def _names(panel: Panel) -> dict[tuple[str, ...], str]:
    """Return the label of every line: its algorithm and the settings that distinguish it.

    Of a part, such as a model, the name is enough if it tells the lines apart.
    """
    lines = {key: (cells[0].algorithm, key) for key, cells in _lines(panel).items()}
    telling = distinguishing(lines)
    by_name = {key: " ".join([lines[key][0], *_by_name(settings)]) for key, settings in telling.items()}
    if len(set(by_name.values())) == len(by_name):
        return by_name
    return {
        key: " ".join([lines[key][0], *map(without_section, settings)]) for key, settings in telling.items()
    }


def _by_name(settings: Sequence[str]) -> list[str]:
    """Return settings without those of parts whose name is among them."""
    names = {name: value for name, _, value in (text.partition("=") for text in settings)}
    named = {name.removesuffix("name"): value for name, value in names.items() if name.endswith(".name")}
    others = (f"{name}={value}" for name, value in names.items() if not name.startswith(tuple(named)))
    return [*named.values(), *map(without_section, others)]
