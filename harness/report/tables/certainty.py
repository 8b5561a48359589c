"""Tables of what is certain: differences that mean nothing, methods that are level, searches that failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from harness.core.units import counted, size
from harness.metrics import better_is_higher
from harness.report.data.best import level_with_best
from harness.report.data.budgets import budget_of
from harness.report.data.comparison import RIVALS
from harness.report.data.inversions import Inversion, inversions
from harness.report.data.leaderboard import model_for
from harness.report.data.procedure import Interval
from harness.report.data.ranks import Ranks, best_setting, method_names, ranks_by_kind
from harness.report.data.resolution import Namesakes, Resolution
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import part_name
from harness.report.tables.pivot import Grid, Place, value_text
from harness.report.tables.rows import Board, protection
from harness.report.tables.text import (
    distinguishing,
    form_of,
    in_points,
    in_sentence,
    possible,
    possible_change,
    signed,
    without_section,
    words,
)

APART = "What this table cannot tell apart"
LEVEL = "Methods that cannot be told from the best"
MOST_INVERSIONS = 12  # more are counted, not named


class Certainty(NamedTuple):
    """Tables above a leaderboard, and sentences below it on what it does not show."""

    above: list[Grid]
    also: list[str]


def certainty(results: Results, board: Board) -> Certainty:
    """Return what is certain of a leaderboard, in the measure that ranks it."""
    limits = [*inversion_sentences(results.cells), *rank_sentences(results.cells, board.by)]
    return Certainty(certainty_tables(results, board, board.by), limits)


def certainty_tables(results: Results, board: Board, by: str) -> list[Grid]:
    """Return what stands above a leaderboard whose rows were searched for, or named twice; nothing for others."""
    cells = [cell for cell in results.cells if cell.values(by) and not cell.empty_gap(by)]
    if not any(cell.records[0].search or cell.records[0].same for cell in cells):
        return []
    resolution, labels = Resolution(cells, by), _labels(board, cells)
    return [*_namesakes(resolution, labels), *_groups(cells, resolution, labels)]


def _namesakes(resolution: Resolution, labels: Mapping[str, tuple[str, str]]) -> list[Grid]:
    """Return the table of the differences of one method under two names, by task and budget."""
    pairs, by = resolution.namesakes, resolution.measure
    if not pairs:
        return []
    several = len({_pair(pair) for pair in pairs}) > 1
    places = {}
    for pair in pairs:
        task, budget = labels[pair.cells[0].key]
        row = f"{task}, {_pair(pair)}" if several else task
        text = _difference(pair.difference, by) + _interval(pair.interval, by)
        places[row, budget] = Place(text)
    budgets = {labels[pair.cells[0].key][1]: budget_of(pair.cells[0]).epsilon for pair in pairs}
    columns = sorted(budgets, key=lambda name: (-budgets[name], name))
    largest = max(abs(pair.difference) for pair in pairs)
    known = [pair.interval for pair in pairs if pair.interval]
    beyond = sum(not low <= 0 <= high for low, high in known)
    suites = sorted({pair.cells[0].suite for pair in pairs})
    usual = ", ".join(_amount(resolution.of_suite(suite), by) for suite in suites)
    names = "The names of a pair are" if several else f"{_pair(pairs[0]).replace(' - ', ' and ')} are"
    note = (
        f"{names} one method under two names, each searched for and run by itself. Difference of their means in "
        f"{in_sentence(by)}{', in points,' if in_points(by) else ''} with its 95 % interval. Nine in ten are at "
        f"most {usual}; the largest is {_amount(largest, by)}."
    )
    note += f" The interval excludes 0 in {beyond} of {len(known)}." if known else ""
    note += (
        " A smaller difference in the same task at the same budget gets no rank, star or bold. Where the two did "
        "not run, the nearest figure counts: of other models at that budget, of other budgets on these data, nine "
        "in ten of the suite."
    )
    rows = tuple(dict.fromkeys(row for row, _ in places))
    return [Grid(APART, "task", note, rows, tuple(columns), places)]


def _pair(pair: Namesakes) -> str:
    """Return the names of a pair, the first less the second."""
    return " - ".join(cell.algorithm for cell in pair.cells)


def _groups(
    cells: Sequence[Cell], resolution: Resolution, labels: Mapping[str, tuple[str, str]]
) -> list[Grid]:
    """Return a row for every task and budget: the methods that are level with the best, and how far others are."""
    by, names = resolution.measure, method_names(cells)
    rivals = grouped(cells, lambda cell: (cell.shared_key(RIVALS), model_for(cell)))
    purposes = {
        key: {model_for(cell) for cell in members}
        for key, members in grouped(cells, lambda cell: cell.shared_key(RIVALS)).items()
    }
    several = any(len(own) > 1 for own in purposes.values())
    rows: dict[str, list[str]] = {}
    for (_, purpose), members in sorted(rivals.items(), key=lambda item: _order(item[1][0], labels)):
        methods = [best_setting(own, by) for own in grouped(members, lambda cell: names[cell.key]).values()]
        level = level_with_best(methods, resolution)
        if not level:
            continue
        task, budget = labels[members[0].key]
        row = ", ".join(filter(None, (task, budget, f"for {purpose}" if several else "")))
        rows[row] = _group(level, methods, names, resolution)
    if not rows:
        return []
    columns = ("Level with the best", "Differ by", words(by), "95 %", "Bytes", "Behind")
    note = (
        f"Of each method the best setting. {words(by)} and its interval, over searches and seeds, are those of the "
        "first; the means of the others are no further from it than they differ by. Behind: how many "
        f"others are behind the first by how much{', in points' if in_points(by) else ''}."
    )
    return [Grid.of_texts(LEVEL, "task and budget", note, columns, rows)]


def _group(
    level: Sequence[Cell], methods: Sequence[Cell], names: Mapping[str, str], resolution: Resolution
) -> list[str]:
    """Return the texts of a group and of what is behind it."""
    by = resolution.measure
    means = {cell.key: cell.mean(by) for cell in methods}
    ordered = sorted(level, key=lambda cell: means[cell.key], reverse=better_is_higher(by))
    best = ordered[0]
    off = {key: abs(mean - means[best.key]) for key, mean in means.items()}
    behind = sorted(off[cell.key] for cell in methods if cell not in level)
    widest = max(off[cell.key] for cell in level)
    sent = sorted(fmean(values.values()) for cell in level if (values := cell.values("bytes")))
    interval = resolution.procedures.mean(best)
    return [
        ", ".join(names[cell.key] for cell in ordered),
        _amount(widest, by) if len(level) > 1 else "",
        value_text(means[best.key], by),
        "" if interval is None else " to ".join(value_text(possible(end, by), by) for end in interval),
        _range([size(sent[0]), size(sent[-1])]) if sent else "",
        f"{len(behind)}: {_range([_number(behind[0], by), _number(behind[-1], by)])}" if behind else "",
    ]


def inversion_sentences(cells: Iterable[Cell]) -> list[str]:
    """Return where a larger budget gave a worse result; nothing if no tuned budgets can be compared."""
    if (found := inversions(cells)) is None:
        return []
    if not found:
        return ["No larger budget has a worse result, beyond the interval of the difference."]
    start = "Worse at a larger budget, beyond the interval (a failure of the search, not of privacy)"
    texts = [_inverted(inversion) for inversion in found[:MOST_INVERSIONS]]
    rest = [f"{len(found) - len(texts)} more"] if len(found) > len(texts) else []
    return [f"{start}: {'; '.join([*texts, *rest])}."]


def rank_sentences(cells: Sequence[Cell], by: str) -> list[str]:
    """Return of which methods there are no ranks, as none is told from another."""
    return [
        f"No ranks of methods that train {kind[0].lower()}{kind[1:]}: none of {len(result.methods)} is told from "
        f"another over {counted(result.federations, 'federation')} ({critical_text(result)})."
        for kind, result in ranks_by_kind(cells, by).items()
        if not result.distinct
    ]


def critical_text(result: Ranks) -> str:
    """Return the critical difference of ranks and what it is made of."""
    parts = {
        "other federations": result.of_federations,
        "other searches and seeds": result.of_searches,
        "one method under two names": result.of_namesakes,
    }
    texts = [f"{name} {value:.2f}" for name, value in parts.items() if value is not None]
    if result.critical is None:
        return "too few seeds and federations for a test"
    return f"critical difference {result.critical:.2f}, the largest of: {', '.join(texts)}"


def _inverted(inversion: Inversion) -> str:
    cell, measure = inversion.cell, inversion.measure
    values = (value_text(own.mean(measure), measure) for own in (cell, inversion.smaller))
    mean, better = values
    where = " ".join(filter(None, (cell.algorithm, "on", part_name(cell.spec.get("data")))))
    return (
        f"{where} {budget_text(cell)}: {in_sentence(measure)} {mean}, {better} {budget_text(inversion.smaller)}, "
        f"{_difference(inversion.difference, measure)}{_interval(inversion.interval, measure)}"
        f"{' points' if in_points(measure) else ''}"
    )


def budget_text(cell: Cell) -> str:
    """Return a cell's requested budget in words."""
    budget = budget_of(cell)
    return f"at ε {budget.epsilon:g}" if budget.kind else "without privacy"


def _labels(board: Board, cells: Sequence[Cell]) -> dict[str, tuple[str, str]]:
    """Return cell -> its task in words, with what tells tasks apart, and its budget."""
    keys = {cell.key for cell in cells}
    rows = {row["cell"]: row for row in board.rows if row["cell"] in keys}
    traits: dict[str, tuple[str, Sequence[str]]] = {}
    for cell in cells:
        names = board.tasks[cell.key]
        compression = (f"{k}={v}" for k, v in sorted(cell.given.items()) if k.startswith("compression."))
        also = (names["partition"], names["problem"], part_name(cell.spec.get("model")) or "", *compression)
        traits[cell.key] = "", [names["dataset"], *filter(None, also)]
    telling = distinguishing(traits)
    ways = {protection(row) for row in rows.values()} - {""}
    labels = {}
    for cell in cells:
        dataset = traits[cell.key][1][0]
        task = dict.fromkeys([dataset, *map(without_section, telling[cell.key])])
        budget = budget_of(cell)
        text = f"ε {budget.epsilon:g}" if budget.kind else "no privacy"
        way = f" {protection(rows[cell.key])}" if budget.kind and len(ways) > 1 else ""
        labels[cell.key] = " ".join(task), text + way
    return labels


def _order(cell: Cell, labels: Mapping[str, tuple[str, str]]) -> tuple[str, float, str]:
    """Return the place of a row: by task, without privacy first, then from the largest budget down."""
    task, budget = labels[cell.key]
    return task, -budget_of(cell).epsilon, budget


def _range(ends: Collection[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def _difference(value: float, measure: str) -> str:
    """Return a difference with its sign, in points where the measure is a share."""
    value = possible_change(value, measure)
    return signed(100 * value, "+.1f") if in_points(measure) else signed(value, f"+{form_of(measure)}")


def _number(value: float, measure: str) -> str:
    """Return a difference without its sign."""
    return f"{100 * value:z.1f}" if in_points(measure) else format(value, f"z{form_of(measure)}")


def _amount(value: float, measure: str) -> str:
    """Return a difference without its sign, with its unit."""
    number = _number(value, measure)
    return f"{number} {'point' if number == '1.0' else 'points'}" if in_points(measure) else number


def _interval(interval: Interval | None, measure: str) -> str:
    return "" if interval is None else f" [{', '.join(_difference(end, measure) for end in interval)}]"
