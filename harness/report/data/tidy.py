"""The tidy table: one row per evaluation of every run, one column per quantity."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from harness.report.data.identity import Identity, identified
from harness.report.data.specs import dotted
from harness.storage.store import RunRecord

RUN = ("id", "suite", "profile", "status", "reason", "source")
KEYS = ("cell", "task")
COUNTS = ("round", "bytes_up", "bytes_down", "flops", "oracle_calls")
#: Sections of a spec that may be a bare name if a combination was skipped, and the field of that name.
NAMED = {
    "data": "name", "model": "name", "algorithm": "name",
    "partition": "kind", "problem": "kind", "topology": "kind",
}  # fmt: skip
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
    return Tidy(records, identified(records)).frame


class Tidy:
    """The tidy table of runs, in three frames that are made when they are asked for.

    Parameters
    ----------
    records : Sequence[RunRecord]
        The runs.
    identities : Sequence[Identity]
        What determines each.

    Attributes
    ----------
    ends : NDArray
        The row of each run's last evaluation.
    """

    def __init__(self, records: Sequence[RunRecord], identities: Sequence[Identity]) -> None:
        self._records, self._identities = records, identities
        self._lines = [line for record in records for line in record.rounds or [{}]]
        self._lengths = np.array([max(1, len(record.rounds)) for record in records], dtype=np.int64)
        self.ends = self._lengths.cumsum() - 1

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Descriptions: one row per run."""
        return _frame(
            [
                {name: getattr(record, name) for name in RUN}
                | flat_spec(record.spec)
                | identity.origin
                | {"cell": identity.cell, "task": identity.task}
                for record, identity in zip(self._records, self._identities, strict=True)
            ]
        )

    @cached_property
    def _measured(self) -> pd.DataFrame:
        """Counts, seconds, privacy statement and diagnostics: one row per evaluation."""
        return _frame([_counts(line) | _beside(line) for line in self._lines])

    @cached_property
    def metrics(self) -> dict[str, str]:
        """Metric -> its column."""
        taken = {*RUN, *self.runs, *self._measured}
        names = dict.fromkeys(name for line in self._lines for name in line.get("metrics", {}))
        return {name: f"metrics.{name}" if name in taken else name for name in names}

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """All that differs between evaluations: one row per evaluation, one empty row for a run without any."""
        scores = _frame([line.get("metrics", {}) for line in self._lines])
        return pd.concat([self._measured, scores.rename(columns=self.metrics)], axis=1)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The whole table, see `tidy`."""
        runs = self.runs.drop(columns=[name for name in self.runs if name in self.evaluations])
        rows = runs.take(np.arange(len(runs)).repeat(self._lengths)).reset_index(drop=True)
        frame = pd.concat([rows, self.evaluations], axis=1)
        texts = {name: frame.get(name, pd.Series()).astype("str") for name in (*RUN, *KEYS)}
        dotted_names = (name for name in map(str, frame) if "." in name)
        spec = sorted(name for name in dotted_names if not name.startswith(("metrics.", "parties.")))
        names = dict.fromkeys([*RUN, *spec, *frame])
        return frame.assign(**texts)[[*(name for name in names if name not in KEYS), *KEYS]]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table with typed columns, which are missing where a row lacks a name."""
    frame = pd.DataFrame(rows, dtype=object)
    return pd.DataFrame({name: _typed(frame[name].tolist()) for name in frame}, index=frame.index)


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


def _counts(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return counts and seconds of an evaluation."""
    return {name: line.get(name) for name in COUNTS} | {"seconds": line.get("timing", {}).get("seconds")}


def _beside(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an evaluation beside its counts, seconds and metrics."""
    row = diagnostics(line)
    if parties := line.get("parties"):
        row = _flat({"parties": parties}) | row
    if claim := line.get("privacy"):
        row = _flat(claim) | row
    return row


def _flat(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name -> value, with lists as JSON and infinity as float."""
    return {
        name: json.dumps(value) if isinstance(value, list | tuple) else math.inf if value == "inf" else value
        for name, value in dotted(part)
    }


def _typed(values: Sequence[Any]) -> pd.Series[Any]:
    """Return a column of its values' common type, or of text without one."""
    column = pd.Series(values, dtype=object)
    kind, whole = pd.api.types.infer_dtype(column), bool(column.notna().all())
    if kind == "integer" and column.dropna().abs().max() <= LARGEST_INTEGER:
        return column.astype("int64" if whole else "Int64")
    if kind in ("integer", "floating", "mixed-integer-float", "empty"):
        return column.astype("float64")
    if kind == "boolean":
        return column.astype("bool" if whole else "boolean")
    return column.map(str, na_action="ignore").astype("str")
