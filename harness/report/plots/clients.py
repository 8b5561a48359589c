"""Accuracy at every client that has a name, for the best setting of each algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from harness.report.data.clients import client_rows
from harness.report.data.results import Cell
from harness.report.plots.figure import Pictures, appearance, best_of, canvas, panels_of, save, with_budgets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.storage.store import RunRecord

MOST = 30  # clients
MOST_TASKS = 3
MOST_ALGORITHMS = 6


def named_clients(records: Iterable[RunRecord], path: Path) -> Pictures | None:
    """Draw the accuracy at every client on its own test samples.

    Markers are means over seeds with one sample standard deviation, for the most accurate setting of each
    algorithm. Of many clients those are drawn at which the best algorithm does worst.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records; only finished runs whose clients have names are drawn.
    path : Path
        Where to write, without suffix.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None without names.
    """
    tasks = []
    for panel in panels_of(records, "accuracy"):
        best = {
            name: accuracies
            for name, cell in with_budgets(best_of(panel)).items()
            if not (accuracies := _accuracies(cell)).empty
        }
        if best:
            tasks.append((panel, dict(list(best.items())[:MOST_ALGORITHMS])))
    drawn_tasks = tasks[:MOST_TASKS]
    if not drawn_tasks:
        return None
    clients = [_worst(best) for _, best in drawn_tasks]
    heights = [
        0.9 + 0.24 * len(names) + 0.2 * len(best)
        for names, (_, best) in zip(clients, drawn_tasks, strict=True)
    ]
    with canvas((7.2, sum(heights) + 0.3), **{"axes.grid.axis": "both"}) as figure:
        rows = figure.subplots(len(drawn_tasks), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, names, (panel, best) in zip(rows, clients, drawn_tasks, strict=True):
            _draw(ax, names, best)
            ax.set_title(" · ".join(panel.title.splitlines()), pad=8)
        note = "the most accurate setting of each algorithm; bars: one standard deviation over seeds"
        every = [len(next(iter(best.values()))) for _, best in drawn_tasks]
        note += f"; the {MOST} worst of {max(every)} clients" if max(every) > MOST else ""
        return save(figure, path, note)


def _accuracies(cell: Cell) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of the accuracy at every client."""
    table = client_rows(cell.done).astype({"accuracy": "float64"}).dropna(subset="accuracy")
    return table.groupby("client", sort=False)["accuracy"].agg(["mean", "std"]).fillna(0.0)


def _worst(best: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the clients to draw: all in their order, or those at which the first algorithm does worst."""
    means = next(iter(best.values()))["mean"]
    return list((means if len(means) <= MOST else means.nsmallest(MOST)).index)


def _draw(ax: Axes, names: list[str], best: Mapping[str, pd.DataFrame]) -> None:
    step = 0.6 / len(best)
    for number, (algorithm, table) in enumerate(best.items()):
        look = {**appearance(number), "linestyle": "none"}
        places = np.arange(len(names)) - 0.3 + step * (number + 0.5)
        values = table.reindex(names)
        ax.errorbar(values["mean"], places, xerr=values["std"], label=algorithm, elinewidth=0.9, **look)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("accuracy on the client's own test samples")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
