"""Results on disk: append-only, addressed by content, safe to interrupt at any time.

::

    DIR/store.json                 format of the folder
    DIR/runs/<id>/spec.json        spec, source of the data, and sample counts of clients
                  rounds.jsonl     one line per evaluation
                  checkpoint.pt    replaced by rename; removed when the run is done
                  done.json        or failed.json
                  claim            locked by the process that runs it
    DIR/<suite>/suite.json         runs of the suite, and skipped combinations

Values that differ between executions of a run (seconds, hardware, versions) are in objects called ``timing``, so
files can be compared without them.

A claim is an exclusive `flock`; readers take a shared lock for a moment to see whether it is held. On a shared
folder this works only if the file system shares locks: NFS from version 4, or older versions with a lock manager,
but not mounts with ``nolock``.
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
POLL_SECONDS = 0.05  # between attempts to take a claim
TAIL_BYTES = 4096  # of rounds.jsonl read first for its last line


@dataclass(frozen=True)
class RunRecord:
    """One run for reports.

    Attributes
    ----------
    id : str or None
        Content hash; None for a skipped combination.
    suite, profile : str
        Its suite and profile; empty for a single run.
    spec : dict
        The validated spec.
    status : str
        done, failed, skipped, running, interrupted or missing.
    reason : str or None
        Why it failed or was skipped.
    source : str
        Source of the data.
    rounds : list of dict
        Evaluations in order.
    final : dict
        Content of ``done.json``.
    digest : str
        SHA-256 of the data.
    held : dict
        Sample counts of clients (`datasets.client_statistics`); empty if not recorded.
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
    """Another process holds the claim of a run."""


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
        """Done, failed, running, interrupted or missing; determined without writing."""
        if (self.path / "done.json").exists():
            return "done"
        if (self.path / "failed.json").exists():
            return "failed"
        if not self.path.exists():
            return "missing"
        return "running" if self._held() else "interrupted"

    def standing(self) -> tuple[str, str | None]:
        """Return the status and, for a failed run, the reason; also while another process retries it."""
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
        """Hold the claim of the run; the system releases it if this process dies.

        Parameters
        ----------
        patience : float
            Seconds to wait for another holder, such as a dying worker.

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
                # Readers take a shared lock for a moment; only another holder excludes a shared lock.
                if not _locked(file, fcntl.LOCK_SH) and time.monotonic() >= until:
                    raise Busy(str(self.path))
                fcntl.flock(file, fcntl.LOCK_UN)
                time.sleep(POLL_SECONDS)
            self._tidy()
            yield

    def _tidy(self) -> None:
        """Remove leftovers of a killed holder."""
        with writing(self.path):
            for name in FILES:
                for rest in self.path.glob(f".{name}.*"):
                    rest.unlink()
            if (self.path / "done.json").exists():
                (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def start(self, spec: Mapping[str, Any]) -> None:
        """Write the spec of the run."""
        write_json(self.path / "spec.json", spec)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the evaluations up to the first incomplete line, which a crash may leave."""
        lines: list[dict[str, Any]] = []
        for line in _read(self.path / "rounds.jsonl").splitlines(keepends=True):
            evaluation = _parsed(line)
            if evaluation is None:
                break
            lines.append(evaluation)
        return lines

    def last(self) -> dict[str, Any] | None:
        """Return the last complete line, reading only the end of the file; None if there is none."""
        try:
            with open(self.path / "rounds.jsonl", "rb") as file:
                size, wanted = file.seek(0, 2), TAIL_BYTES
                while True:
                    first = file.seek(max(0, size - wanted))
                    lines = file.read(size - first).splitlines(keepends=True)
                    complete = lines if first == 0 else lines[1:]  # the first may be cut off
                    for line in reversed(complete):
                        evaluation = _parsed(line.decode(errors="replace"))
                        if evaluation is not None:
                            return evaluation
                    if first == 0:
                        return None
                    wanted *= 8
        except FileNotFoundError:
            return None

    @property
    def written(self) -> float | None:
        """Time of the last write, in seconds since 1970; None before the first."""
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
        """Keep the first ``count`` evaluations; later ones are repeated from the checkpoint."""
        lines = "".join(json.dumps(line) + "\n" for line in self.rounds()[:count])
        write_text(self.path / "rounds.jsonl", lines)

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        with replacing(self.path / "checkpoint.pt") as temporary, open(temporary, "wb") as file:
            torch.save(dict(checkpoint), file)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if it is missing or damaged.

        Checksums are compared first, because torch does not check them.
        """
        path = self.path / "checkpoint.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return None
            checkpoint = torch.load(path, weights_only=True)
        except FileNotFoundError:
            return None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
            log.info("%s is damaged (%s); the run starts again", path, error)
            return None
        except (RuntimeError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError):
            log.info("%s holds no checkpoint; the run starts again", path)
            return None
        valid = isinstance(checkpoint, dict) and isinstance(checkpoint.get("lines"), int)
        return checkpoint if valid and len(self.rounds()) >= checkpoint["lines"] else None

    def finish(self, final: Mapping[str, Any]) -> None:
        """Mark the run as done."""
        write_json(self.path / "done.json", final)
        self._tidy()

    def fail(self, reason: Mapping[str, Any]) -> None:
        """Mark the run as failed."""
        write_json(self.path / "failed.json", reason)

    def retry(self) -> None:
        """Remove the failure of a run, so that it can be run again."""
        with writing(self.path / "failed.json") as path:
            path.unlink(missing_ok=True)


class Store:
    """A results folder.

    Parameters
    ----------
    root : Path
        Path of the folder; created on the first write.

    Raises
    ------
    UserError
        If it has another format version or is a file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is a file; a results folder is needed")
        if (root / "store.json").exists():
            version = read_json(root / "store.json").get("format")
            if version != FORMAT:
                raise UserError(
                    f"{root} holds results of format {version}; this version reads and writes format {FORMAT}. "
                    "Nothing was changed: use another folder, or the version that wrote it."
                )

    def open(self) -> Store:
        """Create the folder if it does not exist."""
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / "store.json").exists():
            write_json(self.root / "store.json", {"format": FORMAT})
        return self

    @property
    def made(self) -> int | None:
        """Creation time in seconds since 1970, which identifies a shared folder; None if it does not exist."""
        try:
            return int((self.root / "store.json").stat().st_mtime)
        except FileNotFoundError:
            return None

    def folder(self, id: str) -> RunFolder:
        """Return the folder of a run, which need not exist yet."""
        if not re.fullmatch(r"[A-Za-z0-9_-]+", id):  # ids from files must not leave the folder
            raise UserError(f"{self.root}: a run is named by letters and digits, given {id!r}")
        return RunFolder(self.root / "runs" / id)

    def write_suite(self, suite: str, content: Mapping[str, Any]) -> None:
        """Write the runs of a suite."""
        with writing(self.root / suite) as folder:
            folder.mkdir(parents=True, exist_ok=True)
        write_json(self.root / suite / "suite.json", content)

    def report_settings(self, suite: str) -> dict[str, Any]:
        """Return the report settings of a suite; empty if there are none."""
        path = self.root / suite / "suite.json"
        return dict(read_json(path).get("report", {})) if path.exists() else {}

    def cells(self, suite: str | None = None) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the cells of each suite (or of one) with its name and profile, then runs without a suite."""
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
        """Return the records like `records`; raise UserError if there are none."""
        if not self.root.exists():
            raise UserError(f"no results folder {self.root}")
        records = self.records(suite)
        if not records:
            raise UserError(f"{self.root} holds no runs" + (f" of suite {suite}" if suite else ""))
        return records

    def record(self, id: str, spec: Mapping[str, Any]) -> RunRecord:
        """Return one run, independent of its suite."""
        return self._record("", "", {"id": id, "spec": spec})

    def records(self, suite: str | None = None) -> list[RunRecord]:
        """Return all runs: those of each suite (or of one), then runs without a suite."""
        return [self._record(*one) for one in self.cells(suite)]

    def _record(self, suite: str, profile: str, cell: Mapping[str, Any]) -> RunRecord:
        if cell["id"] is None:
            return RunRecord(None, suite, profile, cell["spec"], "skipped", cell["reason"], "", [])
        folder = self.folder(cell["id"])
        status, reason = folder.standing()
        final = read_json(folder.path / "done.json") if status == "done" else {}
        started = (
            read_json(folder.path / "spec.json", "source") if (folder.path / "spec.json").exists() else {}
        )
        return RunRecord(
            *(cell["id"], suite, profile, cell["spec"], status, reason, started.get("source", "")),
            rounds=folder.rounds(),
            final=final,
            digest=started.get("digest", ""),
            held=started.get("held", {}),
        )


def _locked(file: IO[str], kind: int) -> bool:
    """Take a lock; return False if another process's lock excludes it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parsed(line: str) -> dict[str, Any] | None:
    """Return an evaluation; None if the line is damaged or incomplete."""
    try:
        content = json.loads(line) if line.endswith("\n") else None
    except json.JSONDecodeError:
        return None
    return content if isinstance(content, dict) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
