"""Common or personal model: AUROC inside clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.report.plots.figure import COLORS, MARKERS
from studies.results.boards import Boards
from studies.results.drawing import budget
from studies.results.federations import SUITES, Federation, federations
from studies.results.pages import Cells, Page
from studies.results.questions.methods import usual_budgets
from studies.results.values import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURE = "auroc_clients"
KINDS = {
    "FedAvg": ("one linear model (FedAvg)", "fedavg", "logistic"),
    "Ditto": ("own linear model beside it (Ditto)", "ditto", "logistic"),
    "FedAvg network": ("one network (FedAvg)", "fedavg", "mlp"),
    "FedRep": ("network with an own last layer (FedRep)", "fedrep", "mlp"),
}  #: representative of a kind, fixed beforehand -> the kind, its algorithm and model
FEWEST = 10  # samples of a client on average, for a ranking inside it to mean something
TABLED = ("FedAvg", "Ditto", "FedRep")


def page(boards: Boards) -> Page:
    """Return what the page on personal models is made from."""
    with_own = (each for each in federations(boards) if each.row("local", None) and each.row("ditto", None))
    all_of = [each for each in with_own if (each.shape.samples or 0) >= FEWEST]
    budgets = usual_budgets(all_of)
    least = budgets[-1]
    used = [boards[suite] for suite in SUITES if any(each.board.suite == suite for each in all_of)]
    made = Page("personal", used, size=(7.5, 0.5 * len(all_of) + 1.3))
    made.draw = lambda figure: draw(figure, all_of, budgets)
    rows: Cells = {}
    for each in all_of:
        leads = {
            f"{name}, {budget(epsilon)}": lead.points()
            for name in KINDS
            for epsilon in budgets
            if (lead := ahead(each, name, epsilon))
        }
        made.values |= {f"{each.name}, {column}": lead for column, lead in leads.items()}
        made.values |= dict(over_common(each))
        rows[each.name] = {"alone": alone(each).share().without_interval(), **leads}
    tabled = (f"{name}, {budget(epsilon)}" for name in TABLED for epsilon in (None, least))
    columns = [column for column in tabled if any(column in row for row in rows.values())]
    made.table("table", "data", ["alone", *columns], rows)
    return made


def alone(federation: Federation) -> Value:
    """Return what clients have that train alone."""
    row = federation.row("local", None)
    assert row is not None
    return row.mean(MEASURE)


def ahead(federation: Federation, name: str, epsilon: float | None) -> Value | None:
    """Return how far a method is ahead of training alone, inside clients."""
    _, algorithm, model = KINDS[name]
    row = federation.row(algorithm, epsilon, model)
    return row.mean(MEASURE) - alone(federation) if row else None


def over_common(federation: Federation) -> Iterator[tuple[str, Value]]:
    """Yield how far own models are ahead of FedAvg without privacy, over all samples and inside clients."""
    own = federation.row("ditto", None)
    if own:
        for name, measure in (("all samples", "auroc"), ("inside", MEASURE)):
            lead = own.mean(measure) - federation.free.mean(measure)
            yield f"{federation.name}, Ditto over FedAvg, {name}", lead.points()


def draw(figure: Figure, all_of: Sequence[Federation], budgets: Sequence[float | None]) -> None:
    """Draw leads over training alone: a panel for each budget, a group of marks for each federation."""
    axes = list(figure.subplots(1, len(budgets), sharex=True, sharey=True).flat)
    for ax, epsilon in zip(axes, budgets, strict=True):
        for number, (name, (kind, *_)) in enumerate(KINDS.items()):
            look, label = {"color": COLORS[number], "markersize": 5, "linewidth": 1.2}, kind
            for place, each in enumerate(all_of):
                lead, y = ahead(each, name, epsilon), place + 0.18 * (number - 1.5)
                if lead is not None and lead.low is not None and lead.high is not None:
                    ax.plot([100 * lead.low, 100 * lead.high], [y, y], **look)
                    ax.plot(100 * lead.number, y, MARKERS[number], **look, label=label)
                    label = ""
        for place in range(1, len(all_of)):
            ax.axhline(place - 0.5, color="#dddddd", linewidth=0.6)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set_title("no privacy" if epsilon is None else budget(epsilon), fontsize=9)
        ax.set_xlabel("points of AUROC ahead\nof each client alone", fontsize=8.5)
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(all_of)), [f"{each.name}\n{each.units}" for each in all_of], fontsize=8)
    axes[0].set_ylim(len(all_of) - 0.5, -0.5)
    axes[0].set_xlim(-30, 20)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
