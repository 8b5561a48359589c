"""Whole runs, alone or side by side: rounds, evaluations and checkpoints until the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.simulation.build import Setup
from harness.simulation.calibration import settled
from harness.simulation.recorder import Journal, PendingCheckpoint, Progress
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import join, split, together
from harness.storage.store import RunFolder

CHECKPOINT_SECONDS = 2.0


def simulate(
    setup: Setup,
    folder: RunFolder | None = None,
    progress: Progress | None = None,
    predictions: Path | None = None,
) -> dict[str, Any]:
    """Run a single run to the end, from the folder's checkpoint if it has one.

    Parameters
    ----------
    setup : Setup
        What to run.
    folder, progress, predictions : optional
        As in `harness.simulation.recorder.Journal`.

    Returns
    -------
    dict
        Content of ``done.json``.

    Raises
    ------
    Diverged
        If the state is no longer finite.
    """
    (end,) = simulate_all([Journal(setup, folder, progress, predictions)])
    if isinstance(end, Diverged):
        raise end
    return end


def simulate_all(journals: Sequence[Journal]) -> list[dict[str, Any] | Diverged]:
    """Run runs to the end side by side; several must be of one signature and stand at one point.

    A run that diverges is taken out of the stack, and the others go on.

    Returns
    -------
    list of dict or Diverged
        Content of each one's ``done.json``, or why it has none.
    """
    setup, live = settled(together([journal.setup for journal in journals])), tuple(journals)
    run, spec, rows = Simulation.from_setup(setup), setup.spec, setup.rows
    for journal, own in zip(live, setup.each, strict=True):
        journal.open(own)
    if begun := [journal.checkpoint for journal in live if journal.checkpoint is not None]:
        run.load_state_dict(join(begun))
    first, saved, here = run.round, time.perf_counter(), PendingCheckpoint((), setup, {})
    try:
        while live:
            if _evaluated(run.round, setup):
                lost = [n for n, journal in enumerate(live) if not journal.evaluate(run, n)]
                run, setup, live = _without(run, setup, live, lost)
            for journal in live:
                journal.tell(run.round)
            if run.round == spec.rounds or not live:
                break
            here = PendingCheckpoint(live, setup, run.state_dict())
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                here.save()
                saved = time.perf_counter()
            rows.ahead = (spec.rounds - run.round) / (run.round - first) if run.round > first else 0.0
            began = time.perf_counter()
            diverged = _advance(run, diagnose=_evaluated(run.round + 1, setup))
            for journal in live:
                journal.spent += (time.perf_counter() - began) / len(live)
            run, setup, live = _without(run, setup, live, diverged)
    except KeyboardInterrupt:
        here.save()
        raise
    finally:
        rows.ahead = 0.0
    for number, journal in enumerate(live):
        journal.finish(run, number)
    return [journal.end for journal in journals]


def _evaluated(round: int, setup: Setup) -> bool:
    """Whether an evaluation follows so many rounds."""
    return round % setup.spec.eval_every == 0 or round == setup.spec.rounds


def _advance(run: Simulation, *, diagnose: bool) -> Sequence[int]:
    """Run one round; return the runs that diverged in it."""
    try:
        run.step(diagnose=diagnose)
    except Diverged as error:
        return error.runs
    return ()


def _without(
    run: Simulation, setup: Setup, live: tuple[Journal, ...], lost: Sequence[int]
) -> tuple[Simulation, Setup, tuple[Journal, ...]]:
    """Take diverged runs out of a stack; the others go on as if they had been taken up from a checkpoint."""
    if not lost:
        return run, setup, live
    for number in lost:
        live[number].fail(Diverged(run.round))
    left = [number for number in range(len(live)) if number not in lost]
    if left:
        point, others = run.state_dict(), together([setup.members[number] for number in left])
        run = Simulation.from_setup(others)
        run.load_state_dict(join([split(point, number, setup) for number in left]))
        setup = others
    return run, setup, tuple(live[number] for number in left)
