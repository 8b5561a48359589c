"""Which method, when: methods with a model for everybody beside FedAvg, suites ``natural`` and ``frontier``."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from studies.results.boards import Boards, Row
from studies.results.drawing import budget
from studies.results.federations import SUITES, Federation, both
from studies.results.figures import Figure, count
from studies.results.pages import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BETTER, LEVEL, WORSE = VERDICTS = "better", "no difference", "worse"
LOOKS = {BETTER: ("#222222", ""), LEVEL: ("#cfe3f2", ""), WORSE: ("white", "////")}  #: color and hatch
MOST_BUDGETS = 4
MOST_ROWS = 10
FEWEST = 3  # federations of a method in the table
TWIN = "fednova"  # FedAvg under another name, where all clients take equally many steps
Counts = dict[str, dict[float | None, Counter[str]]]


def page(boards: Boards) -> Page:
    """Return what the page on methods is made from."""
    all_of = [each for each in both(boards) if not each.own_noise]
    budgets = common_budgets(all_of)
    made = Page("methods", [boards[suite] for suite in SUITES])
    tallies: Counts = {}
    sizes: dict[str, list[float]] = {}
    seen: dict[tuple[str, str], str] = {}
    for each in all_of:
        for epsilon in budgets:
            twin = each.row(TWIN, epsilon)
            band = difference(twin)
            if band is not None and epsilon is not None:
                made.figures.setdefault(f"{each.name}, {budget(epsilon)}, one method twice", apart(band))
            for row in rivals(each, epsilon):
                change, suite = difference(row), seen.setdefault((each.name, row.name), each.board.suite)
                if change is not None and suite == each.board.suite:
                    verdict = decide(change, 0.0 if band is None else abs(band.value))
                    tallies.setdefault(row.name, {}).setdefault(epsilon, Counter())[verdict] += 1
                    sizes.setdefault(row.name, []).append(bytes_ratio(each, row))
    tallies = {name: tallies[name] for name in sorted(tallies, key=lambda name: -score(tallies[name]))}
    rows: dict[str, Any] = {}
    for name, by_budget in tallies.items():
        rows[name] = {"bytes a round": Figure(median(sizes[name])).ratio()}
        for epsilon, tally in by_budget.items():
            rows[name][budget(epsilon)] = " / ".join(str(tally[verdict]) for verdict in VERDICTS)
            for verdict in VERDICTS:
                made.figures[f"{name}, {budget(epsilon)}, {verdict}"] = count(tally[verdict])
    often = {name for name, by_budget in tallies.items() if by_budget[None].total() >= FEWEST}
    shown = dict([(name, cells) for name, cells in rows.items() if name in often][:MOST_ROWS])
    made.table("table", "better / no difference / worse", ["bytes a round", *map(budget, budgets)], shown)
    made.figures["federations"] = count(len({each.name for each in all_of}))
    made.figures["methods"] = count(len(rows))
    made.size = (7.5, 0.27 * len(tallies) + 1.1)
    made.draw = lambda figure: draw(figure, tallies, {name: median(sizes[name]) for name in tallies}, budgets)
    return made


def common_budgets(all_of: list[Federation]) -> list[float | None]:
    """Return no privacy and the budgets that most federations have, the largest first."""
    often = Counter(epsilon for each in all_of for epsilon in each.budgets).most_common(MOST_BUDGETS - 1)
    return [None, *sorted((epsilon for epsilon, _ in often), reverse=True)]


def rivals(federation: Federation, epsilon: float | None) -> list[Row]:
    """Return the rows of other methods with one model, of the same kind and problem."""
    rows = federation.rows(epsilon_asked=epsilon, model_for="everybody", problem="classify")
    return [row for row in rows if row["algorithm"] not in ("fedavg", TWIN)]


def difference(row: Row | None) -> Figure | None:
    """Return the difference to FedAvg in the same setting."""
    return None if row is None else row.paired()


def apart(figure: Figure) -> Figure:
    """Return how far apart two names of one method are, in points."""
    return Figure(abs(figure.value), rows=figure.rows, text=f"{100 * abs(figure.value):.1f}")


def decide(change: Figure, band: float) -> str:
    """Return whether a method is better than FedAvg: by its interval, and by more than one method under two names."""
    if not change.certain or abs(change.value) <= band:
        return LEVEL
    return BETTER if change.value > 0 else WORSE


def bytes_ratio(federation: Federation, row: Row) -> float:
    """Return the bytes of a round over those of FedAvg with the same model."""
    other = federation.row("fedavg", row["epsilon_asked"], row["model"])
    if other is None:
        return 1.0
    each, base = ((it["bytes_up"] + it["bytes_down"]) / it["rounds"] for it in (row, other))
    return float(each / base)


def score(by_budget: dict[float | None, Counter[str]]) -> float:
    """Return the share of comparisons that a method wins, less the share that it loses."""
    whole = sum(by_budget.values(), Counter[str]())
    return (whole[BETTER] - whole[WORSE]) / whole.total()


def draw(figure: Canvas, tallies: Counts, sizes: dict[str, float], budgets: list[float | None]) -> None:
    """Draw the federations on which a method is better or worse than FedAvg: a bar for each method and budget."""
    from matplotlib.ticker import MaxNLocator

    axes = list(figure.subplots(1, len(budgets), sharex=True, sharey=True).flat)
    for ax, epsilon in zip(axes, budgets, strict=True):
        for place, by_budget in enumerate(tallies.values()):
            tally, left = by_budget.get(epsilon, Counter[str]()), 0
            for verdict, (color, hatch) in LOOKS.items():
                label = verdict if ax is axes[0] and place == 0 else None
                ax.barh(place, tally[verdict], left=left, color=color, hatch=hatch, edgecolor="black", linewidth=0.6,
                        height=0.7, label=label)  # fmt: skip
                left += tally[verdict]
        ax.set_title("no privacy" if epsilon is None else budget(epsilon), fontsize=9)
        ax.grid(visible=False)
        ax.set_xlabel("federations")
    names = [f"{name} ({size:.2g} × bytes)" for name, size in sizes.items()]
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(-0.6, len(names) - 0.4)
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].invert_yaxis()
    figure.legend(loc="outside upper left", ncols=3, title="than FedAvg", alignment="left")
