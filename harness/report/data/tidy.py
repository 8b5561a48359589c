"""The tidy table: one row per evaluation of every run, one column per quantity."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from harness.config.recorded import essential, run_id, versions
from harness.report.data.specs import digest, dotted

if TYPE_CHECKING:
    from harness.storage.store import RunRecord

RUN = ("id", "suite", "profile", "status", "reason", "source")
KEYS = ("cell", "task")
COUNTS = ("round", "bytes_up", "bytes_down", "flops", "oracle_calls")
#: Sections of a spec that may be a bare name if a combination was skipped, and the field of that name.
NAMED = {
    "data": "name", "model": "name", "algorithm": "name",
    "partition": "kind", "problem": "kind", "topology": "kind",
}  # fmt: skip
TASK = {"data", "partition", "problem"}  # sections that cells share if they are ranked together
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
    return tabulated([Identity(record) for record in records])[0]


def tabulated(identities: Sequence[Identity]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the tidy table of runs, and the column of every metric."""
    runs = [_run(one) for one in identities]
    records = [one.record for one in identities]
    counts = [max(1, len(record.rounds)) for record in records]
    lines = [line for record in records for line in record.rounds or [{}]]
    figures = [_figures(line) for line in lines]
    metrics: list[Mapping[str, Any]] = [line.get("metrics", {}) for line in lines]
    described, shape_of_run = _columns(runs)
    measured, shape_of_row = _columns(figures)
    scores, shape_of_scores = _columns(metrics)
    column = {name: f"metrics.{name}" if name in described or name in measured else name for name in scores}
    columns = {name: _typed(values).repeat(counts) for name, values in described.items()}
    columns |= {name: _typed(values) for name, values in measured.items()}
    columns |= {column[name]: _typed(values) for name, values in scores.items()}
    columns |= {name: columns.get(name, pd.Series()).astype("str") for name in (*RUN, *KEYS)}
    owners = (shape for shape, count in zip(shape_of_run, counts, strict=True) for _ in range(count))
    shapes = dict.fromkeys(zip(owners, shape_of_row, shape_of_scores, strict=True))
    names = [name for run, row, own in shapes for name in (*run, *row, *(column[metric] for metric in own))]
    spec = sorted(name for name in columns if "." in name and not name.startswith(("metrics.", "parties.")))
    order = [name for name in dict.fromkeys([*RUN, *spec, *names]) if name not in KEYS]
    return pd.DataFrame({name: columns[name].array for name in [*order, *KEYS]}), column


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], list[tuple[str, ...]]]:
    """Return name -> value in every row, None where a row lacks it, and the names of every row.

    Most rows have the same names in the same order, so that they are turned into columns together.
    """
    shapes = [tuple(row) for row in rows]
    places: dict[tuple[str, ...], list[int]] = {}
    for number, shape in enumerate(shapes):
        places.setdefault(shape, []).append(number)
    columns: dict[str, list[Any]] = {}
    for shape, where in places.items():
        alike = [rows[number] for number in where]
        for name in shape:
            values = map(itemgetter(name), alike)
            if len(where) == len(rows):
                columns[name] = list(values)
                continue
            whole = columns.setdefault(name, [None] * len(rows))
            for place, value in zip(where, values, strict=True):
                whole[place] = value
    return columns, shapes


class Identity:
    """What determines a run: digests of it, or of parts of it, say which runs belong together.

    Parameters
    ----------
    record : RunRecord
        The run.

    Attributes
    ----------
    record : RunRecord
        The run.
    origin : dict[str, Any]
        What determines it besides its spec, see `origin`.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.origin = origin(record)

    @cached_property
    def _spec(self) -> dict[str, Any]:
        return _essential(self.record, self.record.spec)

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The spec without what the run has chosen in a search."""
        return _essential(self.record, _unchosen(self.record)) if self.record.chosen else self._spec

    @property
    def cell(self) -> str:
        """The digest that the runs of a cell share, which differ in nothing but their seed: 12 digits.

        It covers suite, profile, spec, data and versions of the code. Settings at their defaults count as not
        given, as records of earlier versions lack newer settings.
        """
        return self.shared_key()

    @property
    def task(self) -> str:
        """The digest shared by all cells that a record is compared with: 12 hexadecimal digits."""
        return self.shared_key({"algorithm", *self.record.spec} - TASK)

    @property
    def spec(self) -> str:
        """The digest of suite, profile and spec without the seed; cells of other data or code may share it."""
        return digest([self.record.suite, self.record.profile, self._spec])

    def shared_key(self, without: Collection[str] = ()) -> str:
        """Return the digest of all that determines the run, without its seed and some sections of its spec.

        With such sections the digest is that of cells to compare. It then leaves out what each has chosen in a
        search.
        """
        spec = (
            {name: part for name, part in self._given.items() if name not in without}
            if without
            else self._spec
        )
        made = {name: value for name, value in self.origin.items() if name.rpartition(".")[2] not in without}
        return digest([self.record.suite, self.record.profile, spec, made])


def cell_key(record: RunRecord) -> str:
    """Return the digest that the runs of a cell share, see `Identity.cell`."""
    return Identity(record).cell


def origin(record: RunRecord) -> dict[str, Any]:
    """Return what determines a run besides its spec: ``data.digest`` and ``versions.*``, as far as they are known.

    Earlier versions did not record versions of algorithms. They are known if the id of the run follows from those
    of today; otherwise such runs count as equal among themselves, and as other than runs with versions.
    """
    known: Mapping[str, Any] = record.versions
    if "algorithm" not in known and record.id and record.digest:
        today = versions(record.spec)
        known = today if run_id(record.spec, record.digest, today) == record.id else known
    found = {f"versions.{name}": value for name, value in dotted(known)}
    return {"data.digest": record.digest, **found} if record.digest else found


def plugged(record: RunRecord) -> Collection[str]:
    """Return the sections of a record's spec that name parts of plugins."""
    plugins: Mapping[str, Any] = record.versions.get("plugins", {})
    return plugins.keys()


def _unchosen(record: RunRecord) -> dict[str, Any]:
    """Return the spec of a record without what it has chosen in a search."""
    given = dict(record.spec)
    for path in record.chosen:
        section, _, name = path.partition(".")
        if not name:
            given.pop(section, None)
        elif isinstance(part := given.get(section), Mapping):
            given[section] = {key: value for key, value in part.items() if key != name}
    return given


def _essential(record: RunRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a record without seed, settings at their defaults, and the path of data with a digest."""
    spec = essential({name: part for name, part in given.items() if name != "seed"}, plugged(record))
    if record.digest and "data" in spec:
        spec["data"] = {name: value for name, value in spec["data"].items() if name != "path"}
    return spec


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


def _run(one: Identity) -> dict[str, Any]:
    """Return the columns shared by all evaluations of a run."""
    run = {name: getattr(one.record, name) for name in RUN} | flat_spec(one.record.spec) | one.origin
    return run | {"cell": one.cell, "task": one.task}


def _figures(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of one evaluation, without its metrics."""
    row = {name: line.get(name) for name in COUNTS}
    row["seconds"] = line.get("timing", {}).get("seconds")
    if claim := line.get("privacy"):
        row |= _flat(claim)
    if parties := line.get("parties"):
        row |= _flat({"parties": parties})
    return row | diagnostics(line)


def _flat(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted name -> value, with lists as JSON and infinity as float."""
    return {
        name: json.dumps(value) if isinstance(value, list | tuple) else math.inf if value == "inf" else value
        for name, value in dotted(part)
    }


def _typed(values: Sequence[Any]) -> pd.Series[Any]:
    """Return a column of its values' common type, or of text without one."""
    found = set(map(type, values))
    if found == {float}:
        return pd.Series(np.array(values))
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
