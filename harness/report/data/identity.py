"""Identities of runs: digests of all that determines them, or of parts of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

from harness.config.recorded import SPECIAL, essential, run_id, versions
from harness.report.data.specs import digest, dotted, in_json
from harness.storage.store import RunRecord

TASK = {"data", "partition", "problem"}  # sections that cells share if they are ranked together


class Identity:
    """All that determines a run but its seed; its digests say which runs belong together.

    Parameters
    ----------
    record : RunRecord
        The run.

    Attributes
    ----------
    record : RunRecord
        The run, or of several the first.
    origin : dict[str, Any]
        What determines it besides its spec, see `origin`.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.origin = origin(record)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings but the seed that are not at their defaults; without the path of data that have a digest."""
        return _essential(self.record, self.record.spec)

    @cached_property
    def _given(self) -> dict[str, Any]:
        """The spec without what the run has chosen in a search."""
        return _essential(self.record, _unchosen(self.record)) if self.record.chosen else self.settings

    @cached_property
    def cell(self) -> str:
        """The digest that the runs of a cell share, which differ in nothing but their seed: 12 digits.

        It covers suite, profile, spec, data and versions of the code. Settings at their defaults count as not
        given, as records of earlier versions lack newer settings.
        """
        return self.shared_key()

    @cached_property
    def task(self) -> str:
        """The digest shared by all cells that a record is compared with: 12 hexadecimal digits."""
        return self.shared_key({"algorithm", *self.record.spec} - TASK)

    @property
    def spec(self) -> str:
        """The digest of suite, profile and spec without the seed; cells of other data or code may share it."""
        return digest([self.record.suite, self.record.profile, self.settings])

    def shared_key(self, without: Collection[str] = ()) -> str:
        """Return the digest of all that determines the run, without its seed and some sections of its spec.

        With such sections the digest is that of cells to compare. It then leaves out what each has chosen in a
        search.
        """
        given = self._given if without else self.settings
        spec = {name: part for name, part in given.items() if name not in without}
        made = {name: value for name, value in self.origin.items() if _sections(name).isdisjoint(without)}
        return digest([self.record.suite, self.record.profile, spec, made])


def identified(records: Iterable[RunRecord]) -> list[Identity]:
    """Return what determines each run; those that differ in their seed alone share it, as it takes long to find."""
    known: dict[str, Identity] = {}
    found = []
    for record in records:
        spec = {**record.spec, "seed": 0} if "seed" in record.spec else record.spec
        first = None if "algorithm" in record.versions else record.id  # see `origin`
        parts = record.suite, record.profile, spec, record.digest, record.versions, record.chosen, first
        text = in_json(parts)
        if text not in known:
            known[text] = Identity(record)
        found.append(known[text])
    return found


def cell_key(record: RunRecord) -> str:
    """Return the digest that the runs of a cell share, see `Identity.cell`."""
    return Identity(record).cell


def known_versions(record: RunRecord) -> Mapping[str, Any]:
    """Return the versions of the code that determined a run, as far as they are known.

    Earlier versions did not record versions of algorithms. They are known if the id of the run follows from those
    of today; otherwise such runs count as equal among themselves, and as other than runs with versions.
    """
    known: Mapping[str, Any] = record.versions
    if "algorithm" not in known and record.id and record.digest:
        today = versions(record.spec)
        known = today if run_id(record.spec, record.digest, today) == record.id else known
    return known


def origin(record: RunRecord) -> dict[str, Any]:
    """Return what determines a run besides its spec, as far as it is known: ``data.digest``, ``versions.*``."""
    found = {f"versions.{name}": value for name, value in dotted(known_versions(record))}
    return {"data.digest": record.digest, **found} if record.digest else found


def _sections(name: str) -> set[str]:
    """Return the sections of a spec that a part of an `origin` belongs to."""
    last = name.rpartition(".")[2]
    return set(SPECIAL[last].sections) if last in SPECIAL else {last}


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
