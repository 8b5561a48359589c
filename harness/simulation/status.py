"""Progress of runs, read from their result files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.storage.store import UNKNOWN_SPEC, RunFolder, Store


@dataclass(frozen=True)
class RunStatus:
    """A run's last evaluation.

    Attributes
    ----------
    round : int
        Round of the evaluation; 0 before the first.
    metrics : dict or None
        Metrics of the evaluation.
    epsilon : float, str or None
        Total epsilon so far; ``inf`` without noise, None without privacy.
    extrapolated : bool
        Whether it is that of larger cohorts than are simulated.
    """

    round: int = 0
    metrics: Mapping[str, Any] | None = None
    epsilon: float | str | None = None
    extrapolated: bool = False


def run_status(folder: RunFolder) -> RunStatus:
    """Return the status of a run; reads the end of one file."""
    return status_of(folder.evaluations.last())


def status_of(line: Mapping[str, Any] | None) -> RunStatus:
    """Return the status of a run by its last evaluation, if it has one."""
    if line is None:
        return RunStatus()
    privacy = line.get("privacy") or {}
    larger = "noise_cohort" in privacy
    return RunStatus(line.get("round", 0), line.get("metrics"), privacy.get("epsilon_total"), larger)


def overview(store: Store, only: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for every run of a folder or of one suite, also while runs are in progress."""
    damaged: list[Path] = []
    for suite, _, cell in store.cells(only, damaged):
        id = cell["id"]
        contents = None if id is None else store.contents(cell)
        spec = cell["spec"] if contents is None else contents.started.get("spec", UNKNOWN_SPEC)
        row = {"suite": suite or "-", "algorithm": _name(spec), "seed": spec.get("seed", "-")}
        if contents is None:
            yield row | {
                "status": "skipped",
                "of": spec.get("rounds", "-"),
                "reason": cell["reason"],
                "id": None,
            }
            continue
        written = store.folder(id).written
        now = status_of(contents.rounds[-1] if contents.rounds else None)
        yield row | {
            "status": contents.status,
            "round": now.round,
            "of": spec.get("rounds", "-"),
            "metrics": now.metrics,
            "epsilon": now.epsilon,
            **({"extrapolated": True} if now.extrapolated else {}),
            "written": None if written is None else round(max(0.0, time.time() - written), 1),
            "reason": contents.reason,
            "id": id,
        }
    for path in damaged:
        reason = f"{path.name} is damaged; its runs are listed without a suite, verify and resume need it"
        yield {
            "suite": path.parent.name,
            "algorithm": "-",
            "seed": "-",
            "status": "damaged",
            "of": "-",
            "reason": reason,
            "id": None,
        }


def _name(spec: Mapping[str, Any]) -> str:
    """Return the algorithm's name; a skipped combination has the unchecked fields of its file."""
    algorithm = spec.get("algorithm", "-")
    return str(algorithm.get("name", "-") if isinstance(algorithm, Mapping) else algorithm)


class Watch:
    """Progress of a suite.

    The time left is estimated from the rounds done since the suite began and the rounds left. Rounds of different
    algorithms take different times, so the estimate improves as the suite goes on.

    Parameters
    ----------
    store : Store
        The results folder.
    rounds : Mapping[str, int]
        Number of rounds of each run, by its id.
    """

    def __init__(self, store: Store, rounds: Mapping[str, int]) -> None:
        self._folders = {id: store.folder(id) for id in rounds}
        self._rounds = rounds
        self._from: dict[str, int] = {}  # running runs -> round at which they were started or resumed
        self._read: dict[str, RunStatus] = {}  # their statuses when they were last read
        self._when = time.monotonic()
        self._ended: set[str] = set()
        self._made = 0  # rounds done by ended runs
        self._done = {
            id for id, folder in self._folders.items() if folder.status == "done"
        }  # before the suite began
        self._missing = sum(count for id, count in rounds.items() if id not in self._done)  # of unended runs

    def begin(self, ids: Iterable[str]) -> None:
        """Record that runs have started."""
        for id in ids:
            self._read[id] = run_status(self._folders[id])
            self._from.setdefault(id, self._read[id].round)

    def end(self, id: str) -> None:
        """Record that a run has ended."""
        if id not in self._ended:
            self._ended.add(id)
            self._read.pop(id, None)
            self._made += max(0, run_status(self._folders[id]).round - self._from.pop(id, 0))
            self._missing -= 0 if id in self._done else self._rounds[id]

    def under_way(self, age: float = 0.0) -> dict[str, RunStatus]:
        """Return the status of all running runs, as it was at most ``age`` seconds ago."""
        if time.monotonic() - self._when >= age:
            self._read = {id: run_status(self._folders[id]) for id in self._from}
            self._when = time.monotonic()
        return dict(self._read)

    def made(self, now: Mapping[str, RunStatus]) -> float:
        """Return the number of runs done, where running ones count by their share of rounds."""
        return len(self._ended) + sum(min(1.0, status.round / self._rounds[id]) for id, status in now.items())

    def left(self, now: Mapping[str, RunStatus]) -> float | None:
        """Return the ratio of rounds left to rounds done since the suite began; None at its beginning."""
        rounds_made = self._made + sum(max(0, status.round - self._from[id]) for id, status in now.items())
        missing = self._missing - sum(status.round for id, status in now.items() if id not in self._done)
        return missing / rounds_made if rounds_made else None
