"""The order in which a board has first seen its submissions: a list beside them, which belongs to whoever keeps it.

A submission cannot prove when it was made. So the keeper's builds add a line for each that is new, and the keeper
commits the list. Lines are never changed, and no submission touches it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

from harness.storage.files import Damaged, append, json_value, read_bytes
from harness.storage.manifest import MANIFEST
from studies.board.submission import Submission

SEEN = "seen.jsonl"


class Seen(NamedTuple):
    """When a board saw a submission for the first time.

    Attributes
    ----------
    place : int
        Number of submissions that were seen before.
    date : str
        Day of the build.
    """

    place: int
    date: str


def read_seen(folder: Path) -> dict[tuple[str, str | None], Seen]:
    """Return id and signer of the submissions that the board in a folder has seen, and when.

    Raises
    ------
    Damaged
        If the list cannot be read.
    """
    try:
        lines = read_bytes(folder / SEEN).splitlines()
    except FileNotFoundError:
        return {}
    dates: dict[tuple[str, str | None], Seen] = {}
    for place, line in enumerate(lines):
        try:
            content = json_value(line)
            dates.setdefault((str(content["id"]), content["signer"]), Seen(place, str(content["date"])))
        except (ValueError, TypeError, KeyError):
            raise Damaged(
                folder / SEEN, f"is damaged in line {place + 1}; take it from its history"
            ) from None
    return dates


def first_seen(seen: Mapping[tuple[str, str | None], Seen], id: str) -> Seen | None:
    """Return when a manifest was first seen, whoever had signed it; None if it was not."""
    return min((each for (of, _), each in seen.items() if of == id), default=None)


def add_seen(folder: Path, submitted: Iterable[tuple[str, Submission]]) -> dict[tuple[str, str | None], Seen]:
    """Append new submissions to the list of a board, signed ones first, and return the whole list.

    Parameters
    ----------
    folder : Path
        Folder of the submissions; that of a single submission has no such list.
    submitted : Iterable
        Name and content of the submissions that are shown.

    Raises
    ------
    Unwritable
        If the folder cannot be written.
    """
    seen = read_seen(folder)
    fresh = [
        (name, submission) for name, submission in submitted if (submission.id, submission.signer) not in seen
    ]
    if not fresh or (folder / MANIFEST).exists():
        return seen
    fresh.sort(key=lambda pair: (pair[1].signer is None, pair[1].id))
    lines = [
        {"id": submission.id, "signer": submission.signer, "folder": name, "date": date.today().isoformat()}
        for name, submission in fresh
    ]
    append(folder / SEEN, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return read_seen(folder)
