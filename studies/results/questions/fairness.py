"""Fair methods under privacy: gaps between groups and the worst client, suite ``frontier``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from studies.results.boards import Boards, method_name
from studies.results.drawing import budget, legend, line, places
from studies.results.federations import Federation, of_suite
from studies.results.pages import Cells, Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUITE = "frontier"
GROUPS = {"adult": "sex"}  #: data -> sensitive groups
METHODS = ("fedavg", "q_fedavg", "fedminmax", "fairfed")
BUDGETS = (8.0, 2.0, 1.0)
MEASURES = {"AUROC": "auroc", "gap": "eqopp", "worst client": "worst_client"}
TITLES = ("AUROC", "gap in equal\nopportunity", "accuracy of the\nworst client")


def page(boards: Boards) -> Page:
    """Return what the page on fair methods is made from."""
    grouped = [each for each in of_suite(boards[SUITE]) if each.data in GROUPS and not each.own_noise]
    made = Page("fairness", [boards[SUITE]], size=(7.5, 2.2 * len(grouped) + 0.9))
    made.draw = lambda figure: draw(figure, grouped)
    rows: Cells = {}
    for each in grouped:
        for algorithm in METHODS:
            label = f"{each.data}, {method_name(algorithm)}"
            cells = {
                f"{name}, {budget(epsilon)}": row.mean(measure).share()
                for epsilon in (None, *each.budgets)
                if (row := each.row(algorithm, epsilon))
                for name, measure in MEASURES.items()
            }
            made.values |= {f"{label}, {column}": value for column, value in cells.items()}
            if cells:
                rows[label] = {**cells}
    columns = [f"{name}, {budget(epsilon)}" for name in ("AUROC", "gap") for epsilon in (None, *BUDGETS)]
    made.table("table", "data, method", columns, rows)
    return made


def draw(figure: Figure, grouped: Sequence[Federation]) -> None:
    """Draw three measures by budget: a row of panels for each federation."""
    axes = figure.subplots(len(grouped), len(MEASURES), squeeze=False)
    for down, each in enumerate(grouped):
        budgets = (None, *each.budgets)
        for ax, measure, title in zip(axes[down], MEASURES.values(), TITLES, strict=True):
            for number, algorithm in enumerate(METHODS):
                rows = {place: each.row(algorithm, epsilon) for place, epsilon in enumerate(budgets)}
                points = {place: row.mean(measure) for place, row in rows.items() if row}
                line(ax, points, number, method_name(algorithm), side_by_side=len(METHODS))
            places(ax, [budget(epsilon) for epsilon in budgets])
            ax.set_title(title, fontsize=9)
        axes[down][0].set_ylabel(f"{each.data}, {each.units},\nby {GROUPS[each.data]}")
    legend(figure, list(axes.flat), axes.size)
