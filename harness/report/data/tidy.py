"""The tidy table: one row per evaluation of every run, one column per thing that is known about it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

RUN = ("id", "suite", "profile", "status", "reason", "source")
COUNTS = ("round", "bytes_up", "bytes_down", "flops", "oracle_calls")
#: Sections of a spec that may be a bare name where a combination was skipped, and what a name stands for.
NAMED = {
    "data": "name", "model": "name", "algorithm": "name",
    "partition": "kind", "problem": "kind", "topology": "kind",
}  # fmt: skip


def tidy(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Return one row per evaluation; runs without any (failed at once, skipped, missing) keep one row.

    Parameters
    ----------
    records : Iterable[RunRecord]
        In any order. A run that two suites share comes once with each of them.

    Returns
    -------
    pd.DataFrame
        Columns: ``id``, ``suite``, ``profile``, ``status``, ``reason`` and ``source`` of the run; its spec by
        dotted names (``algorithm.lr``; lists as JSON); ``round``, ``bytes_up``, ``bytes_down``, ``flops``,
        ``oracle_calls`` and ``seconds`` up to the evaluation; every metric by its name (``metrics.NAME`` if
        another column has it); the privacy statement (``epsilon_release``, ``epsilon_total``, ``delta``, ...,
        by dotted names where it holds a list per party). Missing means "does not apply" or "not there",
        never zero.
    """
    rows = [row for record in records for row in _rows(record)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    dotted = sorted(name for name in names if "." in name and not name.startswith(("metrics.", "parties.")))
    frame = pd.DataFrame(rows, columns=list(dict.fromkeys([*RUN, *dotted, *names])), dtype=object)
    for name in frame.columns:
        frame[name] = frame[name].astype("str") if name in RUN else _typed(frame[name])
    return frame


def flat_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a spec gives, by dotted names."""
    whole = {
        name: {NAMED[name]: part} if name in NAMED and isinstance(part, str) else part
        for name, part in spec.items()
    }
    return dict(_flat(whole))


def _rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    run = {name: getattr(record, name) for name in RUN} | flat_spec(record.spec)
    for line in record.rounds or [{}]:
        row = run | {name: line.get(name) for name in COUNTS}
        row["seconds"] = line.get("timing", {}).get("seconds")
        row |= _flat(line.get("privacy") or {})
        row |= _flat({"parties": line.get("parties", {})})
        for name, value in line.get("metrics", {}).items():
            row[f"metrics.{name}" if name in row else name] = value
        yield row


def _flat(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is given; lists as JSON, infinity, of which JSON has none, as the number it is."""
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield prefix + name, json.dumps(value)
        elif value is not None:
            yield prefix + name, math.inf if value == "inf" else value


def _typed(column: pd.Series[Any]) -> pd.Series[Any]:
    """Give a column the one type that all its values have; text if they have several."""
    given = [value for value in column if value is not None and not pd.isna(value)]
    kinds, whole = {type(value) for value in given}, len(given) == len(column)
    if kinds == {int}:
        return column.astype("int64" if whole else "Int64")
    if kinds <= {int, float}:
        return column.astype("float64")
    if kinds == {bool}:
        return column.astype("bool" if whole else "boolean")
    return column.map(str, na_action="ignore").astype("str")
