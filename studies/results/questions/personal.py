"""Common or personal model: AUROC inside clients, suites ``natural`` and ``frontier``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.report.plots.figure import COLORS, MARKERS
from studies.results.boards import Boards, Row
from studies.results.drawing import budget
from studies.results.federations import SUITES, Federation, federations
from studies.results.figures import Figure
from studies.results.pages import Page
from studies.results.questions.methods import common_budgets

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MEASURE = "auroc_clients"
KINDS = {
    "one model (FedAvg)": ("fedavg", "logistic"),
    "own model beside it (Ditto)": ("ditto", "logistic"),
    "own mixture of both (APFL)": ("apfl", "logistic"),
    "own last layer (FedRep, network)": ("fedrep", "mlp"),
}  #: kind of method -> its representative, fixed beforehand, and the model
TABLED = [kind for kind in KINDS if "Ditto" not in kind]


def page(boards: Boards) -> Page:
    """Return what the page on personal models is made from."""
    all_of = federations(boards)
    budgets = [epsilon for epsilon in common_budgets(all_of) if epsilon != 2.0]
    made = Page("personal", [boards[suite] for suite in SUITES], size=(7.5, 0.5 * len(all_of) + 1.3))
    made.draw = lambda figure: draw(figure, all_of, budgets)
    smallest = budgets[-1]
    columns = [f"{name(kind)}, {budget(epsilon)}" for kind in TABLED for epsilon in (None, smallest)]
    rows: dict[str, dict[str, Any]] = {}
    for each in all_of:
        alone = each.row("local", None)
        if alone is None:
            continue
        rows[each.name] = {"alone": alone.mean(MEASURE).share().without_interval()}
        for kind in KINDS:
            for epsilon in budgets:
                lead = ahead(each, kind, epsilon, alone)
                if lead is not None:
                    made.figures[f"{each.name}, {name(kind)}, {budget(epsilon)}"] = lead.points()
                    rows[each.name][f"{name(kind)}, {budget(epsilon)}"] = lead.points()
    made.table("table", "data", ["alone", *columns], rows)
    return made


def name(kind: str) -> str:
    """Return the name of the method in brackets, without its model."""
    return kind.partition("(")[2].rstrip(")").partition(",")[0]


def ahead(federation: Federation, kind: str, epsilon: float | None, alone: Row) -> Figure | None:
    """Return how far a method is ahead of training alone, inside clients."""
    algorithm, model = KINDS[kind]
    row = federation.row(algorithm, epsilon, model)
    return None if row is None else row.mean(MEASURE) - alone.mean(MEASURE)


def draw(figure: Canvas, all_of: list[Federation], budgets: list[float | None]) -> None:
    """Draw leads over training alone: a panel for each budget, a group of marks for each federation."""
    axes = list(figure.subplots(1, len(budgets), sharex=True, sharey=True).flat)
    for ax, epsilon in zip(axes, budgets, strict=True):
        for place, each in enumerate(all_of):
            alone = each.row("local", None)
            for number, kind in enumerate(KINDS):
                lead = None if alone is None else ahead(each, kind, epsilon, alone)
                if lead is not None and lead.low is not None and lead.high is not None:
                    y = place + 0.18 * (number - 1.5)
                    ax.plot([100 * lead.low, 100 * lead.high], [y, y], color=COLORS[number], linewidth=1.2)
                    ax.plot(100 * lead.value, y, MARKERS[number], color=COLORS[number], markersize=5,
                            label=kind if place == 0 else None)  # fmt: skip
            if place:
                ax.axhline(place - 0.5, color="#dddddd", linewidth=0.6)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_title("no privacy" if epsilon is None else budget(epsilon), fontsize=9)
        ax.set_xlabel("points of AUROC ahead\nof each client alone", fontsize=8.5)
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(all_of)), [f"{each.name}\n{each.units}" for each in all_of], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlim(-30, 20)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2)
