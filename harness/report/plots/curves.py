"""Learning curves: a measure against the round or the bytes sent so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.report.data.results import Cell, Results
from harness.report.plots.figure import (
    FALLBACK,
    Panel,
    Pictures,
    label_axes,
    panels_of,
    reduce_panels,
    write_pictures,
)
from harness.report.plots.methods import Styles
from harness.report.tables.rows import board_of
from harness.report.tables.text import distinguishing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Measures that curves are drawn against, and their axes.
BELOW = {"round": "round", "bytes": "bytes sent so far, both ways"}


def draw_curves(
    results: Results,
    path: Path,
    metric: str = "accuracy",
    against: str = "round",
    *,
    along: str | None = None,
    fallback: tuple[str, ...] = FALLBACK,
) -> Pictures | None:
    """Draw a measure during training: the mean over seeds and a band of one sample standard deviation.

    There is one line per cell, or per algorithm if a panel has too many cells.

    Parameters
    ----------
    results : Results
        Runs; only finished runs are drawn.
    path : Path
        Where to write, without suffix.
    metric : str
        Metric to draw.
    against : {"round", "bytes"}
        What stands below.
    along : str, optional
        A setting such as ``compression.alpha``, or a section: runs that differ only in it share a panel. By default
        all runs of a task share a panel.
    fallback : tuple of str
        Tasks without `metric` show the first of these that applies; without any they are omitted.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None when there is nothing to draw.
    """
    panels, cut = reduce_panels(panels_of(results, metric, fallback, along))
    names = (
        names_of(results)
        if along is None
        else {key: name for panel in panels for key, name in _names_along(panel.cells, along).items()}
    )
    # With one line per algorithm its style does not depend on the setting.
    kinds = {c.key: c.algorithm if cut else names[c.key] for p in panels for c in p.cells}
    styles = Styles(results, panels, ((c.algorithm, kinds[c.key]) for p in panels for c in p.cells))

    def draw(ax: Axes, panel: Panel) -> None:
        moving = False
        for cell in panel.cells:
            look = styles.of(cell.algorithm, kinds[cell.key])
            moving |= _draw_line(ax, _tidy(cell, panel.metric, against), names[cell.key], look, against)
        label_axes(ax, panel, BELOW[against], "log" if moving and against != "round" else "linear")

    return write_pictures(panels, draw, path, "the best setting of each algorithm" if cut else "", apart=cut)


def _draw_line(ax: Axes, data: pd.DataFrame, label: str, look: Mapping[str, Any], against: str) -> bool:
    """Draw the line of a cell; return whether it moves along the axis, as what sends nothing does not."""
    moving = data if against == "round" else data[data["x"] > 0]
    if moving.empty:  # no communication: a level line, as a logarithmic axis has no zero
        last = data.loc[data["round"] == data["round"].max(), "y"].mean()
        ax.axhline(last, color=look["color"], linestyle=look["linestyle"], label=label)
        return False
    every = max(1, moving["x"].nunique() // 8)
    at = moving.groupby("x")["y"]
    mean, spread = at.mean(), at.std()
    ax.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.15)
    ax.plot(mean.index, mean, label=label, markevery=every, **look)
    return True


def _tidy(cell: Cell, metric: str, against: str) -> pd.DataFrame:
    """Return one row per seed and evaluation: round, x, y."""
    points = [
        (at, x, y)
        for run in cell.done
        for at, x, y in zip(run.curve("round"), run.curve(against), run.curve(metric), strict=True)
        if y is not None
    ]
    data = pd.DataFrame(points, columns=["round", "x", "y"]).astype(float)
    # Seeds may differ slightly in the bytes of a round; use their mean.
    return data.assign(x=data.groupby("round")["x"].transform("mean"))


def names_of(results: Results) -> dict[str, str]:
    """Return cell -> algorithm and variant, for the legend."""
    board = board_of(results)
    variant = board.variants()
    return {r["cell"]: f"{r['algorithm']} {_shorten(variant[r['cell']])}".strip() for r in board.rows}


def _names_along(panel: Sequence[Cell], along: str) -> dict[str, str]:
    """Return cell -> algorithm and its values of the settings `along` which the cells of a panel differ."""
    # Algorithms have alphas and betas too.
    short_names = {"compression.alpha": "pruned", "compression.beta": "dropped"}
    inside = {
        cell.key: [
            f"{short_names.get(name, name.rpartition('.')[2])}={value}"
            for name, value in cell.settings.items()
            if name == along or name.startswith(f"{along}.")
        ]
        for cell in panel
    }
    traits = distinguishing({key: ("", settings) for key, settings in inside.items()})
    return {c.key: f"{c.algorithm} {_shorten(' '.join(traits[c.key]))}".strip() for c in panel}


def _shorten(text: str, longest: int = 64) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
