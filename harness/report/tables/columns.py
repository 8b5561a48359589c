"""Columns of the narrow leaderboard for readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd

from harness.config.report import known
from harness.core.units import count, duration, energy, size, work
from harness.report.data.columns import COLUMNS, describe
from harness.report.data.evidence import Row
from harness.report.data.specs import settings_of
from harness.report.tables.privacy import is_uneven
from harness.report.tables.rows import Board, epsilon_text, extrapolation, plain, protection
from harness.report.tables.text import form_of, is_empty, possible_change, quantity, share, signed, words

SURE = 0.05  # adjusted p of a difference that is marked
NO_DIFFERENCE = "≈"  # before a difference that is not told from none
UNDONE = ("failed", "skipped", "damaged", "missing")
DIAGNOSTICS = ("clipped_share", "noise_to_signal")
#: Measures that have a column where a row has a value, beside the one that ranks.
USUAL = ("accuracy", "worst_client", "eqopp", "auroc", "mae", "r2", "stationarity")
#: Of each attack the measure that tables show.
ATTACKS = ("lira_auc", "rmia_auc", "transcript_auc", "inversion_error", "labels_accuracy")
#: Columns of what reaching a target and a network with a device cost.
COSTS = {
    "target": ("reached", "rounds_to_target", "bytes_to_target", "oracle_calls_to_target"),
    "system": ("system_seconds", "seconds_to_target", "system_joules", "waiting"),
}
#: Descriptions of a run that have a column where rows differ.
VARYING = ("suite", "dataset", "partition", "problem", "model", "rounds", "clients")
#: Traits of rows with columns of their own.
BESIDE = ("epsilon", "dp", "model", "alpha", "beta", "rounds")
#: Headings of columns that stand behind the measures: they seldom tell rows apart.
LATER = ("Rounds", "Clients", "Model for", "Gap", "ε median", "Neighbors", "Noise")
#: Forms in which numbers are written.
FORMS: Mapping[str, Callable[[float | None], str]] = {
    "bytes_up": size, "bytes_down": size, "bytes_to_target": size, "flops": work, "oracle_calls": count,
    "oracle_calls_to_target": count, "system_seconds": duration, "seconds_to_target": duration,
    "system_joules": energy, "waiting": share, "rounds_to_target": quantity,
}  # fmt: skip


class ShownColumn(NamedTuple):
    """A column of a table for readers.

    Attributes
    ----------
    heading : str
        Heading.
    key : str
        Column of the leaderboard to sort by.
    number : bool
        Whether to align right.
    text : Callable
        Row of the leaderboard -> text; empty if it does not apply.
    about : str
        One-sentence description.
    """

    heading: str
    key: str
    number: bool
    text: Callable[[Row], str]
    about: str


def shown_column(name: str, text: Callable[[Row], str] | None = None, about: str = "") -> ShownColumn:
    """Return a column of the leaderboard for readers, by default with its number or text and its meaning."""
    column = COLUMNS[name]
    number = column.kind in ("count", "number")
    if text is None:
        text = partial(_number, name) if number else plain(name)
    return ShownColumn(column.title, name, number, text, about or column.sentence)


def narrow_columns(board: Board) -> list[ShownColumn]:
    """Return the columns of the narrow table of a leaderboard.

    Values common to all rows are left to `summary`, and empty columns are omitted. The ranking measure always has a
    column.
    """
    frame, rows, by = board.frame, board.rows, board.by
    every = [
        shown_column("rank", plain("rank"), f"Rank by {by} among the same data, partition and problem"),
        *_descriptions(board),
        *(measure_column(name, name != "worst_client") for name in _measures(frame, rows, by)),
        shown_column("eqopp_low", _interval)._replace(number=False),
        *map(shown_column, ("bytes_up", "bytes_down", "flops")),
        *([shown_column("oracle_calls")] if by == "oracle_calls" else []),
        *_costs(rows, "target"),
        *_costs(rows, "system"),
        shown_column("seconds"),
        difference_column(by),
        shown_column("pareto", lambda row: "yes" if row["pareto"] is True else ""),
        runs_column(),
    ]
    return [column for column in every if column.heading == "#" or any(column.text(row) for row in rows)]


def results_first(columns: Sequence[ShownColumn], by: str) -> list[ShownColumn]:
    """Put what tells rows apart and how they compare first, and what seldom tells rows apart last."""
    first = ("#", "Algorithm", "Variant", "ε total", words(by), f"Δ {by}")
    by_heading = {column.heading: column for column in columns}
    lead = [by_heading[heading] for heading in first if heading in by_heading]
    last = [by_heading[heading] for heading in LATER if heading in by_heading]
    return [*lead, *(column for column in columns if column.heading not in (*first, *LATER)), *last]


def diagnostics(frame: pd.DataFrame) -> list[ShownColumn]:
    """Return the columns of the recorded message diagnostics."""
    names = (name for name in DIAGNOSTICS if name in frame and frame[name].notna().any())
    return [shown_column(name, about=f"{COLUMNS[name].sentence}; mean over seeds") for name in names]


def _number(name: str, row: Row) -> str:
    return FORMS[name](row[name]) if name in FORMS else quantity(row[name], 3)


def _descriptions(board: Board) -> list[ShownColumn]:
    """Return the columns that describe the runs."""
    rows = board.rows

    def varies(text: Callable[[Row], str]) -> bool:
        return len({text(row) for row in rows}) > 1

    names = board.variants(BESIDE)
    descriptions = [
        shown_column("algorithm"),
        shown_column("settings", lambda row: names[row["cell"]], "What tells it from its namesakes"),
    ]
    for name in VARYING:
        task = name in ("dataset", "problem", "partition")
        text = (lambda row, name=name: board.tasks[row["cell"]][name]) if task else plain(name)
        descriptions += [shown_column(name, text)] if varies(text) else []
    descriptions += [
        *([shown_column("model_for")] if varies(plain("model_for")) else []),
        shown_column("spectral_gap"),
        shown_column("dp_unit", protection, "Unit of privacy / where noise is added"),
        shown_column("epsilon_total", epsilon_text,
              "Privacy loss of the whole run as composed; (in brackets) as asked for; † extrapolated to larger "
              "cohorts; empty: no privacy"),
        shown_column("epsilon_median", partial(_median, board),
              "Privacy loss of the median client, and whose the total is; empty where all have about the same"),
        shown_column("adjacency", _neighbors,
              "Change of a data set that is hidden; how participants or records of a batch are drawn"),
        shown_column("noise_multiplier"),
    ]  # fmt: skip
    return descriptions + [
        shown_column(name, _ratio(name)) for name in ("alpha", "beta") if varies(plain(name))
    ]


def _costs(rows: Sequence[Row], of: str) -> list[ShownColumn]:
    """Return the columns of the costs to the target or on the system, if there is one."""
    if not rows or is_empty(rows[0][of]):
        return []
    texts = {"reached": lambda row: f"{row['reached']}/{row['seeds']}"}
    return [
        shown_column(name, texts.get(name), COLUMNS[name].sentence.replace(f"the {of}", rows[0][of]))
        for name in COSTS[of]
    ]


def _measures(frame: pd.DataFrame, rows: Sequence[Row], by: str) -> list[str]:
    """Return the measures to show: the usual ones, the ranking one, the loss if a row has none, and attacks."""
    bare = (row for row in rows if all(is_empty(row.get(f"{name}_mean")) for name in USUAL))
    loss = ["loss"] if any(not is_empty(row.get("loss_mean")) for row in bare) else []
    names = dict.fromkeys([*USUAL, *loss, by, *ATTACKS])
    return [name for name in names if f"{name}_mean" in frame]


def measure_column(name: str, spread: bool = True) -> ShownColumn:
    """Return the column of a measure: mean over seeds and, if wanted, sample standard deviation."""
    column = describe(name)
    about = words(name) if column is None else column.sentence
    return ShownColumn(words(name), f"{name}_mean", True, partial(_spread, name, spread), about)


def measures_of(columns: Iterable[ShownColumn]) -> list[str]:
    """Return the measures that some columns have the means of, without those of plugins that are not loaded."""
    names = (column.key.removesuffix("_mean") for column in columns if column.key.endswith("_mean"))
    return [name for name in names if known(name)]


def difference_column(by: str) -> ShownColumn:
    """Return the column of differences to the baseline in the ranking measure."""
    about = (
        "Mean difference to the baseline over common seeds, its 95 % interval, * where p < .05 after Holm; "
        f"{NO_DIFFERENCE} no larger than that of one method under two names"
    )
    return shown_column("paired_difference", difference, about)._replace(heading=f"Δ {by}")


def runs_column() -> ShownColumn:
    """Return the column of finished runs."""
    return shown_column("done", runs, "Finished runs of all runs of the row")._replace(number=False)


def runs(row: Row) -> str:
    """Return the status of a cell's runs as ``3/5, 1 failed, 1 missing``."""
    rest = [f"{row[status]} {status}" for status in UNDONE if row[status]]
    return ", ".join([f"{row['done']}/{row['seeds']}", *rest])


def _ratio(name: str) -> Callable[[Row], str]:
    """Return a pruning ratio, or its schedule from the settings."""
    return lambda row: settings_of(row).get(f"compression.{name}", quantity(row[name]))


def _median(board: Board, row: Row) -> str:
    if not is_uneven(row["epsilon_total"], row["epsilon_median"]):
        return ""
    return f"{quantity(row['epsilon_median'], 3)}{extrapolation(row)} ({board.most_exposed(row)} has most)"


def _spread(measure: str, spread: bool, row: Row) -> str:
    if is_empty(row[f"{measure}_mean"]):
        return ""
    mean, std = format(row[f"{measure}_mean"], f"z{form_of(measure)}"), row[f"{measure}_std"]
    return mean if not spread or is_empty(std) else f"{mean} ± {format(std, form_of(measure))}"


def difference(row: Row) -> str:
    """Return the difference to the baseline with its interval, marked where it is certain, or where it is none.

    Of tuned rows the interval is over searches and seeds, and a difference that it does not exclude is not certain.
    A difference that a method has from itself under another name is none.
    """
    if is_empty(row["paired_difference"]):
        return "not comparable" if str(row["compared"]).startswith("not comparable") else ""
    form = form_of(row["ranked_by"])
    sure = "*" if not is_empty(row["paired_p_holm"]) and row["paired_p_holm"] < SURE else ""
    interval = "" if is_empty(row["paired_ci95"]) else f" ± {format(row['paired_ci95'], form)}"
    kind = "paired" if is_empty(row["paired_procedure_low"]) else "paired_procedure"
    low, high = row[f"{kind}_low"], row[f"{kind}_high"]
    if not is_empty(low):
        low, high = (possible_change(end, row["ranked_by"]) for end in (low, high))
        interval = f" [{signed(low, '+' + form)}, {signed(high, '+' + form)}]"
        sure = sure if kind == "paired" or low > 0 or high < 0 else ""
    none = not is_empty(row["resolution"]) and abs(row["paired_difference"]) <= row["resolution"]
    text = signed(row["paired_difference"], "+" + form)
    return f"{NO_DIFFERENCE} {text}{interval}" if none else f"{text}{sure}{interval}"


def _interval(row: Row) -> str:
    if is_empty(row["eqopp_low"]):
        return ""
    return f"{format(row['eqopp_low'], form_of('eqopp'))} to {format(row['eqopp_high'], form_of('eqopp'))}"


def _neighbors(row: Row) -> str:
    return ", ".join(str(row[name]) for name in ("adjacency", "sampling") if not is_empty(row[name]))
