"""Central, distributed, local or banded noise: suites ``mechanisms`` and ``turns``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from studies.results.boards import UNITS, Board, Boards
from studies.results.drawing import budget, legend, line, places
from studies.results.pages import Cells, Page
from studies.results.questions.methods import TWIN
from studies.results.values import Value, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CENTRAL = {"dp_placement": "central", "sampling": "fixed"}
KINDS: dict[str, dict[str, Any]] = {
    "secret cohorts": {"dp_placement": "central", "sampling": "poisson"},
    "banded noise, public cohorts": {**CENTRAL, "dp_mechanism": "banded"},
    "independent noise, public cohorts": {**CENTRAL, "dp_mechanism": "independent"},
    "noise that clients add together": {"dp_placement": "distributed"},
    "each client adds its own noise": {"dp_placement": "local"},
}
SECRET, BANDED, INDEPENDENT, TOGETHER, OWN = KINDS
DIFFERENCES = {
    "banded minus independent": (BANDED, INDEPENDENT),
    "banded minus secret": (BANDED, SECRET),
    "together minus independent": (TOGETHER, INDEPENDENT),
}
TABLED = (8.0, 2.0)  # budgets


def page(boards: Boards) -> Page:
    """Return what the page on kinds of noise is made from."""
    board, turns = boards["mechanisms"], boards["turns"]
    made = Page("noise", (board, turns), size=(7.5, 6.6))
    made.draw = lambda figure: draw(figure, board, turns)
    rows: Cells = {}
    for data in board.values("dataset"):
        free = board.row(dataset=data, epsilon_asked=None, algorithm="fedavg")
        for epsilon in board.values("epsilon_asked")[::-1]:
            label = f"{data}, {budget(epsilon)}"
            means = means_of(board, epsilon, dataset=data)
            made.values |= {f"{label}, {name}": value for name, value in differences(means).items()}
            made.values |= {
                f"{label}, one method twice": apart for apart in twice(board, epsilon, dataset=data)
            }
            shares = {kind: mean.share() for kind, mean in means.items()}
            made.values[f"{label}, own"] = shares[OWN]
            if epsilon in TABLED:
                rows[label] = {"no privacy": free.mean("auroc").share(), **shares}
        for kind in (INDEPENDENT, TOGETHER):
            row = board.row(dataset=data, epsilon_asked=2.0, algorithm="fedavg", **KINDS[kind])
            for way in ("up", "down"):
                size = row[f"bytes_{way}"] / row["rounds"] / 1e3
                made.values[f"{data}, kB {way} a round, {kind}"] = count(size, [row.id])
    made.table("table", "AUROC", ["no privacy", *KINDS], rows)
    for epsilon in turns.values("epsilon_asked"):
        found = differences(means_of(turns, epsilon))
        made.values |= {f"turns, {budget(epsilon)}, {name}": value for name, value in found.items()}
    return made


def means_of(board: Board, epsilon: float, **where: Any) -> dict[str, Value]:
    """Return the AUROC of every kind of noise that there is under a budget."""
    return {
        kind: row.mean("auroc")
        for kind, settings in KINDS.items()
        for row in board.rows(epsilon_asked=epsilon, algorithm="fedavg", **settings, **where)
    }


def twice(board: Board, epsilon: float, **where: Any) -> Iterator[Value]:
    """Yield how far apart two names of one method are, in points: FedAvg and FedNova with secret cohorts."""
    rows = [
        board.rows(epsilon_asked=epsilon, algorithm=name, **KINDS[SECRET], **where)
        for name in ("fedavg", TWIN)
    ]
    for one, other in zip(*rows, strict=False):
        apart = abs(100 * (one.mean("auroc") - other.mean("auroc")).number)
        yield Value(apart, rows=(one.id, other.id), text=f"{apart:.1f}")


def differences(means: Mapping[str, Value]) -> dict[str, Value]:
    """Return differences of two kinds of noise, in points."""
    return {
        name: (means[one] - means[other]).points()
        for name, (one, other) in DIFFERENCES.items()
        if one in means and other in means
    }


def draw(figure: Figure, board: Board, turns: Board) -> None:
    """Draw AUROC by budget, a panel for each federation."""
    axes = list(figure.subplots(2, 3).flat)
    for ax, data in zip(axes, board.values("dataset"), strict=False):
        free = board.row(dataset=data, epsilon_asked=None, algorithm="fedavg")
        panel(ax, board, dataset=data)
        ax.axhline(free["auroc_mean"], color="black", linewidth=1, linestyle=":", label="no privacy")
        unit = UNITS.get(data, "clients")
        ax.set_title(f"{data}: a tenth of\n{free['clients']:g} {unit} a round", fontsize=9)
    panel(axes[4], turns)
    axes[4].set_title("digits: each of 100 clients\nonce in 20 rounds", fontsize=9)
    for ax in axes[::3]:
        ax.set_ylabel("AUROC")
    legend(figure, axes, 5)


def panel(ax: Axes, board: Board, **where: Any) -> None:
    """Draw a line for each kind of noise on one federation."""
    budgets = board.values("epsilon_asked", **where)[::-1]
    means = [means_of(board, epsilon, **where) for epsilon in budgets]
    for number, kind in enumerate(KINDS):
        points = {place: found[kind] for place, found in enumerate(means) if kind in found}
        line(ax, points, number, kind)
    places(ax, [budget(epsilon) for epsilon in budgets])
