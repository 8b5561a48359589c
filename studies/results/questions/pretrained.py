"""A public encoder and a private head, by budget and bytes: suite ``pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.report.plots.figure import COLORS, MARKERS
from studies.results.boards import Board, Boards, Row
from studies.results.drawing import budget, legend, line, places
from studies.results.pages import Cells, Page
from studies.results.questions.methods import TWIN
from studies.results.values import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE = "whole messages"
#: What FedAvg sends -> the fields of its rows.
KINDS: dict[str, dict[str, Any]] = {
    WHOLE: {"beta": 0, "codec": "float32"},
    "4 bits": {"codec": "q4"},
    "1 entry in 100": {"beta": 0.99},
}
BUDGETS = (None, 8.0, 2.0, 1.0, 0.5)
SHOWN = 8.0  #: budget whose bytes are told
MB = 1e6
TICKS = (3, 10, 30, 100, 300)

Kinds = Mapping[str, Mapping[float | None, Row]]


def page(boards: Boards) -> Page:
    """Return what the page on a public encoder is made from."""
    board = boards["pretrained"]
    kinds = {kind: budgets_of(board, {"algorithm": "fedavg", **fields}) for kind, fields in KINDS.items()}
    made = Page("pretrained", (board,), size=(7.5, 3.2))
    made.draw = lambda figure: draw(figure, kinds)
    twin = budgets_of(board, {"algorithm": TWIN})
    rows: Cells = {
        kind: {
            f"MB sent, {budget(SHOWN)}": megabytes(by_budget[SHOWN]),
            **{budget(epsilon): row.mean("accuracy").share() for epsilon, row in by_budget.items()},
        }
        for kind, by_budget in (kinds | {"whole, again (FedNova)": twin}).items()
    }
    made.table("table", "accuracy", [f"MB sent, {budget(SHOWN)}", *map(budget, BUDGETS)], rows)
    whole = kinds[WHOLE]
    for epsilon, row in whole.items():
        if epsilon is not None:
            made.values[f"cost, {budget(epsilon)}"] = row.of_privacy(whole[None], "accuracy").points()
        for kind in [kind for kind in kinds if kind != WHOLE]:
            change = kinds[kind][epsilon].of_compression(row, "accuracy")
            made.values[f"{kind}, {budget(epsilon)}, change"] = change.points()
    apart = max(
        abs(100 * (whole[e].mean("accuracy") - row.mean("accuracy")).number) for e, row in twin.items()
    )
    made.values["one method twice, largest"] = Value(apart, text=f"{apart:.1f}")
    return made


def budgets_of(board: Board, settings: Mapping[str, Any]) -> dict[float | None, Row]:
    """Return budget -> the row that has these settings, the largest budget first."""
    rows = {row["epsilon_asked"]: row for row in board.rows(**settings)}
    return {epsilon: rows[epsilon] for epsilon in BUDGETS if epsilon in rows}


def megabytes(row: Row) -> Value:
    """Return what all clients send in a whole run."""
    size = row["bytes_up"] / MB
    return Value(size, rows=(row.id,), text=f"{size:.3g}" if size < 1000 else f"{size:,.0f}")


def draw(figure: Figure, kinds: Kinds) -> None:
    """Draw accuracy by budget; and beside it, under one budget, by the bytes of a run."""
    axes = list(figure.subplots(1, 2, sharey=True, width_ratios=(3, 2)).flat)
    for number, (kind, by_budget) in enumerate(kinds.items()):
        means = {epsilon: row.mean("accuracy") for epsilon, row in by_budget.items()}
        line(axes[0], {BUDGETS.index(epsilon): mean for epsilon, mean in means.items()}, number, kind)
        size, mean = megabytes(by_budget[SHOWN]).number, means[SHOWN]
        axes[1].plot([size, size], [mean.low, mean.high], color=COLORS[number], linewidth=1.2)
        axes[1].plot(size, mean.number, MARKERS[number], color=COLORS[number])
    places(axes[0], [budget(epsilon) for epsilon in BUDGETS])
    axes[0].set_ylabel("accuracy")
    axes[1].set_xscale("log")
    axes[1].set_xticks(TICKS, [str(tick) for tick in TICKS])
    axes[1].minorticks_off()
    axes[1].set_xlabel(f"megabytes that clients send, {budget(SHOWN)}")
    legend(figure, axes[:1], 1)
