"""Manifests: which files of a results folder are its results, and the SHA-256 of each.

What leaves the folder, in an archive or a submission, are the files named here and no others: no checkpoint, which
torch reads, no claim, no report, which is made again, and nothing of a damaged or an unfinished run.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from harness.core.errors import UserError
from harness.storage.files import Damaged, json_lines, read_json
from harness.storage.run_files import RESULTS
from harness.storage.seals import sha256
from harness.storage.store import Store, read_suite

MANIFEST, SIGNATURE, STATEMENT = "manifest.json", "manifest.json.sig", "statement.json"
FORMAT = 1
RESERVED = (MANIFEST, SIGNATURE, STATEMENT, "store.json")  # files, so no suite has their names
RESULT = re.compile(
    rf"store\.json|{re.escape(STATEMENT)}"
    r"|[A-Za-z0-9][A-Za-z0-9_.-]{0,99}/suite\.json"
    rf"|runs/[A-Za-z0-9_-]{{1,64}}/(?:{'|'.join(map(re.escape, RESULTS))})"
)


class Limits(NamedTuple):
    """Bounds on files read from other people.

    Attributes
    ----------
    files, each, whole : int
        Number of files, bytes of one, and bytes of all.
    """

    files: int
    each: int
    whole: int


ARCHIVE = Limits(1_000_000, 1 << 30, 1 << 36)


class Bounded:
    """Counts of files and bytes that stay within limits.

    Parameters
    ----------
    limits : Limits
        The bounds.

    Attributes
    ----------
    whole : int
        Bytes so far.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self._files, self.whole = limits, 0, 0

    def add(self, name: str, size: int) -> None:
        """Count a file; raise UserError beyond a limit."""
        self._files, self.whole = self._files + 1, self.whole + size
        for what, amount, allowed in (
            ("files", self._files, self.limits.files),
            (f"bytes in {name}", size, self.limits.each),
            ("bytes in all files", self.whole, self.limits.whole),
        ):
            if amount > allowed:
                raise UserError(f"at most {allowed:,} {what}, given {amount:,}")


class Portable(NamedTuple):
    """The results of a folder.

    Attributes
    ----------
    names : list of str
        Paths relative to the folder, sorted.
    ids : list of str
        Runs that are in it, finished or failed.
    left_out : Counter
        Number of runs and suites that are not, by their status.
    """

    names: list[str]
    ids: list[str]
    left_out: Counter[str]


def portable(store: Store, suite: str | None = None) -> Portable:
    """Return the results of a folder, or of one suite.

    Raises
    ------
    UserError
        If the folder does not exist, or holds no such suite or no run that has ended.
    """
    if not store.root.is_dir():
        raise UserError(f"no results folder {store.root}")
    names, left_out = ["store.json"] if (store.root / "store.json").exists() else [], Counter[str]()
    folders = {folder.path.name: folder for folder in store.run_folders()}
    ids_of_suites: set[str] = set()
    for path in store.suites():
        try:
            content, _ = read_suite(path)
        except Damaged:
            left_out["damaged"] += 1
            continue
        if suite in (None, content["suite"]):
            names.append(f"{path.parent.name}/suite.json")
            ids_of_suites |= {cell["id"] for cell in content["cells"] if cell["id"] is not None}
    if suite is not None and not names[1:]:
        raise UserError(f"{store.root} holds no suite {suite!r}")
    ids = []
    for id in sorted(folders if suite is None else ids_of_suites):
        status = store.contents({"id": id}).status
        if status not in ("done", "failed"):
            left_out[status] += 1
            continue
        ids.append(id)
        names += [f"runs/{id}/{name}" for name in store.folder(id).results()]
    if not ids:
        raise UserError(f"{store.root} holds no run that has ended{f' of suite {suite}' if suite else ''}")
    return Portable(sorted(names), ids, left_out)


def manifest(root: Path, names: Iterable[str]) -> str:
    """Return the text of the manifest of some files of a folder; the same files give the same text."""
    files = {name: sha256(root / name) for name in sorted(names)}
    return json_lines({"format": FORMAT, "files": files}) + "\n"


def read_manifest(root: Path) -> dict[str, str]:
    """Return path -> SHA-256 as the manifest of a folder has them.

    Raises
    ------
    Damaged
        If it cannot be read.
    UserError
        If it has another format, or names what is not a result.
    """
    content = read_json(root / MANIFEST, "format", "files")
    if content["format"] != FORMAT:
        raise UserError(f"{MANIFEST} has format {content['format']!r}; this version reads {FORMAT}")
    files = content["files"]
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise Damaged(root / MANIFEST)
    for name in files:
        allowed(name)
    return files


def allowed(name: str) -> str:
    """Return the path of a result within its folder; raise UserError if it is that of something else."""
    if not RESULT.fullmatch(name) or (name.partition("/")[0] in RESERVED and "/" in name):
        raise UserError(
            f"{name!r} is not a result. Results are specs, evaluations, ends and predictions of runs, and suites; "
            "checkpoints and all other files are refused"
        )
    return name


def faults(root: Path, checksums: Mapping[str, str]) -> dict[str, str]:
    """Return the faults of the files of a manifest, by their names."""
    faults_by_name = {}
    for name, expected in checksums.items():
        try:
            if sha256(root / name) != expected:
                faults_by_name[name] = "is not what the manifest says"
        except (FileNotFoundError, NotADirectoryError):
            faults_by_name[name] = "is missing"
        except Damaged as error:
            faults_by_name[name] = error.why
    return faults_by_name


def only_results(root: Path, listed: Collection[str], limits: Limits) -> None:
    """Refuse a folder with links, with files that are not listed, or with too much in it; nothing is read."""
    bounded, beside = Bounded(limits), {MANIFEST, SIGNATURE}
    for folder, inner, names in os.walk(root):
        for name in (*inner, *names):
            path = Path(folder, name)
            relative = str(PurePosixPath(*path.relative_to(root).parts))
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise UserError(f"{relative!r} is a link or a device; only files are results")
            if path.is_dir():
                continue
            if relative not in beside and relative not in listed:
                allowed(relative)
                raise UserError(f"{relative!r} is not in {MANIFEST}")
            bounded.add(relative, path.stat().st_size)
