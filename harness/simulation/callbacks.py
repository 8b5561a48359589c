"""Callbacks of users, called during runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.config.run import RunSpec
from harness.storage.store import RunRecord

#: Called with the run, the round and the last evaluation, after every round and at the start (round 0).
Observe = Callable[[RunSpec, int, dict[str, Any]], None]


class StopEarly(Exception):
    """Raise it in a callback to end a run before its last round.

    The run is ``stopped``, with the message as its reason: its values are of fewer rounds than asked for, so no
    table averages them. With ``retry`` it continues where it stopped.
    """


class CallbackError(Exception):
    """A callback raised something else, which is the cause; no fault of the run."""


class Callback:
    """Base class of callbacks; override what you need.

    What a callback raises ends everything and reaches the caller; asked for again, runs continue from their
    checkpoints. `StopEarly` ends one run only.
    """

    def on_round(self, run: RunSpec, round: int, evaluation: Mapping[str, Any]) -> None:
        """Do something at the start (round 0) and after every round; `evaluation` is the last one."""

    def on_evaluation(self, run: RunSpec, round: int, evaluation: Mapping[str, Any]) -> None:
        """Do something after every evaluation.

        Parameters
        ----------
        run : RunSpec
            The run.
        round : int
            Rounds made.
        evaluation : Mapping
            A line of ``rounds.jsonl``: ``metrics``, ``bytes_up``, ``bytes_down``, ``privacy`` and more.
        """

    def on_run_end(self, record: RunRecord) -> None:
        """Do something when a run has ended or was found done; see `RunRecord.status`."""


def observed(callbacks: Sequence[Callback]) -> Observe | None:
    """Return what calls the callbacks round by round; None if none of them looks at rounds."""
    each = [
        callback
        for callback in callbacks
        if _overrides(callback, "on_round") or _overrides(callback, "on_evaluation")
    ]
    if not each:
        return None

    def observe(run: RunSpec, round: int, evaluation: dict[str, Any]) -> None:
        for callback in each:
            if evaluation.get("round") == round:
                callback.on_evaluation(run, round, evaluation)
            callback.on_round(run, round, evaluation)

    return observe


def _overrides(callback: Callback, name: str) -> bool:
    return getattr(type(callback), name, None) is not getattr(Callback, name)
