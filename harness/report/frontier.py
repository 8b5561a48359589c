"""Picture of what accuracy costs: against the bytes of a run, a line for every epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.report.cells import Cell, better_is_higher, cells, part_name
from harness.report.columns import quantity
from harness.report.curves import draw_curves
from harness.report.figure import (
    COLORS,
    DASHES,
    MARKERS,
    Panel,
    Pictures,
    label_axes,
    panels_of,
    write_pictures,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.store import RunRecord

POINT: dict[str, Any] = {"alpha": 0.9, "markeredgecolor": "white", "markeredgewidth": 0.6, "markersize": 7}


def accuracy_against_bytes(records: Iterable[RunRecord], path: Path) -> Pictures | None:
    """Draw what accuracy costs.

    Cells that share privacy and compression are drawn as learning curves against the bytes sent so far, both
    ways together. Where they differ, every cell is a point (final accuracy against all bytes of the run, bars
    of one sample standard deviation) and one line per epsilon joins the cells that no other of that epsilon
    beats; points of equal bytes are drawn side by side. Cells without communication are level lines.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records; only finished runs are drawn.
    path : Path
        Where to write, without suffix.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None when there is nothing to draw.
    """
    records = list(records)
    budgets = {(_budget(cell), _ratios(cell)) for cell in cells(records) if cell.done}
    if len(budgets) > 1:
        return _frontier(records, path)
    return draw_curves(records, path, "accuracy", "bytes", "bytes sent so far, both ways")


def _frontier(records: Sequence[RunRecord], path: Path) -> Pictures | None:
    panels = panels_of(records, "accuracy")
    algorithms = sorted({part_name(cell.spec["algorithm"]) or "" for panel in panels for cell in panel.cells})
    budgets = sorted({_budget(cell) for panel in panels for cell in panel.cells}, reverse=True)

    def draw(ax: Axes, panel: Panel) -> None:
        points = [_point(cell, panel.metric) for cell in panel.cells]
        places = _dodge(points)
        for point, place in zip(points, places, strict=True):
            look: dict[str, Any] = {"color": COLORS[budgets.index(point.epsilon) % len(COLORS)]}
            look["marker"] = MARKERS[algorithms.index(point.algorithm) % len(MARKERS)]
            if not point.x:  # no communication: a level line, as a logarithmic axis has no zero
                ax.axhline(point.y, color=look["color"], linewidth=0.8, linestyle=":", zorder=1)
                ax.plot(0.02, point.y, transform=ax.get_yaxis_transform(), **look, **POINT)
                continue
            ax.errorbar(place, point.y, yerr=point.std, elinewidth=0.9, linestyle="", **look, **POINT)
        for i, epsilon in enumerate(budgets):
            color, dash = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)]
            own = {(p.x, p.y): x for p, x in zip(points, places, strict=True) if p.epsilon == epsilon and p.x}
            edge = [(own[point], point[1]) for point in _edge(list(own), better_is_higher(panel.metric))]
            label = "no DP" if math.isinf(epsilon) else f"ε = {quantity(epsilon, 3)}"
            xs, ys = [x for x, _ in edge], [y for _, y in edge]
            ax.plot(xs, ys, color=color, linestyle=dash, linewidth=1.3, zorder=1, label=label)
        for i, name in enumerate(algorithms):
            ax.plot([], [], color="#555555", marker=MARKERS[i % len(MARKERS)], linestyle="", label=name)
        label_axes(ax, panel, "bytes of the run, both ways", "log" if any(p.x for p in points) else "linear")

    return write_pictures(panels, draw, path, "lines join the cells that no other of their ε beats")


class Point(NamedTuple):
    """A cell in the frontier: bytes, value, its spread over seeds."""

    x: float
    y: float
    std: float | None
    epsilon: float
    algorithm: str


def _point(cell: Cell, metric: str) -> Point:
    values, sizes = list(cell.values(metric).values()), list(cell.values("bytes").values())
    std = stdev(values) if len(values) > 1 else None
    return Point(fmean(sizes), fmean(values), std, _budget(cell), part_name(cell.spec["algorithm"]) or "")


def _dodge(points: Sequence[Point]) -> list[float]:
    """Return where to draw the points: those of equal bytes and epsilon side by side, a few percent apart."""
    places = []
    for point in points:
        equals = [other for other in points if (other.x, other.epsilon) == (point.x, point.epsilon)]
        places.append(point.x * 1.05 ** (equals.index(point) - (len(equals) - 1) / 2))
    return places


def _edge(points: Sequence[tuple[float, float]], higher: bool) -> list[tuple[float, float]]:
    """Return the points that are better than every point with at most their bytes, in the order of bytes."""
    edge: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1] if higher else point[1])):
        if not edge or (y > edge[-1][1] if higher else y < edge[-1][1]):
            edge.append((x, y))
    return edge


def _budget(cell: Cell) -> float:
    """Return the epsilon asked for, else the one spent (two digits); infinite without privacy."""
    given = cell.privacy()
    if given is None or given.get("epsilon_total") is None:
        return math.inf
    asked = (cell.spec.get("privacy") or {}).get("epsilon")
    return float(f"{given['epsilon_total']:.2g}" if asked is None else asked)


def _ratios(cell: Cell) -> tuple[Any, ...]:
    compression = cell.spec.get("compression") or {}
    return tuple(str(compression.get(name)) for name in ("alpha", "beta", "codec"))
