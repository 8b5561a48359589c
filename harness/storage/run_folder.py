"""The files of one run: evaluations, checkpoint and end."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import pickle
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from harness.storage import files, seals, shapes
from harness.storage.files import Damaged, open_file, writing
from harness.storage.run_files import CLAIM, ENDS, EXTRAS, FILES, MOST_BYTES, RESULTS, SEALED
from harness.storage.seals import read_sealed, write_sealed

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05  # between attempts to take a claim
TAIL_BYTES = 4096  # of rounds.jsonl read first for its last line
MOST_TAIL_BYTES = 1 << 26  # a line is never as long


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
        # Checksums of what this object has written, whatever becomes of the files.
        self._lines: Any = None
        self._spec: str | None = None

    @property
    def status(self) -> str:
        """Done, failed, stopped, damaged, running, interrupted or missing; determined without writing."""
        return self.standing()[0]

    def standing(self) -> tuple[str, str | None]:
        """Return the status and, for a failed, stopped or damaged run, the reason; also while it is retried."""
        return self.read()[:2]

    def read(self, kept: dict[str, bytes] | None = None) -> tuple[str, str | None, dict[str, Any]]:
        """Return status and reason as `standing`, and the content of the file that ended the run, if one did.

        `kept` is given the content of other files as `seals.read_end` does.
        """
        if self.path.is_symlink():
            return "damaged", "its folder is a link", {}
        for name, status in ENDS.items():
            try:
                content, found = self._end_of(name, kept)
            except FileNotFoundError:
                continue
            if found and not (self.path / name).exists():  # being repeated just now
                if kept:
                    kept.clear()
                return self.read(kept)
            if found:
                return "damaged", _told(found), {}
            if status == "failed":
                return str(content.get("status", status)), str(content["reason"]), content
            return status, None, content
        if not self.path.exists():
            return "missing", None, {}
        if self._held():
            return "running", None, {}
        found = self.faults()
        return ("damaged", _told(found), {}) if found else ("interrupted", None, {})

    @property
    def begun(self) -> bool:
        """Whether the run has ever begun."""
        return any((self.path / name).exists() for name in ("spec.json", "done.json"))

    @property
    def code(self) -> str | None:
        """Digest of the code whose noise the run has; None if there is none on record."""
        try:
            found = read_sealed(self.path / "spec.json", "spec")[0].get("code")
        except (FileNotFoundError, Damaged):
            return None
        return found if isinstance(found, str) else None

    @property
    def recorded(self) -> bool:
        """Whether evaluations of the run are on record, or were when it ended."""
        return bool(self._raw()) or (self.path / "done.json").exists()

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
        """Return what `seals.read_end` does; an end without the shape of one is at fault."""
        content, found = seals.read_end(self.path, name, contents=kept)
        if not found:
            try:
                shapes.check_shape(self.path / name, shapes.ENDS[name], content)
            except Damaged as error:
                return {}, {name: error.why}
        return content, found

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

    def _held(self) -> bool:
        """Whether a process holds the claim."""
        try:
            with open_file(self.path / CLAIM) as file:
                return not _locked(file, fcntl.LOCK_SH)
        except (FileNotFoundError, Damaged):
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

    def rounds(self, raw: bytes | None = None) -> list[dict[str, Any]]:
        """Return the evaluations up to the first incomplete line, which a crash may leave.

        `raw` is the content of their file, if it has been read.
        """
        text = self._raw() if raw is None else raw
        if text.endswith(b"\n") and (whole := shapes.evaluations(text.splitlines())) is not None:
            return whole
        lines: list[dict[str, Any]] = []
        for line in text.splitlines(keepends=True):
            evaluation = shapes.evaluation(line)
            if evaluation is None:
                break
            lines.append(evaluation)
        return lines

    def last(self) -> dict[str, Any] | None:
        """Return the last complete line, reading only the end of the file; None if there is none."""
        try:
            with open_file(self.path / "rounds.jsonl") as file:
                size, wanted = file.seek(0, 2), TAIL_BYTES
                while True:
                    first = file.seek(max(0, size - wanted))
                    lines = file.read(size - first).splitlines(keepends=True)
                    complete = lines if first == 0 else lines[1:]  # the first may be cut off
                    for line in reversed(complete):
                        evaluation = shapes.evaluation(line)
                        if evaluation is not None:
                            return evaluation
                    if first == 0 or wanted > MOST_TAIL_BYTES:
                        return None
                    wanted *= 8
        except FileNotFoundError:
            return None

    @property
    def written(self) -> float | None:
        """Time of the last write, in seconds since 1970; None before the first."""
        times = []
        with suppress(FileNotFoundError), os.scandir(self.path) as found:
            for entry in found:
                if entry.name in FILES:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        times.append(entry.stat().st_mtime)
        return max(times, default=None)

    @property
    def digest(self) -> str:
        """Checksum of the evaluations that were added, whatever has become of the file."""
        written = hashlib.sha256(self._raw()) if self._lines is None else self._lines
        return str(written.hexdigest())

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        text = (json.dumps(line) + "\n").encode()
        if self._lines is None:
            self._lines = hashlib.sha256(self._raw())
        files.append(self.path / "rounds.jsonl", text)
        self._lines.update(text)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` evaluations; later ones are repeated from the checkpoint."""
        path, kept = self.path / "rounds.jsonl", self._first(count)
        if not path.exists():
            files.append(path, kept)
        elif self._raw() != kept:
            with files.replacing(path, durable=True) as temporary:
                temporary.write_bytes(kept)
        self._lines = hashlib.sha256(kept)

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        It names the run, and holds the checksum of the evaluations that it counts, unless `checkpoint` has one.
        """
        import torch  # slow to import, and not needed to read results

        own = {"id": self.path.name, "digest": self.digest, **checkpoint}
        self._sync_lines()
        path = self.path / "checkpoint.pt"
        with files.replacing(path, durable=True) as temporary, open(temporary, "wb") as file:
            torch.save(own, file)

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
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as error:
            log.info("%s is damaged (%s); the run starts again", path, error)
            return None
        except (RuntimeError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError):
            log.info("%s holds no checkpoint; the run starts again", path)
            return None
        if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("lines"), int):
            log.info("%s holds no checkpoint; the run starts again", path)
            return None
        if checkpoint.get("id") != self.path.name:
            log.warning("%s is of run %s; this run starts again", path, checkpoint.get("id", "(not named)"))
            return None
        lines = self._first(checkpoint["lines"])
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
        self._sync_lines()
        others: dict[str, str | None] = dict.fromkeys(SEALED)
        others |= {"spec.json": self._spec, "rounds.jsonl": self._lines and self.digest}
        for other, digest in others.items():
            if digest is None and (self.path / other).exists():
                others[other] = seals.checksum(self.path / other)
        known = {other: digest for other, digest in others.items() if digest is not None}
        write_sealed(self.path / name, content, {seals.RUN: self.path.name, **known})

    def seal(self, *names: str) -> None:
        """Add files that a finished run has got since to its seal."""
        content, seal = read_sealed(self.path / "done.json")
        if seal:
            added = {name: seals.checksum(self.path / name) for name in names}
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

    def _raw(self) -> bytes:
        """Return the content of rounds.jsonl, also before there is one."""
        try:
            return files.read_bytes(self.path / "rounds.jsonl", MOST_BYTES["rounds.jsonl"])
        except FileNotFoundError:
            return b""

    def _first(self, count: int) -> bytes:
        """Return the first lines of rounds.jsonl, or all if there are fewer."""
        return b"".join(line + b"\n" for line in self._raw().split(b"\n")[:-1][:count])

    def _sync_lines(self) -> None:
        path = self.path / "rounds.jsonl"
        with writing(path), suppress(FileNotFoundError):
            files.sync(path)

    def retry(self) -> None:
        """Remove the failure of a run, so that it can be run again."""
        with writing(self.path / "failed.json") as path:
            files.remove(path)


def _locked(file: IO[Any], kind: int) -> bool:
    """Take a lock; return False if another process's lock excludes it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _told(faults: Mapping[str, str]) -> str:
    """Return faults in one line."""
    return "; ".join(f"{name} {fault}" for name, fault in faults.items())
