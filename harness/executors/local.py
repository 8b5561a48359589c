"""Carry out runs in this process: side by side where they can be and where it pays."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from datasets.federation import Federation
from harness.config.run import RunSpec
from harness.simulation.build import Execution, identify, prepare
from harness.simulation.evaluation import test_samples
from harness.simulation.loop import simulate_all
from harness.simulation.recorder import Journal
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import at, obstacle, signature, worthwhile
from harness.storage.files import Unwritable
from harness.storage.store import Busy, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes
    ----------
    id : str
        The run.
    status : str
        done, failed or running (another process has it).
    reason : str or None
        Why it failed.
    """

    id: str
    status: str
    reason: str | None = None


Progress = Callable[[RunSpec, int, dict[str, Any]], None]


def run_one(
    spec: RunSpec,
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Progress | None = None,
    save_predictions: bool = False,
) -> Outcome:
    """Run a run to its end, unless it has been already; whatever goes wrong is written into its folder."""
    (outcome,) = run_together(
        [spec], root, execution, retry=retry, progress=progress, save_predictions=save_predictions
    )
    return outcome


def run_together(
    specs: Sequence[RunSpec],
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Progress | None = None,
    save_predictions: bool = False,
    patience: float = 0.0,
) -> list[Outcome]:
    """Run runs to their ends as `run_one` does, side by side where they can be and where it pays.

    A folder that cannot be written is no run's fault: `Unwritable` ends all of them, and none has failed.
    ``patience`` is for how many seconds a run is waited for that another process holds.
    """
    store, execution = Store(root).open(), execution or Execution()
    ids = [identify(spec) for spec in specs]
    folders = [store.folder(id) for id in ids]
    found: dict[int, Outcome] = {}
    ready: dict[int, Journal] = {}
    dealt: dict[str, Federation] = {}

    def journal(number: int) -> Journal:
        spec, folder = specs[number], folders[number]
        predictions = folder.path / "predictions.csv" if save_predictions else None
        observe = partial(progress, spec) if progress else None
        kept = None if folder.status == "done" else folder
        return Journal(prepare(spec, execution, dealt), kept, observe, predictions)

    def failed(number: int, error: Exception) -> Outcome:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        folders[number].fail({"reason": reason, "timing": {"traceback": traceback.format_exc()}})
        return Outcome(ids[number], "failed", reason)

    def carry_out(numbers: Sequence[int]) -> None:
        try:
            ends = simulate_all([ready[number] for number in numbers])
        except Unwritable:
            raise
        except Exception as error:
            if len(numbers) == 1:
                found[numbers[0]] = failed(numbers[0], error)
                return
            log.info("%d runs go on apart, each from its checkpoint: %s", len(numbers), error)
            for number in numbers:  # whose fault it is shows when they run apart
                ready[number] = journal(number)
                carry_out([number])
            return
        for number, end in zip(numbers, ends, strict=True):
            lost = isinstance(end, Diverged)
            found[number] = Outcome(ids[number], "failed" if lost else "done", str(end) if lost else None)

    with ExitStack() as claims:
        for number, folder in enumerate(folders):
            try:
                claims.enter_context(folder.claim(patience))
            except Busy:
                found[number] = Outcome(ids[number], "running")
                continue
            again = save_predictions and not (folder.path / "predictions.csv").exists()
            if folder.status == "done" and not again:
                found[number] = Outcome(ids[number], "done")
            elif folder.status == "failed" and not retry:
                found[number] = Outcome(ids[number], *folder.standing())
            else:
                folder.retry()
                try:
                    ready[number] = journal(number)
                except Unwritable:
                    raise
                except Exception as error:
                    found[number] = failed(number, error)
        try:
            for numbers in _stacks(ready, execution.stack):
                carry_out(numbers)
        finally:
            test_samples.cache_clear()  # the next runs' data would stand beside them
    return [found[number] for number in range(len(specs))]


def _stacks(ready: Mapping[int, Journal], most: int | None) -> list[list[int]]:
    """Say which runs are carried out side by side; those that cannot be are alone."""
    groups: dict[Hashable, list[int]] = {}
    for number, journal in ready.items():
        why = obstacle(journal.setup)
        if why is not None and len(ready) > 1:
            log.info("%s runs alone: %s", journal.setup.id, why)
        key = number if why is not None else (signature(journal.setup), at(journal.checkpoint))
        groups.setdefault(key, []).append(number)
    found = []
    for group in groups.values():
        size = most or worthwhile([ready[number].setup for number in group])
        found += [list(numbers) for numbers in chunks(group, -(-len(group) // size))]
    return found


def chunks(numbers: Sequence[int], count: int) -> list[Sequence[int]]:
    """Cut a list into so many pieces of about one length."""
    ends = [round(len(numbers) * n / count) for n in range(count + 1)]
    return [numbers[first:last] for first, last in pairwise(ends)]
