"""Accuracy of sensitive groups and of clients, for the best setting of each algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from harness.report.data.results import Cell, Results
from harness.report.plots.figure import (
    COLORS,
    QUIET,
    Pictures,
    best_of,
    canvas,
    legend_entries,
    panels_of,
    save,
    with_budgets,
)
from harness.report.tables.text import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = ("", "////", "....", "xx", "\\\\\\\\", "++", "oo", "--")
MOST_TASKS = 4
RATES = {"accuracy": "Accuracy of a group", "tpr": "True positive rate of a group"}
CLIENTS = {"client_accuracy": "mean of clients", "worst_client": "worst client"}
GRAYS = ("#555555", "#999999")  # of clients


class Bars(NamedTuple):
    """Data of one axes: title, colors, one row per bar and seed, and a note per algorithm."""

    title: str
    colors: Sequence[str]
    data: pd.DataFrame
    notes: dict[str, str]


def fairness(results: Results, path: Path) -> Pictures | None:
    """Draw accuracy and true positive rate of every sensitive group, and the clients' accuracies.

    Bars are means over seeds with one sample standard deviation, for the most accurate setting of each algorithm.
    Notes give the gap between the best and the worst group, and the spread over clients.

    Parameters
    ----------
    results : Results
        Runs; only finished runs are drawn.
    path : Path
        Where to write, without suffix.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None with fewer than two groups.
    """
    every = [(panel, with_budgets(best_of(panel))) for panel in panels_of(results, "accuracy")]
    tasks = [(panel, best, table) for panel, best in every if (table := _groups(best))["part"].nunique() > 1]
    if not tasks:
        return None
    drawn_tasks = tasks[:MOST_TASKS]
    rows = [
        [*(_rates(table, best, rate) for rate in RATES), _clients(best)] for _, best, table in drawn_tasks
    ]
    heights = [0.45 + 0.2 * max(len(bars.data[["algorithm", "part"]].drop_duplicates()) for bars in row)
               for row in rows]  # fmt: skip
    size = (13.2, sum(heights) + 1.1 * len(rows) + 0.4)
    with canvas(size, **{"axes.grid.axis": "x"}) as figure:
        parts = figure.subfigures(len(rows), 1, height_ratios=[h + 1.1 for h in heights], squeeze=False)[:, 0]
        for part, (panel, _, _), row in zip(parts, drawn_tasks, rows, strict=True):
            part.suptitle(" · ".join(panel.title.splitlines()), x=0.005, ha="left", fontsize=10)
            axes = part.subplots(1, len(row))
            for number, (ax, bars) in enumerate(zip(axes, row, strict=True)):
                _draw(ax, bars, named=number == 0)
            entries = legend_entries(axes)
            part.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=6, fontsize=8)
        note = "the most accurate setting of each algorithm; bars: one standard deviation over seeds"
        more = f"; {MOST_TASKS} of {len(tasks)} tasks" if len(tasks) > MOST_TASKS else ""
        return save(figure, path, note + more)


def _groups(best: dict[str, Cell]) -> pd.DataFrame:
    """Return rates of groups by algorithm, part and seed, the largest groups first, at most one per hatch."""
    rows = [
        (algorithm, str(row["group"]), run.seed, row["n"], *(row[rate] for rate in RATES))
        for algorithm, cell in best.items()
        for run in cell.done
        for row in run.record.final.get("groups") or []
    ]
    table = pd.DataFrame(rows, columns=["algorithm", "part", "seed", "n", *RATES])
    sizes = table.groupby("part", sort=False)["n"].max().sort_values(ascending=False, kind="stable")
    return table.set_index("part").loc[sizes[sizes > 0].index[: len(HATCHES)]].reset_index()


def _rates(table: pd.DataFrame, algorithms: Iterable[str], rate: str) -> Bars:
    """Return a rate of every group, and the gaps."""
    rates = table.dropna(subset=rate).rename(columns={rate: "value"}).astype({"value": "float64"})
    extremes = rates.groupby(["algorithm", "seed"])["value"].agg(["max", "min", "size"])
    gaps = (extremes["max"] - extremes["min"])[extremes["size"] > 1].groupby("algorithm").agg(list).to_dict()
    notes = {name: f"gap {spread(gaps[name], '.3f')}" if name in gaps else "" for name in algorithms}
    return Bars(RATES[rate], COLORS, rates, notes)


def _clients(best: dict[str, Cell]) -> Bars:
    """Return mean and worst of the clients' accuracies, and their spread."""
    rows, notes = [], {}
    for algorithm, cell in best.items():
        for measure, name in CLIENTS.items():
            rows += [(algorithm, name, value) for value in cell.values(measure).values()]
        deviation = spread(cell.values("client_std").values(), ".3f")
        notes[algorithm] = f"spread {deviation}" if deviation else ""
    return Bars(
        "Accuracy of a client", GRAYS, pd.DataFrame(rows, columns=["algorithm", "part", "value"]), notes
    )


def _draw(ax: Axes, bars: Bars, named: bool) -> None:
    """Draw bars from the left, one algorithm below the other, its parts together."""
    ax.set_title(bars.title, pad=8)
    ax.set_xlim(0, 1.5)  # the notes stand behind the bars
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    if bars.data.empty:
        ax.text(0.5, 0.5, "does not apply", ha="center", transform=ax.transAxes, **QUIET)
        ax.set_yticks([])
        return
    parts, algorithms = list(dict.fromkeys(bars.data["part"])), list(bars.notes)
    several = bars.data.groupby(["algorithm", "part"]).size().max() > 1
    grouped = bars.data.groupby(["algorithm", "part"])["value"]
    means, spreads = (
        table.unstack().reindex(index=algorithms, columns=parts) for table in (grouped.mean(), grouped.std())
    )
    width = 0.8 / len(parts)
    for number, (part, color, hatch) in enumerate(zip(parts, bars.colors, HATCHES, strict=False)):
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(algorithms))]
        errors = spreads[part] if several else None
        ax.barh(places, means[part], width, xerr=errors, color=color, hatch=hatch, label=part,
                edgecolor="white", linewidth=0.5, error_kw={"linewidth": 1.1, "color": "#222222"})  # fmt: skip
    ax.set_yticks(range(len(algorithms)), algorithms)
    ax.set_ylim(len(algorithms) - 0.5, -0.5)
    for place, algorithm in enumerate(algorithms):
        top = bars.data.loc[bars.data["algorithm"] == algorithm, "value"].max()
        if not math.isnan(top):
            ax.text(1.03, place, bars.notes[algorithm], va="center", fontsize=8)
    ax.tick_params(axis="y", length=0, labelleft=named)
