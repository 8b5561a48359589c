"""The tidy table: one row per evaluation of every run, one column per quantity."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from harness.report.data.identity import Identity, identified
from harness.report.data.specs import dotted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.storage.store import RunRecord

OWN = ("id", "status", "reason", "source")
RUN = ("id", "suite", "profile", "status", "reason", "source")
KEYS = ("cell", "task")
COUNTS = ("round", "bytes_up", "bytes_down", "flops", "oracle_calls")
#: Sections of a spec that may be a bare name if a combination was skipped, and the field of that name.
NAMED = {
    "data": "name", "model": "name", "algorithm": "name",
    "partition": "kind", "problem": "kind", "topology": "kind",
}  # fmt: skip
ALWAYS = (*COUNTS, "seconds")
NUMBERS = frozenset({int, float, bool})
LARGEST_INTEGER = 2**63 - 1  # a column with a larger one holds floats


def tidy(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return one row per evaluation; runs without evaluations (failed, skipped, missing) keep one row.

    Parameters
    ----------
    records : Iterable[RunRecord]
        Run records, whose order the rows keep. A run shared by two suites appears once in each.

    Returns
    -------
    pd.DataFrame
        Columns: ``id``, ``suite``, ``profile``, ``status``, ``reason`` and ``source`` of the run; its spec by
        dotted names (``algorithm.lr``; lists as JSON), with ``data.digest`` and ``versions.*`` (see `origin`);
        ``round``, ``bytes_up``, ``bytes_down``, ``flops``, ``oracle_calls`` and ``seconds`` up to the evaluation;
        the privacy statement (``epsilon_release``, ``epsilon_total``, ``delta``, ..., by dotted names where it
        holds a list per party); diagnostics (``clipped_share``, ``noise_to_signal``, ...) where a run recorded
        them; every metric by its name (``metrics.NAME`` if another column has that name); last ``cell`` and
        ``task``, digests that runs averaged together and cells ranked together share. Missing means "does not
        apply" or "not recorded", never zero.
    """
    records = list(records)
    return Table(records, identified(records)).frame


class Table:
    """The tidy table of runs, whose columns are made when they are asked for.

    Parameters
    ----------
    records : Sequence[RunRecord]
        The runs.
    identities : Sequence[Identity]
        What determines each. Runs share most of theirs: what they share is turned into columns once, and repeated.

    Attributes
    ----------
    rows : NDArray
        Numbers of all rows.
    ends : NDArray
        The row of each run's last evaluation.
    metrics : dict[str, str]
        Metric -> its column.
    """

    def __init__(self, records: Sequence[RunRecord], identities: Sequence[Identity]) -> None:
        self._records = records
        self._shared = {one: number for number, one in enumerate(dict.fromkeys(identities))}
        self._owner = np.array([self._shared[one] for one in identities], dtype=np.int64)
        self._counts = np.array([max(1, len(record.rounds)) for record in records], dtype=np.int64)
        self.ends = self._counts.cumsum() - 1
        self.rows = np.arange(self._counts.sum())
        lines = [line for record in records for line in record.rounds or [{}]]
        self._described = _Columns([_described(one) for one in self._shared])
        self._beside = _Columns([_beside(line) for line in lines])
        self._scores = _Columns([line.get("metrics", {}) for line in lines])
        counts = zip(*map(_counts, lines), strict=True)
        self._measured = dict(zip(ALWAYS, counts, strict=False)) | self._beside.values
        taken = {*RUN, *self._described.values, *self._measured}
        self.metrics = {name: f"metrics.{name}" if name in taken else name for name in self._scores.values}
        self._scored = {self.metrics[name]: values for name, values in self._scores.values.items()}
        self._made: dict[str, pd.Series[Any]] = {}

    def column(self, name: str) -> pd.Series[Any] | None:
        """Return a column that differs between evaluations; None if there is none of this name."""
        if name not in self._made:
            values = self._scored.get(name, self._measured.get(name))
            if values is None:
                return None
            self._made[name] = _typed(values)
        return self._made[name]

    def values(self, name: str, rows: NDArray[np.int64]) -> list[Any]:
        """Return some rows of such a column; None where it does not apply."""
        column = self.column(name)
        if column is None:
            return [None] * len(rows)
        found = column.take(rows)
        values = found.astype(object).to_numpy(copy=True)
        values[found.isna()] = None
        return list(values.tolist())

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The whole table, see `tidy`."""
        owner = np.repeat(self._owner, self._counts)
        columns = {name: _typed(values).take(owner) for name, values in self._described.values.items()}
        own: dict[str, list[Any]] = {name: [getattr(r, name) for r in self._records] for name in OWN}
        if "seed" in columns:
            own["seed"] = [record.spec.get("seed") for record in self._records]
        columns |= {name: _typed(values).repeat(self._counts.tolist()) for name, values in own.items()}
        columns |= {
            name: made for name in (*self._measured, *self._scored) if (made := self.column(name)) is not None
        }
        columns |= {name: columns.get(name, pd.Series()).astype("str") for name in (*RUN, *KEYS)}
        spec = sorted(
            name for name in columns if "." in name and not name.startswith(("metrics.", "parties."))
        )
        names = dict.fromkeys([*RUN, *spec, *self._names(owner)])
        order = [*(name for name in names if name not in KEYS), *KEYS]
        return pd.DataFrame({name: columns[name].array for name in order})

    def _names(self, owner: NDArray[np.int64]) -> Iterator[str]:
        """Yield the names of every row, of rows with the same names once."""
        rows = zip(owner.tolist(), self._beside.shapes, self._scores.shapes, strict=True)
        for run, row, own in dict.fromkeys(rows):
            yield from self._described.names[self._described.shapes[run]]
            yield from (*ALWAYS, *self._beside.names[row])
            yield from (self.metrics[metric] for metric in self._scores.names[own])


class _Columns:
    """Rows as columns.

    Most rows have the same names in the same order, their shape, so that they are turned into columns together.

    Attributes
    ----------
    shapes : list[int]
        The shape of every row.
    names : list[tuple[str, ...]]
        The names of every shape.
    values : dict[str, Any]
        Name -> sequence of its value in every row, None where a row lacks it.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        known: dict[tuple[str, ...], int] = {}
        self.shapes = [known.setdefault(tuple(row), len(known)) for row in rows]
        self.names = list(known)
        self.values: dict[str, Any] = {}
        for shape, number in known.items():
            where = np.flatnonzero(np.array(self.shapes) == number).tolist()
            columns = zip(*(rows[place].values() for place in where), strict=True)  # once through the rows
            for name, own in zip(shape, columns, strict=False):
                if len(known) == 1:
                    self.values[name] = own
                    continue
                whole = self.values.setdefault(name, np.full(len(rows), None, dtype=object))
                whole[where] = np.fromiter(own, dtype=object, count=len(own))


def flat_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings by dotted names."""
    whole = {
        name: {NAMED[name]: part} if name in NAMED and isinstance(part, str) else part
        for name, part in spec.items()
    }
    return _flat(whole)


def diagnostics(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message diagnostics of an evaluation's round; empty if not recorded."""
    return _flat(line.get("diagnostics") or {})


def _described(one: Identity) -> dict[str, Any]:
    """Return the columns shared by all evaluations of runs with an identity; the seed is filled in for each run."""
    run = {"suite": one.record.suite, "profile": one.record.profile} | flat_spec(one.record.spec) | one.origin
    return run | {"cell": one.cell, "task": one.task}


def _counts(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return counts and seconds of an evaluation."""
    return *map(line.get, COUNTS), line.get("timing", {}).get("seconds")


def _beside(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of an evaluation beside its counts, seconds and metrics."""
    row = diagnostics(line)
    if parties := line.get("parties"):
        row = _flat({"parties": parties}) | row
    if claim := line.get("privacy"):
        row = _flat(claim) | row
    return row


def _flat(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name -> value, with lists as JSON and infinity as float; `part` itself where it is that."""
    if type(part) is dict and NUMBERS.issuperset(map(type, part.values())):
        return part
    return {
        name: json.dumps(value) if isinstance(value, list | tuple) else math.inf if value == "inf" else value
        for name, value in dotted(part)
    }


def _typed(values: Sequence[Any]) -> pd.Series[Any]:
    """Return a column of its values' common type, or of text without one."""
    found = set(map(type, values))
    if found == {float} or found == {float, type(None)}:
        return pd.Series(np.array(values, dtype=np.float64))
    if found == {int} and max(map(abs, values)) <= LARGEST_INTEGER:
        return pd.Series(np.array(values, dtype=np.int64))
    given = [value for value in values if value is not None and value == value]
    kinds = {
        next((kind for kind in (bool, int, float) if issubclass(own, kind)), own)
        for own in (set(map(type, given)) if type(None) in found or float in found else found)
    }
    whole = len(given) == len(values)
    column = pd.Series(values, dtype=object)
    if kinds == {int} and max(map(abs, given)) <= LARGEST_INTEGER:
        return column.astype("int64" if whole else "Int64")
    if kinds <= {int, float}:
        return column.astype("float64")
    if kinds == {bool}:
        return column.astype("bool" if whole else "boolean")
    return column.map(str, na_action="ignore").astype("str")
