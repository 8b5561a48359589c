"""All algorithms at once: a measure against epsilon and against bytes, with the undominated cells named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.config.recorded import model_meta
from harness.metrics import better_is_higher
from harness.report.data.comparison import METHOD
from harness.report.data.leaderboard import model_for
from harness.report.data.procedure import searches
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results, grouped
from harness.report.plots.figure import (
    COLORS,
    Pictures,
    Reach,
    canvas,
    edge,
    extrapolation_note,
    mean_and_reach,
    save,
)
from harness.report.plots.labels import keep_apart, name_point
from harness.report.tables.text import quantity, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5, "alpha": 0.5}
MOST_TASKS = 8
FEWEST = 3  # algorithms that send something
BESIDE = 1.1  # times the bytes of a point of a front, up to which the next one is named in its place
NEXT = 3.0  # "none" stands so many times right of the largest epsilon


class ParetoPoint(NamedTuple):
    """A cell: algorithm, epsilon (infinite without privacy), bytes both ways, value, and whether it is personal.

    ``cell`` is the cell itself; ``reach`` is the value with what `mean_and_reach` gives, of cells with an interval
    over searches and seeds.
    """

    name: str
    epsilon: float
    size: float
    value: float
    personal: bool
    reach: Reach | None
    cell: Cell


def pareto(results: Results, path: Path, by: str) -> Pictures | None:
    """Draw a measure of all cells against their total epsilon, and against their bytes.

    Every point stands where it was measured. Named are, on the left, cells that no other with at most their epsilon
    beats; on the right, those that no other of their budget with at most their bytes beats. A cell that is not told
    from a cheaper one does not beat it; on the left a number counts the others of its budget that it is not told
    from. Personalized methods, which end with a model for each client, are compared among themselves. What sends
    nothing is a level line.

    Parameters
    ----------
    results : Results
        Runs; only finished runs are drawn.
    path : Path
        Where to write, without suffix.
    by : str
        The measure.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None with fewer than three algorithms that send something, or one budget.
    """
    measured = [cell for cell in results.cells if cell.values(by) and cell.values("bytes")]
    drawable = []
    for cells in grouped(measured, lambda cell: cell.shared_key(METHOD)).values():
        points = [_point(cell, by) for cell in cells]
        sent = [point for point in points if point.size]
        if len({p.name for p in sent}) >= FEWEST and len({_budget(p.epsilon) for p in sent}) > 1:
            drawable.append((cells[0], points))
    if not drawable:
        return None
    rows, resolution = drawable[:MOST_TASKS], Resolution(measured, by)
    with canvas((11.5, 3.7 * len(rows) + 0.3)) as figure:
        axes = figure.subplots(len(rows), 2, squeeze=False, sharey="row")
        for (left, right), (cell, points) in zip(axes, rows, strict=True):
            _against_epsilon(left, points, resolution)
            _against_bytes(right, points, resolution)
            left.set_title(f"{cell.data} · {cell.given.get('partition.kind', '')}", pad=8)
            left.set_ylabel(words(by))
        figure.draw_without_rendering()  # finds where everything stands
        for ax in axes.flat:
            keep_apart(ax)
        note = "means over seeds; named: no other of its kind is as good with less; "
        note += "+: so many others are not told from it; " if any(map(searches, measured)) else ""
        note += "diamonds: a model for each client"
        note += "; bars: 95 % intervals over searches and seeds" if any(map(searches, measured)) else ""
        note += f"; {len(rows)} of {len(drawable)} federations" if len(drawable) > len(rows) else ""
        more = extrapolation_note(measured)
        return save(figure, path, "; ".join(filter(None, [note, more])))


def _point(cell: Cell, by: str) -> ParetoPoint:
    claim = cell.privacy()
    epsilon = None if claim is None else claim.get("epsilon_total")
    value, size = cell.mean(by), cell.mean("bytes")
    # Models of clients' own are not comparable with one for everybody.
    personal = (model_for(cell) or "").startswith("each client")
    reach = mean_and_reach(cell, by) if searches(cell) else None
    return ParetoPoint(
        cell.algorithm, math.inf if epsilon is None else float(epsilon), size, value, personal, reach, cell
    )


def _marker(personal: bool) -> str:
    return "D" if personal else "o"


def _budget(epsilon: float) -> float:
    """Return epsilon with two digits, so that cells of one budget share a color."""
    return float(f"{epsilon:.2g}")


def _against_epsilon(ax: Axes, points: Sequence[ParetoPoint], resolution: Resolution) -> None:
    communicating = [point for point in points if point.size]
    finite = sorted({_budget(p.epsilon) for p in communicating if math.isfinite(p.epsilon)})
    beyond = finite[-1] * NEXT if finite else 1.0
    for _, color, members in _by_budget(communicating):
        x = [min(p.epsilon, beyond) for p in members]
        ax.plot(x, [p.value for p in members], color=color, **DOTS)
    for personal in (False, True):
        rivals = [p for p in communicating if p.personal == personal]
        frontier = _frontier(rivals, [_budget(p.epsilon) for p in rivals], resolution)
        named = [(min(p.epsilon, beyond), p.value, p.name + _level(p, rivals, resolution)) for p in frontier]
        _bars(ax, [min(p.epsilon, beyond) for p in frontier], frontier, "#333333")
        _name(ax, named, _marker(personal))
    ax.set_xscale("log")
    ax.set_xticks([*finite, beyond], [*(f"{epsilon:g}" for epsilon in finite), "none"])
    ax.minorticks_off()
    ax.set_xlabel("total ε; none: no privacy")
    _alone(ax, points)


def _against_bytes(ax: Axes, points: Sequence[ParetoPoint], resolution: Resolution) -> None:
    from matplotlib.ticker import EngFormatter, NullFormatter

    communicating = [point for point in points if point.size]
    named_places: set[tuple[str, int, int]] = set()  # names already written near a place
    for budget, color, members in _by_budget(communicating):
        label = "no privacy" if math.isinf(budget) else f"ε {quantity(budget, 2)}"
        ax.plot([p.size for p in members], [p.value for p in members], color=color, **DOTS)
        for personal in (False, True):
            rivals = [p for p in members if p.personal == personal]
            frontier = _frontier(rivals, [p.size for p in rivals], resolution)
            ax.plot([p.size for p in frontier], [p.value for p in frontier], color=color, linewidth=0.9,
                    linestyle="--" if personal else "-", label=None if personal else label)  # fmt: skip
            _bars(ax, [p.size for p in frontier], frontier, color)
            ends = [p for p, q in zip_longest(frontier, frontier[1:]) if not _beside(p, q)]
            fresh = [p for p in ends if _place(p) not in named_places]
            named_places |= {_place(p) for p in fresh}
            _name(ax, [(p.size, p.value, p.name) for p in fresh], _marker(personal), color)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(EngFormatter(unit="B"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("bytes of the run, both ways")
    _alone(ax, points)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _frontier(
    rivals: Sequence[ParetoPoint], costs: Sequence[float], resolution: Resolution
) -> list[ParetoPoint]:
    """Return the points that no other of at most their cost beats, and that are told from the cheaper ones."""
    places = [(cost, point.value) for cost, point in zip(costs, rivals, strict=True)]
    frontier: list[ParetoPoint] = []
    for point in (rivals[number] for number in edge(places, better_is_higher(resolution.measure))):
        if not frontier or resolution.apart(frontier[-1].cell, point.cell):
            frontier.append(point)
    return frontier


def _level(point: ParetoPoint, rivals: Sequence[ParetoPoint], resolution: Resolution) -> str:
    """Return how many others of a point's budget are not told from it, as a suffix of its name."""
    others = (p for p in rivals if p is not point and _budget(p.epsilon) == _budget(point.epsilon))
    level = sum(not resolution.apart(point.cell, other.cell) for other in others)
    return f" +{level}" if level else ""


def _bars(ax: Axes, x: Sequence[float], points: Sequence[ParetoPoint], color: str) -> None:
    """Draw the intervals of points that have one."""
    for place, reach in ((place, p.reach) for place, p in zip(x, points, strict=True) if p.reach):
        ends = [[reach.below], [reach.above]]
        ax.errorbar([place], [reach.mean], yerr=ends, color=color, linestyle="", elinewidth=0.9, alpha=0.7)


def _beside(point: ParetoPoint, better: ParetoPoint | None) -> bool:
    """Return whether the next point of a front sends hardly more, so that its name is enough."""
    return better is not None and better.size <= BESIDE * point.size


def _place(point: ParetoPoint) -> tuple[str, int, int]:
    """Return a name and a place in steps of a quarter in bytes and a hundredth in value."""
    return point.name, round(math.log(point.size) * 4), round(point.value * 100)


def _by_budget(points: Sequence[ParetoPoint]) -> list[tuple[float, str, list[ParetoPoint]]]:
    """Return every budget, the loosest first, with a color and its points; the last color is repeated."""
    members = grouped(points, lambda point: _budget(point.epsilon))
    colors = chain(COLORS, repeat(COLORS[-1]))
    return [
        (budget, color, members[budget])
        for budget, color in zip(sorted(members, reverse=True), colors, strict=False)
    ]


def _name(ax: Axes, named: Sequence[tuple[float, float, str]], marker: str, color: str = "#333333") -> None:
    """Write names beside their points."""
    for x, y, name in named:
        ax.plot([x], [y], linestyle="", marker=marker, markersize=6, color=color, markeredgecolor="white")
        name_point(ax, name, (x, y), color)


def _alone(ax: Axes, points: Sequence[ParetoPoint]) -> None:
    """Draw what sends nothing as a level line."""
    best: dict[str, float] = {}
    for point in points:
        if not point.size:
            best[point.name] = max(point.value, best.get(point.name, -math.inf))
    for name, value in best.items():
        ax.axhline(value, color="#999999", linestyle=(0, (4, 3)), linewidth=1)
        text = f"{name}: {'pooled data' if model_meta(name).get('pooled') else 'nothing sent'}"
        ax.annotate(text, (0.5, value), xycoords=("axes fraction", "data"), xytext=(0, 5), fontsize=7,
                    textcoords="offset points", va="center", ha="center", color="#666666")  # fmt: skip
