"""Terminal summary of a suite: the cost of privacy and compression for one algorithm.

The full table of a suite rarely fits on a screen. The summary compares, on each data set, the protected cells of
one algorithm with the same cell without privacy and compression, paired by seed; shows the values of all methods
beside it; and what each client of a small federation with names gains or loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from harness.core.units import counted
from harness.report.data.results import Results
from harness.report.tables.certainty import inversion_sentences
from harness.report.tables.costs import costs, data_of
from harness.report.tables.pivot import Grid
from harness.report.tables.privacy import guarantee, uncovered_by, uncovered_sentence
from harness.report.tables.protection import Comparison, labels
from harness.report.tables.rows import Board
from harness.report.tables.write import fits, print_table, remarks

if TYPE_CHECKING:
    from rich.console import Console

SHORT = 12  # rows up to which a narrow terminal also gets the table, with fewer columns
MOST_COMPARED = 3  # data sets with tables
MOST_NAMED = 6  # algorithms in a sentence


def print_summary(
    results: Results,
    board: Board,
    by: str,
    baseline: str | None,
    console: Console,
) -> None:
    """Print the cost of protection, the full table if it is short or the terminal wide enough, then notes.

    Parameters
    ----------
    results : Results
        Runs of the suite.
    board : Board
        Their leaderboard.
    by, baseline
        As for `leaderboard`.
    console : Console
        Output console; its width decides.
    """
    compared = costs(results, by, baseline)
    frame = board.frame
    in_full = not compared or len(frame) <= SHORT or fits(board, console.width)
    for each in compared:
        _say(console, each.answer)
    notes: dict[str, None] = {}
    for each in compared[:MOST_COMPARED]:
        _say(console, each.table.note)
        for grid in (each.table, *each.beside):
            _print_grid(grid, console)
        notes |= dict.fromkeys([*each.notes, *(grid.note for grid in each.beside)])
    for text in (*notes, *_privacy([each.comparison for each in compared[:MOST_COMPARED]])):
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
        for text in remarks(board):
            _say(console, text)
    for text in inversion_sentences(results.cells):
        _say(console, text)


def _print_grid(grid: Grid, console: Console) -> None:
    """Print a table of costs, in at most 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(grid.corner)
    for heading in grid.columns:
        table.add_column(heading, justify="right")
    for name, texts in grid.lines():
        table.add_row(name, *texts)
    console.print(table)


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


def _say(console: Console, text: str) -> None:
    """Print a sentence, if there is one, wrapped even where the output is a file."""
    from rich.text import Text

    if text:
        console.print(Text(text), soft_wrap=False)


def _privacy(compared: Sequence[Comparison]) -> list[str]:
    """Describe the privacy of all protected rows at once; what differs has the rows that it belongs to."""
    guarantees: dict[str, list[str]] = {}
    warnings: dict[str, list[str]] = {}
    for _, _, protected in compared:
        for cell, text in zip(protected, labels(protected), strict=True):
            if claim := cell.privacy():
                row = f"{data_of(cell)}, {text}" if len(compared) > 1 else text
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
