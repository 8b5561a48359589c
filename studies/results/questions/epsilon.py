"""The cost of a budget on every federation; picture and table of the front page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from studies.results.boards import Boards
from studies.results.drawing import budget, legend, line, places
from studies.results.federations import SUITES, Federation, federations
from studies.results.pages import Cells, Page
from studies.results.questions.methods import TWIN
from studies.results.values import Value, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "one linear model (FedAvg)": ("fedavg", "logistic"),
    "one network (FedAvg)": ("fedavg", "mlp"),
    "one linear model, control variates (SCAFFOLD)": ("scaffold", "logistic"),
    "a network with a last layer for each client (FedRep)": ("fedrep", "mlp"),
}  #: kind of method -> its representative, fixed beforehand, and the model
SAMPLES, SKEW = "samples a client", "skew"
EQUAL = "equal weights, no noise"
ACROSS = 4
TICKS = (0, -1, -2, -5, -10, -20, -40)


def page(boards: Boards) -> Page:
    """Return what the page on the cost of a budget is made from."""
    all_of = federations(boards)
    height = 2.0 * math.ceil(len(all_of) / ACROSS) + 0.9
    used = [boards[suite] for suite in SUITES if any(each.board.suite == suite for each in all_of)]
    made = Page("epsilon", used, size=(7.5, height))
    made.draw = lambda figure: draw(figure, all_of)
    rows: Cells = {}
    for each in all_of:
        changes = {budget(epsilon): change.points() for epsilon, change in costs(each, "fedavg").items()}
        if each.equal:
            changes[EQUAL] = (each.equal.mean("auroc") - each.free.mean("auroc")).points()
        rows[each.name] = {
            "clients": each.units,
            SAMPLES: f"{each.shape.samples:,.0f}",
            SKEW: f"{each.shape.skew:.2f}",
            "no privacy": each.free.mean("auroc").share(),
            **changes,
        }
        made.values[f"{each.name}, number"] = count(each.clients, [each.free.id])
        if other := each.row("scaffold", None):
            behind = each.free.mean("auroc") - other.mean("auroc")
            made.values[f"{each.name}, SCAFFOLD behind, none"] = behind.points()
    budgets = sorted({epsilon for each in all_of for epsilon in each.budgets}, reverse=True)
    columns = ["clients", SAMPLES, SKEW, "no privacy", EQUAL, *map(budget, budgets)]
    made.table("table", "data", [name for name in columns if any(name in row for row in rows.values())], rows)
    real = [each for each in all_of if each.board.suite == "natural" and not each.own_noise]
    shared = [epsilon for epsilon in budgets if all(epsilon in each.budgets for each in real)]
    front = {each.name: rows[each.name] for each in real}
    made.table("front", "data", ["clients", "no privacy", *map(budget, shared)], front)
    made.values["real federations"] = count(len(real))
    for epsilon in shared:
        ordered = sorted((costs(each, "fedavg")[epsilon] for each in real), key=lambda change: -change.number)
        made.values[f"least, {budget(epsilon)}"] = ordered[0].points()
        made.values[f"most, {budget(epsilon)}"] = ordered[-1].points()
        again = [costs(each, TWIN)[epsilon] for each in real if epsilon in costs(each, TWIN)]
        if again:
            made.values[f"most again, {budget(epsilon)}"] = min(
                again, key=lambda change: change.number
            ).points()
    made.values |= dict(sureness(all_of))
    return made


def sureness(all_of: Sequence[Federation]) -> Iterator[tuple[str, Value]]:
    """Yield how far apart one method is from itself under another name, over all federations and budgets."""
    apart = []
    for each in all_of:
        for epsilon in (None, *each.budgets):
            row, twin = each.row("fedavg", epsilon), each.row(TWIN, epsilon)
            if row and twin:
                apart.append(abs(100 * (row.mean("auroc") - twin.mean("auroc")).number))
    if apart:
        yield "one method twice, largest", Value(max(apart), text=f"{max(apart):.1f}")
        yield "one method twice, below 1.5", count(sum(points < 1.5 for points in apart))
        yield "one method twice, cells", count(len(apart))


def costs(federation: Federation, algorithm: str, model: str = "logistic") -> dict[float, Value]:
    """Return budget -> change of AUROC from the same method without privacy."""
    free = federation.row(algorithm, None, model)
    rows = {epsilon: federation.row(algorithm, epsilon, model) for epsilon in federation.budgets}
    return {epsilon: row.of_privacy(free, "auroc") for epsilon, row in rows.items() if row and free}


def draw(figure: Figure, all_of: Sequence[Federation]) -> None:
    """Draw the change of AUROC by budget, a panel for each federation, all on one scale."""
    down = math.ceil(len(all_of) / ACROSS)
    axes = list(figure.subplots(down, ACROSS, sharey=True, squeeze=False).flat)
    lowest = -1.0
    for ax, each in zip(axes, all_of, strict=False):
        for number, (kind, (algorithm, model)) in enumerate(KINDS.items()):
            changes = costs(each, algorithm, model)
            points = {place: changes[e] for place, e in enumerate(each.budgets) if e in changes}
            line(ax, points, number, kind, scale=100)
            lowest = min([lowest, *(100 * change.number for change in changes.values())])
        ax.axhline(0, color="black", linewidth=0.8)
        places(ax, [budget(epsilon) for epsilon in each.budgets])
        ax.set_title(f"{each.name}: {each.free.mean('auroc').share().forms[1]}\n{each.units}", fontsize=8.5)
    axes[0].set_yscale("symlog", linthresh=1, linscale=0.6)
    axes[0].set_yticks(TICKS, [f"{-tick}" for tick in TICKS])
    axes[0].set_ylim(1.25 * lowest, 1)
    for ax in axes[::ACROSS]:
        ax.set_ylabel("points lost")
    legend(figure, axes, len(all_of))
