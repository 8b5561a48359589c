"""How far runs are, from what they write: nothing passes between whoever computes and whoever looks on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.storage.store import RunFolder, Store


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands by its last evaluation.

    Attributes
    ----------
    round : int
        After which it was made; 0 before the first.
    metrics : dict
        Its figures.
    epsilon : float, str or None
        Spent so far in total; ``inf`` without noise, None without privacy.
    """

    round: int = 0
    metrics: Mapping[str, Any] | None = None
    epsilon: float | str | None = None


def standing(folder: RunFolder) -> RunStatus:
    """Return where a run stands; reads the end of one file."""
    line = folder.last()
    if line is None:
        return RunStatus()
    privacy = line.get("privacy") or {}
    return RunStatus(line.get("round", 0), line.get("metrics"), privacy.get("epsilon_total"))


def overview(store: Store, only: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for every run of a folder, or of one suite, whoever is writing to it at this moment."""
    for suite, _, cell in store.cells(only):
        spec, id = cell["spec"], cell["id"]
        row = {"suite": suite or "-", "algorithm": _name(spec), "seed": spec.get("seed", "-")}
        if id is None:
            yield row | {
                "status": "skipped",
                "of": spec.get("rounds", "-"),
                "reason": cell["reason"],
                "id": None,
            }
            continue
        folder = store.folder(id)
        (status, reason), now, written = folder.standing(), standing(folder), folder.written
        yield row | {
            "status": status,
            "round": now.round,
            "of": spec.get("rounds", "-"),
            "metrics": now.metrics,
            "epsilon": now.epsilon,
            "written": None if written is None else round(max(0.0, time.time() - written), 1),
            "reason": reason,
            "id": id,
        }


def _name(spec: Mapping[str, Any]) -> str:
    """Return the algorithm's name, also of a skipped combination, which is kept as its file wrote it."""
    algorithm = spec.get("algorithm", "-")
    return str(algorithm.get("name", "-") if isinstance(algorithm, Mapping) else algorithm)


class Watch:
    """A suite under way.

    Time left is told by rounds: how many have been made since the suite began, and how many are missing. Rounds of
    unlike algorithms take unlike times, so it is a guess that becomes better.

    Parameters
    ----------
    store : Store
        Where the runs write.
    rounds : Mapping[str, int]
        How many rounds each run has, by its id.
    """

    def __init__(self, store: Store, rounds: Mapping[str, int]) -> None:
        self._folders = {id: store.folder(id) for id in rounds}
        self._rounds = rounds
        self._from: dict[str, int] = {}  # runs under way, and the round they were taken up from
        self._ended: set[str] = set()
        self._made = 0  # rounds of runs that have ended
        self._done = {id for id, folder in self._folders.items() if folder.status == "done"}  # earlier

    def begin(self, ids: Iterable[str]) -> None:
        """Notice that runs were handed out."""
        for id in ids:
            self._from.setdefault(id, standing(self._folders[id]).round)

    def end(self, id: str) -> None:
        """Notice that a run has ended."""
        if id not in self._ended:
            self._ended.add(id)
            self._made += max(0, standing(self._folders[id]).round - self._from.pop(id, 0))

    def under_way(self) -> dict[str, RunStatus]:
        """Return where the runs stand that were handed out and have not ended."""
        return {id: standing(self._folders[id]) for id in self._from}

    def made(self, now: Mapping[str, RunStatus]) -> float:
        """Return how many runs have been made, those under way in parts."""
        return len(self._ended) + sum(min(1.0, one.round / self._rounds[id]) for id, one in now.items())

    def left(self, now: Mapping[str, RunStatus]) -> float | None:
        """Return what is missing over what has been made since the suite began; None at its beginning."""
        made = self._made + sum(max(0, one.round - self._from[id]) for id, one in now.items())
        missing = sum(
            count - (now[id].round if id in now else 0)
            for id, count in self._rounds.items()
            if id not in self._ended and id not in self._done
        )
        return missing / made if made else None
