"""Results on disk: append-only, named by content, safe to interrupt at any moment.

::

    DIR/store.json                 format of this folder
    DIR/runs/<id>/spec.json        what was run, on which data, and who held how much of them
                  rounds.jsonl     one line an evaluation
                  checkpoint.pt    replaced by rename; gone when the run is done
                  done.json        or failed.json
                  claim            locked by whoever runs it
    DIR/<suite>/suite.json         which runs the suite consists of, and what was skipped

Whatever differs between two executions of the same run (seconds, host, versions) is in objects called
``timing``, so files can be compared without them.

A claim is an exclusive `flock`, and a reader who asks whether somebody holds it takes a shared one for a moment.
On a folder that several machines share it keeps them apart only if their file system passes locks on, as NFS does
from version 4 on, and older ones with a running lock manager; mounted with ``nolock`` it does not.
"""

from __future__ import annotations

import fcntl
import json
import logging
import pickle
import re
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from harness.core.registry import UserError
from harness.storage.files import read_json, replacing, write_json, write_text, writing

log = logging.getLogger(__name__)

FORMAT = 1
FILES = ("spec.json", "rounds.jsonl", "checkpoint.pt", "done.json", "failed.json", "predictions.csv")
POLL_SECONDS = 0.05  # between two attempts at a claim that somebody else holds
TAIL_BYTES = 4096  # of rounds.jsonl that are read first when only the last line matters


@dataclass(frozen=True)
class RunRecord:
    """One run as the report sees it.

    Attributes
    ----------
    id : str or None
        Content hash; None for a combination that was skipped.
    suite, profile : str
        Where it belongs; empty for a single run.
    spec : dict
        The validated spec.
    status : str
        done, failed, skipped, running, interrupted or missing.
    reason : str or None
        Why it failed or was skipped.
    source : str
        Where the data came from.
    rounds : list of dict
        Its evaluations, in order.
    final : dict
        Content of ``done.json``.
    digest : str
        SHA-256 of the data.
    held : dict
        How many samples of what each client holds (`datasets.client_statistics`); empty if it was not written down.
    """

    id: str | None
    suite: str
    profile: str
    spec: dict[str, Any]
    status: str
    reason: str | None
    source: str
    rounds: list[dict[str, Any]]
    final: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    held: dict[str, Any] = field(default_factory=dict)


class Busy(Exception):
    """Another process runs this run."""


class RunFolder:
    """The files of one run.

    Parameters
    ----------
    path : Path
        ``DIR/runs/<id>``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def status(self) -> str:
        """Done, failed, running, interrupted or missing; found out without writing anything."""
        if (self.path / "done.json").exists():
            return "done"
        if (self.path / "failed.json").exists():
            return "failed"
        if not self.path.exists():
            return "missing"
        return "running" if self._held() else "interrupted"

    def standing(self) -> tuple[str, str | None]:
        """Return the status and, of a failed run, why; also while another process takes it up again."""
        status = self.status
        if status == "failed":
            try:
                return status, str(read_json(self.path / "failed.json", "reason")["reason"])
            except FileNotFoundError:
                return self.standing()
        return status, None

    def _held(self) -> bool:
        """Whether a process holds the claim."""
        try:
            with open(self.path / "claim", encoding="utf-8") as file:
                return not _locked(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    @contextmanager
    def claim(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the run; released by the system whatever becomes of this process.

        Parameters
        ----------
        patience : float
            For how many seconds to wait for another holder, as for one that is known to be dying.

        Raises
        ------
        Busy
            If another process holds it.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / "claim", "a+", encoding="utf-8")  # noqa: SIM115
        with file:
            until = time.monotonic() + patience
            while not _locked(file, fcntl.LOCK_EX):
                # Readers hold it for a moment, together; only another holder keeps them out as well.
                if not _locked(file, fcntl.LOCK_SH) and time.monotonic() >= until:
                    raise Busy(str(self.path))
                fcntl.flock(file, fcntl.LOCK_UN)
                time.sleep(POLL_SECONDS)
            self._tidy()
            yield

    def _tidy(self) -> None:
        """Remove what a killed holder has left over."""
        with writing(self.path):
            for name in FILES:
                for rest in self.path.glob(f".{name}.*"):
                    rest.unlink()
            if (self.path / "done.json").exists():
                (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def start(self, spec: Mapping[str, Any]) -> None:
        """Write down what is about to be run."""
        write_json(self.path / "spec.json", spec)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the complete lines written so far; a line cut off by a crash is left out, and what follows it."""
        lines: list[dict[str, Any]] = []
        for line in _read(self.path / "rounds.jsonl").splitlines(keepends=True):
            found = _parsed(line)
            if found is None:
                break
            lines.append(found)
        return lines

    def last(self) -> dict[str, Any] | None:
        """Return the last complete line, reading only the end of the file; None if there is none."""
        try:
            with open(self.path / "rounds.jsonl", "rb") as file:
                size, wanted = file.seek(0, 2), TAIL_BYTES
                while True:
                    first = file.seek(max(0, size - wanted))
                    lines = file.read(size - first).splitlines(keepends=True)
                    whole = lines if first == 0 else lines[1:]  # the first may have begun earlier
                    for line in reversed(whole):
                        found = _parsed(line.decode(errors="replace"))
                        if found is not None:
                            return found
                    if first == 0:
                        return None
                    wanted *= 8
        except FileNotFoundError:
            return None

    @property
    def written(self) -> float | None:
        """When something was last written about the run, in seconds since 1970; None if nothing is."""
        times = []
        for name in FILES:
            with suppress(FileNotFoundError):
                times.append((self.path / name).stat().st_mtime)
        return max(times, default=None)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        path = self.path / "rounds.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep(self, count: int) -> None:
        """Keep the first ``count`` evaluations; those after the checkpoint will be made again."""
        lines = "".join(json.dumps(line) + "\n" for line in self.rounds()[:count])
        write_text(self.path / "rounds.jsonl", lines)

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        with replacing(self.path / "checkpoint.pt") as temporary, open(temporary, "wb") as file:
            torch.save(dict(checkpoint), file)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if there is none that can be used.

        A damaged one counts as none: the run starts again, which costs time and nothing else. Its checksums are
        compared first, as torch leaves them alone and would go on with whatever numbers there are.
        """
        path = self.path / "checkpoint.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return None
            found = torch.load(path, weights_only=True)
        except FileNotFoundError:
            return None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
            log.info("%s is damaged (%s); its run starts again", path, error)
            return None
        except (RuntimeError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError):
            log.info("%s holds no checkpoint; its run starts again", path)
            return None
        whole = isinstance(found, dict) and isinstance(found.get("lines"), int)
        return found if whole and len(self.rounds()) >= found["lines"] else None

    def finish(self, final: Mapping[str, Any]) -> None:
        """Mark the run as done."""
        write_json(self.path / "done.json", final)
        self._tidy()

    def fail(self, reason: Mapping[str, Any]) -> None:
        """Mark the run as failed."""
        write_json(self.path / "failed.json", reason)

    def retry(self) -> None:
        """Let a failed run be run again."""
        with writing(self.path / "failed.json") as path:
            path.unlink(missing_ok=True)


class Store:
    """A results folder.

    Parameters
    ----------
    root : Path
        Its path; made when something is written.

    Raises
    ------
    UserError
        If it was written by another version of the format, or is no folder of results.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is a file; a results folder is needed")
        if (root / "store.json").exists():
            found = read_json(root / "store.json").get("format")
            if found != FORMAT:
                raise UserError(
                    f"{root} holds results of format {found}; this version reads and writes format {FORMAT}. "
                    "Nothing was changed: use another folder, or the version that wrote it."
                )

    def open(self) -> Store:
        """Make the folder if it is not there."""
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / "store.json").exists():
            write_json(self.root / "store.json", {"format": FORMAT})
        return self

    @property
    def made(self) -> int | None:
        """When the folder was made, in seconds since 1970, the same for all who see it; None if it is none."""
        try:
            return int((self.root / "store.json").stat().st_mtime)
        except FileNotFoundError:
            return None

    def folder(self, id: str) -> RunFolder:
        """Return the folder of a run, which need not exist yet."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", id):  # read from a file; it must not lead elsewhere
            raise UserError(f"{self.root}: a run is named by letters and digits, given {id!r}")
        return RunFolder(self.root / "runs" / id)

    def write_suite(self, suite: str, content: Mapping[str, Any]) -> None:
        """Write down which runs a suite consists of."""
        with writing(self.root / suite) as folder:
            folder.mkdir(parents=True, exist_ok=True)
        write_json(self.root / suite / "suite.json", content)

    def report_settings(self, suite: str) -> dict[str, Any]:
        """Return how a suite's file wants its report to be; nothing if it does not say or is not here."""
        path = self.root / suite / "suite.json"
        return dict(read_json(path).get("report", {})) if path.exists() else {}

    def cells(self, suite: str | None = None) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the cells of each suite (or of one) with its name and profile, then the runs of none."""
        known: set[str | None] = set()
        for path in sorted(self.root.glob("*/suite.json")):
            content = read_json(path, "suite", "profile", "cells")
            if suite is not None and content["suite"] != suite:
                continue
            for cell in content["cells"]:
                known.add(cell["id"])
                yield content["suite"], content["profile"], cell
        if suite is None:
            for path in sorted((self.root / "runs").glob("*/spec.json")):
                if path.parent.name not in known:
                    yield "", "", {"id": path.parent.name, "spec": read_json(path, "spec")["spec"]}

    def some_records(self, suite: str | None = None) -> list[RunRecord]:
        """Return what `records` does; UserError if there are none."""
        if not self.root.exists():
            raise UserError(f"no results folder {self.root}")
        found = self.records(suite)
        if not found:
            raise UserError(f"{self.root} holds no runs" + (f" of suite {suite}" if suite else ""))
        return found

    def record(self, id: str, spec: Mapping[str, Any]) -> RunRecord:
        """Return one run, whether or not it belongs to a suite."""
        return self._record("", "", {"id": id, "spec": spec})

    def records(self, suite: str | None = None) -> list[RunRecord]:
        """Return all runs: those of each suite (or of one), then those of none."""
        return [self._record(*one) for one in self.cells(suite)]

    def _record(self, suite: str, profile: str, cell: Mapping[str, Any]) -> RunRecord:
        if cell["id"] is None:
            return RunRecord(None, suite, profile, cell["spec"], "skipped", cell["reason"], "", [])
        folder = self.folder(cell["id"])
        status, reason = folder.standing()
        final = read_json(folder.path / "done.json") if status == "done" else {}
        begun = read_json(folder.path / "spec.json", "source") if (folder.path / "spec.json").exists() else {}
        return RunRecord(
            *(cell["id"], suite, profile, cell["spec"], status, reason, begun.get("source", "")),
            rounds=folder.rounds(),
            final=final,
            digest=begun.get("digest", ""),
            held=begun.get("held", {}),
        )


def _locked(file: IO[str], kind: int) -> bool:
    """Take a lock of that kind, unless another process's lock excludes it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parsed(line: str) -> dict[str, Any] | None:
    """Return an evaluation; None if the line is damaged, or not whole yet."""
    try:
        found = json.loads(line) if line.endswith("\n") else None
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
