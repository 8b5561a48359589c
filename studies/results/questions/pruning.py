"""The cost of pruning, alone and under ε: suite ``privacy-compression``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.core.units import size
from studies.results.boards import Board, Boards, Row
from studies.results.drawing import budget, legend, line, places
from studies.results.pages import Cells, Page
from studies.results.questions.methods import TWIN
from studies.results.values import Value, count, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (None, 8.0, 2.0)
BETAS = {0.0: "all", 0.9: "1 in 10", 0.99: "1 in 100"}  #: share that is not sent -> entries sent
FEEDBACK = "compression.error_feedback"
#: Kind of pruned method -> the fields of its rows.
KINDS: dict[str, dict[str, Any]] = {
    "FedAvg": {"algorithm": "fedavg", "alpha": 0.0, FEEDBACK: True},
    "FedAvg, no error feedback": {"algorithm": "fedavg", "alpha": 0.0, FEEDBACK: None},
    "FedAvg, half of the units": {"algorithm": "fedavg", "alpha": 0.5, FEEDBACK: True},
}
ROWS = [(kind, beta) for kind in KINDS for beta in BETAS if beta or KINDS[kind][FEEDBACK]]
AGAIN = {
    "again (FedNova), all": {"alpha": 0.0, "beta": 0.0},
    "again, half of the units, 1 in 100": {"alpha": 0.5},
}
SENT, RUN = "bytes up a round", ("rounds, ε 2", "bytes up, down, ε 2")
TICKS = (1, 0, -1, -2, -5, -10, -20)


def page(boards: Boards) -> Page:
    """Return what the page on pruning is made from."""
    board = boards["privacy-compression"]
    made = Page("pruning", (board,), size=(7.5, 3.2))
    made.draw = lambda figure: draw(figure, board)
    whole = found(board, "FedAvg", 0.0, 2.0)
    rows: Cells = {}
    for kind, beta in ROWS:
        name = f"{kind}, {BETAS[beta]}"
        rows[name] = cells({epsilon: found(board, kind, beta, epsilon) for epsilon in BUDGETS}, whole)
        for epsilon in BUDGETS:
            made.values[f"{name}, {budget(epsilon)}, change"] = change(board, kind, beta, epsilon).points()
    for name, fields in AGAIN.items():
        again = {epsilon: board.row(algorithm=TWIN, epsilon_asked=epsilon, **fields) for epsilon in BUDGETS}
        rows[name] = cells(again, whole)
    made.table("table", "AUROC", [SENT, *map(budget, BUDGETS), *RUN], rows)
    for beta in (0.9, 0.99):
        for epsilon in BUDGETS:
            gain = found(board, "FedAvg", beta, epsilon).mean("auroc") - found(
                board, "FedAvg, no error feedback", beta, epsilon
            ).mean("auroc")
            made.values[f"feedback, {BETAS[beta]}, {budget(epsilon)}"] = gain.points()
    apart = max(abs(100 * difference) for difference in differences(board))
    made.values["one method twice, largest"] = Value(apart, text=f"{apart:.1f}")
    made.values["clients"] = span(board.values("clients"))
    made.values["rounds"] = span([row["rounds"] for row in board.all if row["epsilon_asked"] is not None])
    return made


def cells(by_budget: Mapping[float | None, Row], whole: Row) -> dict[str, Value | str]:
    """Return a row of the table: bytes of a round, AUROC by budget, rounds and bytes of the run at ε 2."""
    private = by_budget[2.0]
    sent = sent_a_round(private) / sent_a_round(whole)
    return {
        SENT: Value(sent, rows=(private.id, whole.id), text=f"{100 * sent:.3g} %"),
        **{budget(epsilon): row.mean("auroc").share() for epsilon, row in by_budget.items()},
        RUN[0]: count(private["rounds"], [private.id]),
        RUN[1]: f"{size(private['bytes_up'])}, {size(private['bytes_down'])}",
    }


def found(board: Board, kind: str, beta: float, epsilon: float | None) -> Row:
    """Return the row of a method that sends this share; whole messages leave nothing to feed back."""
    settings = KINDS[kind] | {"beta": beta, "epsilon_asked": epsilon}
    return board.row(**settings | ({FEEDBACK: None} if beta == 0 else {}))


def change(board: Board, kind: str, beta: float, epsilon: float | None) -> Value:
    """Return the AUROC of a row minus that of FedAvg under that budget without pruning, whose own is 0."""
    row, whole = found(board, kind, beta, epsilon), found(board, "FedAvg", 0.0, epsilon)
    if row.id == whole.id:
        return Value(0.0, rows=(row.id,))
    return row.of_compression(whole, "auroc")


def sent_a_round(row: Row) -> float:
    """Return the bytes that all clients send in a round."""
    return float(row["bytes_up"] / row["rounds"])


def differences(board: Board) -> list[float]:
    """Return by how much FedAvg under its second name differs from itself, for each budget and ratio."""
    return [
        (row.mean("auroc") - board.row(**places | {"algorithm": "fedavg"}).mean("auroc")).number
        for row in board.rows(algorithm=TWIN)
        for places in [{name: row[name] for name in ("alpha", "beta", "epsilon_asked", FEEDBACK)}]
    ]


def draw(figure: Figure, board: Board) -> None:
    """Draw the change of AUROC by what is sent, a panel for each kind, a line for each budget, on one scale."""
    axes = list(figure.subplots(1, len(KINDS), sharey=True).flat)
    lowest = -1.0
    for ax, kind in zip(axes, KINDS, strict=True):
        for number, epsilon in enumerate(BUDGETS):
            points = {place: change(board, kind, beta, epsilon) for place, beta in enumerate(BETAS)}
            label = "no privacy" if epsilon is None else budget(epsilon)
            line(ax, points, number, label, scale=100, side_by_side=len(BUDGETS))
            lowest = min([lowest, *(100 * point.low for point in points.values() if point.low is not None)])
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_title(kind, fontsize=9)
        places(ax, list(BETAS.values()))
        ax.set_xlabel("entries of a message sent", fontsize=8.5)
    axes[0].set_yscale("symlog", linthresh=1, linscale=0.6)
    axes[0].set_yticks(TICKS, [f"{-tick}" for tick in TICKS])
    axes[0].set_ylim(1.1 * lowest, 1.5)
    axes[0].set_ylabel("points of AUROC lost", fontsize=8.5)
    legend(figure, axes, len(KINDS))
