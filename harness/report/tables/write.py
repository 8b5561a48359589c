"""A leaderboard as text: CSV with all columns; Markdown, LaTeX and terminal with the narrow table."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pandas as pd

from harness.core.units import counted
from harness.metrics import LOPSIDED
from harness.report.data.best import RULE
from harness.report.data.columns import COLUMNS, LEADERBOARD
from harness.report.data.evidence import Row
from harness.report.data.export import write_frame
from harness.report.data.statistics import FEWEST
from harness.report.data.tested import APART
from harness.report.tables.columns import NO_DIFFERENCE, ShownColumn, narrow_columns, results_first
from harness.report.tables.pivot import Grid, grids_markdown
from harness.report.tables.privacy import exposure
from harness.report.tables.rows import Board
from harness.report.tables.sheet import Sheet, in_markdown, latex_comment
from harness.report.tables.text import extrapolation, span
from harness.report.tables.together import together

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 200  # in a terminal, of all tasks together
# fmt: off
#: Measures, and rounds, which searches choose, to omit on a narrow terminal, the most dispensable first.
MEASURES = (
    "EqOpp 95 %", "Model for", "Neighbors", "Noise", "ε median", "Work", "Pareto", "Down", "Seconds",
    "Rounds", "Worst client", "Gap", "AUROC", "EqOpp gap", "Up", "Accuracy", "Calls to", "Bytes to", "Rounds to",
)
#: Settings, likewise. Those in which shown rows differ are kept longer than any measure.
SETTINGS = ("Suite", "Clients", "Partition", "Problem", "Variant", "Dataset", "Model")
#: Columns that say which row is which; a measure may be equal by chance, and identifies no row.
DESCRIPTIONS = (
    *SETTINGS, "Rounds", "Algorithm", "Model for", "Gap", "DP", "ε total", "ε median", "Neighbors", "Noise",
    "Alpha", "Beta",
)
# fmt: on


def summary(frame: pd.DataFrame) -> str:
    """Return the sentences above every table: common settings, seeds, spread, ranking, data source."""
    if frame.empty:
        return "No runs yet."
    counts, most = span(frame["seeds"].min(), frame["seeds"].max()), frame["seeds"].max()
    spread = "no spread is shown" if most == 1 else "± is the sample standard deviation over seeds"
    text = [
        _common_settings(frame),
        f"{counted(counts, 'seed')} per row; {spread}.",
        f"Ranked by {frame['ranked_by'].iloc[0]} within each task.",
        *_constant(frame),
        *_comparisons(frame),
    ]
    sources = sorted(
        {source for row_sources in frame["data_source"].dropna() for source in row_sources.split("; ")}
    )
    return " ".join([*text, *([f"Data: {'; '.join(sources)}."] if sources else [])])


def _constant(frame: pd.DataFrame) -> list[str]:
    """Return the accuracy of always predicting one class, for data where it is large."""
    largest = frame.groupby("dataset", sort=True)["accuracy_constant"].max()
    texts = [f"{accuracy:.3f} on {dataset}" for dataset, accuracy in largest.items() if accuracy > LOPSIDED]
    return [f"Always predicting the most frequent class has an accuracy of {', '.join(texts)}."] * bool(texts)


def _common_settings(frame: pd.DataFrame) -> str:
    """Return the settings that all rows share."""

    def common(name: str) -> str:
        values = set(frame[name].astype(object))
        return str(values.pop()) if len(values) == 1 and frame[name].notna().all() else ""

    facts = [
        common("suite"),
        common("profile") and f"{common('profile')} profile",
        common("dataset"),
        common("partition"),
        *(f"{name} {common(name)}" for name in ("alpha", "beta") if common(name) not in {"", "0.0", "0"}),
        common("problem"),
        common("model"),
        *(counted(common(name), name[:-1]) for name in ("clients", "rounds") if common(name)),
    ]
    return ", ".join(fact for fact in facts if fact) + "."


def _comparisons(frame: pd.DataFrame) -> list[str]:
    """Return sentences on the baseline, extrapolated epsilons, the target and the system, where there are any."""
    baseline, target, system = (
        next(iter(frame[name].dropna()), "") for name in ("baseline", "target", "system")
    )
    texts = []
    if baseline:
        texts.append(
            f"Differences are to {baseline}, paired over seeds, with 95 % intervals (BCa bootstrap; of t, with ±, "
            "below five seeds); * marks p < .05 of a sign-flip test, after Holm over all comparisons of a setting."
        )
    if frame["rank"].notna().any() and frame["done"].max() < FEWEST:
        texts.append("Below five seeds ranks are the order of the means, and luck may turn them around.")
    if frame["procedure_low"].notna().any():
        texts.append(
            "Intervals of tuned rows are over searches and seeds; what another search could turn around has no *."
        )
    if baseline and frame["resolution"].notna().any():
        texts.append(f"{NO_DIFFERENCE} marks differences that one method has from itself under another name.")
    if note := extrapolation(frame["noise_cohort"]):
        texts.append(note)
    if target:
        texts.append(
            f"Costs of reaching {target} are given up to the first evaluation there, where all seeds reached it."
        )
    if system:
        texts.append(
            f"Time and energy are computed for {system} from what the runs sent and worked, not measured."
        )
    return texts


def csv_text(frame: pd.DataFrame) -> str:
    """Return all columns as CSV; integers without a decimal point, missing values as empty fields."""
    whole, text = frame.copy(), io.StringIO()
    for name in (name for name in LEADERBOARD if name in frame and COLUMNS[name].kind == "count"):
        column = [None if pd.isna(v) else int(v) if v == int(v) else float(v) for v in frame[name]]
        whole[name] = pd.Series(column, dtype=object, index=frame.index)
    write_frame(whole, text)
    return text.getvalue()


def markdown_text(
    board: Board,
    columns: Sequence[ShownColumn] | None = None,
    best: Collection[tuple[str, str]] = (),
    above: Sequence[Grid] = (),
    also: Sequence[str] = (),
) -> str:
    """Return a table in GitHub's Markdown, headed by `summary` and further tables, with further notes below.

    Other arguments as in `sheet`.
    """
    frame = board.frame
    lines = [in_markdown(summary(frame)), "", *([grids_markdown(above), "### All rows", ""] if above else [])]
    lines += [*sheet(board, columns, best).markdown(), ""]
    notes = [*([RULE] if best else []), *also, *remarks(board)]
    lines += [f"- {in_markdown(text)}" for text in notes]
    return "\n".join(lines).rstrip() + "\n"


def latex_text(
    board: Board,
    columns: Sequence[ShownColumn] | None = None,
    best: Collection[tuple[str, str]] = (),
) -> str:
    """Return a table as a LaTeX ``tabular`` (needs the package booktabs); arguments as in `sheet`."""
    notes = [summary(board.frame), *([RULE] if best else [])]
    return "\n".join([*map(latex_comment, notes), *sheet(board, columns, best).latex(), ""])


def sheet(
    board: Board,
    columns: Sequence[ShownColumn] | None = None,
    best: Collection[tuple[str, str]] = (),
) -> Sheet:
    """Return the texts of a leaderboard; a rule parts its tasks.

    Parameters
    ----------
    board : Board
        A leaderboard.
    columns : sequence of ShownColumn, optional
        Its columns; by default those of the narrow table.
    best : collection of (str, str), optional
        Cells and measures to print in bold, see `harness.report.data.best`.
    """
    columns, rows = narrow_columns(board) if columns is None else columns, board.rows
    marked = {(cell, f"{measure}_mean") for cell, measure in best}
    return Sheet(
        headings=[column.heading for column in columns],
        numbers=[column.number for column in columns],
        rows=[[column.text(row) for column in columns] for row in rows],
        bold={
            (i, j)
            for i, row in enumerate(rows)
            for j, column in enumerate(columns)
            if (row["cell"], column.key) in marked
        },
        groups={i for i in range(1, len(rows)) if rows[i]["task"] != rows[i - 1]["task"]},
    )


def print_table(board: Board, console: Console | None = None) -> None:
    """Print the best rows of each task, a summary and the reasons; a narrow terminal gets fewer columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    frame, rows = board.frame, board.rows
    every = results_first(narrow_columns(board), board.by)
    columns, omitted = _fitting(every, frame, rows, console.width)
    table = Table()
    for column in columns:
        table.add_column(column.heading, justify="right" if column.number else "left", overflow="fold")
    tasks = [list(task) for _, task in groupby(rows, key=itemgetter("task"))]
    most = max(1, MOST_ROWS // max(1, len(tasks)))
    for task in tasks:
        for row in task[:most]:
            table.add_row(*(Text(column.text(row)) for column in columns))
        table.add_section()
    console.print(table)
    if rest := sum(len(task[most:]) for task in tasks):
        console.print(Text(f"Rows left out: {rest:,}. `leaderboard DIR --csv FILE` writes all."))
    console.print(Text(summary(frame)))
    if omitted:
        wide = sum(_widths(_texts(every, rows)).values()) + 1
        console.print(Text(f"Omitted for lack of width: {', '.join(omitted)}. COLUMNS={wide} shows all."))
    for text in remarks(board):
        console.print(Text(text))


def _fitting(
    columns: Sequence[ShownColumn], frame: pd.DataFrame, rows: Sequence[Row], width: int
) -> tuple[list[ShownColumn], list[str]]:
    """Return the columns that a terminal has room for, and what is omitted.

    A difference that has no room is shown without its interval.
    """
    texts = _texts(columns, rows)
    widths, dropped = _widths(texts), dict[str, int]()
    by_heading, briefly = {column.heading: column for column in columns}, list[str]()
    for heading in _expendable(frame, columns, texts):
        if sum(widths.values()) + 1 > width and not _tells(heading, widths, texts):
            dropped[heading] = widths.pop(heading)
    for heading in [name for name in dropped if by_heading[name].key == "paired_difference"]:
        brief = by_heading[heading]._replace(text=partial(_without_interval, by_heading[heading]))
        own = _widths(_texts([brief], rows))
        if sum(widths.values()) + own[heading] + 1 <= width:
            del dropped[heading]
            by_heading[heading] = brief
            widths |= own
            briefly.append(f"intervals of {heading}")
    # There may be room now that wider ones are gone.
    for heading, own_width in reversed(list(dropped.items())):
        if sum(widths.values()) + own_width + 1 <= width:
            widths[heading] = dropped.pop(heading)
    return [column for name, column in by_heading.items() if name in widths], [*dropped, *briefly]


def _without_interval(column: ShownColumn, row: Row) -> str:
    """Return a difference without its interval."""
    return re.split(r" [\[±]", column.text(row))[0]


def _expendable(
    frame: pd.DataFrame, columns: Sequence[ShownColumn], texts: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the headings that a narrow terminal may omit, the most dispensable first.

    Columns in which all rows agree are the first. The measure that ranks, the algorithm, what protects it and the
    count of missing runs stay. The difference to the baseline outlives the other measures, and a setting in which
    rows differ outlives both.
    """
    by = "" if frame.empty else str(frame["ranked_by"].iloc[0])
    keys = ("bytes_up", "bytes_down") if by == "bytes" else (by, f"{by}_mean")
    ranks = [column.heading for column in columns if column.key in keys]
    complete = bool((frame["done"] == frame["seeds"]).all())
    differences = [name for name in texts if name.startswith("Δ")]
    names = [*MEASURES, *(["Runs"] if complete else []), *differences, *SETTINGS]
    expendable = [name for name in names if name in texts and name not in ranks]
    return sorted(expendable, key=lambda name: len(set(texts[name])) > 1)


def _tells(heading: str, headings: Collection[str], texts: Mapping[str, Sequence[str]]) -> bool:
    """Return whether rows that differ in the descriptions kept would be equal without this one."""
    among = [name for name in DESCRIPTIONS if name in headings]
    others = [name for name in among if name != heading]
    return len(others) < len(among) and _distinct(others, texts) < _distinct(among, texts)


def _distinct(names: Sequence[str], texts: Mapping[str, Sequence[str]]) -> int:
    """Return the number of rows that some columns distinguish."""
    return len(set(zip(*(texts[name] for name in names), strict=True))) or 1


def fits(board: Board, width: int) -> bool:
    """Return whether the terminal table fits `width` characters."""
    return sum(_widths(_texts(narrow_columns(board), board.rows)).values()) + 1 <= width


def _texts(columns: Sequence[ShownColumn], rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return heading -> texts of the rows."""
    return {column.heading: [column.text(row) for row in rows] for column in columns}


def _widths(texts: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return heading -> width of a column of the terminal table, with its border."""
    return {heading: max(map(len, [heading, *cells])) + 3 for heading, cells in texts.items()}


def remarks(board: Board) -> list[str]:
    """Return what belongs below every table: why rows lack something, whose epsilons are, and what all reveal."""
    return [*reasons(board.frame), *exposure(board), *together(board.frame)]


def reasons(frame: pd.DataFrame) -> list[str]:
    """Return the reasons for failed and skipped runs and missing ranks, one line per reason."""
    lines = []
    for reason, names in frame.groupby("reasons", sort=False)["algorithm"]:
        extent = f", in {len(names)} rows" if names.duplicated().any() else ""
        lines.append(f"{', '.join(names.unique())}: {reason}{extent}")
    # Rows may have the baseline's seeds and no paired difference.
    apart = frame[frame["compared"].str.contains(APART, na=False)]
    for text, names in apart.groupby("compared", sort=False)["algorithm"]:
        lines.append(f"{', '.join(names)}: {text}, so no difference is paired by seed; see data.user")
    return [*lines, *frame["unranked"].dropna().unique()]
