"""Submissions: the results of one suite in a folder of their own, with a manifest, a statement and a signature.

::

    FOLDER/store.json, runs/<id>/..., <suite>/suite.json    as in a results folder
           statement.json       who submits, and with which versions and machines the runs were made
           manifest.json        SHA-256 of every file above
           manifest.json.sig    signature of the manifest, if there is a key

What is read here was written by others. Names, sizes and kinds of files are checked before any content is, and
nothing is read that can hold code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from harness.core.errors import UserError
from harness.storage.environment import machine, versions
from harness.storage.files import copy, make_folder, read_bytes, read_json, write_json, write_text, writing
from harness.storage.manifest import (
    MANIFEST,
    SIGNATURE,
    STATEMENT,
    Bounded,
    Limits,
    Portable,
    faults,
    manifest,
    only_results,
    portable,
    read_manifest,
)
from harness.storage.outcomes import REPEATED
from harness.storage.run_files import ENDS
from harness.storage.run_folder import RunFolder
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store, read_suite
from studies.board.signature import sign, signer

LIMITS = Limits(20_000, 1 << 26, 1 << 30)
LONGEST_NAME = 100
OWN = ("seconds", "stacked")  # of the timing of one run, not of where it was made


class Submission(NamedTuple):
    """A submission whose files are those of its manifest.

    Attributes
    ----------
    folder : Path
        Where it is.
    id : str
        First 12 digits of the SHA-256 of its manifest.
    submitter : str
        Who submits, by their own account.
    signer : str or None
        Fingerprint of the key that signed the manifest; None if nobody did.
    ids : list of str
        Its runs, finished or failed.
    statement : dict
        Content of ``statement.json``.
    """

    folder: Path
    id: str
    submitter: str
    signer: str | None
    ids: list[str]
    statement: dict[str, Any]

    @property
    def store(self) -> Store:
        """The submission as a results folder."""
        return Store(self.folder)


def write_submission(
    store: Store,
    suite: str,
    to: Path,
    submitter: str,
    key: Path | None = None,
    check: Callable[[Path], object] | None = None,
) -> tuple[Portable, str | None]:
    """Write the finished and failed runs of a suite into a new folder; return them and the key's fingerprint.

    ``check`` is called with the folder before it gets its name, and raises UserError if a board would refuse it;
    by default it is `read_submission`.

    Raises
    ------
    UserError
        If there is nothing to submit, the folder has something in it, the key does not sign, or the check fails.
    """
    portable_files = portable(store, suite)
    _name(submitter)
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UserError(f"--to: {to} is there already; give a new folder")
    bounded = Bounded(LIMITS)
    with writing(to.parent):
        make_folder(to.parent)
    with TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as temporary:
        root = Path(temporary) / to.name
        for name in portable_files.names:
            bounded.add(name, (store.root / name).stat().st_size)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            copy(store.root / name, root / name)
            if name.endswith("/failed.json"):
                _without_traceback(root / name)
        statement = {
            "submitter": submitter,
            "suite": suite,
            "runs": len(portable_files.ids),
            "made_with": _environments(store, portable_files.ids),
            "submitted_with": {**versions(), **machine()},
        }
        write_json(root / STATEMENT, statement)
        write_text(root / MANIFEST, manifest(root, [*portable_files.names, STATEMENT]))
        fingerprint = None if key is None else signer(root / MANIFEST, sign(root / MANIFEST, key))
        (check or read_submission)(root)  # what a board refuses is not handed out
        root.replace(to)
    return portable_files, fingerprint


def read_submission(folder: Path) -> Submission:
    """Read and check a submission: names, sizes, manifest, signature, and the checksums within every run.

    Raises
    ------
    UserError
        If anything is wrong with it.
    """
    if folder.is_symlink():
        raise UserError("it is a link to another folder")
    if not (folder / MANIFEST).is_file() or (folder / MANIFEST).is_symlink():
        raise UserError(f"it has no {MANIFEST}")
    if (folder / MANIFEST).stat().st_size > LIMITS.each:
        raise UserError(f"{MANIFEST} has more than {LIMITS.each:,} bytes")
    listed = read_manifest(folder)
    only_results(folder, listed, LIMITS)
    if wrong := faults(folder, listed):
        raise UserError("; ".join(f"{name} {fault}" for name, fault in wrong.items()))
    if STATEMENT not in listed or "store.json" not in listed:
        raise UserError(f"it has no {STATEMENT if STATEMENT not in listed else 'store.json'}")
    signed = (folder / SIGNATURE).exists()
    statement = read_json(folder / STATEMENT, "submitter")
    store, ids = Store(folder), sorted({name.split("/")[1] for name in listed if name.startswith("runs/")})
    for path in store.suites():
        read_suite(path)
    for id in ids:
        run = store.folder(id)
        status, reason, *_ = store.contents({"id": id})
        if status not in ENDS.values():
            raise UserError(
                f"run {id} is {status}{f': {reason}' if reason else ''}; only runs that ended count"
            )
        if all((run.path / name).exists() for name in ENDS):
            raise UserError(f"run {id} has both ends, {' and '.join(ENDS)}")
        if status == "done" and (differing := _contradictions(run)):
            raise UserError(
                f"run {id}: done.json is not what its last evaluation says, in {', '.join(differing)}"
            )
    return Submission(
        folder,
        hashlib.sha256(read_bytes(folder / MANIFEST)).hexdigest()[:12],
        _name(statement["submitter"]),
        signer(folder / MANIFEST, folder / SIGNATURE) if signed else None,
        ids,
        statement,
    )


def _contradictions(run: RunFolder) -> list[str]:
    """Return the fields of the last evaluation that the end of a run repeats otherwise: tables are made of both."""
    last, end = run.evaluations.last() or {"round": 0}, run.end()
    if isinstance(statement := end.get("privacy"), dict):  # only the end says whose noise was repeated
        end = {**end, "privacy": {name: value for name, value in statement.items() if name != REPEATED}}
    return [name for name, value in last.items() if name != "timing" and end.get(name) != value]


def submissions(folder: Path) -> list[Path]:
    """Return the folders of the submissions in a folder, or the folder itself if it is one.

    Raises
    ------
    UserError
        If there is none.
    """
    if not folder.is_dir():
        raise UserError(f"no folder of submissions {folder}")
    if (folder / MANIFEST).exists():
        return [folder]
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise UserError(f"{folder} holds no submissions; python -m studies board submit makes one")
    return folders


def _without_traceback(path: Path) -> None:
    """Take the traceback out of the end of a failed run, as it names folders of the submitter."""
    content, seal = read_sealed(path)
    timing = {name: value for name, value in content.pop("timing", {}).items() if name != "traceback"}
    write_sealed(path, {**content, "timing": timing} if timing else content, seal)


def _name(name: object) -> str:
    """Return the name of a submitter, which others read."""
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise UserError(
            f"submitter: a printable name of at most {LONGEST_NAME} characters, given {name!r:.120}"
        )
    return name


def _environments(store: Store, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the different versions and machines that finished runs recorded, each with the number of its runs."""
    counts: dict[str, int] = {}
    for id in ids:
        status, _, end = store.folder(id).read()
        if status != "done":
            continue
        timing = end.get("timing", {})
        text = json.dumps({name: value for name, value in timing.items() if name not in OWN})
        counts[text] = counts.get(text, 0) + 1
    return [{"runs": count, **json.loads(text)} for text, count in counts.items()]
