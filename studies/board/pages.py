"""Static pages of a board: one for every task, method and submission, and an index.

Addresses follow from content: a task's from its data, partition, problem and model, a method's from its name, a
submission's from its manifest. What has been linked to stays where it is when more is submitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from harness.config.report import ReportSpec
from harness.core.units import counted
from harness.report.data.identity import TASK, Identity, cell_key
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.specs import clients, data_name, part_name, partition_text
from harness.report.html.page import write_page
from harness.report.html.templates import template
from harness.report.tables.columns import ShownColumn
from harness.report.tables.rows import Board
from harness.storage.files import make_folder, safe_name, write_text
from harness.storage.outcomes import agree, computed_fields
from harness.storage.store import RunRecord
from studies.board.first_seen import Seen
from studies.board.submission import Submission

FOLDERS = ("tasks", "methods", "submissions")
#: Columns that compare a row with others of its task; pages of methods and submissions take them from there.
COMPARED = ("rank", "pareto", "bytes_relative")
UNSIGNED = "unsigned"

Command = Callable[[RunRecord], str]


class Entry(NamedTuple):
    """A submission with the records of its runs, and when the board first saw its manifest, if it has."""

    submission: Submission
    records: list[RunRecord]
    seen: Seen | None = None

    @property
    def order(self) -> tuple[float, bool, str]:
        """Order in which values are shown: first seen before later; anybody can sign with a key made for it."""
        place = math.inf if self.seen is None else self.seen.place
        return place, self.submission.signer is None, self.submission.id

    @property
    def who(self) -> str:
        """Name and key of the submitter."""
        return f"{self.submission.submitter}, {self.submission.signer or UNSIGNED}"


class Table(NamedTuple):
    """A table of the index; a row is the address that its first field leads to, or none, and its fields."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    about: str = ""


def write_board(
    entries: Sequence[Entry], refused: Mapping[str, str], folder: Path, command: Command
) -> list[Path]:
    """Write the pages of a board and remove those of what is no longer submitted.

    A run that several people submitted is one run with several submitters. Where their values differ, all pages
    with the run say so, with every value and who submitted it, and its row has those of the first (`Entry.order`).

    Parameters
    ----------
    entries : Sequence[Entry]
        What is shown.
    refused : Mapping[str, str]
        Folder to reason of submissions that are left out; the index lists them.
    folder : Path
        Destination; created if missing.
    command : Callable
        Record -> the command that repeats the run.

    Returns
    -------
    list[Path]
        The pages, the index first.
    """
    entries = sorted(entries, key=lambda entry: entry.order)
    runs, owners, disputes = merge_entries(entries)
    pages = _Pages(folder, command, _submitters(runs, owners), _submitters(runs, disputes))
    tables = [
        pages.tasks(runs.values()),
        pages.methods(runs.values()),
        pages.submissions(entries),
        Table(
            "Runs that submissions disagree about",
            ("Run", "What each says"),
            [("", (id, "; ".join(texts))) for id, texts in sorted(disputes.items())],
            "They were made on different machines, or by other code, which keys noise (noise_code), or one of them "
            "is not what was computed.",
        ),
        Table("Left out", ("Folder", "Reason"), [("", pair) for pair in sorted(refused.items())]),
    ]
    make_folder(folder)
    index = folder / "index.html"
    page = template("board.html", Path(__file__).parent)
    write_text(index, page.render(tables=[table for table in tables if table.rows]))
    for old in (path for name in FOLDERS for path in (folder / name).glob("*.html")):
        if old not in pages.written:
            old.unlink()
    return [index, *pages.written]


class _Pages:
    """Writer of the pages below the index."""

    def __init__(
        self, folder: Path, command: Command, who: Mapping[str, str], disputes: Mapping[str, str]
    ) -> None:
        self.folder, self.command, self.written = folder, command, list[Path]()
        about = "Who submitted the runs, by their own account, and the key that signed them"
        self._who = ShownColumn("Submitted by", "cell", False, lambda row: who[row["cell"]], about)
        about = "Runs of the row about which submissions disagree, and what each says"
        self._disputes = disputes
        self._compared: dict[str, dict[str, object]] = {}
        self._disputed = ShownColumn(
            "Disputed", "cell", False, lambda row: disputes.get(row["cell"], ""), about
        )

    def tasks(self, records: Iterable[RunRecord]) -> Table:
        """Write a page for every task, and keep how its rows compare."""
        rows = []
        for id, runs in sorted(
            _group_records(records, task_id).items(), key=lambda item: task_title(item[1][0])
        ):
            title = task_title(runs[0])
            board = self._write("tasks", id, title, runs).rows
            self._compared |= {row["cell"]: {name: row[name] for name in COMPARED} for row in board}
            first = ", ".join(str(row["algorithm"]) for row in board if row["rank"] == 1)
            texts = title, str(len(board)), str(len(runs)), first, str(board[0]["ranked_by"])
            rows.append((f"tasks/{id}.html", texts))
        return Table("Tasks", ("Task", "Rows", "Runs", "First", "By"), rows)

    def methods(self, records: Iterable[RunRecord]) -> Table:
        """Write a page for every method; `tasks` must be written before."""
        rows = []
        for name, runs in sorted(_group_records(records, _method).items()):
            board = self._write("methods", name, name, runs, self._compared).rows
            tasks = {task_id(record) for record in runs}
            texts = name, str(len(tasks)), str(len(board)), str(len(runs))
            rows.append((f"methods/{safe_name(name)}.html", texts))
        return Table("Methods", ("Method", "Tasks", "Rows", "Runs"), rows)

    def submissions(self, entries: Iterable[Entry]) -> Table:
        """Write a page for every submission; `tasks` must be written before."""
        rows = []
        for entry in entries:
            id, submitter, key = entry.submission.id, entry.submission.submitter, entry.submission.signer
            self._write("submissions", id, f"Submission {id} of {entry.who}", entry.records, self._compared)
            day = entry.seen.date if entry.seen else "new"
            texts = id, submitter, key or UNSIGNED, day, str(len(entry.records))
            rows.append((f"submissions/{id}.html", texts))
        return Table("Submissions", ("Submission", "Submitter", "Key", "First seen", "Runs"), rows)

    def _write(
        self,
        kind: str,
        id: str,
        title: str,
        records: Sequence[RunRecord],
        compared: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Board:
        """Write a page and return its leaderboard."""
        results = Results(records)
        frame = leaderboard(results, results.ranked(ReportSpec()).by)
        for name in COMPARED if compared is not None else ():
            values = [(compared or {})[cell][name] for cell in frame["cell"]]
            frame[name] = pd.Series(values, dtype=frame[name].dtype, index=frame.index)
        path = self.folder / kind / f"{safe_name(id)}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        first = {cell.key: cell.records[0] for cell in results.cells}
        commands = {key: self.command(record) for key, record in first.items()}
        links = {"All tasks, methods and submissions": "../index.html"}
        board = Board(frame)
        disputed = [self._disputed] if self._disputes.keys() & first.keys() else []
        beside = [self._who, *disputed]
        write_page(results, board, (), path, commands=commands, title=title, links=links, beside=beside)
        self.written.append(path)
        return board


def _group_records(
    records: Iterable[RunRecord], key: Callable[[RunRecord], str]
) -> dict[str, list[RunRecord]]:
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _method(record: RunRecord) -> str:
    return part_name(record.spec["algorithm"]) or ""


def merge_entries(
    entries: Iterable[Entry],
) -> tuple[dict[str, RunRecord], dict[str, list[str]], dict[str, list[str]]]:
    """Return runs and submitters by id, and the different versions of runs on which submitters disagree."""
    by_run: dict[str, list[tuple[str, RunRecord]]] = {}
    for entry in entries:
        for record in entry.records:
            by_run.setdefault(str(record.id), []).append((entry.who, record))
    runs = {id: pairs[0][1] for id, pairs in by_run.items()}
    owners = {id: list(dict.fromkeys(who for who, _ in pairs)) for id, pairs in by_run.items()}
    disputed = {
        id: _disagreement(pairs)
        for id, pairs in by_run.items()
        if any(_differ(runs[id], execution) for _, execution in pairs)
    }
    return runs, owners, disputed


def _disagreement(pairs: Sequence[tuple[str, RunRecord]]) -> list[str]:
    """Return each submitter's first value that others contradict, as text."""
    seed = pairs[0][1].spec["seed"]
    values_by_submitter = [_last_values(record) for _, record in pairs]
    names = dict.fromkeys(name for values in values_by_submitter for name in values)
    name = next(
        (name for name in names if len({values.get(name) for values in values_by_submitter}) > 1), "status"
    )
    codes = {record.code for _, record in pairs}
    return [
        f"seed {seed}: {name} {values.get(name, 'unknown')} by {who}"
        + (f", noise of code {record.code or 'unknown'}" if len(codes) > 1 else "")
        for (who, record), values in zip(pairs, values_by_submitter, strict=True)
    ]


def _last_values(record: RunRecord) -> dict[str, str]:
    """Return the status of a run and its last values."""
    last = record.rounds[-1] if record.rounds else {}
    counts = {name: last.get(name) for name in ("bytes_up", "bytes_down", "flops", "oracle_calls")}
    epsilon = {"epsilon_total": (last.get("privacy") or {}).get("epsilon_total")}
    values = {**last.get("metrics", {}), **epsilon, **counts}
    return {"status": record.status} | {
        name: f"{value:.6g}" if isinstance(value, int | float) else str(value)
        for name, value in values.items()
    }


def _differ(execution: RunRecord, other: RunRecord) -> bool:
    """Return whether two executions of a run have other values."""
    both = [
        [computed_fields(line) for line in (*record.rounds, record.final)] for record in (execution, other)
    ]
    return execution.status != other.status or not agree(*both)


def _submitters(runs: Mapping[str, RunRecord], owners: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return cell -> submitters of its runs, or another text for each run."""
    names_by_cell: dict[str, dict[str, None]] = {}
    for id, owner_names in owners.items():
        names_by_cell.setdefault(cell_key(runs[id]), {}).update(dict.fromkeys(owner_names))
    return {cell: "; ".join(names) for cell, names in names_by_cell.items()}


def task_id(record: RunRecord) -> str:
    """Return the digest of a run's data, partition, problem and model: 12 hexadecimal digits."""
    return Identity(record).shared_key({"algorithm", *record.spec} - TASK - {"model"})


def task_title(record: RunRecord) -> str:
    """Return data, partition, problem and model in words."""
    spec, number = record.spec, clients(record.spec)
    parts = (
        data_name(spec.get("data")),
        partition_text(spec.get("partition")),
        None if number is None else counted(number, "client"),
        part_name(spec.get("problem")),
        part_name(spec.get("model")),
    )
    return " · ".join(part for part in parts if part)
