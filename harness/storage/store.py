"""Results on disk: append-only, addressed by content, safe to interrupt at any time.

::

    DIR/store.json                 format of the folder
    DIR/runs/<id>/spec.json        spec, source and digest of the data, versions, and sample counts of clients
                  rounds.jsonl     one line per evaluation
                  checkpoint.pt    replaced by rename; removed when the run is done; names the run, and holds the
                                   checksum of the lines of rounds.jsonl that it counts
                  predictions.csv, model.safetensors  if asked for
                  done.json        or failed.json; holds the checksums of the files above
                  claim            locked by the process that runs it
                  *.damaged        files of a damaged run, kept when it was begun again
    DIR/<suite>/suite.json         runs of the suite, and skipped combinations (`harness.storage.suite_file`)
        <suite>-tuning/suite.json  runs of the search for its settings
    DIR/claim                      locked by a merge into the folder

Values that differ between executions of a run (seconds, hardware, versions, checksums) are in objects called
``timing``, so files can be compared without them.

Readers compare the files of an ended run with its checksums. A run whose files differ is damaged: its values are
left out, and it is not done. Runs of earlier versions have no checksums and are read as they are. Files are on the
disk before the end of the run is written, and so are the lines that a checkpoint counts.

A claim is an exclusive `flock`; readers take a shared lock for a moment to see whether it is held. On a shared
folder this works only if the file system shares locks: NFS from version 4, or older versions with a lock manager,
but not mounts with ``nolock``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.core.garbage import no_collection
from harness.storage.contents import Contents, Named, accept_any, contents
from harness.storage.files import Damaged, make_folder, make_own_folder, read_json, write_json, writing
from harness.storage.run_folder import Busy, RunFolder
from harness.storage.suite_file import read_suite, write_suite

__all__ = ["FORMAT", "Busy", "RunFolder", "RunRecord", "Store", "read_suite"]

log = logging.getLogger(__name__)

FORMAT = 1
SEARCH = "-tuning"  # end of the name of a suite that holds the runs of a search
RUN_ID = re.compile(r"[A-Za-z0-9_-]+")
MOST_WARNINGS = 10  # of damaged runs, one line each
#: Shown in place of the spec of a run whose description is damaged.
UNKNOWN_SPEC = {"algorithm": {"name": "unknown"}, "seed": 0}
OF_CELL = ("spec", "digest", "versions")  # of a run that has not begun


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
        done, failed, stopped, damaged, skipped, running, interrupted or missing.
    reason : str or None
        Why it failed, was stopped or was skipped, or what is damaged.
    source : str
        Source of the data.
    rounds : list of dict
        Evaluations in order; none of a damaged run.
    final : dict
        Content of ``done.json``.
    digest : str
        SHA-256 of the data.
    held : dict
        Sample counts of clients (`datasets.client_statistics`); empty if not recorded.
    tested : dict
        ``samples``, the number of test samples, ``digest``, of which they are, ``positive``, the positive one of
        two classes, and ``constant``, the accuracy of always predicting the most frequent class; each absent if
        not recorded.
    versions : dict
        Versions of the code that determined the result (`harness.config.recorded.versions`); empty if not recorded.
    code : str
        Digest of the code that keys the noise of the run (`harness.config.code`); empty if not recorded.
    meta : dict
        Family of the algorithm, and whether it pools data; empty if not recorded.
    search : dict
        The search that chose settings of the run, as in ``suite.json`` (`harness.executors.tuning`), with its
        ``number`` and ``tune``, how it was made; empty if there was none.
    chosen : tuple of str
        Settings chosen for the row of the run by itself, by a search or whoever wrote the suite.
    same : tuple of tuple of str
        Names that the suite says are those of one method.
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
    tested: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    code: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    same: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        """Return which run it is and how it ended; all of its fields would fill a screen."""
        reason = "" if self.reason is None else f", reason={self.reason!r}"
        return f"RunRecord(id={self.id!r}, suite={self.suite!r}, status={self.status!r}{reason})"


class Store:
    """A results folder.

    Parameters
    ----------
    root : Path
        Path of the folder; created on the first write.
    named : Callable, optional
        Says why a run's id does not follow from its record (`harness.config.recorded.misnamed`); whoever reads what
        others may have written gives it.

    Raises
    ------
    UserError
        If it has another format version or is a file, or its runs are elsewhere.
    """

    def __init__(self, root: Path, named: Named = accept_any) -> None:
        self.root, self._named = root, named
        if root.exists() and not root.is_dir():
            raise UserError(f"{root} is a file; a results folder is needed")
        if (root / "runs").is_symlink():
            raise UserError(
                f"{root / 'runs'} is a link; make {root} one, as links within it are not followed"
            )
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
            make_folder(self.root)
        if not (self.root / "store.json").exists():
            write_json(self.root / "store.json", {"format": FORMAT}, durable=True)
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
        if not RUN_ID.fullmatch(id):  # ids from files must not leave the folder
            raise UserError(f"{self.root}: a run is named by letters and digits, given {id!r}")
        return RunFolder(self.root / "runs" / id)

    def write_suite(self, suite: str, content: Mapping[str, Any]) -> None:
        """Write the runs of a suite."""
        with writing(self.root / suite):
            make_own_folder(self.root, suite)
        write_suite(self.root / suite / "suite.json", content)

    def report_settings(self, suite: str) -> dict[str, Any]:
        """Return the report settings of a suite; empty if there are none."""
        path = self.root / suite / "suite.json"
        return dict(read_suite(path)[0].get("report", {})) if path.exists() else {}

    def suites(self) -> list[Path]:
        """Return the records of suites, sorted."""
        return sorted(self.root.glob("*/suite.json"))

    def unfinished_searches(self) -> list[str]:
        """Return the suites whose search has begun and has not ended: they have no runs yet."""
        names = [path.parent.name.removesuffix(SEARCH) for path in self.root.glob(f"*{SEARCH}/suite.json")]
        return sorted(name for name in names if not (self.root / name / "suite.json").exists())

    def cells(
        self, suite: str | None = None, damaged: list[Path] | None = None
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the cells of each suite (or of one) with its name and profile, then runs without a suite.

        A cell names a run; what it says of its settings counts until the run begins (`contents`). The runs of a
        search for settings are yielded only if its suite is asked for. Records of suites that are damaged are added
        to ``damaged``, and their runs belong to no suite; without such a list they raise Damaged.
        """
        ids: set[str | None] = set()
        for path in self.suites():
            if suite not in (None, path.parent.name):  # that of a search may take seconds to read
                continue
            try:
                content, _ = read_suite(path)
            except Damaged:
                if damaged is None:
                    raise
                damaged.append(path)
                continue
            if suite not in (None, content["suite"]):
                continue
            ids.update(cell["id"] for cell in content["cells"])
            if suite is None and "searches_for" in content:  # its runs are no results
                continue
            tuning, report = content.get("tuning", {}), content.get("report", {})
            of_suite = {"chosen": report.get("chosen", ()), "same": report.get("same", ())}
            for cell in content["cells"]:
                cell = {**cell, **of_suite}
                if cell.get("search") is not None:
                    number = cell["search"]
                    search = {"number": number, **tuning["searches"][number], "tune": tuning["tune"]}
                    cell = {**cell, "search": search}
                yield content["suite"], content["profile"], cell
        if suite is None:
            for folder in self.run_folders(ids):
                yield "", "", {"id": folder.path.name}

    def contents(self, cell: Mapping[str, Any]) -> Contents:
        """Return the record of a cell's run.

        Its settings are those with which it began, and those of the cell if it has not begun.
        """
        id, settings = cell["id"], {name: cell[name] for name in OF_CELL if name in cell}
        result = contents(self.folder(id), self._named)
        if result.started or not settings.get("spec"):
            return result
        if result.status == "missing":  # it has no values; `contradictions` tells of its settings
            return result._replace(started=settings)
        if why := self._named(id, settings):
            return result if result.status == "damaged" else result.damaged(f"suite.json {why}")
        return result._replace(started=settings)

    def run_folders(self, without: Collection[str | None] = ()) -> list[RunFolder]:
        """Return the folders of all runs that have begun, but for those with known ids.

        What no run could be called, such as what a killed `merge` or a file manager left, is none.
        """
        try:
            names = sorted(set(os.listdir(self.root / "runs")) - set(without))
        except FileNotFoundError:
            return []
        folders = [RunFolder(self.root / "runs" / id) for id in names if RUN_ID.fullmatch(id)]
        return [folder for folder in folders if folder.begun]

    def some_records(self, suite: str | None = None) -> list[RunRecord]:
        """Return the records like `records`; raise UserError if there are none."""
        if not self.root.exists():
            raise UserError(f"no results folder {self.root}")
        records = self.records(suite)
        if not records:
            raise self.none(suite)
        return records

    def none(self, suite: str | None) -> UserError:
        """Return the error of a folder without runs, or without those of a suite, that says what is there."""
        text = f"{self.root} holds no runs" + (f" of suite {suite}" if suite else "")
        unfinished = self.unfinished_searches()
        if unfinished and suite in (None, *unfinished):
            return UserError(
                f"{text}: its search is unfinished; repeat the command of suite {suite or unfinished[0]}"
            )
        names = [path.parent.name for path in self.suites() if not path.parent.name.endswith(SEARCH)]
        return UserError(text + (f"; it has {', '.join(names)}" if suite and names else ""))

    def record(self, id: str, spec: Mapping[str, Any], suite: str = "") -> RunRecord:
        """Return one run, as of a suite if one is named."""
        return self._record(suite, "", {"id": id, "spec": spec})

    def records(self, suite: str | None = None) -> list[RunRecord]:
        """Return all runs: those of each suite (or of one), then runs without a suite; warn of damaged ones."""
        with no_collection():
            records = [self._record(*cell) for cell in self.cells(suite)]
        damaged = {str(record.id): record.reason for record in records if record.status == "damaged"}
        for id, reason in list(damaged.items())[:MOST_WARNINGS]:
            log.warning("%s is damaged and left out: %s", self.root / "runs" / id, reason)
        if len(damaged) > MOST_WARNINGS:
            log.warning("%d runs are damaged and left out; the command verify lists them", len(damaged))
        return records

    def contradictions(self, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the cells of a suite with settings from which another id follows than that of their run."""
        for cell in cells:
            if cell["id"] is not None and cell.get("spec") and (why := self._named(cell["id"], cell)):
                yield f"suite.json {why}"

    def _record(self, suite: str, profile: str, cell: Mapping[str, Any]) -> RunRecord:
        search = cell.get("search") or {}
        chosen = tuple(search.get("paths", cell.get("chosen", ())))
        same = tuple(map(tuple, cell.get("same", ())))
        if cell["id"] is None:
            return RunRecord(
                *(None, suite, profile, cell["spec"], "skipped", cell["reason"], "", []),
                digest=cell.get("digest", ""),
                versions=cell.get("versions", {}),
                search=search,
                chosen=chosen,
                same=same,
            )
        status, reason, end, started, rounds = self.contents(cell)
        plugins = {"plugins": started["plugins"]} if "plugins" in started else {}  # of earlier versions
        spec = started.get("spec", UNKNOWN_SPEC)
        return RunRecord(
            *(cell["id"], suite, profile, spec, status, reason, started.get("source", "")),
            rounds=rounds,
            final=end if status == "done" else {},
            digest=started.get("digest", ""),
            held=started.get("held") or {},
            tested=started.get("tested") or {},
            versions=started.get("versions", plugins),
            code=started.get("code") or "",
            meta=started.get("meta") or {},
            search=search,
            chosen=chosen,
            same=same,
        )
