"""Findings of attackers: suite ``attacks``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.report.plots.figure import MARKERS
from studies.results.boards import Board, Boards, Row
from studies.results.pages import Page
from studies.results.values import Value, extremes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTHING: dict[str, Any] = {
    "alpha": 0.0,
    "beta": 0.0,
    "codec": "float32",
    "dp_unit": None,
    "epsilon_asked": None,
}
PROTECTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "half of the units removed": {"alpha": 0.5},
    "nine tenths of the units removed": {"alpha": 0.9},
    "a tenth of the entries sent": {"beta": 0.9},
    "a hundredth of the entries sent": {"beta": 0.99},
    "four bits": {"codec": "q4"},
    "one bit": {"codec": "q1"},
    "signs": {"codec": "sign"},
    "central noise, ε 100": {"dp_unit": "client", "dp_placement": "central", "epsilon_asked": 100.0},
    "central noise, ε 20": {"dp_unit": "client", "dp_placement": "central", "epsilon_asked": 20.0},
    "central noise, ε 5": {"dp_unit": "client", "dp_placement": "central", "epsilon_asked": 5.0},
    "record noise, ε 20": {"dp_unit": "record", "epsilon_asked": 20.0},
    "record noise, ε 5": {"dp_unit": "record", "epsilon_asked": 5.0},
    "own noise, ε 1000": {"dp_unit": "client", "dp_placement": "local", "epsilon_asked": 1000.0},
    "own noise, ε 100": {"dp_unit": "client", "dp_placement": "local", "epsilon_asked": 100.0},
}
GROUPS = (1, 3, 5, 8, 11, 13)  # places where another kind begins
SHOWN = (
    "nothing", "nine tenths of the units removed", "a tenth of the entries sent", "a hundredth of the entries sent",
    "one bit", "signs", "central noise, ε 100", "central noise, ε 5", "record noise, ε 20", "own noise, ε 1000",
)  # fmt: skip
MEMBERSHIP, INVERSION = 20, 200  # rounds of the runs that are attacked
COLUMNS = {
    "accuracy": (MEMBERSHIP, "accuracy"),
    "membership, messages": (MEMBERSHIP, "transcript_auc"),
    "membership, model": (MEMBERSHIP, "rmia_auc"),
    "members found at 1 %": (MEMBERSHIP, "lira_tpr_1"),
    "accuracy, steps of four": (INVERSION, "accuracy"),
    "error of reconstruction": (INVERSION, "inversion_error"),
    "labels found": (INVERSION, "inversion_labels"),
}
PANELS = {
    "accuracy": ("accuracy\n(attacked for\nmembership)", None),
    "membership, messages": ("membership\nby messages\n(AUROC)", 0.5),
    "membership, model": ("membership\nby the model\n(AUROC)", 0.5),
    "accuracy, steps of four": ("accuracy\n(attacked for\nimages)", None),
    "error of reconstruction": ("error of\nimages found\n(1: mean image)", 1.0),
}  #: column -> title, and where a guess is


def page(boards: Boards) -> Page:
    """Return what the page on attackers is made from."""
    board = boards["attacks"]
    made = Page("attacks", (board,), size=(7.5, 5.2))
    made.draw = lambda figure: draw(figure, board)
    rows = {label: cells(board, settings) for label, settings in PROTECTIONS.items()}
    made.table("table", "protection", list(COLUMNS), {label: rows[label] for label in SHOWN})
    for label, values in rows.items():
        made.values |= {f"{label}, {column}": value for column, value in values.items()}
    without_noise = [values for label, values in rows.items() if "noise" not in label and label != "nothing"]
    for column in ("membership, messages", "membership, model"):
        made.values[f"coarse and pruned, {column}"] = extremes([values[column] for values in without_noise])
    for row in board.rows(algorithm="splitnn"):
        if row["labels_accuracy_mean"] is not None:
            budget = "" if row["epsilon_asked"] is None else f" {row['dp_unit']} ε {row['epsilon_asked']:g}"
            name = f"parties, beta {row['beta']:g} {row['codec']}{budget}"
            made.values[f"{name}, labels found"] = row.mean("labels_accuracy").share()
            made.values[f"{name}, accuracy"] = row.mean("accuracy").share()
    return made


def cells(board: Board, settings: dict[str, Any]) -> dict[str, Value]:
    """Return what was measured of a protection."""
    values = {
        column: the_row(board, rounds, settings).mean(measure).share()
        for column, (rounds, measure) in COLUMNS.items()
    }
    return values | {"labels found": values["labels found"].without_interval()}


def the_row(board: Board, rounds: int, settings: dict[str, Any]) -> Row:
    """Return the row of a protection among the runs of one attack."""
    return board.row(algorithm="fedavg", rounds=rounds, **NOTHING | settings)


def draw(figure: Figure, board: Board) -> None:
    """Draw a column for each measure, a line for each protection."""
    axes: list[Axes] = list(figure.subplots(1, len(PANELS), sharey=True).flat)
    for ax, (column, (title, guess)) in zip(axes, PANELS.items(), strict=True):
        rounds, measure = COLUMNS[column]
        for place, settings in enumerate(PROTECTIONS.values()):
            mean = the_row(board, rounds, settings).mean(measure)
            assert mean.low is not None and mean.high is not None
            ax.plot([mean.low, mean.high], [place, place], color="#888888", linewidth=1.2)
            kind = sum(place >= first for first in GROUPS)
            ax.plot(mean.number, place, MARKERS[kind], color="black", markersize=5)
        if guess is not None:
            ax.axvline(guess, color="black", linewidth=0.8, linestyle=":")
        for first in GROUPS:
            ax.axhline(first - 0.5, color="#bbbbbb", linewidth=0.6)
        ax.set_title(title, fontsize=8)
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(PROTECTIONS)), PROTECTIONS)
    axes[0].invert_yaxis()
