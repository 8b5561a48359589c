"""Fair methods under privacy: gaps between groups and the worst client, suite ``frontier``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from studies.results.boards import Boards, method_name
from studies.results.drawing import budget, legend, line, places
from studies.results.federations import Federation, both
from studies.results.figures import Figure
from studies.results.pages import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

GROUPS = {"adult": "sex", "insurance": "sex", "vote": "race"}  #: data -> sensitive groups
SUITE = "frontier"
TABLED = ("fedavg", "q_fedavg", "fedminmax")
METHODS = ("fedavg", "q_fedavg", "fedminmax", "fairfed")
MEASURES = {"auroc": "AUROC", "eqopp": "gap in equal\nopportunity", "worst_client": "accuracy of the\nworst client"}


def page(boards: Boards) -> Page:
    """Return what the page on fair methods is made from."""
    board = boards[SUITE]
    all_of = chosen(boards)
    made = Page("fairness", (board,), size=(7.5, 6.0))
    made.draw = lambda figure: draw(figure, all_of)
    rows: dict[str, dict[str, Any]] = {}
    for each in all_of:
        for algorithm in METHODS:
            cells = {}
            for epsilon in (None, *each.budgets):
                row = each.row(algorithm, epsilon)
                if row is not None:
                    cells[f"AUROC, {budget(epsilon)}"] = row.mean("auroc").share()
                    cells[f"gap, {budget(epsilon)}"] = row.mean("eqopp").share()
                    cells[f"worst client, {budget(epsilon)}"] = row.mean("worst_client").share()
            label = f"{each.data}, {method_name(algorithm)}"
            made.figures |= {f"{label}, {column}": figure for column, figure in cells.items()}
            if cells and algorithm in TABLED:
                rows[label] = cells
    columns = [f"{measure}, {budget(epsilon)}" for measure in ("AUROC", "gap") for epsilon in (None, 8.0, 2.0)]
    made.table("table", "data, method", columns, rows)
    return made


def chosen(boards: Boards) -> list[Federation]:
    """Return the federations of the suite that have groups and a trusted server."""
    return [
        each for each in both(boards) if each.board.suite == SUITE and each.data in GROUPS and not each.own_noise
    ]


def draw(figure: Canvas, all_of: list[Federation]) -> None:
    """Draw three measures by budget: a column of panels for each federation."""
    axes = figure.subplots(len(MEASURES), len(all_of), sharey="row", squeeze=False)
    for across, each in enumerate(all_of):
        budgets = (None, *each.budgets)
        for down, (measure, title) in enumerate(MEASURES.items()):
            ax = axes[down][across]
            for number, algorithm in enumerate(METHODS):
                points: dict[int, Figure] = {
                    place: row.mean(measure)
                    for place, epsilon in enumerate(budgets)
                    if (row := each.row(algorithm, epsilon)) is not None
                }
                line(ax, points, number, method_name(algorithm))
            places(ax, list(map(budget, budgets)))
            if across == 0:
                ax.set_ylabel(title)
        axes[0][across].set_title(f"{each.data}, {each.units},\nby {GROUPS[each.data]}", fontsize=9)
    legend(figure, list(axes.flat), axes.size)
