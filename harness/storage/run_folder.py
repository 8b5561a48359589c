"""The files of one run: evaluations, checkpoint and end."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from harness.storage import files, seals, shapes
from harness.storage.evaluations import Evaluations
from harness.storage.files import Damaged, open_file, writing
from harness.storage.run_files import CLAIM, ENDS, EXTRAS, FILES, RESULTS, SEALED
from harness.storage.seals import read_sealed, write_sealed

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05  # between attempts to take a claim


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
        self.evaluations = Evaluations(path / "rounds.jsonl")
        self._spec: str | None = (
            None  # checksum of what this object has written, whatever becomes of the file
        )

    @property
    def status(self) -> str:
        """Done, failed, stopped, damaged, running, interrupted or missing; determined without writing."""
        return self.read()[0]

    def read(self, kept: dict[str, bytes] | None = None) -> tuple[str, str | None, dict[str, Any]]:
        """Return the status, the reason of a failed, stopped or damaged run, and the content of its end.

        `kept` is given the content of other files as `seals.read_end` does.
        """
        if self.path.is_symlink():
            return "damaged", "its folder is a link", {}
        for name, status in ENDS.items():
            try:
                content, faults = self._end_of(name, kept)
            except FileNotFoundError:
                continue
            if faults and not (self.path / name).exists():  # being repeated just now
                if kept:
                    kept.clear()
                return self.read(kept)
            if faults:
                return "damaged", _in_one_line(faults), {}
            if status == "failed":
                return str(content.get("status", status)), str(content["reason"]), content
            return status, None, content
        if not self.path.exists():
            return "missing", None, {}
        if _held(self.path / CLAIM):
            return "running", None, {}
        faults = self.faults()
        return ("damaged", _in_one_line(faults), {}) if faults else ("interrupted", None, {})

    @property
    def begun(self) -> bool:
        """Whether the run has ever begun."""
        return any((self.path / name).exists() for name in ("spec.json", "done.json"))

    @property
    def code(self) -> str | None:
        """Digest of the code that keys the run's noise; None if the record has none."""
        try:
            digest = read_sealed(self.path / "spec.json", "spec")[0].get("code")
        except (FileNotFoundError, Damaged):
            return None
        return digest if isinstance(digest, str) else None

    @property
    def recorded(self) -> bool:
        """Whether evaluations of the run are on record, or were when it ended."""
        return bool(self.evaluations.read()) or (self.path / "done.json").exists()

    def faults(self) -> dict[str, str]:
        """Return what is wrong with the files, by their names.

        Lines of an unfinished run are compared when it is resumed.
        """
        for name in ENDS:
            with suppress(FileNotFoundError):
                return self._end_of(name)[1]
        try:
            read_sealed(self.path / "spec.json", "spec", "source")
        except FileNotFoundError:
            return {}
        except Damaged as error:
            return {"spec.json": error.why}
        return {}

    def _end_of(
        self, name: str, kept: dict[str, bytes] | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the content of an end and its faults, as `seals.read_end`; a wrong shape is a fault."""
        content, faults = seals.read_end(self.path, name, kept)
        if not faults:
            try:
                shapes.check_shape(self.path / name, shapes.ENDS[name], content)
            except Damaged as error:
                return {}, {name: error.why}
        return content, faults

    def results(self) -> list[str]:
        """Return the names of the files that are the results of a run that has ended: those that its end seals."""
        end = next(name for name in ENDS if (self.path / name).exists())
        _, seal = read_sealed(self.path / end)
        stray = [name for name in SEALED if seal and name not in seal]
        others = [name for name in RESULTS if name not in ENDS and name not in stray]
        return [*(name for name in others if (self.path / name).exists()), end]

    def end(self, name: str = "done.json") -> dict[str, Any]:
        """Return the content of ``done.json`` or ``failed.json``."""
        return read_sealed(self.path / name)[0]

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
            files.make_folder(self.path)
            # A link is not followed: it would create a file wherever it leads.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = open(os.open(self.path / CLAIM, flags, 0o666), "a+", encoding="utf-8")  # noqa: SIM115
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep workers off the run while its files are read; nothing is written, so the folder may be another's.

        Raises
        ------
        Busy
            If a process holds the claim.
        """
        with ExitStack() as opened:
            with suppress(FileNotFoundError):  # no worker has been here, as in an archive
                file = opened.enter_context(open_file(self.path / CLAIM))
                if not _locked(file, fcntl.LOCK_SH):
                    raise Busy(str(self.path))
            yield

    def _tidy(self) -> None:
        """Remove leftovers of a killed holder."""
        with writing(self.path):
            for name in FILES:
                for rest in self.path.glob(f".{name}.*"):
                    rest.unlink()
            if (self.path / "done.json").exists():
                files.remove(self.path / "checkpoint.pt")

    def start(self, spec: Mapping[str, Any]) -> None:
        """Write the spec of the run."""
        for name in EXTRAS:
            with writing(self.path / name) as path:
                files.remove(path)  # of a run that did not come to its end
        self._spec = write_sealed(self.path / "spec.json", spec)

    @property
    def written(self) -> float | None:
        """Time of the last write, in seconds since 1970; None before the first."""
        times = []
        with suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name in FILES:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        times.append(entry.stat().st_mtime)
        return max(times, default=None)

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        It names the run, and holds the checksum of the evaluations that it counts, unless `checkpoint` has one.
        """
        import torch  # slow to import, and not needed to read results

        content = {"id": self.path.name, "digest": self.evaluations.digest, **checkpoint}
        self.evaluations.sync()
        path = self.path / "checkpoint.pt"
        with files.replacing(path, durable=True) as temporary, open(temporary, "wb") as file:
            torch.save(content, file)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint; None if it is missing, damaged, or not of this run and its evaluations.

        Checksums are compared first, because torch does not check them.
        """
        import torch

        path = self.path / "checkpoint.pt"
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return None
            checkpoint = torch.load(path, weights_only=True)
        except FileNotFoundError:
            return None
        except Exception as error:  # of torch or zipfile: the file may hold anything
            log.info("%s is damaged (%s); the run starts again", path, error)
            return None
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("lines"), int):
            log.info("%s holds no checkpoint; the run starts again", path)
            return None
        if checkpoint.get("id") != self.path.name:
            log.warning("%s is of run %s; this run starts again", path, checkpoint.get("id", "(not named)"))
            return None
        lines = self.evaluations.first(checkpoint["lines"])
        whole = lines.count(b"\n") == checkpoint["lines"]
        if not whole or hashlib.sha256(lines).hexdigest() != checkpoint.get("digest"):
            log.warning("%s: rounds.jsonl is damaged; the run starts again", self.path)
            return None
        return checkpoint

    def finish(self, final: Mapping[str, Any]) -> None:
        """Mark the run as done."""
        self._end("done.json", final)
        self._tidy()

    def fail(self, reason: Mapping[str, Any]) -> None:
        """Mark the run as failed, or as what ``status`` says."""
        self._end("failed.json", reason)

    def _end(self, name: str, content: Mapping[str, Any]) -> None:
        """Write the end of the run, which seals its other files."""
        self.evaluations.sync()
        others: dict[str, str | None] = dict.fromkeys(SEALED)
        lines = self.evaluations.digest if self.evaluations.written else None
        others |= {"spec.json": self._spec, "rounds.jsonl": lines}
        for other, digest in others.items():
            if digest is None and (self.path / other).exists():
                others[other] = seals.sha256(self.path / other)
        known = {other: digest for other, digest in others.items() if digest is not None}
        write_sealed(self.path / name, content, {seals.RUN: self.path.name, **known})

    def seal(self, *names: str) -> None:
        """Add files that a finished run has got since to its seal."""
        content, seal = read_sealed(self.path / "done.json")
        if seal:
            added = {name: seals.sha256(self.path / name) for name in names}
            write_sealed(self.path / "done.json", content, {**seal, **added})

    def has(self, name: str) -> bool:
        """Whether a finished run has a file of `EXTRAS` that belongs to it."""
        _, seal = read_sealed(self.path / "done.json")
        return (self.path / name).exists() and (not seal or name in seal)

    def set_aside(self) -> None:
        """Rename the files of a damaged run to ``*.damaged``, its end first, so that it begins again."""
        for name in (*ENDS, "rounds.jsonl", *EXTRAS, "spec.json"):
            with writing(self.path / name) as path, suppress(FileNotFoundError):
                files.rename(path, path.with_name(f"{name}.damaged"))

    def retry(self) -> None:
        """Remove the failure of a run, so that it can be run again."""
        with writing(self.path / "failed.json") as path:
            files.remove(path)


def _held(claim: Path) -> bool:
    """Whether a process holds a claim."""
    try:
        with open_file(claim) as file:
            return not _locked(file, fcntl.LOCK_SH)
    except (FileNotFoundError, Damaged):
        return False


def _locked(file: IO[Any], kind: int) -> bool:
    """Take a lock; return False if another process's lock excludes it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_one_line(faults: Mapping[str, str]) -> str:
    """Return faults in one line."""
    return "; ".join(f"{name} {fault}" for name, fault in faults.items())
