"""Methods with one model beside FedAvg, by budget and bytes: suites ``natural`` and ``frontier``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from harness.report.tables.columns import NO_DIFFERENCE
from studies.results.boards import Boards, Row
from studies.results.drawing import budget
from studies.results.federations import Federation, federations
from studies.results.pages import Cells, Page
from studies.results.values import Value, count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, LEVEL, WORSE = VERDICTS = "better", "not told apart", "worse"
LOOKS = {BETTER: ("#222222", ""), LEVEL: ("#cfe3f2", ""), WORSE: ("white", "////")}  #: color and hatch
TWIN = "fednova"  # FedAvg under another name, where all clients take equally many steps


class Comparison(NamedTuple):
    """A method beside FedAvg on a federation under a budget; `size` is its bytes of a round over FedAvg's."""

    federation: str
    method: str
    epsilon: float | None
    change: Value
    verdict: str
    size: float


Tally = dict[float | None, Counter[str]]  # budget -> verdict -> number of federations


def page(boards: Boards) -> Page:
    """Return what the page on methods is made from."""
    trusting = [each for each in federations(boards) if not each.own_noise]
    budgets = usual_budgets(trusting)
    compared = list(comparisons(trusting, budgets))
    tallies, sizes = tally(compared)
    methods = {name: sizes[name] for name in tallies}
    made = Page(
        "methods",
        list({each.board.suite: each.board for each in trusting}.values()),
        size=(7.5, 0.27 * len(tallies) + 1.8),
    )
    for name, by_budget in tallies.items():
        for epsilon, verdicts in by_budget.items():
            for verdict in VERDICTS:
                made.values[f"{name}, {budget(epsilon)}, {verdict}"] = count(verdicts[verdict])
    rows: Cells = {}
    seen = {(one.method, one.federation) for one in compared if one.verdict != LEVEL}

    def place(one: Comparison) -> tuple[bool, int]:
        return (one.method, one.federation) not in seen, list(methods).index(one.method)

    for one in sorted(compared, key=place):  # what is seen first, as a table has ten rows at most
        points = one.change.points()
        cells = rows.setdefault(f"{one.method}, {one.federation}", {})
        cells["bytes a round"] = Value(one.size, text=f"{one.size:.2g}")
        level = one.verdict == LEVEL
        cells[budget(one.epsilon)] = (
            replace(points, text=f"{NO_DIFFERENCE} {points.text}") if level else points
        )
    made.table("table", "method, data", ["bytes a round", *map(budget, budgets)], rows)
    for each in trusting:
        for epsilon in budgets[1:]:
            if (apart := twins(each, epsilon)) is not None:
                made.values.setdefault(f"{each.name}, {budget(epsilon)}, one method twice", apart)
    made.values["federations"] = count(len({each.name for each in trusting}))
    made.draw = lambda figure: draw(figure, compared, methods, budgets)
    return made


def usual_budgets(federations: Sequence[Federation]) -> list[float | None]:
    """Return no privacy and the three budgets that most federations have, the largest first."""
    often = Counter(epsilon for each in federations for epsilon in each.budgets).most_common(3)
    return [None, *sorted((epsilon for epsilon, _ in often), reverse=True)]


def comparisons(federations: Sequence[Federation], budgets: Sequence[float | None]) -> Iterator[Comparison]:
    """Yield the comparisons of methods with one model for everybody with FedAvg."""
    for each in federations:
        for epsilon in budgets:
            for row in each.under(epsilon, model_for="everybody", problem="classify"):
                change = row.paired()
                if change is not None and row["algorithm"] != TWIN:
                    verdict = decide(change, resolution(each, row))
                    yield Comparison(each.name, row.name, epsilon, change, verdict, relative_bytes(each, row))


def twins(federation: Federation, epsilon: float | None) -> Value | None:
    """Return how far apart two names of one method are, in points; without privacy they are equal."""
    row = federation.row(TWIN, epsilon)
    change = row.paired() if row else None
    if change is None:
        return None
    return Value(abs(change.number), rows=change.rows, text=f"{100 * abs(change.number):.1f}")


def resolution(federation: Federation, row: Row) -> float:
    """Return the difference up to which rows cannot be told apart: the table's, or that of one method twice."""
    apart = twins(federation, row["epsilon_asked"])
    return float(row["resolution"] or (apart.number if apart else 0.0))


def decide(change: Value, apart: float) -> str:
    """Return whether a method is better than FedAvg: by its interval, and by more than one method twice."""
    if not change.certain or abs(change.number) <= apart:
        return LEVEL
    return BETTER if change.number > 0 else WORSE


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
    figure: Figure,
    compared: Sequence[Comparison],
    methods: Mapping[str, float],
    budgets: Sequence[float | None],
) -> None:
    """Draw a tile for each method and federation, a panel for each budget; `methods` has the bytes of each."""
    from matplotlib.patches import Patch, Rectangle

    federations = list(dict.fromkeys(each.federation for each in compared))
    axes = list(figure.subplots(1, len(budgets), sharex=True, sharey=True).flat)
    for ax, epsilon in zip(axes, budgets, strict=True):
        for each in compared:
            if each.epsilon == epsilon:
                place = federations.index(each.federation) - 0.45, list(methods).index(each.method) - 0.4
                color, hatch = LOOKS[each.verdict]
                ax.add_patch(
                    Rectangle(place, 0.9, 0.8, facecolor=color, hatch=hatch, edgecolor="black", linewidth=0.6)
                )
        ax.set_title("no privacy" if epsilon is None else budget(epsilon), fontsize=9)
        ax.set_xticks(range(len(federations)), federations, rotation=90)
        ax.grid(visible=False)
    axes[0].set_yticks(
        range(len(methods)), [f"{name} ({size:.2g} × bytes)" for name, size in methods.items()]
    )
    axes[0].set_ylim(len(methods) - 0.4, -0.6)
    axes[0].set_xlim(-0.6, len(federations) - 0.4)
    entries = [
        Patch(facecolor=color, hatch=hatch, edgecolor="black", linewidth=0.6)
        for color, hatch in LOOKS.values()
    ]
    figure.legend(
        entries, list(LOOKS), loc="outside upper left", ncols=3, title="than FedAvg", alignment="left"
    )
