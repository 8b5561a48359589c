"""Columns of the narrow leaderboard for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd

from harness.core.units import count, duration, energy, size, work
from harness.metrics import described
from harness.report.data.leaderboard import COUNTS
from harness.report.tables.privacy import uneven
from harness.report.tables.rows import Board, Row, epsilon_text, extrapolation, plain, protection
from harness.report.tables.text import is_empty, quantity, share, words

SURE = 0.05  # adjusted p of a difference that is marked
UNDONE = ("failed", "skipped", "damaged", "missing")
#: Of each attack the measure that tables show.
ATTACKS = ("lira_auc", "rmia_auc", "transcript_auc", "inversion_error", "labels_accuracy")


class Column(NamedTuple):
    """A column of the narrow table.

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


def columns(frame: pd.DataFrame | Board) -> list[Column]:
    """Return the columns of the narrow table of a leaderboard.

    Values common to all rows are left to `summary`, and empty columns are omitted. The ranking measure always has a
    column.
    """
    board = Board.of(frame)
    frame, rows = board.frame, board.rows
    by = str(rows[0]["ranked_by"]) if rows else "accuracy"
    shown = [
        Column("#", "rank", True, plain("rank"), f"Rank by {by} among the same data, partition and problem"),
        *_descriptions(board),
        *(measure_column(name, name != "worst_client") for name in _measures(frame, rows, by)),
        Column("EqOpp 95 %", "eqopp_low", False, _interval,
               "Interval of the gap for the number of test samples of the groups and the spread over seeds"),
        Column("Up", "bytes_up", True, lambda r: size(r["bytes_up"]), "Bytes sent by all clients"),
        Column("Down", "bytes_down", True, lambda r: size(r["bytes_down"]), "Bytes received by all clients"),
        Column("Work", "flops", True, lambda r: work(r["flops"]), "Floating-point operations of the run"),
        *([_CALLS] if by == "oracle_calls" else []),
        *_target(rows),
        *_system(rows),
        Column("Seconds", "seconds", True, lambda r: quantity(r["seconds"], 3), "Wall time of the run"),
        Column(f"Δ {by}", "paired_difference", True, difference,
               "Mean difference to the baseline over common seeds, its 95 % interval, * where p < .05 after Holm"),
        Column("Pareto", "pareto", False, lambda r: "yes" if r["pareto"] is True else "",
               "No other is as good in accuracy, bytes and epsilon, and better in one of them"),
        Column("Runs", "done", False, runs, "Finished runs of those asked for"),
    ]  # fmt: skip
    return [column for column in shown if column.heading == "#" or any(column.text(row) for row in rows)]


_CALLS = Column("Calls", "oracle_calls", True, lambda r: count(r["oracle_calls"]),
                "Oracle calls (gradients of single samples) of the run")  # fmt: skip


def diagnostics(frame: pd.DataFrame) -> list[Column]:
    """Return the columns of the recorded message diagnostics."""
    known = (
        ("Clipped", "clipped_share", "Share of the clients of a round whose update was clipped"),
        ("Noise/signal", "noise_to_signal", "Size of the noise relative to the updates of a round"),
    )
    return [
        Column(heading, key, True, partial(_number, key), f"{about}, mean over seeds; not released")
        for heading, key, about in known
        if key in frame and frame[key].notna().any()
    ]


def _number(name: str, row: Row) -> str:
    return quantity(row[name], 3)


def _descriptions(board: Board) -> list[Column]:
    """Return the columns that describe the runs."""
    rows = board.rows

    def varies(name: str) -> bool:
        return len({str(row[name]) for row in rows}) > 1

    names = board.variants(beside=("epsilon", "dp", "model", "alpha", "beta", "rounds"))
    shown = [
        Column("Algorithm", "algorithm", False, plain("algorithm"), "Name in the registry"),
        Column("Variant", "settings", False, lambda r: names[r["cell"]], "What tells it from its namesakes"),
    ]
    for name in ("suite", "dataset", "partition", "problem", "model", "rounds", "clients"):
        title, text = name.capitalize(), plain(name)
        if name in ("dataset", "problem", "partition"):
            text = partial(_of_task, board.tasks, name)
        if len({text(row) for row in rows}) > 1:
            shown.append(Column(title, name, name in COUNTS, text, f"{title} of the run"))
    if varies("model_for"):
        shown.append(
            Column("Model for", "model_for", False, plain("model_for"), "Whom the trained model is for")
        )
    shown += [
        Column("Gap", "spectral_gap", True, lambda r: quantity(r["spectral_gap"], 3),
               "Spectral gap p = 1 - lambda^2 of the mixing matrix; 1: one exchange averages all nodes"),
        Column("DP", "dp_unit", False, protection, "What is protected / where the noise is added"),
        Column("ε total", "epsilon_total", True, epsilon_text,
               "Privacy loss of the whole run as composed; (in brackets) as asked for; † extrapolated to larger "
               "cohorts; empty: no privacy"),
        Column("ε median", "epsilon_median", True, _median,
               "Privacy loss of the median client, and whose the total is; empty where all have about the same"),
        Column("Neighbors", "adjacency", False, _neighbors,
               "Change of a data set that is hidden; how participants or records of a batch are drawn"),
        Column("Noise", "noise_multiplier", True, lambda r: quantity(r["noise_multiplier"], 3),
               "Noise multiplier: standard deviation of the noise over the sensitivity of a release"),
    ]  # fmt: skip
    for name, about in (("alpha", "filters or neurons pruned"), ("beta", "message entries dropped")):
        if varies(name):
            shown.append(Column(name.capitalize(), name, True, _ratio(name), f"Share of {about}"))
    return shown


def _target(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the costs to the target, if there is one."""
    if not rows or is_empty(rows[0]["target"]):
        return []
    until = f"up to the first evaluation with {rows[0]['target']}; empty unless all seeds reached it"
    return [
        Column("Reached", "reached", True, lambda r: f"{r['reached']}/{r['seeds']}",
               f"Seeds with {rows[0]['target']} at some evaluation"),
        Column("Rounds to", "rounds_to_target", True, lambda r: quantity(r["rounds_to_target"]),
               f"Rounds {until}"),
        Column("Bytes to", "bytes_to_target", True, lambda r: size(r["bytes_to_target"]), f"Bytes {until}"),
        Column("Calls to", "oracle_calls_to_target", True, lambda r: count(r["oracle_calls_to_target"]),
               f"Oracle calls (gradients of single samples) {until}"),
    ]  # fmt: skip


def _system(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of a network and a device, if there is one."""
    if not rows or is_empty(rows[0]["system"]):
        return []
    on = f"on {rows[0]['system']}, where a round waits for the slowest client"
    return [
        Column("Time", "system_seconds", True, lambda r: duration(r["system_seconds"]), f"Time of the run {on}"),
        Column("Time to", "seconds_to_target", True, lambda r: duration(r["seconds_to_target"]),
               f"Time to the target {on}; empty unless all seeds reached it"),
        Column("Energy", "system_joules", True, lambda r: energy(r["system_joules"]),
               f"Energy of all clients {on}: radio, and training above idle"),
        Column("Waiting", "waiting", True, lambda r: share(r["waiting"]),
               f"Share of a round that the mean client waits {on}"),
    ]  # fmt: skip


def _measures(frame: pd.DataFrame, rows: Sequence[Row], by: str) -> list[str]:
    """Return the measures to show: the usual ones, the ranking one, the loss if a row has none, and attacks."""
    names = ["accuracy", "worst_client", "eqopp", "auroc", "mae", "r2", "stationarity"]
    bare = [row for row in rows if all(is_empty(row.get(f"{name}_mean")) for name in names)]
    names += ["loss"] if any(not is_empty(row.get("loss_mean")) for row in bare) else []
    names += [by] if by not in names else []
    names += [name for name in ATTACKS if name != by]
    return [name for name in names if f"{name}_mean" in frame]


def measure_column(name: str, spread: bool = True) -> Column:
    """Return the column of a measure: mean over seeds and, if wanted, sample standard deviation."""
    metric = described(name)
    about = metric.description if metric is not None else words(name)
    return Column(words(name), f"{name}_mean", True, partial(_spread, name, spread), about)


def runs(row: Row) -> str:
    """Return the status of a cell's runs as ``3/5, 1 failed, 1 missing``."""
    rest = [f"{row[status]} {status}" for status in UNDONE if row[status]]
    return ", ".join([f"{row['done']}/{row['seeds']}", *rest])


def _of_task(tasks: Mapping[str, Mapping[str, str]], name: str, row: Row) -> str:
    return tasks[row["cell"]][name]


def _ratio(name: str) -> Callable[[Row], str]:
    """Return a pruning ratio, or its schedule from the settings."""
    token = f"compression.{name}="
    return lambda row: next(
        (item.removeprefix(token) for item in str(row["settings"]).split() if item.startswith(token)),
        quantity(row[name]),
    )


def _median(row: Row) -> str:
    if not uneven(row["epsilon_total"], row["epsilon_median"]):
        return ""
    return f"{quantity(row['epsilon_median'], 3)}{extrapolation(row)} ({row['epsilon_of']} has most)"


def _form(measure: str) -> str:
    metric = described(measure)
    return ".3g" if metric is None else metric.format


def _spread(measure: str, spread: bool, row: Row) -> str:
    if is_empty(row[f"{measure}_mean"]):
        return ""
    mean, std = format(row[f"{measure}_mean"], _form(measure)), row[f"{measure}_std"]
    return mean if not spread or is_empty(std) else f"{mean} ± {format(std, _form(measure))}"


def difference(row: Row) -> str:
    """Return the difference to the baseline with its interval, marked where it is certain."""
    if is_empty(row["paired_difference"]):
        return "not comparable" if str(row["compared"]).startswith("not comparable") else ""
    form = _form(row["ranked_by"])
    sure = "*" if not is_empty(row["paired_p_holm"]) and row["paired_p_holm"] < SURE else ""
    interval = "" if is_empty(row["paired_ci95"]) else f" ± {format(row['paired_ci95'], form)}"
    if not is_empty(row["paired_low"]):
        interval = f" [{format(row['paired_low'], '+' + form)}, {format(row['paired_high'], '+' + form)}]"
    return f"{format(row['paired_difference'], '+' + form)}{sure}{interval}"


def _interval(row: Row) -> str:
    if is_empty(row["eqopp_low"]):
        return ""
    return f"{format(row['eqopp_low'], _form('eqopp'))} to {format(row['eqopp_high'], _form('eqopp'))}"


def _neighbors(row: Row) -> str:
    return ", ".join(str(row[name]) for name in ("adjacency", "sampling") if not is_empty(row[name]))
