"""The cost of pruning, alone and under ε: suite ``privacy-compression``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from studies.results.boards import Board, Boards
from studies.results.drawing import budget, legend, line, places
from studies.results.pages import Page
from studies.results.questions.papers import findings
from studies.results.values import Value, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (None, 8.0, 2.0, 0.5)
BETAS = {0.0: "all", 0.9: "1 in 10", 0.99: "1 in 100"}  #: share that is not sent -> entries sent
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "alpha": 0.0},
    "FedAvg, half of the units": {"algorithm": "fedavg", "alpha": 0.5},
    "SCAFFOLD": {"algorithm": "scaffold", "alpha": 0.0},
}
ROWS = [(method, beta) for method in METHODS for beta in BETAS]


def page(boards: Boards) -> Page:
    """Return what the page on pruning is made from."""
    board = boards["privacy-compression"]
    made = Page("pruning", (board,), size=(7.5, 3.3))
    made.draw = lambda figure: draw(figure, board)
    rows: dict[str, Any] = {}
    for method, beta in ROWS:
        settings = METHODS[method] | {"beta": beta}
        at_2 = board.row(epsilon_asked=2.0, **settings)
        whole = board.row(algorithm="fedavg", alpha=0.0, beta=0.0, epsilon_asked=2.0)
        sent = (at_2["bytes_up"] / at_2["rounds"]) / (whole["bytes_up"] / whole["rounds"])
        means = {epsilon: board.row(epsilon_asked=epsilon, **settings).mean("auroc") for epsilon in BUDGETS}
        rows[f"{method}, {BETAS[beta]}"] = {
            "bytes up a round": Value(sent, rows=(at_2.id, whole.id), text=f"{100 * sent:.3g} %"),
            **{budget(epsilon): mean.share() for epsilon, mean in means.items()},
        }
    made.table("table", "AUROC", ["bytes up a round", *map(budget, BUDGETS)], rows)
    for finding in findings(boards, board.suite):
        decision = finding.decision
        assert decision.mean is not None
        name = finding.claim.id.partition("/")[2]
        made.values[name] = Value(decision.mean, decision.low, decision.high, (finding.claim.id,)).points()
    made.values["clients"] = span(board.values("clients"))
    made.values["rounds"] = span([row["rounds"] for row in board.all if row["epsilon_asked"] is not None])
    return made


def draw(figure: Figure, board: Board) -> None:
    """Draw AUROC by what is sent, a panel for each method, a line for each budget."""
    axes = list(figure.subplots(1, len(METHODS), sharey=True).flat)
    for ax, (method, settings) in zip(axes, METHODS.items(), strict=True):
        for number, epsilon in enumerate(BUDGETS):
            points = {
                place: board.row(epsilon_asked=epsilon, beta=beta, **settings).mean("auroc")
                for place, beta in enumerate(BETAS)
            }
            line(ax, points, number, "no privacy" if epsilon is None else budget(epsilon))
        ax.set_title(method, fontsize=9)
        places(ax, list(BETAS.values()))
        ax.set_xlabel("entries of a message sent")
    axes[0].set_ylabel("AUROC")
    legend(figure, axes, len(axes))
