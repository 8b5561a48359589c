"""A measure against the bytes of a run: one line per algorithm and epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.metrics import better_is_higher
from harness.report.data.results import Cell, Results, grouped
from harness.report.plots.curves import draw_curves
from harness.report.plots.figure import (
    MOST_LINES,
    MOST_PANELS,
    Panel,
    Pictures,
    edge,
    extrapolation_note,
    label_axes,
    mean_and_reach,
    panels_of,
    reach_note,
    write_pictures,
)
from harness.report.plots.methods import Styles
from harness.report.tables.text import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = "lines join the cells that no other of their line beats; the others are small and hollow"


def accuracy_against_bytes(results: Results, path: Path, metric: str = "accuracy") -> Pictures | None:
    """Draw a metric against communicated bytes.

    Cells that share their compression are drawn as learning curves against the bytes sent so far, both
    ways together. Where they differ, every cell is a point: the final value against all bytes of the run. A line
    for every algorithm and epsilon joins its cells that no other of it beats, with bars as of `mean_and_reach`; the
    rest are small and hollow. Where lines are many, every algorithm that sends anything has a panel.
    Every point stands at its measured bytes, so points of equal bytes share a place on the axis and differ in
    marker, color and the width of their bars' ends. Cells without communication are level lines.

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
        The PNG and the SVG; None when there is nothing to draw.
    """
    if len({_ratios(cell) for cell in results.cells if cell.done}) > 1:
        return _frontier(results, path, metric)
    return draw_curves(results, path, metric, "bytes")


def _frontier(results: Results, path: Path, metric: str) -> Pictures | None:
    panels_of_tasks = panels_of(results, metric)
    split = len({_line(cell) for panel in panels_of_tasks for cell in panel.cells}) > MOST_LINES
    panels = _by_algorithm(panels_of_tasks) if split else panels_of_tasks
    lines = sorted({_line(c) for p in panels for c in p.cells}, key=lambda line: (line[0], -line[1]))
    names = {line: _name(line, lines, split) for line in lines}
    styles = Styles(results, panels, ((line[0], names[line]) for line in lines))

    def draw(ax: Axes, panel: Panel) -> None:
        cells_of = grouped(panel.cells, _line)
        for number, line in enumerate(line for line in lines if line in cells_of):
            look = styles.of(line[0], names[line])
            reaches = [(cell.mean("bytes"), mean_and_reach(cell, panel.metric)) for cell in cells_of[line]]
            by_place = {(x, reach.mean): reach for x, reach in reaches}
            places = list(by_place)
            best = [places[number] for number in edge(places, better_is_higher(panel.metric))]
            if not best[-1][0]:  # no communication at all: a level line, as a logarithmic axis has no zero
                ax.axhline(best[-1][1], color=look["color"], linestyle=look["linestyle"], label=names[line])
                continue
            sent = [place for place in best if place[0]]
            bars = [by_place[p].below for p in sent], [by_place[p].above for p in sent]
            ax.errorbar([x for x, _ in sent], [y for _, y in sent], yerr=bars,
                        elinewidth=0.9, capsize=1.5 + 1.5 * number, label=names[line], **look)  # fmt: skip
            beaten = [place for place in by_place if place[0] and place not in best]
            ax.plot([x for x, _ in beaten], [y for _, y in beaten], linestyle="", marker=look["marker"],
                    markersize=4, markerfacecolor="none", markeredgecolor=look["color"], zorder=1)  # fmt: skip
        scale = "log" if any(cell.mean("bytes") for cell in panel.cells) else "linear"
        label_axes(ax, panel, "bytes of the run, both ways", scale)

    reach = dict.fromkeys(reach_note(panel.cells, panel.metric) for panel in panels)
    notes = [NOTE, *reach, extrapolation_note(cell for panel in panels for cell in panel.cells)]
    return write_pictures(panels, draw, path, "; ".join(filter(None, notes)))


def _by_algorithm(panels: Sequence[Panel]) -> list[Panel]:
    """Give every algorithm that communicates a panel, those of the best cells first."""
    by_algorithm = []
    for panel in panels:
        communicating = (cell for cell in panel.cells if any(cell.values("bytes").values()))
        by_algorithm += [
            panel._replace(title=f"{name}: {panel.title}", cells=cells)
            for name, cells in grouped(communicating, lambda cell: cell.algorithm).items()
        ]
    return by_algorithm[:MOST_PANELS]


def _line(cell: Cell) -> tuple[str, float]:
    return cell.algorithm, _budget(cell)


def _name(line: tuple[str, float], lines: Sequence[tuple[str, float]], split: bool) -> str:
    """Return the label of a line: algorithm and epsilon, unless they are the same everywhere."""
    name, epsilon = line
    text = "no DP" if math.isinf(epsilon) else f"ε = {quantity(epsilon, 3)}"
    if split:
        return text
    return name if len({epsilon for _, epsilon in lines}) == 1 else f"{name}, {text}"


def _budget(cell: Cell) -> float:
    """Return the epsilon asked for, else the one spent (two digits); infinite without privacy."""
    claim = cell.privacy()
    if claim is None or claim.get("epsilon_total") is None:
        return math.inf
    budget = (cell.spec.get("privacy") or {}).get("epsilon")
    return float(f"{claim['epsilon_total']:.2g}" if budget is None else budget)


def _ratios(cell: Cell) -> tuple[Any, ...]:
    compression = cell.spec.get("compression") or {}
    return tuple(str(compression.get(name)) for name in ("alpha", "beta", "rank", "codec"))
