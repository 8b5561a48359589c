"""Heat maps of all algorithms under all budgets and pruning ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from harness.metrics import better_is_higher
from harness.report.data.budgets import Budget, budget_of
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import largest_ratio, part_name
from harness.report.plots.figure import Pictures, canvas, extrapolation_note, save, settings_beside
from harness.report.tables.text import distinguishing, without_section, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, COLUMN = 0.21, 0.36  # inches
LABELS, GAP = 2.3, 0.5


class MapColumn(NamedTuple):
    """A pruning ratio of messages, and a budget."""

    beta: float
    budget: Budget


def overview(results: Results, path: Path, measures: Sequence[str]) -> Pictures | None:
    """Draw measures of every algorithm under every budget and ratio of message pruning: means over seeds.

    Rows are cells that differ in privacy and beta only, in groups of one task, the best without privacy first.
    Columns are budgets, none first, for every beta. Lighter is better. A cell without a finished run is empty, one
    that was refused or failed is crossed out.

    Parameters
    ----------
    results : Results
        Runs.
    path : Path
        Where to write, without suffix.
    measures : sequence of str
        A map for each that any cell has.

    Returns
    -------
    tuple[Path, Path] or None
        The PNG and the SVG; None when there is nothing to draw.
    """
    rows = grouped(results.cells, _row)
    # What never was done (all its cells were refused) has no row to compare; the table says why.
    rows = {key: cells for key, cells in rows.items() if any(cell.done for cell in cells)}
    columns = sorted({_column(cell) for cells in rows.values() for cell in cells}, key=_order)
    measured = [cell for cells in rows.values() for cell in cells]
    measures = [measure for measure in measures if any(cell.values(measure) for cell in measured)]
    if not measures or len(columns) < 2:
        return None
    names = _names(rows)
    order = sorted(rows, key=lambda key: (_task(rows[key][0]), _rank(rows[key], measures[0])))

    width = LABELS + len(measures) * (len(columns) * COLUMN + GAP)
    with canvas((width, len(order) * ROW + 1.4), **{"axes.grid": False}) as figure:
        axes = list(figure.subplots(1, len(measures), squeeze=False).flat)
        for place, (ax, measure) in enumerate(zip(axes, measures, strict=True)):
            _draw(ax, measure, [rows[key] for key in order], columns)
            ax.set_yticks(
                [n + 0.5 for n in range(len(order))], [names[key] for key in order], fontsize=7.5, rotation=0
            )
            ax.tick_params(axis="y", length=0, labelleft=place == 0)
            tasks = [_task(rows[key][0]) for key in order]
            for n in range(1, len(order)):
                if tasks[n] != tasks[n - 1]:
                    ax.axhline(n, color="white", linewidth=3)
        note = "means over seeds; lighter is better; crossed out: refused or failed; empty: does not apply"
        return save(figure, path, "; ".join(filter(None, [note, extrapolation_note(measured)])))


def _draw(ax: Axes, measure: str, rows: Sequence[Sequence[Cell]], columns: Sequence[MapColumn]) -> None:
    import seaborn as sns

    table = pd.DataFrame(
        [[_value(cells, column, measure) for column in columns] for cells in rows], dtype=float
    )
    texts = table.map(lambda value: "" if math.isnan(value) else f"{value:.2f}".lstrip("0"))
    colors = "viridis" if better_is_higher(measure) else "viridis_r"
    sns.heatmap(
        table, ax=ax, cmap=colors, annot=texts, fmt="", annot_kws={"size": 6}, cbar=False, linewidths=0.3
    )
    for y, row_cells in enumerate(rows):
        for x, column in enumerate(columns):
            if _refused([cell for cell in row_cells if _column(cell) == column]):
                ax.plot([x + 0.3, x + 0.7], [y + 0.3, y + 0.7], color="#999999", linewidth=0.8)
                ax.plot([x + 0.3, x + 0.7], [y + 0.7, y + 0.3], color="#999999", linewidth=0.8)
    labels = ["none" if math.isinf(c.budget.epsilon) else f"{c.budget.epsilon:g}" for c in columns]
    ax.set_xticks([n + 0.5 for n in range(len(columns))], labels, fontsize=7, rotation=0)
    ax.tick_params(axis="x", length=0)
    betas = [column.beta for column in columns]
    for n, beta in enumerate(betas):
        if n and betas[n - 1] != beta:
            ax.axvline(n, color="white", linewidth=3)
        if not n or betas[n - 1] != beta:
            ax.annotate(f"beta {beta:g}", (n + 0.1, 0), xytext=(0, 2), textcoords="offset points", fontsize=7.5,
                        va="bottom")  # fmt: skip
    ax.set_title(words(measure), pad=16)
    ax.set_xlabel("ε asked for", fontsize=8)


def _refused(cells: Sequence[Cell]) -> bool:
    """Return whether there is nothing of some cells because they were refused or failed."""
    statuses = {record.status for cell in cells for record in cell.records}
    return not any(cell.done for cell in cells) and bool(statuses & {"skipped", "failed", "damaged"})


def _column(cell: Cell) -> MapColumn:
    return MapColumn(largest_ratio((cell.spec.get("compression") or {}).get("beta")) or 0.0, budget_of(cell))


def _order(column: MapColumn) -> tuple[float, str, float]:
    return column.beta, column.budget.kind, -column.budget.epsilon


def _row(cell: Cell) -> tuple[str, ...]:
    """Return all settings of a cell but its budget and its pruning ratio."""
    return settings_beside(cell, "privacy", "compression.beta", "compression.error_feedback")


def _task(cell: Cell) -> tuple[str, ...]:
    return tuple(str(part_name(cell.spec.get(part))) for part in ("data", "problem", "model"))


def _names(rows: Mapping[tuple[str, ...], Sequence[Cell]]) -> dict[tuple[str, ...], str]:
    """Return the label of every row: its algorithm, and the traits that distinguish its task and settings."""
    tasks = {key: _task(cells[0]) for key, cells in rows.items()}
    parts = [n for n in range(3) if len({task[n] for task in tasks.values()}) > 1]
    labels = {
        key: (", ".join([cells[0].algorithm, *(tasks[key][n] for n in parts)]), key)
        for key, cells in rows.items()
    }
    return {
        key: ", ".join([labels[key][0], *(without_section(item).replace("=", " ", 1) for item in traits)])
        for key, traits in distinguishing(labels).items()
    }


def _value(cells: Sequence[Cell], column: MapColumn, measure: str) -> float:
    values = [v for cell in cells if _column(cell) == column for v in cell.values(measure).values()]
    return fmean(values) if values else math.nan


def _rank(cells: Sequence[Cell], measure: str) -> float:
    """Return the sort key of a row in its task: its best value without privacy, unpruned if there is one."""
    plain: list[Any] = [cell for cell in cells if math.isinf(budget_of(cell).epsilon)] or list(cells)
    first = min(plain, key=lambda cell: _column(cell).beta)
    return -first.score(measure) if first.values(measure) else math.inf
