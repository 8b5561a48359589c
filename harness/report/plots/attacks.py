"""Cost and benefit of protection: a measure plotted against the success of attacks."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from harness.core.units import counted
from harness.metrics import better_is_higher
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import is_coded, largest_ratio
from harness.report.plots.figure import (
    COLORS,
    MARKERS,
    Pictures,
    canvas,
    extrapolation_note,
    legend_entries,
    mean_and_spread,
    panel_axes,
    save,
    write_title,
)
from harness.report.plots.labels import keep_apart, name_point
from harness.report.tables.text import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Measure -> what is on the axis, and what guessing gives: a number, or the measure that holds it.
DRAWN: dict[str, tuple[str, float | str]] = {
    "lira_auc": ("membership by the final model (LiRA, AUC)", 0.5),
    "transcript_auc": ("membership by messages (AUC)", 0.5),
    "inversion_error": ("error of reconstructed samples\n(1: as good as the mean of all)", 1.0),
    "labels_accuracy": ("labels inferred by a party (share)", "labels_blind"),
}
KINDS = ("nothing", "pruned units", "dropped entries", "coarser numbers", "local noise", "central noise",
         "distributed noise", "noise for a record", "noise for a user", "several")  # fmt: skip
PALETTE = ("#333333", *(color for color in COLORS if color != "#333333"), "#999933", "#AA4499")
PANELS_A_ROW = 2
MOST_PANELS = 8
FEWEST = 3  # cells of a panel


def attacks(results: Results, path: Path, by: str) -> Pictures | None:
    """Draw the success of attacks against a measure of the model, a panel for each attack and task.

    Points are means over seeds, with bars of one sample standard deviation. A dashed line is what guessing
    gives. Axes point so that better protected cells are lower and better models further right.

    Parameters
    ----------
    results : Results
        Runs; only finished runs are drawn.
    path : Path
        Where to write, without suffix.
    by : str
        The measure of the model.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None without a task with three cells that were attacked.
    """
    tasks = grouped(results.cells, lambda cell: cell.shared_key(("privacy", "compression")))
    panels = []
    for cells in tasks.values():
        for measure in DRAWN:
            measured = [cell for cell in cells if cell.values(measure) and cell.values(by)]
            if len(measured) >= FEWEST:
                panels.append((measure, measured))
    if not panels:
        return None
    drawn_panels = panels[:MOST_PANELS]
    rows = math.ceil(len(drawn_panels) / PANELS_A_ROW)
    with canvas((13.5, 4.4 * rows + 0.9)) as figure:
        axes = panel_axes(figure, rows, PANELS_A_ROW, len(drawn_panels))
        for ax, (measure, cells) in zip(axes, drawn_panels, strict=True):
            _draw(ax, measure, cells, by)
        handles = legend_entries(axes)
        kinds = [kind for kind in KINDS if kind in handles]
        shown_kinds = [handles[kind] for kind in kinds]
        figure.legend(shown_kinds, kinds, loc="outside upper left", ncols=len(kinds), fontsize=8)
        figure.draw_without_rendering()  # finds where everything stands
        for ax in axes:
            keep_apart(ax)
        note = "means over seeds, bars: one standard deviation; dashed: as good as guessing"
        note += f"; {len(drawn_panels)} of {len(panels)} panels" if len(panels) > len(drawn_panels) else ""
        more = extrapolation_note(cell for _, cells in drawn_panels for cell in cells)
        return save(figure, path, "; ".join(filter(None, [note, more])))


def _draw(ax: Axes, measure: str, cells: list[Cell], by: str) -> None:
    points = pd.DataFrame(
        [(*_protection(cell), *mean_and_spread(cell, by), *mean_and_spread(cell, measure)) for cell in cells],
        columns=["name", "kind", "x", "x_spread", "y", "y_spread"],
    )
    for kind, color, marker in zip(KINDS, PALETTE, MARKERS, strict=False):
        own = points[points["kind"] == kind]
        if own.empty:
            continue
        ax.errorbar(own["x"], own["y"], xerr=own["x_spread"], yerr=own["y_spread"], linestyle="", marker=marker,
                    elinewidth=0.7, color=color, label=kind)  # fmt: skip
        for name, x, y in zip(own["name"], own["x"], own["y"], strict=True):
            name_point(ax, name, (x, y), color)
    text, blind = DRAWN[measure]
    level = blind if isinstance(blind, float) else fmean(v for c in cells for v in c.values(blind).values())
    ax.axhline(level, color="#666666", linestyle="--", linewidth=0.9)
    if better_is_higher(measure):
        ax.invert_yaxis()
    ax.set_xlabel(words(by))
    ax.set_ylabel(text)
    first = cells[0]
    steps = first.given.get("algorithm.local_steps")
    size = first.given.get("algorithm.batch_size")
    beside = f", {counted(steps, 'local step')} of {counted(size, 'sample')}" if steps else ""
    write_title(ax, f"{first.data} · {first.algorithm}{beside}")


def _protection(cell: Cell) -> tuple[str, str]:
    """Return name and kind of a cell's protection."""
    claim, compression = cell.privacy(), cell.spec.get("compression") or {}
    parts: list[tuple[str, str]] = []
    if claim is not None:
        epsilon = claim.get("epsilon_total")
        finite = epsilon is not None and math.isfinite(epsilon)
        within_client = claim["unit"] != "client"
        placement = f"noise for a {claim['unit']}" if within_client else f"{claim['placement']} noise"
        parts.append((f"ε {float(f'{epsilon:.2g}'):,g}" if finite else "clip", placement))
    for name, kind in (("alpha", "pruned units"), ("beta", "dropped entries")):
        if ratio := largest_ratio(compression.get(name)):
            parts.append((f"{100 * ratio:.3g} %", kind))
    if is_coded(compression):
        parts.append((str(compression["codec"]), "coarser numbers"))
    if not parts:
        return "none", "nothing"
    return " ".join(name for name, _ in parts), parts[0][1] if len(parts) == 1 else "several"
