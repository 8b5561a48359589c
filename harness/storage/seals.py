"""Checksums that show damage to the files of a results folder.

A JSON file that is sealed ends with ``timing.seal``: the SHA-256 of other files by their names, and its own,
computed with zeros in its place. Files of earlier versions have none; they are read as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.storage.files import (
    Damaged,
    json_lines,
    open_file,
    parse_json,
    read_bytes,
    write_text,
)
from harness.storage.run_files import MOST_BYTES, RECORDED, SEALED

BLANK = "0" * 64
RUN = "run"  # key of a seal that holds the id of the run, in place of a file's name
BLOCK = 1 << 20  # bytes read at once


def write_sealed(path: Path, content: Mapping[str, Any], others: Mapping[str, str] | None = None) -> str:
    """Write a JSON file with its seal, durably, and return its checksum.

    Parameters
    ----------
    path : Path
        The file.
    content : Mapping
        What it holds.
    others : Mapping, optional
        Checksums of other files by name.
    """
    rest = {name: value for name, value in content.items() if name != "timing"}
    timing = {**content.get("timing", {}), "seal": {**(others or {}), path.name: BLANK}}
    head, _, tail = json_lines({**rest, "timing": timing}).rpartition(BLANK)
    checksum = hashlib.sha256(f"{head}{BLANK}{tail}\n".encode()).hexdigest()
    text = f"{head}{checksum}{tail}\n"
    write_text(path, text, durable=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_sealed(path: Path, *needed: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a JSON file that holds an object with the needed fields; return it without its seal, and the seal.

    The seal is empty where the file has none.

    Raises
    ------
    Damaged
        If the file cannot be read as such, or is not what was written.
    """
    return parse_sealed(path, read_bytes(path), *needed)


def parse_sealed(path: Path, raw: bytes, *needed: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a file holds that has been read; see `read_sealed`."""
    content = parse_json(path, raw, *needed)
    timing = content.get("timing")
    seal = timing.get("seal") if isinstance(timing, dict) else None
    if not isinstance(timing, dict) or not isinstance(seal, dict):
        return content, {}
    checksum = str(seal.get(path.name) or None).encode()
    blank = BLANK.encode().join(raw.rsplit(checksum, 1))
    if hashlib.sha256(blank).hexdigest().encode() != checksum:
        raise Damaged(path)
    plain = {name: value for name, value in timing.items() if name != "seal"}
    return {**content, "timing": plain} if plain else _without(content, "timing"), seal


def read_end(
    folder: Path, name: str, contents: dict[str, bytes] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of the file that ends a run, and what is wrong with the run's files, by their names.

    The content is empty where that file is damaged.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    name : str
        The file that ends it, ``done.json`` or ``failed.json``.
    contents : dict[str, bytes], optional
        Is given the content of the files of `RECORDED` as they were compared, so that they are read once.

    Raises
    ------
    FileNotFoundError
        If the run has no such end.
    """
    try:
        content, seal = read_sealed(folder / name)
    except Damaged as error:
        return {}, {name: error.why}
    if not seal:
        return content, _faults_without_seal(folder, name)
    if seal.get(RUN) != folder.name:
        return content, {name: f"belongs to run {seal.get(RUN)}"}
    faults = {
        other: _fault(folder, other, seal[other], contents) for other in seal if other not in (RUN, name)
    }
    return content, {other: fault for other, fault in faults.items() if fault}


def _faults_without_seal(folder: Path, name: str) -> dict[str, str]:
    """Return the faults of an end without a seal, which only a run of an earlier version may have."""
    try:
        started, _ = read_sealed(folder / "spec.json")
    except FileNotFoundError:
        return {}
    except Damaged as error:
        return {"spec.json": error.why}
    return {name: "has lost its seal"} if "versions" in started else {}


def _fault(folder: Path, name: str, expected: object, contents: dict[str, bytes] | None) -> str:
    if name not in SEALED:  # a seal that others wrote may name files anywhere
        return "is not a file of a run"
    try:
        if contents is None or name not in RECORDED:
            actual = sha256(folder / name, MOST_BYTES[name])
        else:
            contents[name] = read_bytes(folder / name, MOST_BYTES[name])
            actual = hashlib.sha256(contents[name]).hexdigest()
    except FileNotFoundError:
        return "is missing"
    except Damaged as error:
        return error.why
    return "" if actual == expected else "is damaged"


def sha256(path: Path, most: int | None = None) -> str:
    """Return the SHA-256 of a file of at most some bytes, which may be larger than memory."""
    digest = hashlib.sha256()
    with open_file(path, most) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _without(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}
