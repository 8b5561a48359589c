"""A measure at every client that has a name, for the best setting of each algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from harness.metrics import better_is_higher
from harness.report.data.clients import MEASURES, client_rows
from harness.report.data.results import Cell, Results
from harness.report.plots.figure import Panel, Pictures, best_of, canvas, panels_of, save, with_budgets
from harness.report.plots.methods import Styles
from harness.report.tables.text import in_sentence, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 30  # clients
MOST_TASKS = 3
MOST_ALGORITHMS = 6


class ClientPanel(NamedTuple):
    """A panel of a figure.

    Attributes
    ----------
    panel : Panel
        The task; its measure chose the settings.
    measure : str
        What is drawn: the measure of the panel if clients have it, else accuracy.
    best : dict[str, Cell]
        Label -> cell.
    tables : dict[str, DataFrame]
        Label -> mean and standard deviation over seeds by client.
    """

    panel: Panel
    measure: str
    best: dict[str, Cell]
    tables: dict[str, pd.DataFrame]

    @property
    def title(self) -> str:
        """Title, which says so if clients do not have the measure that ranks."""
        title = " · ".join(self.panel.title.splitlines())
        if self.measure == self.panel.metric:
            return title
        return f"{title}\n{words(self.measure)}, as clients have no {in_sentence(self.panel.metric)}"

    def clients(self) -> list[str]:
        """Return the clients to draw: all in their order, or those at which the first algorithm does worst."""
        means = next(iter(self.tables.values()))["mean"]
        if len(means) <= MOST:
            return list(means.index)
        worst = means.nsmallest if better_is_higher(self.measure) else means.nlargest
        return list(worst(MOST).index)


def named_clients(results: Results, path: Path, metric: str = "accuracy") -> Pictures | None:
    """Draw a measure at every client on its own test samples.

    Markers are means over seeds with one sample standard deviation, for the best setting of each algorithm. Of many
    clients those are drawn at which the best algorithm does worst.

    Parameters
    ----------
    results : Results
        Runs; only finished runs whose clients have names are drawn.
    path : Path
        Where to write, without suffix.
    metric : str
        The measure. Where clients do not have it the picture shows their accuracy and says so.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None without names.
    """
    panels = [_client_panel(panel) for panel in panels_of(results, metric)]
    tasks = [panel for panel in panels if panel.tables][:MOST_TASKS]
    if not tasks:
        return None
    clients = [task.clients() for task in tasks]
    lines = [(task.best[name].algorithm, name) for task in tasks for name in task.tables]
    styles = Styles(results, [task.panel for task in tasks], lines)
    heights = [
        0.9 + 0.24 * len(names) + 0.2 * len(task.tables) for names, task in zip(clients, tasks, strict=True)
    ]
    with canvas((7.2, sum(heights) + 0.3), **{"axes.grid.axis": "both"}) as figure:
        rows = figure.subplots(len(tasks), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, names, task in zip(rows, clients, tasks, strict=True):
            _draw(ax, names, task, styles)
            ax.set_title(task.title, pad=8)
        note = "the best setting of each algorithm; bars: one standard deviation over seeds"
        every = [len(next(iter(task.tables.values()))) for task in tasks]
        note += f"; the {MOST} worst of {max(every)} clients" if max(every) > MOST else ""
        return save(figure, path, note)


def _client_panel(panel: Panel) -> ClientPanel:
    """Return what to draw of a task; without tables where its clients have no names."""
    best = with_budgets(best_of(panel))
    rows = {name: client_rows(cell.done) for name, cell in best.items()}
    has_measure = panel.metric in MEASURES and any(
        table[panel.metric].notna().any() for table in rows.values()
    )
    measure = panel.metric if has_measure else "accuracy"
    tables = {name: _over_seeds(table, measure) for name, table in rows.items()}
    drawn = [name for name, table in tables.items() if not table.empty][:MOST_ALGORITHMS]
    return ClientPanel(panel, measure, best, {name: tables[name] for name in drawn})


def _over_seeds(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of a measure at every client that has it."""
    table = rows.astype({measure: "float64"}).dropna(subset=measure)
    return table.groupby("client", sort=False)[measure].agg(["mean", "std"]).fillna(0.0)


def _draw(ax: Axes, names: list[str], task: ClientPanel, styles: Styles) -> None:
    step = 0.6 / len(task.tables)
    for number, (name, table) in enumerate(task.tables.items()):
        look = {**styles.of(task.best[name].algorithm, name), "linestyle": "none"}
        places = np.arange(len(names)) - 0.3 + step * (number + 0.5)
        values = table.reindex(names)
        ax.errorbar(values["mean"], places, xerr=values["std"], label=name, elinewidth=0.9, **look)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel(f"{words(task.measure)} on the client's own test samples")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)
