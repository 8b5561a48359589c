"""Terminal summary of a suite: the cost of privacy and compression for one algorithm.

The full table of a suite rarely fits on a screen. The summary compares, on each data set, the protected cells of
one algorithm with the same cell without privacy and compression, paired by seed; and what each client of a small
federation with names gains or loses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from harness.core.registry import counted
from harness.core.units import size
from harness.metrics import better_is_higher
from harness.report.data.clients import ALONE, client_rows
from harness.report.data.privacy_change import Change, change_from
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results
from harness.report.data.specs import clients, data_name, part_name, partition_text
from harness.report.data.tested import seed_pairs
from harness.report.tables.certainty import inversion_sentences
from harness.report.tables.columns import NONE
from harness.report.tables.privacy import exposure, guarantee, uncovered_by, uncovered_sentence
from harness.report.tables.protection import Comparison, compare_protection, label, labels
from harness.report.tables.rows import Board
from harness.report.tables.text import in_points, in_sentence, signed, span, spread, words
from harness.report.tables.together import together
from harness.report.tables.write import fits, print_table, reasons

if TYPE_CHECKING:
    from rich.console import Console

    from harness.storage.store import RunRecord

SHORT = 12  # rows up to which a narrow terminal also gets the table, with fewer columns
MOST_ROWS = 8  # more protected cells are counted, not listed
MOST_COMPARED = 3  # data sets
MOST_COSTS = 3  # of the first sentence
MOST_NAMED = 6  # clients of a table by client
BY_CLIENT = ("accuracy", "auroc")  # measures of clients


def print_summary(
    records: Iterable[RunRecord] | Results,
    frame: pd.DataFrame | Board,
    by: str,
    baseline: str | None,
    console: Console,
) -> None:
    """Print the cost of protection, the full table if it is short or the terminal wide enough, then notes.

    Parameters
    ----------
    records : Iterable[RunRecord] or Results
        Run records of the suite.
    frame : pd.DataFrame or Board
        Their leaderboard.
    by, baseline
        As for `leaderboard`.
    console : Console
        Output console; its width decides.
    """
    results = Results.of(records)
    compared = compare_protection(results, by, baseline)
    board = Board.of(frame, results)
    frame = board.frame
    in_full = not compared or len(frame) <= SHORT or fits(board, console.width)
    resolution = Resolution(results.cells, by)
    for comparison in compared:
        _say(console, headline(comparison, resolution))
    for comparison in compared[:MOST_COMPARED]:
        print_comparison(comparison, resolution, console)
        print_clients(comparison, results, console)
    for text in dict.fromkeys(note for one in compared[:MOST_COMPARED] for note in _notes(one, resolution)):
        _say(console, text)
    for text in _privacy(compared[:MOST_COMPARED]):
        _say(console, text)
    if in_full:
        print_table(board, console)
    if compared:
        _say(console, _purposes(frame))
    if not in_full:
        done, runs = int(frame["done"].sum()), int(frame["seeds"].sum())
        algorithms = frame["algorithm"].nunique()
        _say(
            console,
            f"{done} of {counted(runs, 'run')} finished; {counted(algorithms, 'algorithm')}, "
            f"{counted(len(frame), 'row')}.",
        )
        for text in [*reasons(frame), *exposure(board), *together(frame)]:
            _say(console, text)
    for text in inversion_sentences(results.cells):
        _say(console, text)


def _purposes(frame: pd.DataFrame) -> str:
    """Name the algorithms whose models serve one client each; empty if none or all do."""
    users = frame.groupby("model_for", sort=False)["algorithm"].unique()
    personal = users[users.index.str.startswith("each client")]
    if not 0 < len(personal) < len(users):
        return ""
    texts = [
        f"{', '.join(names[:MOST_NAMED])}{' ...' * (len(names) > MOST_NAMED)} ({user})"
        for user, names in personal.items()
    ]
    sentence = (
        f"Not comparable with the others (one model per client): {'; '.join(texts)}. A client's own model is "
        "tested only on that client's samples."
    )
    # Scores of different models are sorted together, so that knowing who has many positives counts.
    inside = "auroc_clients_mean" in frame and bool(frame["auroc_clients_mean"].notna().any())
    return (
        sentence
        + " Its AUROC gains from knowing each client's share of positives: see auroc_clients." * inside
    )


def print_comparison(comparison: Comparison, resolution: Resolution, console: Console) -> None:
    """Print the cost of protection on one data set as a table, in at most 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    measure, plain, protected = comparison
    _say(console, _setting((plain, *protected)))
    points = in_points(measure)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(plain.algorithm)
    for heading in (words(measure), "change, points" if points else "change", "bytes up"):
        table.add_column(heading, justify="right")
    scale, form = (100, "+.1f") if points else (1, "+.3g")
    cells = (plain, *protected[:MOST_ROWS])
    for cell, text in zip(cells, labels(cells), strict=True):
        sent = cell.values("bytes_up").values()
        change = None if cell is plain else change_from(plain, cell, measure, resolution.procedures)
        level = change is not None and is_level(change, resolution, plain, cell)
        value = spread(cell.values(measure).values(), ".3f" if points else ".4g")
        sent_text = size(fmean(sent)) if sent else ""
        table.add_row(text, value, f"{NONE} " * level + _change_text(change, scale, form), sent_text)
    console.print(table)
    if (more := len(protected) - MOST_ROWS) > 0:
        _say(console, f"{more} more such rows are in the table.")
    _say(console, _unpaired(comparison))


def _notes(comparison: Comparison, resolution: Resolution) -> list[str]:
    """Explain the figures of a comparison."""
    measure, plain, protected = comparison
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
    changes = ((cell, change_from(plain, cell, measure, resolution.procedures)) for cell in cells[1:])
    if any(change is not None and is_level(change, resolution, plain, cell) for cell, change in changes):
        notes.append(f"{NONE} marks a change that one method has from itself under another name.")
    return notes


def is_level(change: Change, resolution: Resolution, plain: Cell, cell: Cell) -> bool:
    """Return whether a change is no larger than that of one method under two names."""
    return abs(change.mean) <= resolution.of(plain, cell)


def print_clients(comparison: Comparison, results: Results, console: Console) -> None:
    """Print the gain or loss of each client of a small federation with names, in at most 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    by_measure = {name: _by_client(comparison.plain, name) for name in BY_CLIENT}
    # AUROC needs both classes at a client.
    measure = max(by_measure, key=lambda name: (len(by_measure[name]), name == comparison.measure))
    plain = by_measure[measure]
    if not 1 < len(plain) <= MOST_NAMED:
        return
    protected = comparison.protected[:MOST_ROWS]
    rows = list(zip(labels(protected), protected, strict=True))
    alone = (cell for cell in results.cells if cell.algorithm == ALONE and cell.task == comparison.plain.task)
    rows += [("each client alone", cell) for cell in alone if len(_by_client(cell, measure))][:1]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(f"{words(measure)} of")
    for name in plain.index:
        table.add_column(name, justify="right")
    table.add_row(label(comparison.plain), *(f"{mean:.3f}" for mean in plain.mean(axis=1)))
    for text, cell in rows:
        same = list(seed_pairs(cell, comparison.plain, measure).differences)
        changes = (_by_client(cell, measure) - plain)[same].mean(axis=1).reindex(plain.index)
        table.add_row(text, *("" if pd.isna(change) else signed(100 * change, "+.1f") for change in changes))
    counts = _by_client(comparison.plain, "n").loc[plain.index]
    table.add_section()
    table.add_row("test samples", *map(span, counts.min(axis=1), counts.max(axis=1)))
    console.print(table)
    _say(console, "Changes in points on each client's own test samples, means over seeds.")


def _by_client(cell: Cell, measure: str) -> pd.DataFrame:
    """Return a measure on test samples of clients (rows) by seeds, for clients with a value in every run."""
    table = client_rows(cell.done)
    by_seed = table.pivot(index="client", columns="seed", values=measure).astype("float64")
    return by_seed.reindex(index=table["client"].unique(), columns=[run.seed for run in cell.done]).dropna()


def _change_text(change: Change | None, scale: float, form: str) -> str:
    if change is None:
        return ""
    ends = ", ".join(signed(scale * end, form) for end in change.interval or ())
    return signed(scale * change.mean, form) + (f" [{ends}]" if ends else "")


def headline(comparison: Comparison, resolution: Resolution) -> str:
    """Return the cost of the first protected rows: ``On heart, ε = 8 costs 1.9 points of AUROC [1.0, 2.8]``.

    A cost that one method has from itself under another name is none.
    """
    measure, plain, protected = comparison
    sign = -1 if better_is_higher(measure) else 1
    scale, form, unit = (100, ".1f", "points of ") if in_points(measure) else (1, ".3g", "")
    costs = []
    for cell, text in zip(protected[:MOST_COSTS], labels(protected), strict=False):
        if (change := change_from(plain, cell, measure, resolution.procedures)) is None:
            continue
        if (least := resolution.of(plain, cell)) and is_level(change, resolution, plain, cell):
            told = f"{scale * least:{form}} {unit}{in_sentence(measure)}"
            costs.append(f"what {text} costs cannot be told from nothing (less than {told})")
            continue
        cost = sign * scale * change.mean
        verb, turn = ("costs", sign * scale) if cost >= 0 else ("gains", -sign * scale)
        ends = sorted(turn * end for end in change.interval or ())
        interval = f" [{', '.join(signed(end, form) for end in ends)}]" if ends else ""
        costs.append(f"{text} {verb} {signed(abs(cost), form)} {unit}{in_sentence(measure)}{interval}")
    return f"On {_data(plain)}, {'; '.join(costs)}." if costs else ""


def _say(console: Console, text: str) -> None:
    """Print a sentence, if there is one, wrapped even where the output is a file."""
    from rich.text import Text

    if text:
        console.print(Text(text), soft_wrap=False)


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


def _setting(cells: Sequence[Cell]) -> str:
    """Describe the runs of cells to compare in one sentence."""
    spec, seeds = cells[0].spec, len(cells[0].done)
    count, lengths = clients(spec), {cell.spec.get("rounds") for cell in cells}
    facts = [
        _data(cells[0]),
        counted(count, "client") if count else "",
        partition_text(spec.get("partition")) or "",
        f"model {part_name(spec['model'])}" if spec.get("model") else "",
        counted(spec.get("rounds"), "round") if len(lengths) == 1 else "",
        counted(seeds, "seed"),
        f"each row with the best of {counted(_tried(cells), 'setting')}"
        if cells[0].records[0].search
        else "settings chosen for each row"
        if cells[0].records[0].chosen
        else "",
    ]
    return f"Measured on {', '.join(fact for fact in facts if fact)}."


def _privacy(compared: Sequence[Comparison]) -> list[str]:
    """Describe the privacy of all protected rows at once; what differs has the rows that it belongs to."""
    guarantees: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    for _, _, protected in compared:
        for cell, text in zip(protected, labels(protected), strict=True):
            if claim := cell.privacy():
                row = f"{_data(cell)}, {text}" if len(compared) > 1 else text
                guarantees.setdefault(guarantee(claim), []).append(row)
                if warning := claim.get("warning"):
                    warnings.setdefault(f"Warning: {warning}.", []).append(row)
    private = sum(map(len, guarantees.values()))
    if not private:
        return []
    texts = [
        text if len(rows) == private else f"{'; '.join(rows)}: {text}"
        for text, rows in (*guarantees.items(), *warnings.items())
    ]
    uncovered = uncovered_sentence(uncovered_by(cell for one in compared for cell in one.protected))
    return [*texts, uncovered]


def _data(cell: Cell) -> str:
    """Return the name of a cell's data or problem."""
    return data_name(cell.spec.get("data")) or str(part_name(cell.spec.get("problem")))


def _tried(cells: Sequence[Cell]) -> int | str:
    """Return how many settings the searches of cells tried: a number, or a range in words."""
    numbers = {len(cell.records[0].search["trials"]) for cell in cells if cell.records[0].search}
    return min(numbers) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
