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
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.core.registry import UserError

FORMAT = 1


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
        How many samples of what each client holds (`datasets.holdings`); empty if it was not written down.
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
        """Done, failed, running, interrupted or missing."""
        if (self.path / "done.json").exists():
            return "done"
        if (self.path / "failed.json").exists():
            return "failed"
        if not self.path.exists():
            return "missing"
        try:
            with self.claim():
                return "interrupted"
        except Busy:
            return "running"

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the run; released by the system whatever becomes of this process.

        Raises
        ------
        Busy
            If another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "claim", "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(str(self.path)) from None
            yield

    def start(self, spec: Mapping[str, Any]) -> None:
        """Write down what is about to be run."""
        write_json(self.path / "spec.json", spec)

    def rounds(self) -> list[dict[str, Any]]:
        """Return the complete lines written so far; a line cut off by a crash is left out."""
        lines = []
        for line in _read(self.path / "rounds.jsonl").splitlines(keepends=True):
            try:
                lines.append(json.loads(line) if line.endswith("\n") else None)
            except json.JSONDecodeError:
                break
        return [line for line in lines if line is not None]

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one evaluation."""
        with open(self.path / "rounds.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep(self, count: int) -> None:
        """Keep the first ``count`` evaluations; those after the checkpoint will be made again."""
        lines = "".join(json.dumps(line) + "\n" for line in self.rounds()[:count])
        write_text(self.path / "rounds.jsonl", lines)

    def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        with replacing(self.path / "checkpoint.pt") as temporary:
            torch.save(dict(checkpoint), temporary)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if there is none that can be used."""
        try:
            found: dict[str, Any] = torch.load(self.path / "checkpoint.pt", weights_only=True)
        except (FileNotFoundError, EOFError, RuntimeError, pickle.UnpicklingError, KeyError, ValueError):
            return None  # absent or damaged: the run starts again, which costs time and nothing else
        return found if len(self.rounds()) >= found.get("lines", 0) else None

    def finish(self, final: Mapping[str, Any]) -> None:
        """Mark the run as done."""
        write_json(self.path / "done.json", final)
        (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def fail(self, reason: Mapping[str, Any]) -> None:
        """Mark the run as failed."""
        write_json(self.path / "failed.json", reason)

    def retry(self) -> None:
        """Let a failed run be run again."""
        (self.path / "failed.json").unlink(missing_ok=True)


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
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / "store.json").exists():
                write_json(self.root / "store.json", {"format": FORMAT})
        except OSError as error:
            raise UserError(f"{self.root} cannot be written: {error.strerror}") from None
        return self

    def folder(self, id: str) -> RunFolder:
        """Return the folder of a run, which need not exist yet."""
        return RunFolder(self.root / "runs" / id)

    def write_suite(self, suite: str, content: Mapping[str, Any]) -> None:
        """Write down which runs a suite consists of."""
        (self.root / suite).mkdir(parents=True, exist_ok=True)
        write_json(self.root / suite / "suite.json", content)

    def report_settings(self, suite: str) -> dict[str, Any]:
        """Return how a suite's file wants its report to be; nothing if it does not say or is not here."""
        path = self.root / suite / "suite.json"
        return dict(read_json(path).get("report", {})) if path.exists() else {}

    def records(self, suite: str | None = None) -> list[RunRecord]:
        """Return all runs: those of each suite (or of one), then those of none."""
        found: list[RunRecord] = []
        known: set[str | None] = set()
        for path in sorted(self.root.glob("*/suite.json")):
            content = read_json(path)
            if suite is not None and content["suite"] != suite:
                continue
            for cell in content["cells"]:
                known.add(cell["id"])
                found.append(self._record(cell, content["suite"], content["profile"]))
        if suite is None:
            for path in sorted((self.root / "runs").glob("*/spec.json")):
                if path.parent.name not in known:
                    found.append(
                        self._record({"id": path.parent.name, "spec": read_json(path)["spec"]}, "", "")
                    )
        return found

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
        return self._record({"id": id, "spec": spec}, "", "")

    def _record(self, cell: Mapping[str, Any], suite: str, profile: str) -> RunRecord:
        if cell["id"] is None:
            return RunRecord(None, suite, profile, cell["spec"], "skipped", cell["reason"], "", [])
        folder = self.folder(cell["id"])
        status, final, reason = folder.status if folder.path.exists() else "missing", {}, None
        if status == "done":
            final = read_json(folder.path / "done.json")
        if status == "failed":
            reason = read_json(folder.path / "failed.json")["reason"]
        begun = read_json(folder.path / "spec.json") if (folder.path / "spec.json").exists() else {}
        return RunRecord(
            *(cell["id"], suite, profile, cell["spec"], status, reason, begun.get("source", "")),
            rounds=folder.rounds(),
            final=final,
            digest=begun.get("digest", ""),
            held=begun.get("held", {}),
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises
    ------
    UserError
        If it is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is damaged; remove it to have its run made again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged; remove it to have its run made again")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the path's place when all went well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
