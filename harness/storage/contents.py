"""Read records of runs and check them: all that is shown of a run comes from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.storage.files import Damaged, read_bytes
from harness.storage.run_folder import RunFolder
from harness.storage.seals import parse_sealed
from harness.storage.shapes import Started, check_shape

#: Called with an id and what was written when the run began; returns why the one does not follow from the other,
#: or nothing.
Named = Callable[[str, Mapping[str, Any]], str]


def accept_any(id: str, started: Mapping[str, Any]) -> str:
    """Find nothing wrong."""
    return ""


class Contents(NamedTuple):
    """Contents of the folder of a run.

    Attributes
    ----------
    status, reason : str, str or None
        As `RunFolder.read` has them; also damaged if a file has not the shape of a record, or the run is not
        the one that its id names.
    end : dict
        Content of the file that ended it; empty if none did.
    started : dict
        Content of ``spec.json``; empty if it is missing or damaged.
    rounds : list of dict
        Its evaluations; none of a damaged run.
    """

    status: str
    reason: str | None
    end: dict[str, Any]
    started: dict[str, Any]
    rounds: list[dict[str, Any]]

    def damaged(self, why: str) -> Contents:
        """Return them as those of a damaged run."""
        return self._replace(status="damaged", reason=why, end={}, rounds=[])


def contents(folder: RunFolder, named: Named = accept_any) -> Contents:
    """Return the sound part of a run's folder."""
    files: dict[str, bytes] = {}
    status, reason, end = folder.read(files)
    try:
        started = begun_as(folder, named, files.get("spec.json"))
    except Damaged as error:
        return Contents("damaged", reason or f"spec.json {error.why}", {}, {}, [])
    if status == "damaged":
        return Contents(status, reason, {}, started, [])
    raw = files.get("rounds.jsonl")
    result = Contents(status, reason, end, started, [])
    try:
        rounds = folder.evaluations.all(raw)
    except Damaged as error:
        return result.damaged(f"rounds.jsonl {error.why}")
    if raw is not None and len(raw.splitlines()) != len(rounds):  # of a run that has ended
        return result.damaged("rounds.jsonl holds lines that are not evaluations")
    return result._replace(rounds=rounds)


def begun_as(folder: RunFolder, named: Named = accept_any, raw: bytes | None = None) -> dict[str, Any]:
    """Return what was written when a run began, ``raw`` if it has been read; empty if it has not begun.

    Raises
    ------
    Damaged
        If it is damaged, is no such record, or is of another run.
    """
    path = folder.path / "spec.json"
    try:
        content, _ = parse_sealed(path, read_bytes(path) if raw is None else raw, "spec", "source")
    except FileNotFoundError:
        return {}
    check_shape(path, Started, content)
    if content.get("id", folder.path.name) != folder.path.name:
        raise Damaged(path, f"is of run {content['id']}")
    if why := named(folder.path.name, content):
        raise Damaged(path, why)
    return content
