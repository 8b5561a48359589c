"""Progress of runs, read from their result files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from harness.storage.store import SEARCH, UNKNOWN_SPEC, RunFolder, Store


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
    """Yield a row for every run of a folder or of one suite, also while runs are in progress.

    Runs of a search count until it has ended.
    """
    damaged: list[Path] = []
    searches = [name + SEARCH for name in store.unfinished_searches() if only in (None, name)]
    cells = (store.cells(name, damaged) for name in (only, *searches))
    for suite, _, cell in chain.from_iterable(cells):
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
    for path in dict.fromkeys(damaged):
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
        self._begun = {
            id: rounds[id] if folder.status == "done" else run_status(folder).round
            for id, folder in self._folders.items()
        }  # rounds made before the suite began
        self._running: dict[str, RunStatus] = {}  # by id, as they were when last read
        self._when = time.monotonic()
        self._ended: dict[str, int] = {}  # round at which each run has ended

    def begin(self, ids: Iterable[str]) -> None:
        """Record that runs have started."""
        self._running |= {id: run_status(self._folders[id]) for id in ids}

    def end(self, id: str) -> None:
        """Record that a run has ended."""
        self._running.pop(id, None)
        self._ended[id] = run_status(self._folders[id]).round

    def under_way(self, age: float = 0.0) -> dict[str, RunStatus]:
        """Return the status of all running runs, as it was at most ``age`` seconds ago."""
        if time.monotonic() - self._when >= age:
            self._running = {id: run_status(self._folders[id]) for id in self._running}
            self._when = time.monotonic()
        return dict(self._running)

    def made(self, now: Mapping[str, RunStatus]) -> float:
        """Return the number of runs done, where running ones count by their share of rounds."""
        return len(self._ended) + sum(min(1.0, status.round / self._rounds[id]) for id, status in now.items())

    def left(self, now: Mapping[str, RunStatus], later: int = 0) -> float | None:
        """Return the ratio of rounds left to rounds done since the suite began; None at its beginning.

        ``later`` runs follow, which are taken to be as long as these.
        """
        made = self._begun | {id: status.round for id, status in now.items()} | self._ended
        rounds_made = sum(made.values()) - sum(self._begun.values())
        rounds_left = sum(self._rounds[id] - round for id, round in made.items() if id not in self._ended)
        following = later * sum(self._rounds.values()) / max(1, len(self._rounds))
        return (rounds_left + following) / rounds_made if rounds_made > 0 else None
