"""The joint epsilon of all private runs of a table, in a sentence for every data set."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.core.units import counted
from harness.report.data.evidence import Row, rows_of
from harness.report.data.released import OWN, PAIRED, SHARED
from harness.report.tables.text import is_empty, quantity
from privacy.event import Event
from privacy.joint import Released, joint_epsilon

DIGITS = 3  # of an epsilon


def together(frame: pd.DataFrame) -> list[str]:
    """Return what the finished private runs of a leaderboard's rows and seeds release together.

    Runs about different units, or with another relation of neighbors, have no joint epsilon and a sentence each.
    Runs that diverged or were stopped have released the rounds before, which are in none.
    """
    lines = []
    private = frame[frame["dp_unit"].notna() | frame["released"].notna()]
    for dataset, rows in private.groupby("dataset", sort=False, dropna=False):
        kinds = rows.dropna(subset="released").groupby(["dp_unit", "adjacency"], sort=False, dropna=False)
        for (unit, adjacency), members in kinds:
            subject = f"{dataset}, unit {unit}, {adjacency}" if kinds.ngroups > 1 else str(dataset)
            lines += [f"{subject}: {text}" for text in _sentence(rows_of(members), str(unit))]
        if kinds.ngroups > 1:
            lines.append(f"{dataset}: runs with different units or adjacencies have no joint ε.")
        if number := int((rows["failed"] + rows["missing"]).sum()):
            runs = counted(number, "private run")
            lines.append(
                f"{dataset}: {runs} not finished and not counted; rounds that they had are released too."
            )
    return lines


def _sentence(rows: Sequence[Row], unit: str) -> Iterator[str]:
    """Yield the joint epsilon of several runs about one unit as a sentence."""
    runs = [(row, seed, draws, events) for row in rows for seed, draws, events in json.loads(row["released"])]
    if len(runs) < 2:
        return
    who = f"all {counted(len(runs), 'private run')} of these rows together"
    delta = min(row["delta"] for row in rows)
    remarks = [_draws_text([draws for *_, draws, _ in runs])]
    if unit == "client" and len({(row["partition"], row["clients"], seed) for row, seed, *_ in runs}) > 1:
        remarks += [] if all(_natural(row) for row in rows) else ["the unit is one client of each partition"]
    if any(not is_empty(row["tuned"]) for row in rows):
        remarks.append("without the runs of searches")
    note = "; ".join(filter(None, remarks))
    if (why := _unknown(runs)) is None:
        try:
            releases = [
                Released(_events(events), *_stream(row, seed, draws)) for row, seed, draws, events in runs
            ]
            epsilon = joint_epsilon(releases, delta).epsilon
            yield f"{who}: ε = {quantity(upward(epsilon), DIGITS)} at δ = {delta:g}{f' ({note})' if note else ''}."
            return
        except ValueError as error:
            why = str(error)
    yield f"{who}: ε is not given: {why}{f' ({note})' if note else ''}."


def upward(epsilon: float) -> float:
    """Return an epsilon rounded up, as it is a bound."""
    if not 0 < epsilon < math.inf:
        return epsilon
    place = 10.0 ** (DIGITS - 1 - math.floor(math.log10(epsilon)))
    return math.ceil(epsilon * place) / place


def _unknown(runs: Sequence[tuple[Row, int, str | None, Any]]) -> str | None:
    """Return why the joint epsilon of runs is not known; None if nothing is missing."""
    if extrapolated := sum(not is_empty(row["noise_cohort"]) for row, *_ in runs):
        return f"that of {counted(extrapolated, 'run')} is extrapolated"
    if paired := sum(draws == PAIRED for *_, draws, _ in runs):
        return f"{counted(paired, 'run')} share their noise, as those of a search do: ε is of one run alone"
    missing = [row for row, *_, events in runs if events is None]
    if not missing:
        return None
    custom = sum(row["dp_mechanism"] not in ("independent", "banded") for row in missing)
    if custom:
        return f"{counted(custom, 'run')} used mechanisms of users, which are composed within a run only"
    return (
        f"{counted(len(missing), 'run')} have no unit that is the most exposed one in every draw, or were recorded "
        "by an earlier version"
    )


def _draws_text(draws: Sequence[str | None]) -> str:
    """Describe the owners of the secret draws."""
    own, shared = draws.count(OWN), draws.count(SHARED)
    if own and shared:
        return f"own draws in {own}, one joint draw a seed in {shared}"
    return "own draws" if own else "one joint draw a seed" if shared else ""


def _natural(row: Row) -> bool:
    """Return whether the clients of a row are those of the data, the same under every seed."""
    return str(row["partition"]).startswith("natural")


def _events(events: Sequence[Sequence[Any]]) -> tuple[Event, ...]:
    return tuple(Event(noise, rate, times, sampling) for noise, rate, times, sampling in events)


def _stream(row: Row, seed: int, draws: str | None) -> tuple[Hashable, Hashable]:
    """Return what keys the shared draws of a run, and how it uses them; None for draws of its own.

    Cohorts are drawn once a round by every algorithm. Records are drawn once a step, from streams that an algorithm
    names, by their places at clients. Partitions and data that differ may put a record in one place all the same
    (standardized or not, other features), so they share the draws of a seed, but not for every record.
    """
    if draws != SHARED:
        return None, None
    if row["dp_unit"] == "client":
        return (seed, row["sampling"]), row["clients"]
    spec: Mapping[str, Any] = json.loads(row["spec"])
    algorithm = spec.get("algorithm", {})
    pace = [algorithm.get(name) for name in ("name", "local_steps", "local_epochs", "batch_size")]
    return seed, (row["data_digest"], json.dumps([spec.get("partition"), *pace]))
