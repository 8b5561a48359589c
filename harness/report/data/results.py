"""Results: the tidy table of run records, and its groups of rows that differ in nothing but the seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import count
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.config.recorded import completed
from harness.config.report import AUTOMATIC, COSTS_TO_TARGET, ReportSpec, Target
from harness.metrics import GAPS, LOPSIDED, better_is_higher, split_measure
from harness.report.data.identity import Identity, identified, plugged
from harness.report.data.specs import (
    PARTITION_FIELDS,
    data_name,
    dotted,
    flatten,
    in_text,
    is_compressed,
    part_name,
)
from harness.report.data.tidy import COUNTS, Tidy, diagnostics
from harness.storage.store import RunRecord

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

DIGEST_LETTERS = 12  # of the digest of data, as it is shown
#: Settings left out of the column ``settings``: they have a column of their own, or no effect on the result.
SHOWN = frozenset((
    "seed", "rounds", "eval_every", "data.name", "partition.kind", "partition.clients", "problem.kind",
    "model.name", "algorithm.name", "privacy.unit", "privacy.placement", "privacy.clip", "privacy.delta",
    "compression.alpha", "compression.beta", "compression.codec",
))  # fmt: skip


class Results:
    """Run records, their tidy table and their cells, each computed once.

    Parameters
    ----------
    records : Iterable[RunRecord]
        In any order.

    Attributes
    ----------
    records : list[RunRecord]
        The records, in their order; skipped combinations with all their settings.
    boards : dict
        Leaderboards for readers by their arguments, which `harness.report.tables.rows.board_of` keeps here.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.records = list(records)
        self.boards: dict[Hashable, Any] = {}

    @property
    def frame(self) -> pd.DataFrame:
        """The tidy table."""
        return self._tidy.frame

    @cached_property
    def _tidy(self) -> Tidy:
        return Tidy(self.records, self.identities)

    @cached_property
    def identities(self) -> list[Identity]:
        """All that determines each run but its seed, in the order of the records; shared where it is the same."""
        return identified(self.records)

    @cached_property
    def runs(self) -> list[Run]:
        """The groups of the tidy table by run, in the order of the records."""
        ends = [int(end) + 1 for end in self._tidy.ends]
        parts = zip(self.records, self.identities, count(), map(slice, [0, *ends], ends), strict=False)
        return [Run(*own, self) for own in parts]

    @cached_property
    def cells(self) -> list[Cell]:
        """The groups of runs by cell, in an order that does not depend on the order of the records."""
        groups = sorted(grouped(self.runs, lambda run: run.identity.cell).items())
        order = {key: tuple(sorted(runs, key=lambda run: run.seed)) for key, runs in groups}
        fullest = {key: _fullest(runs) for key, runs in order.items()}
        settings, variants = _settings(fullest), _variants(fullest)
        return [
            Cell(key, runs[0].identity.task, runs, settings[key] | variants[key], variants[key])
            for key, runs in order.items()
        ]

    @cached_property
    def metrics(self) -> list[str]:
        """Names of all metrics of last evaluations, sorted."""
        return sorted({name for r in self.records for line in r.rounds[-1:] for name in line["metrics"]})

    def ranked(self, spec: ReportSpec) -> ReportSpec:
        """Return the settings of a report with the measure that ranks, if they leave it to the results.

        It is the measure by which all searches chose, where settings were searched for; mean absolute error where
        only numbers are predicted; AUROC where always predicting one class has an accuracy above `LOPSIDED`; else
        accuracy.
        """
        return replace(spec, by=self._measure) if spec.by == AUTOMATIC else spec

    @cached_property
    def _measure(self) -> str:
        chosen_by = {str(record.search["tune"]["metric"]) for record in self.records if record.search}
        if len(chosen_by) == 1:
            return chosen_by.pop()
        classified = [cell for cell in self.cells if cell.values("accuracy")]
        if not classified and "mae" in self.metrics:
            return "mae"
        lopsided = any(max(cell.constant_accuracies, default=0.0) > LOPSIDED for cell in classified)
        return "auroc" if lopsided and all(cell.values("auroc") for cell in classified) else "accuracy"

    @cached_property
    def diagnostics(self) -> list[str]:
        """Names of all diagnostics that are numbers, in the order of their appearance."""
        found = (diagnostics(line) for record in self.records for line in record.rounds[-1:])
        return list(dict.fromkeys(k for row in found for k, v in row.items() if isinstance(v, int | float)))

    @cached_property
    def column(self) -> Callable[[str], list[Any]]:
        """A function that returns a measure of all rows of the tidy table; None where it does not apply.

        Besides metrics and diagnostics: ``bytes_up``, ``bytes_down``, ``bytes`` (their sum), ``flops``,
        ``oracle_calls``, ``round``, ``seconds`` and ``epsilon`` (the total so far). Counts stay integers.
        """
        return cache(partial(self._values, rows=slice(None)))

    @cached_property
    def last(self) -> Callable[[str], list[Any]]:
        """A function that returns a measure of the last evaluation of every run, as `column`."""
        return cache(partial(self._values, rows=self._tidy.ends))

    def _values(self, measure: str, rows: slice | NDArray[np.int64]) -> list[Any]:
        if measure == "bytes":
            both = (self._values(name, rows) for name in ("bytes_up", "bytes_down"))
            return [None if up is None or down is None else up + down for up, down in zip(*both, strict=True)]
        name = "epsilon_total" if measure == "epsilon" else measure
        if measure not in (*COUNTS, "seconds", "epsilon"):
            name = self._tidy.metrics.get(measure, measure if measure in self.diagnostics else "")
        chosen = self._tidy.evaluations.iloc[rows]
        if name not in chosen:
            return [None] * len(chosen)
        values = chosen[name].astype(object).to_numpy(copy=True)
        values[chosen[name].isna()] = None
        return list(values.tolist())


@dataclass(frozen=True)
class Run:
    """One run: its record and its rows of the tidy table.

    Attributes
    ----------
    record : RunRecord
        The run as read from the store.
    identity : Identity
        What determines it but its seed.
    number : int
        Its place among the records.
    rows : slice
        Its rows, one per evaluation.
    results : Results
        The tidy table.
    """

    record: RunRecord
    identity: Identity
    number: int
    rows: slice
    results: Results = field(repr=False, compare=False)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.record.spec["seed"])

    @property
    def done(self) -> bool:
        """Whether the run is finished and has an evaluation: only then do its numbers count."""
        return self.record.status == "done" and bool(self.record.rounds)

    def curve(self, measure: str) -> list[Any]:
        """Return `measure` at every evaluation; None where it does not apply."""
        return self.results.column(measure)[self.rows]

    def value(self, measure: str) -> Any:
        """Return `measure` at the last evaluation; None where it does not apply."""
        return self.results.last(measure)[self.number]

    def at_target(self, target: Target, costs: Sequence[Any]) -> Any:
        """Return the entry of a curve at the first evaluation that reaches the target; None if none does."""
        sign = 1 if better_is_higher(target.measure) else -1
        points = zip(self.curve(target.measure), costs, strict=True)
        good = (spent for value, spent in points if value is not None and sign * value >= sign * target.value)
        return next(good, None)


@dataclass(frozen=True)
class Cell:
    """Runs of one spec on the same data by the same code, one per seed, in the order of their seeds.

    Attributes
    ----------
    key : str
        Digest of suite, profile, data, versions and everything of the spec but the seed.
    task : str
        Digest of suite, profile, data, partition and problem: the cells of one task are ranked together.
    runs : tuple[Run, ...]
        At least one.
    settings : Mapping[str, str]
        All settings as text, by dotted names, with `variant`.
    variant : Mapping[str, str]
        Data and versions that tell the cell from another of the same spec; empty if there is none.
    """

    key: str
    task: str
    runs: tuple[Run, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    variant: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> list[RunRecord]:
        """Records of the runs."""
        return [run.record for run in self.runs]

    @property
    def suite(self) -> str:
        """Name of the suite; empty for single runs."""
        return self.runs[0].record.suite

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Spec of a run; the others differ in the seed, and in newer settings that older records lack."""
        return _fullest(self.runs).record.spec

    @cached_property
    def given(self) -> dict[str, str]:
        """The settings that the suite gave, without those that a search chose: cells to compare share them."""
        chosen = set(self.records[0].chosen)
        return {name: value for name, value in self.settings.items() if name not in chosen}

    @cached_property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return part_name(self.spec["algorithm"]) or ""

    @property
    def data(self) -> str:
        """Name of the data; empty for problems that draw their own."""
        return data_name(self.spec.get("data")) or ""

    @property
    def is_protected(self) -> bool:
        """Whether it has privacy or compression."""
        return bool(self.spec.get("privacy")) or is_compressed(self.spec)

    @cached_property
    def done(self) -> list[Run]:
        """Finished runs with at least one evaluation: the only ones whose numbers are averaged."""
        return [run for run in self.runs if run.done]

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """Seed -> place among the records, of the finished runs."""
        return {run.seed: run.number for run in self.done}

    def shared_key(self, without: Collection[str]) -> str:
        """Return the digest of all that determines the cell without some sections, see `Identity.shared_key`."""
        return self.runs[0].identity.shared_key(without)

    def values(self, measure: str) -> dict[int, float]:
        """Return seed -> `measure` at the last evaluation, for the finished runs to which it applies."""
        last = self.runs[0].results.last(measure)
        return {seed: value for seed, number in self._numbers.items() if (value := last[number]) is not None}

    @property
    def constant_accuracies(self) -> list[float]:
        """Accuracies of always predicting the most frequent class, of the finished runs that recorded it."""
        return [run.record.tested["constant"] for run in self.done if "constant" in run.record.tested]

    def mean(self, measure: str) -> float:
        """Return the mean of `values` over seeds, of which there must be some."""
        return fmean(self.values(measure).values())

    def score(self, measure: str) -> float:
        """Return the mean, with its sign turned where less is better: the larger the better."""
        return self.mean(measure) if better_is_higher(measure) else -self.mean(measure)

    def empty_gap(self, measure: str) -> bool:
        """Return whether a measure is a gap between groups, and a run predicts one class for all.

        Its gap is 0 and says nothing. With two classes it has no hit in one and only hits in the other.
        """
        if split_measure(measure)[1] not in GAPS:
            return False
        worst, balanced = self.values("worst_class"), self.values("balanced_accuracy")
        return any(recall == 0 and balanced.get(seed) == 0.5 for seed, recall in worst.items())

    def at_target(self, target: Target, cost: str) -> dict[int, float]:
        """Return seed -> `cost` at the first evaluation that reaches the target, for the finished runs with one."""
        found = {run.seed: run.at_target(target, run.curve(cost)) for run in self.done}
        return {seed: spent for seed, spent in found.items() if spent is not None}

    def costs(self, target: Target, column: str) -> dict[int, float]:
        """Return seed -> a column of `COSTS_TO_TARGET`; nothing unless every run is done and reached the target.

        A mean over the runs that did would flatter a method that mostly does not.
        """
        found = self.at_target(target, COSTS_TO_TARGET[column])
        return found if len(found) == len(self.runs) else {}

    def privacy(self) -> dict[str, Any] | None:
        """Return the privacy statement of the run with the largest epsilon: a row never understates."""
        given = [claim for run in self.done if (claim := run.record.rounds[-1].get("privacy"))]
        claims = [
            {name: math.inf if value == "inf" else value for name, value in own.items()} for own in given
        ]
        return max(claims, key=lambda own: _infinite_if_none(own.get("epsilon_total")), default=None)


def grouped(members: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the members of every group; groups and members keep their order."""
    groups: dict[K, list[T]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


def first_of_each(members: Iterable[T], key: Callable[[T], K]) -> dict[K, T]:
    """Return the first member of every group, in their order."""
    return {name: own[0] for name, own in grouped(members, key).items()}


def _fullest(runs: Sequence[Run]) -> Run:
    """Return the first of the runs with the most settings."""

    def size(run: Run) -> int:
        return sum(len(part) if isinstance(part, Mapping) else 1 for part in run.record.spec.values())

    return max(runs, key=size)


def _settings(fullest: Mapping[str, Run]) -> dict[str, dict[str, str]]:
    """Return cell key -> settings as text.

    Settings that only some records have, as others are older, get their defaults in the others.
    """
    own = {key: flatten(run.record.spec) for key, run in fullest.items()}
    recorded = {name for flat in own.values() for name in flat}
    found = {}
    for key, run in fullest.items():
        whole = dotted(completed(run.record.spec, plugged(run.record)))
        texts = {
            name: own[key][name] if name in own[key] else in_text(name, value)
            for name, value in whole
            if name in recorded
        }
        found[key] = texts | own[key]
    return found


def _variants(fullest: Mapping[str, Run]) -> dict[str, dict[str, str]]:
    """Return cell key -> the data and versions in which it differs from other cells of its spec."""
    variants: dict[str, dict[str, str]] = {}
    for members in grouped(fullest.items(), lambda member: member[1].identity.spec).values():
        origins = {key: run.identity.origin for key, run in members}
        names = sorted({name for origin in origins.values() for name in origin})
        telling = [name for name in names if len({str(own.get(name)) for own in origins.values()}) > 1]
        for key, own in origins.items():
            variants[key] = {name: _origin_text(name, own.get(name)) for name in telling}
    return variants


def _origin_text(name: str, value: object) -> str:
    if value is None:
        return "unknown"
    return str(value)[:DIGEST_LETTERS] if name == "data.digest" else str(value).replace(" ", "_")


def telling_settings(cells: Sequence[Cell]) -> dict[str, str]:
    """Return cell key -> the settings that tell it from the other cells.

    The hyper-parameters of the algorithm always; of the rest of the spec what has no column of its own and
    differs between the cells of the suite, with its dotted name. A model's setting counts among such models only.
    """
    listed = [
        {name: value for name, value in sorted(cell.settings.items()) if _listed(cell.spec, name)}
        for cell in cells
    ]
    varying: dict[str, set[str]] = {}
    for suite in {cell.suite for cell in cells}:
        table = pd.DataFrame(
            [own for own, cell in zip(listed, cells, strict=True) if cell.suite == suite], dtype=object
        )
        of_models = table.columns.astype(str).str.startswith("model.")
        varying[suite] = set(table.columns[(table.nunique() > 1) | (table.isna().any() & ~of_models)])
    texts = {}
    for cell, own in zip(cells, listed, strict=True):
        texts[cell.key] = " ".join(
            f"{name.removeprefix('algorithm.')}={value}"
            for name, value in own.items()  # in the order of names, so those of the algorithm come first
            if name.startswith("algorithm.") or (value != "false" and name in varying[cell.suite])
        )
    return texts


def _listed(spec: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting may stand among the settings of a row: it has no column that shows all of it."""
    section, _, last = name.partition(".")
    if section == "partition" and last.split(".")[0] not in PARTITION_FIELDS and last:
        return False
    changing = section == "compression" and isinstance((spec.get(section) or {}).get(last), list | tuple)
    return name not in SHOWN or changing


def _infinite_if_none(epsilon: float | None) -> float:
    return math.inf if epsilon is None else float(epsilon)
