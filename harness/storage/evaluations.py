"""The evaluations of a run: the lines of ``rounds.jsonl``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.storage import files, shapes
from harness.storage.files import open_file, writing
from harness.storage.run_files import MOST_BYTES

TAIL_BYTES = 1 << 24  # read for the last line, which is never as long


class Evaluations:
    """A file with one evaluation a line.

    Parameters
    ----------
    path : Path
        ``DIR/runs/<id>/rounds.jsonl``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: Any = None  # checksum of what this object has written, whatever becomes of the file

    def read(self) -> bytes:
        """Return the content of the file, also before there is one."""
        try:
            return files.read_bytes(self.path, MOST_BYTES["rounds.jsonl"])
        except FileNotFoundError:
            return b""

    def all(self, raw: bytes | None = None) -> list[dict[str, Any]]:
        """Return the evaluations up to the first incomplete line, which a crash may leave.

        `raw` is the content of the file, if it has been read.
        """
        text = self.read() if raw is None else raw
        if text.endswith(b"\n") and (whole := shapes.evaluations(text.splitlines())) is not None:
            return whole
        lines: list[dict[str, Any]] = []
        for line in text.splitlines(keepends=True):
            evaluation = shapes.evaluation(line)
            if evaluation is None:
                break
            lines.append(evaluation)
        return lines

    def first(self, count: int) -> bytes:
        """Return the first lines, or all if there are fewer."""
        return b"".join(line + b"\n" for line in self.read().split(b"\n")[:-1][:count])

    def last(self) -> dict[str, Any] | None:
        """Return the last complete line, reading only the end of the file; None if there is none."""
        try:
            with open_file(self.path) as file:
                file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
                lines = file.read(TAIL_BYTES).splitlines(keepends=True)
        except FileNotFoundError:
            return None
        return next(filter(None, map(shapes.evaluation, reversed(lines))), None)

    @property
    def digest(self) -> str:
        """Checksum of the evaluations that were added, whatever has become of the file."""
        written = hashlib.sha256(self.read()) if self._written is None else self._written
        return str(written.hexdigest())

    @property
    def written(self) -> bool:
        """Whether this object has written to the file."""
        return self._written is not None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        text = (json.dumps(line) + "\n").encode()
        if self._written is None:
            self._written = hashlib.sha256(self.read())
        files.append(self.path, text)
        self._written.update(text)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` evaluations; later ones are repeated from the checkpoint."""
        kept = self.first(count)
        if not self.path.exists():
            files.append(self.path, kept)
        elif self.read() != kept:
            with files.replacing(self.path, durable=True) as temporary:
                temporary.write_bytes(kept)
        self._written = hashlib.sha256(kept)

    def sync(self) -> None:
        """Write the file to the disk."""
        with writing(self.path), suppress(FileNotFoundError):
            files.sync(self.path)
