"""Tables of what protection costs: one algorithm in detail, all methods beside it, and each client.

The protected cells of an algorithm are compared with the same cell without privacy and compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from harness.core.units import counted, size
from harness.metrics import better_is_higher
from harness.report.data.clients import ALONE, GAINS, by_seed, client_changes
from harness.report.data.identity import plugged
from harness.report.data.protection_change import Change, change_from
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import clients, part_name, partition_text
from harness.report.data.tested import seed_pairs
from harness.report.tables.columns import NO_DIFFERENCE
from harness.report.tables.pivot import Grid
from harness.report.tables.protection import Comparison, compare_protection, labels
from harness.report.tables.text import change_text, in_points, in_sentence, signed, span, spread, words

MOST_ROWS = 8  # more protected cells are counted, not listed
MOST_COSTS = 3  # of the first sentence
MOST_NAMED = 6  # clients of a table by client
MOST_METHODS = 10
MOST_BESIDE = 4  # protections of the table of methods
NOT_TUNED = "Settings tuned for each budget (tune) can make privacy cost less."


class Costs(NamedTuple):
    """The costs of protection on one data set.

    Attributes
    ----------
    comparison : Comparison
        The cells compared.
    answer : str
        The cost in a sentence; may be empty.
    table : Grid
        The rows compared.
    notes : list of str
        Explanations of the values.
    beside : list of Grid
        The tables of all methods and of each client, where there are any.
    """

    comparison: Comparison
    answer: str
    table: Grid
    notes: list[str]
    beside: list[Grid]


def costs(results: Results, by: str, baseline: str | None) -> list[Costs]:
    """Return what protection costs, for every data set."""
    resolution, found = Resolution(results.cells, by), []
    for comparison in compare_protection(results, by, baseline):
        tables = method_table(comparison, results, resolution), client_table(comparison, results)
        found.append(
            Costs(
                comparison,
                headline(comparison, resolution),
                cost_table(comparison, resolution),
                explained(comparison, resolution),
                [table for table in tables if table is not None],
            )
        )
    return found


def cost_tables(results: Results, by: str, baseline: str | None) -> list[Grid]:
    """Return the tables of all costs, headed by the answers; each note is said once."""
    grids, notes = list[Grid](), dict[str, None]()
    for each in costs(results, by, baseline):
        new = [note for note in each.notes if note not in notes]
        notes |= dict.fromkeys(new)
        answers = (each.answer,) if each.answer else ()
        grids += [each.table._replace(note=" ".join([each.table.note, *new]), answers=answers), *each.beside]
    return grids


def cost_table(comparison: Comparison, resolution: Resolution) -> Grid:
    """Return what protection costs an algorithm on one data set; the note says what was run."""
    measure, plain, protected = comparison
    heads = (words(measure), "change, points" if in_points(measure) else "change", "bytes up")
    rows: dict[str, tuple[str, ...]] = {}
    cells = (plain, *protected[:MOST_ROWS])
    for cell, text in zip(cells, comparison.heads, strict=False):
        sent = cell.values("bytes_up").values()
        change = None if cell is plain else change_from(plain, cell, resolution)
        rows[text if text not in rows else f"{text} ({cell.key[:6]})"] = (
            spread(cell.values(measure).values(), ".3f" if in_points(measure) else ".4g"),
            _with_interval(change, measure),
            size(fmean(sent)) if sent else "",
        )
    more = len(protected) - MOST_ROWS
    note = [
        _setting(comparison),
        f"{more} more such rows are in the table of all rows." if more > 0 else "",
        _unpaired(comparison),
    ]
    title = f"What privacy and compression cost on {data_of(plain)}"
    return Grid.of_texts(title, plain.algorithm, " ".join(filter(None, note)), heads, rows)


def method_table(comparison: Comparison, results: Results, resolution: Resolution) -> Grid | None:
    """Return the values of all methods of a comparison's task under its protections; None for a single method.

    Of every algorithm it shows the settings that were run under most protections, and of these the best. A
    user's own algorithms come first, then the best.
    """
    measure, plain = comparison.measure, comparison.plain
    heads = list(dict.fromkeys(labels((plain, *comparison.protected))))[: MOST_BESIDE + 1]
    measured = [cell for cell in results.cells if cell.task == plain.task and cell.values(measure)]
    rows: dict[str, dict[str, Cell]] = {}
    for members in grouped(measured, lambda cell: cell.shared_key(("privacy", "compression"))).values():
        by_label = dict(zip(reversed(labels(members)), reversed(members), strict=True))
        row = {head: by_label[head] for head in heads if head in by_label}
        rival, name = rows.get(members[0].algorithm), members[0].algorithm
        if row and (rival is None or _order(row, measure) < _order(rival, measure)):
            rows[name] = row
    if len(rows) < 2:
        return None

    def place(name: str) -> tuple[bool, float, str]:
        cells = list(rows[name].values())
        return "algorithm" not in plugged(cells[0].records[0]), _order(rows[name], measure)[1], name

    shown = sorted(rows, key=place)[:MOST_METHODS]
    more = len(rows) - len(shown)
    note = [
        f"Every method under the same protections, in brackets the change{' in points' * in_points(measure)}; "
        "the spread over seeds is in the table of all rows.",
        f"{counted(more, 'more method')} there." if more else "",
    ]
    models = {name: str(part_name(next(iter(rows[name].values())).spec.get("model"))) for name in shown}
    texts = {
        name if len(set(models.values())) == 1 else f"{name} {models[name]}": [
            _with_change(rows[name], head, heads[0], measure, resolution) for head in heads
        ]
        for name in shown
    }
    title = f"What privacy and compression cost every method on {data_of(plain)}"
    shown_heads = list(dict.fromkeys(comparison.heads))[: len(heads)]
    return Grid.of_texts(title, f"{words(measure)} of", " ".join(filter(None, note)), shown_heads, texts)


def _order(row: Mapping[str, Cell], measure: str) -> tuple[int, float]:
    """Return a sort key: most protections first, then the best value, without protection if there is one."""
    first = next((cell for cell in row.values() if not cell.is_protected), next(iter(row.values())))
    return -len(row), -first.score(measure)


def _with_change(
    row: Mapping[str, Cell], head: str, unprotected: str, measure: str, resolution: Resolution
) -> str:
    """Return the mean of a method under a protection, and the change that this is; empty where it was not run."""
    if (cell := row.get(head)) is None:
        return ""
    text = format(cell.mean(measure), ".3f" if in_points(measure) else ".4g")
    plain = row.get(unprotected)
    change = None if plain is None or cell is plain else change_from(plain, cell, resolution)
    if change is None:
        return text
    return f"{text} ({f'{NO_DIFFERENCE} ' * change.level}{change_text(change.mean, measure)})"


def explained(comparison: Comparison, resolution: Resolution) -> list[str]:
    """Explain the values of a comparison."""
    _, plain, protected = comparison
    if len(plain.done) < 2:
        return ["One seed: no spread."]
    cells = (plain, *protected[:MOST_ROWS])
    searched = any(cell.records[0].search.get("finalists") for cell in cells)
    of_changes = (
        "changes are those of the means, with their 95 % interval over searches and seeds"
        if searched
        else "changes are paired by seed, with the 95 % interval of their mean"
    )
    notes = [f"± is the sample standard deviation over seeds; {of_changes}."]
    changes = (change_from(plain, cell, resolution) for cell in cells[1:])
    if any(change is not None and change.level for change in changes):
        notes.append(f"{NO_DIFFERENCE} marks a change that one method has from itself under another name.")
    return notes


def client_table(comparison: Comparison, results: Results) -> Grid | None:
    """Return the gain or loss of each client of a small federation with names; None for others."""
    by_measure = {name: by_seed(comparison.plain, name) for name in GAINS}
    # AUROC needs both classes at a client.
    measure = max(by_measure, key=lambda name: (len(by_measure[name]), name == comparison.measure))
    plain = by_measure[measure]
    if not 1 < len(plain) <= MOST_NAMED:
        return None
    protected = comparison.protected[:MOST_ROWS]
    members = list(zip(comparison.texts, protected, strict=False))
    alone = (cell for cell in results.cells if cell.algorithm == ALONE and cell.task == comparison.plain.task)
    members += [("each client alone", cell) for cell in alone if len(by_seed(cell, measure))][:1]
    rows = {comparison.heads[0]: [f"{mean:z.3f}" for mean in plain.mean(axis=1)]}
    for text, cell in members:
        changes = client_changes(cell, comparison.plain, measure)
        rows[text if text not in rows else f"{text} ({cell.key[:6]})"] = [
            "" if pd.isna(change) else signed(100 * change, "+.1f") for change in changes
        ]
    counts = by_seed(comparison.plain, "n").loc[plain.index]
    rows["test samples"] = [
        span(low, high) for low, high in zip(counts.min(axis=1), counts.max(axis=1), strict=True)
    ]
    title = f"What privacy and compression cost each client of {data_of(comparison.plain)}"
    note = f"Under {comparison.plain.algorithm}; changes are points on each client's own test samples, over seeds."
    if len({cell.algorithm for cell in results.cells if cell.done} - {comparison.plain.algorithm, ALONE}):
        note += " Those of the other methods are in the page's table Results of each client."
    return Grid.of_texts(title, f"{words(measure)} of", note, [str(name) for name in plain.index], rows)


def _with_interval(change: Change | None, measure: str) -> str:
    if change is None:
        return ""
    ends = ", ".join(change_text(end, measure) for end in change.interval or ())
    text = change_text(change.mean, measure) + (f" [{ends}]" if ends else "")
    return f"{NO_DIFFERENCE} {text}" if change.level else text


def headline(comparison: Comparison, resolution: Resolution) -> str:
    """Return the cost of the first protected rows: ``On heart, ε = 8 costs 1.9 points of AUROC [1.0, 2.8]``.

    A cost that one method has from itself under another name is none.
    """
    measure, plain, protected = comparison
    sign = -1 if better_is_higher(measure) else 1
    of_measure = f"{'points of ' * in_points(measure)}{in_sentence(measure)}"
    told = []
    for cell, text in zip(protected[:MOST_COSTS], comparison.texts, strict=False):
        if (change := change_from(plain, cell, resolution)) is None:
            continue
        if (least := resolution.of(plain, cell)) and change.level:
            nothing = f"what {text} costs cannot be told from nothing"
            told.append(f"{nothing} (less than {change_text(least, measure, '')} {of_measure})")
            continue
        verb, turn = ("costs", sign) if sign * change.mean >= 0 else ("gains", -sign)
        ends = sorted(turn * end for end in change.interval or ())
        interval = f" [{', '.join(change_text(end, measure, '') for end in ends)}]" if ends else ""
        told.append(f"{text} {verb} {change_text(abs(change.mean), measure, '')} {of_measure}{interval}")
    where = f"On {data_of(plain)}" + (f", with {comparison.shared}" if comparison.shared else "")
    return f"{where}, {'; '.join(told)}." if told else ""


def _unpaired(comparison: Comparison) -> str:
    """Name the rows that have no change because other samples were tested; empty if none has."""
    measure, plain, protected = comparison
    rows = protected[:MOST_ROWS]
    apart = [
        text for text, cell in zip(labels(rows), rows, strict=True) if seed_pairs(cell, plain, measure).apart
    ]
    if not apart:
        return ""
    return (
        "These rows were tested on other samples than the one without protection, so seeds are not paired and "
        f"there is no change: {'; '.join(apart)}. Name the column of users in data.user, which splits both alike."
    )


def _setting(comparison: Comparison) -> str:
    """Describe the runs to compare, and say if their settings were not tuned."""
    cells = (comparison.plain, *comparison.protected)
    spec, seeds = cells[0].spec, len(cells[0].done)
    count, lengths = clients(spec), {cell.spec.get("rounds") for cell in cells}
    facts = [
        data_of(cells[0]),
        counted(count, "client") if count else "",
        partition_text(spec.get("partition")) or "",
        f"model {part_name(spec['model'])}" if spec.get("model") else "",
        counted(spec.get("rounds"), "round") if len(lengths) == 1 else "",
        counted(seeds, "seed"),
        comparison.shared,
        f"each row with the best of {counted(_tried(cells), 'setting')}"
        if cells[0].records[0].search
        else "settings chosen for each row"
        if cells[0].records[0].chosen
        else "settings as given",
    ]
    setting = f"Measured on {', '.join(fact for fact in facts if fact)}."
    by_search = any(cell.records[0].search or cell.records[0].chosen for cell in cells)
    private = any(cell.spec.get("privacy") for cell in comparison.protected)
    return setting if by_search or not private else f"{setting} {NOT_TUNED}"


def data_of(cell: Cell) -> str:
    """Return the name of a cell's data or problem."""
    return cell.data or str(part_name(cell.spec.get("problem")))


def _tried(cells: Sequence[Cell]) -> int | str:
    """Return how many settings the searches of cells tried: a number, or a range in words."""
    numbers = {len(cell.records[0].search["trials"]) for cell in cells if cell.records[0].search}
    return min(numbers) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
