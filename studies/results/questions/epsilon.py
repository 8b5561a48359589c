"""What ε costs: suites ``natural`` and ``frontier``; also the front page's picture and table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from studies.results.boards import Boards
from studies.results.drawing import budget, legend, line, places
from studies.results.federations import SUITES, Federation, federations
from studies.results.figures import Figure, count
from studies.results.pages import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

KINDS = {
    "one linear model (FedAvg)": ("fedavg", "logistic"),
    "one network (FedAvg)": ("fedavg", "mlp"),
    "one linear model, control variates (SCAFFOLD)": ("scaffold", "logistic"),
    "a linear model for each client (APFL)": ("apfl", "logistic"),
}  #: kind of method -> its representative, fixed beforehand, and the model
ACROSS = 4
TICKS = (0, -1, -2, -5, -10, -20, -40)


def page(boards: Boards) -> Page:
    """Return what the page on the cost of a budget is made from."""
    all_of = federations(boards)
    down = math.ceil(len(all_of) / ACROSS)
    made = Page("epsilon", [boards[suite] for suite in SUITES], size=(7.5, 2.0 * down + 0.9))
    made.draw = lambda figure: draw(figure, all_of)
    budgets = sorted({epsilon for each in all_of for epsilon in each.budgets}, reverse=True)
    rows: dict[str, Any] = {}
    for each in all_of:
        free = each.row("fedavg", None)
        assert free is not None
        made.figures[f"{each.name}, number"] = count(each.clients, [free.id])
        rows[each.name] = {"clients": each.units, "no privacy": free.mean("auroc").share()}
        for epsilon, change in costs(each, *KINDS["one linear model (FedAvg)"]).items():
            rows[each.name][f"ε {epsilon:g}"] = change.points()
    made.table("table", "data", ["clients", "no privacy", *(f"ε {epsilon:g}" for epsilon in budgets)], rows)
    trusting = [rows[each.name] for each in all_of if not each.own_noise]
    for epsilon in budgets:
        changes = [cells[f"ε {epsilon:g}"] for cells in trusting if f"ε {epsilon:g}" in cells]
        if changes:
            made.figures[f"least, ε {epsilon:g}"] = max(changes, key=lambda figure: figure.value)
            made.figures[f"most, ε {epsilon:g}"] = min(changes, key=lambda figure: figure.value)
    made.figures["federations"] = count(len(all_of))
    return made


def costs(federation: Federation, algorithm: str, model: str) -> dict[float, Figure]:
    """Return budget -> change of AUROC from the same method without privacy."""
    free = federation.row(algorithm, None, model)
    rows = {epsilon: federation.row(algorithm, epsilon, model) for epsilon in federation.budgets}
    if free is None:
        return {}
    return {epsilon: row.mean("auroc") - free.mean("auroc") for epsilon, row in rows.items() if row is not None}


def draw(figure: Canvas, all_of: list[Federation]) -> None:
    """Draw the change of AUROC by budget, a panel for each federation, all on one scale."""
    axes = list(figure.subplots(math.ceil(len(all_of) / ACROSS), ACROSS, sharey=True, squeeze=False).flat)
    lowest = 0.0
    for ax, each in zip(axes, all_of, strict=False):
        for number, (kind, (algorithm, model)) in enumerate(KINDS.items()):
            changes = costs(each, algorithm, model)
            line(ax, {place: changes[epsilon] for place, epsilon in enumerate(each.budgets) if epsilon in changes},
                 number, kind, scale=100)  # fmt: skip
            lowest = min([lowest, *(100 * change.value for change in changes.values())])
        ax.axhline(0, color="black", linewidth=0.8)
        places(ax, [budget(epsilon) for epsilon in each.budgets])
        free = each.row("fedavg", None)
        assert free is not None
        ax.set_title(f"{each.name}: {free.mean('auroc').share().forms[1]}\n{each.units}", fontsize=8.5)
    axes[0].set_yscale("symlog", linthresh=1, linscale=0.6)
    axes[0].set_yticks(TICKS, [f"{-tick}" for tick in TICKS])
    axes[0].set_ylim(1.25 * lowest, 1)
    for ax in axes[::ACROSS]:
        ax.set_ylabel("points lost")
    legend(figure, axes, len(all_of))
