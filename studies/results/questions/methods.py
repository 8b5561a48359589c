"""Methods with one model beside FedAvg, by budget and bytes: suites ``natural`` and ``frontier``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from studies.results.boards import Boards, Row
from studies.results.drawing import budget
from studies.results.federations import SUITES, Federation, both
from studies.results.figures import Figure, count
from studies.results.pages import Cells, Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BETTER, LEVEL, WORSE = VERDICTS = "better", "no difference", "worse"
LOOKS = {BETTER: ("#222222", ""), LEVEL: ("#cfe3f2", ""), WORSE: ("white", "////")}  #: color and hatch
FEWEST = 3  # federations of a method in the table
TWIN = "fednova"  # FedAvg under another name, where all clients take equally many steps


class Comparison(NamedTuple):
    """A method beside FedAvg on a federation under a budget; `size` is its bytes of a round over FedAvg's."""

    federation: str
    method: str
    epsilon: float | None
    verdict: str
    size: float


Tally = dict[float | None, Counter[str]]  # budget -> verdict -> number of federations


def page(boards: Boards) -> Page:
    """Return what the page on methods is made from."""
    trusting = [each for each in both(boards) if not each.own_noise]
    budgets = usual_budgets(trusting)
    compared = list(comparisons(trusting, budgets))
    tallies, sizes = tally(compared)
    made = Page("methods", [boards[suite] for suite in SUITES], size=(7.5, 0.27 * len(tallies) + 1.1))
    rows: Cells = {}
    for name, by_budget in tallies.items():
        cells: dict[str, Figure | str] = {"bytes a round": Figure(sizes[name], text=f"{sizes[name]:.2g}")}
        for epsilon, verdicts in by_budget.items():
            cells[budget(epsilon)] = " / ".join(str(verdicts[verdict]) for verdict in VERDICTS)
            for verdict in VERDICTS:
                made.figures[f"{name}, {budget(epsilon)}, {verdict}"] = count(verdicts[verdict])
        if by_budget[None].total() >= FEWEST:
            rows[name] = cells
    made.table("table", " / ".join(VERDICTS), ["bytes a round", *map(budget, budgets)], rows)
    for each in trusting:
        for epsilon in budgets[1:]:
            if (apart := twins(each, epsilon)) is not None:
                made.figures.setdefault(f"{each.name}, {budget(epsilon)}, one method twice", apart)
    made.figures["federations"] = count(len({each.name for each in trusting}))
    made.draw = lambda figure: draw(figure, tallies, sizes, budgets)
    return made


def usual_budgets(federations: Sequence[Federation]) -> list[float | None]:
    """Return no privacy and the three budgets that most federations have, the largest first."""
    often = Counter(epsilon for each in federations for epsilon in each.budgets).most_common(3)
    return [None, *sorted((epsilon for epsilon, _ in often), reverse=True)]


def comparisons(federations: Sequence[Federation], budgets: Sequence[float | None]) -> Iterator[Comparison]:
    """Yield the comparisons with FedAvg; of a federation that both suites have, those of one suite.

    Of a method that has rows whose intervals cover the search, others do not count.
    """
    suite_of: dict[tuple[str, str], str] = {}
    sure = {row.name for each in federations for row in each.whole if row["procedure_low"] is not None}
    for each in federations:
        for epsilon in budgets:
            for row in each.rows(epsilon_asked=epsilon, model_for="everybody", problem="classify"):
                if row.name in sure and row["procedure_low"] is None:
                    continue
                change, suite = row.paired(), suite_of.setdefault((each.name, row.name), each.board.suite)
                if change is not None and row["algorithm"] != TWIN and suite == each.board.suite:
                    verdict = decide(change, resolution(each, row))
                    yield Comparison(each.name, row.name, epsilon, verdict, relative_bytes(each, row))


def twins(federation: Federation, epsilon: float | None) -> Figure | None:
    """Return how far apart two names of one method are, in points; without privacy they are equal."""
    row = federation.row(TWIN, epsilon)
    change = row.paired() if row else None
    if change is None:
        return None
    return Figure(abs(change.value), rows=change.rows, text=f"{100 * abs(change.value):.1f}")


def resolution(federation: Federation, row: Row) -> float:
    """Return the difference up to which rows cannot be told apart: the table's, or that of one method twice."""
    apart = twins(federation, row["epsilon_asked"])
    return float(row["resolution"] or (apart.value if apart else 0.0))


def decide(change: Figure, apart: float) -> str:
    """Return whether a method is better than FedAvg: by its interval, and by more than one method twice."""
    if not change.certain or abs(change.value) <= apart:
        return LEVEL
    return BETTER if change.value > 0 else WORSE


def relative_bytes(federation: Federation, row: Row) -> float:
    """Return the bytes of a round, both ways, over those of FedAvg with the same model."""
    base = federation.row("fedavg", row["epsilon_asked"], row["model"])
    return row.bytes_a_round / base.bytes_a_round if base else 1.0


def tally(compared: Sequence[Comparison]) -> tuple[dict[str, Tally], dict[str, float]]:
    """Return the verdicts and the bytes of every method, those that win most and lose least first."""
    tallies: dict[str, Tally] = {}
    for each in compared:
        tallies.setdefault(each.method, {}).setdefault(each.epsilon, Counter())[each.verdict] += 1
    sizes = {name: median(each.size for each in compared if each.method == name) for name in tallies}

    def score(name: str) -> float:
        whole = sum(tallies[name].values(), Counter[str]())
        return (whole[BETTER] - whole[WORSE]) / whole.total()

    return {name: tallies[name] for name in sorted(tallies, key=score, reverse=True)}, sizes


def draw(
    figure: Canvas, tallies: Mapping[str, Tally], sizes: Mapping[str, float], budgets: Sequence[float | None]
) -> None:
    """Draw a bar for each method and budget: the federations by verdict."""
    from matplotlib.ticker import MaxNLocator

    axes = list(figure.subplots(1, len(budgets), sharex=True, sharey=True).flat)
    for ax, epsilon in zip(axes, budgets, strict=True):
        left = [0] * len(tallies)
        for verdict, (color, hatch) in LOOKS.items():
            widths = [by_budget.get(epsilon, Counter())[verdict] for by_budget in tallies.values()]
            ax.barh(range(len(tallies)), [width or math.nan for width in widths], 0.7, left, color=color, hatch=hatch, edgecolor="black",
                    linewidth=0.6, label=verdict if ax is axes[0] else None)  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        ax.set_title("no privacy" if epsilon is None else budget(epsilon), fontsize=9)
        ax.grid(visible=False)
        ax.set_xlabel("federations")
    axes[0].set_yticks(range(len(tallies)), [f"{name} ({sizes[name]:.2g} × bytes)" for name in tallies])
    axes[0].set_ylim(len(tallies) - 0.4, -0.6)
    axes[0].set_xlim(0, 1.03 * axes[0].get_xlim()[1])
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper left", ncols=3, title="than FedAvg", alignment="left")
