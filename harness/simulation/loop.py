"""The loop of a run or a stack of runs: rounds, evaluations and checkpoints until the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from harness.core import interruption
from harness.core.clients.row_table import RowTable
from harness.simulation.calibration import calibrated
from harness.simulation.callbacks import CallbackError
from harness.simulation.dry_run import expected_cost
from harness.simulation.recorder import End, PendingCheckpoint, Progress, Recorder
from harness.simulation.setup import Prepared, Setup
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged, Failure, Unmoved
from harness.simulation.stacking import join, split, stack_setups
from harness.storage.files import Unwritable
from harness.storage.store import RunFolder

CHECKPOINT_SECONDS = 5.0  # a checkpoint of forty stacked runs takes a tenth of a second


def simulate(
    setup: Prepared,
    folder: RunFolder | None = None,
    progress: Progress | None = None,
    save: Mapping[str, Path] = MappingProxyType({}),
) -> dict[str, Any]:
    """Carry out a single run, from the checkpoint of its folder if there is one.

    Parameters
    ----------
    setup : Prepared
        The run; its noise is found unless it is known.
    folder, progress, save : optional
        As in `harness.simulation.recorder.Recorder`.

    Returns
    -------
    dict
        Content of ``done.json``.

    Raises
    ------
    Failure, StopEarly
        If the state is no longer finite or the trained part did not move, or the progress function stops the run.
    """
    try:
        (end,) = simulate_all([Recorder(setup, folder, progress, save)])
    except CallbackError as error:
        raise (error.__cause__ or error) from None
    if isinstance(end, Exception):
        raise end
    return end


@interruption.remembered()
def simulate_all(recorders: Sequence[Recorder]) -> list[End]:
    """Carry out one run or a stack of runs, which must have one signature and one `stack_point`.

    A run that fails or is stopped is removed from the stack, and the others continue. Whatever else is raised
    ends all of them, which keep checkpoints of the last complete round.

    Returns
    -------
    list of dict, Failure or StopEarly
        Content of each run's ``done.json``, or the reason why it has none.

    Raises
    ------
    CallbackError
        If a progress function raises something other than `StopEarly`.
    """
    run, setup, live = _begun(tuple(recorders))
    spec = setup.spec
    first, saved, pending = run.round, time.perf_counter(), PendingCheckpoint((), setup, {})
    try:
        while live:
            if _evaluated(run.round, setup):
                if setup.privacy is not None and setup.privacy.spec.secure_rng:
                    # Noise that cannot be drawn again: no round whose values are on record may be repeated.
                    pending = PendingCheckpoint(live, setup, run.state_dict())
                    pending.save()
                lost = [n for n, recorder in enumerate(live) if not recorder.evaluate(run, n)]
                run, setup, live = _failed(run, setup, live, dict.fromkeys(lost, Diverged(run.round)))
            stopped = [n for n, recorder in enumerate(live) if not recorder.report(run.round)]
            if stopped:
                pending = PendingCheckpoint(live, setup, run.state_dict())
                pending.save()
                for number in stopped:
                    live[number].stop(run.round)
                run, setup, live = _without(run, setup, live, stopped)
            if run.round == spec.rounds or not live:
                break
            pending = PendingCheckpoint(live, setup, run.state_dict())
            interruption.check()
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                pending.save()
                saved = time.perf_counter()
            began = time.perf_counter()
            ahead = (spec.rounds - run.round) / (run.round - first) if run.round > first else 0.0
            failures = _advance(run, diagnose=_evaluated(run.round + 1, setup), ahead=ahead)
            for recorder in live:
                recorder.spent += (time.perf_counter() - began) / len(live)
            run, setup, live = _failed(run, setup, live, failures)
        for number, recorder in enumerate(live):
            recorder.finish(run, number)
    except Unwritable:  # no checkpoint could be written either
        raise
    except (KeyboardInterrupt, Exception):
        pending.rescue()
        raise
    return [recorder.end for recorder in recorders if recorder.end is not None]  # all have ended


def _begun(recorders: tuple[Recorder, ...]) -> Stack:
    """Return the simulation of a stack of runs, from their checkpoints if there are any."""
    setup = calibrated(stack_setups([recorder.setup for recorder in recorders]))
    run, expected = Simulation.from_setup(setup), expected_cost(setup)
    for number, (recorder, single) in enumerate(zip(recorders, setup.each, strict=True)):
        recorder.open(single, expected and partial(expected, number))
    if begun := [recorder.checkpoint for recorder in recorders if recorder.checkpoint is not None]:
        run.load_state_dict(join(begun))
    return run, setup, recorders


def _evaluated(round: int, setup: Setup) -> bool:
    """Whether an evaluation follows this number of rounds."""
    return round % setup.spec.eval_every == 0 or round == setup.spec.rounds


def _advance(run: Simulation, *, diagnose: bool, ahead: float) -> dict[int, Failure]:
    """Run one round; return why runs failed in it, by their numbers."""
    first = [_models(run, n) for n in range(len(run.each))] if run.round == 0 and _moves(run) else []
    try:
        run.step(diagnose=diagnose, ahead=ahead)
    except Diverged as error:
        return dict.fromkeys(error.runs, Diverged(run.round))
    unmoved = [n for n, before in enumerate(first) if all(map(torch.equal, before, _models(run, n)))]
    return dict.fromkeys(unmoved, Unmoved(run.round))


def _moves(run: Simulation) -> bool:
    """Whether the first round must change the model: where a part of it is frozen, all of it may be by mistake.

    No method has a round that leaves all of it as it was; but a round of a Poisson cohort may have no client, and
    with a threshold of messages none may have something to send.
    """
    return bool(run.problem.frozen) and not (run.cohorts.secret or bool(run.compression.threshold))


def _models(run: Simulation, number: int) -> list[Tensor]:
    """Return copies of the models of a run: of the server, or of the clients."""
    model = run.each[number].algorithm.model(run.snapshot(number).state)
    return [leaf.dense() if isinstance(leaf, RowTable) else leaf.clone() for leaf in tree_leaves(model)]


Stack = tuple[Simulation, Setup, tuple[Recorder, ...]]


def _failed(
    run: Simulation, setup: Setup, live: tuple[Recorder, ...], failures: Mapping[int, Failure]
) -> Stack:
    """Record that runs have failed, and remove them."""
    for number, failure in failures.items():
        live[number].fail(failure)
    return _without(run, setup, live, list(failures))


def _without(run: Simulation, setup: Setup, live: tuple[Recorder, ...], lost: Sequence[int]) -> Stack:
    """Remove runs from a stack; the others continue as if resumed from a checkpoint."""
    if not lost:
        return run, setup, live
    kept = [number for number in range(len(live)) if number not in lost]
    if kept:
        point, others = run.state_dict(), stack_setups([setup.members[number] for number in kept])
        run = Simulation.from_setup(others)
        run.load_state_dict(join([split(point, number, setup) for number in kept]))
        setup = others
    return run, setup, tuple(live[number] for number in kept)
