"""Central, distributed, local or banded noise: suites ``mechanisms`` and ``turns``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from studies.results.boards import UNITS, Board, Boards
from studies.results.drawing import budget, legend, line, places
from studies.results.figures import count
from studies.results.pages import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

KINDS: dict[str, dict[str, Any]] = {
    "secret cohorts": {"dp_placement": "central", "sampling": "poisson"},
    "banded noise, public cohorts": {"dp_placement": "central", "sampling": "fixed", "dp_mechanism": "banded"},
    "independent noise, public cohorts": {
        "dp_placement": "central", "sampling": "fixed", "dp_mechanism": "independent",
    },
    "noise that clients add together": {"dp_placement": "distributed"},
    "each client adds its own noise": {"dp_placement": "local"},
}  # fmt: skip
SECRET, BANDED, INDEPENDENT, TOGETHER, OWN = KINDS
BUDGETS = (8.0, 2.0)  # of the table


def page(boards: Boards) -> Page:
    """Return what the page on kinds of noise is made from."""
    board, turns = boards["mechanisms"], boards["turns"]
    made = Page("noise", (board, turns), size=(7.5, 6.2))
    made.draw = lambda figure: draw(figure, board, turns)
    rows: dict[str, Any] = {}
    for data in board.values("dataset"):
        free = board.row(dataset=data, epsilon_asked=None)
        made.figures[f"{data}, clients"] = count(free["clients"], [free.id])
        for epsilon in board.values("epsilon_asked"):
            cells = {
                kind: board.row(dataset=data, epsilon_asked=epsilon, **settings).mean("auroc")
                for kind, settings in KINDS.items()
            }
            label = f"{data}, ε {epsilon:g}"
            for name, first, second in (
                ("banded minus independent", BANDED, INDEPENDENT),
                ("banded minus secret", BANDED, SECRET),
                ("together minus independent", TOGETHER, INDEPENDENT),
            ):
                made.figures[f"{label}, {name}"] = (cells[first] - cells[second]).points()
            made.figures[f"{label}, own"] = cells[OWN].share()
            if epsilon in BUDGETS:
                shares = {kind: figure.share() for kind, figure in cells.items()}
                rows[label] = {"no privacy": free.mean("auroc").share(), **shares}
        for kind in (INDEPENDENT, TOGETHER):
            row = board.row(dataset=data, epsilon_asked=2.0, **KINDS[kind])
            for way in ("up", "down"):
                size = row[f"bytes_{way}"] / row["rounds"] / 1e3
                made.figures[f"{data}, kB {way} a round, {kind}"] = count(size, [row.id])
    made.table("table", "AUROC", ["no privacy", *KINDS], rows)
    for epsilon in turns.values("epsilon_asked"):
        cells = {
            kind: turns.row(epsilon_asked=epsilon, **KINDS[kind]).mean("auroc")
            for kind in (SECRET, BANDED, INDEPENDENT)
        }
        for name, second in (("banded minus secret", SECRET), ("banded minus independent", INDEPENDENT)):
            made.figures[f"turns, ε {epsilon:g}, {name}"] = (cells[BANDED] - cells[second]).points()
    return made


def draw(figure: Canvas, board: Board, turns: Board) -> None:
    """Draw AUROC by budget, a panel for each federation."""
    axes = list(figure.subplots(2, 3).flat)
    for ax, data in zip(axes, board.values("dataset"), strict=False):
        free = board.row(dataset=data, epsilon_asked=None)
        panel(ax, board, {"dataset": data})
        ax.axhline(free["auroc_mean"], color="black", linewidth=1, linestyle=":", label="no privacy")
        unit = UNITS.get(data, "clients")
        ax.set_title(f"{data}: a tenth of\n{free['clients']:g} {unit} a round", fontsize=9)
    panel(axes[4], turns, {})
    axes[4].set_title("digits: each of 100 clients\nonce in 20 rounds", fontsize=9)
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("AUROC")
    legend(figure, axes, 5)


def panel(ax: Any, board: Board, where: dict[str, Any]) -> None:
    """Draw the lines of one federation."""
    budgets = board.values("epsilon_asked", **where)[::-1]
    for number, (kind, settings) in enumerate(KINDS.items()):
        points = {
            place: row.mean("auroc")
            for place, epsilon in enumerate(budgets)
            for row in board.rows(epsilon_asked=epsilon, **settings, **where)
        }
        if points:
            line(ax, points, number, kind)
    places(ax, [budget(epsilon) for epsilon in budgets])
