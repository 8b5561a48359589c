"""Execution of runs in this process, stacked where possible and faster."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from datasets.federation import Federation, standardizes
from harness.config.code import NO_CODE
from harness.config.plugins import authors_line
from harness.config.run import RunSpec
from harness.core.algorithm import Algorithm
from harness.core.errors import UserError
from harness.core.interruption import remembered
from harness.simulation.build import identify, keyed, prepare
from harness.simulation.callbacks import CallbackError, Observe, StopEarly
from harness.simulation.evaluation import test_samples
from harness.simulation.federations import data_key, load_once, task
from harness.simulation.loop import simulate_all
from harness.simulation.recorder import End, Recorder
from harness.simulation.room import fit
from harness.simulation.setup import Execution, Setup
from harness.simulation.snapshot import Failure
from harness.simulation.stacking import POOL_BYTES, cut, obstacle, signature, stack_point
from harness.storage.files import Unwritable
from harness.storage.store import Busy, RunFolder, Store

log = logging.getLogger(__name__)

Unit = Sequence[int]  # numbers of runs that a worker carries out at a time


@dataclass(frozen=True)
class Outcome:
    """End of one run.

    Attributes
    ----------
    id : str
        Identity of the run.
    status : str
        done, failed, stopped, running (in another process), or damaged and not to be repeated.
    reason : str or None
        Why it failed, was stopped, or is not repeated.
    earlier : bool
        Whether this end was on record before, and the run may be repeated.
    """

    id: str
    status: str
    reason: str | None = None
    earlier: bool = False

    @property
    def why(self) -> str:
        """The reason, and how to repeat a run that ended earlier; empty without a reason."""
        again = " (recorded earlier; --retry runs it again)" if self.earlier else ""
        return f"{self.reason}{again}" if self.reason else ""


Ended = list[
    tuple[Unit, list[Outcome] | None]
]  # units with the outcomes of their runs, None if the worker died


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Compute with a number of threads, which affects rounding, as the commands do."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_one(
    spec: RunSpec,
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Observe | None = None,
    save: Collection[str] = (),
    setup: Setup | None = None,
) -> Outcome:
    """Carry out a run unless it is done already; errors are recorded in its folder.

    ``save`` names files of `harness.storage.run_folder.EXTRAS` to write beside the results. ``setup`` is the run as
    `harness.simulation.calibration.calibrated` returns it, if it has been prepared with this execution; the other
    parameters are those of `run_together`.
    """
    options = Options(execution or Execution(), retry, progress, save, setup=setup)
    (outcome,) = _run([spec], root, options)
    return outcome


def run_together(
    specs: Sequence[RunSpec],
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Observe | None = None,
    patience: float = 0.0,
) -> list[Outcome]:
    """Carry out runs like `run_one`, stacked where possible and faster.

    A folder that cannot be written raises `Unwritable` for all runs and marks none as failed. ``patience`` is the
    number of seconds to wait for a run that another process holds.

    Under ``privacy.secure_rng`` no round that is on record is repeated: with new noise it would be released twice
    and charged once. What asks for that is refused, and files stay as they are.

    What ``progress`` raises is raised, unless it is `StopEarly`; interrupted runs keep their checkpoints.
    """
    return _run(specs, root, Options(execution or Execution(), retry, progress, patience=patience))


@remembered()
def _run(specs: Sequence[RunSpec], root: Path, options: Options) -> list[Outcome]:
    """Carry out runs in groups whose samples fit into memory; see `run_together`."""
    outcomes: dict[int, Outcome] = {}
    for numbers in fitting(specs):
        try:
            ended = Group([specs[number] for number in numbers], root, options).carry_out()
        except CallbackError as error:
            raise (error.__cause__ or error) from None
        outcomes |= zip(numbers, ended, strict=True)
    return [outcomes[number] for number in range(len(specs))]


def fitting(specs: Sequence[RunSpec]) -> list[list[int]]:
    """Return the numbers of runs in groups whose samples fit into `POOL_BYTES`; runs of one seed stay together.

    Where columns are standardized, the runs of every seed have features of their own.
    """
    seeds: dict[str, list[int]] = {}
    for number, spec in enumerate(specs):
        seeds.setdefault(data_key(spec), []).append(number)
    data_sets = [
        load_once(spec.data, task(spec))
        for spec in specs
        if spec.data and spec.partition and spec.partition.standardize
    ]
    largest = max((data.x.nbytes for data in data_sets if standardizes(data)), default=0)
    most = max(1, POOL_BYTES // largest) if largest else len(specs)
    groups = list(seeds.values())
    return [sorted(chain(*groups[first : first + most])) for first in range(0, len(groups), most)]


class Options(NamedTuple):
    """Options of the execution of runs; see `run_together`."""

    execution: Execution = Execution()
    retry: bool = False
    progress: Observe | None = None
    save: Collection[str] = ()
    patience: float = 0.0
    setup: Setup | None = None


class Group:
    """Runs whose samples fit into memory together, from their claims to their outcomes.

    Parameters
    ----------
    specs, root, options : sequence of RunSpec, Path, Options
        The runs, the results folder, and how they are carried out.

    Attributes
    ----------
    ready : dict[int, Recorder]
        Runs to carry out, by their numbers.
    outcomes : dict[int, Outcome]
        Ends of runs so far, by their numbers.
    """

    def __init__(self, specs: Sequence[RunSpec], root: Path, options: Options) -> None:
        store, setup = Store(root).open(), options.setup
        self._specs, self._options = specs, options
        self._folders = [store.folder(setup.id if setup else identify(spec)) for spec in specs]
        self._federations: dict[str, Federation] = {}
        self.ready: dict[int, Recorder] = {}
        self.outcomes: dict[int, Outcome] = {}

    def carry_out(self) -> list[Outcome]:
        """Carry out the runs that nobody else holds, and return the outcomes of all."""
        with ExitStack() as claims:
            for number, folder in enumerate(self._folders):
                try:
                    claims.enter_context(folder.claim(self._options.patience))
                except Busy:
                    self.outcomes[number] = Outcome(folder.path.name, "running")
                else:
                    self._look_up(number)
            stacks = deque(self._stacks(list(self.ready)))
            try:
                while stacks:
                    stacks.extendleft(reversed(self._simulate(stacks.popleft())))
            finally:
                test_samples.cache_clear()  # room for the samples of the next runs
        return [self.outcomes[number] for number in range(len(self._specs))]

    def _look_up(self, number: int) -> None:
        """Make a run ready, or take its outcome from what is on record."""
        spec, folder = self._specs[number], self._folders[number]
        id, how = folder.path.name, _how(self._options.execution)
        status, reason, end = folder.read()
        _refuse_other_noise(self._options.execution.noise_code, spec, folder, status)
        again = self._options.retry or end.get("timing", {}).get("execution", how) != how
        spent, lacking = _spent(spec, folder), self._lacking(folder) if status == "done" else []
        if status == "done" and not lacking:
            self.outcomes[number] = Outcome(id, "done")
        elif status == "done" and spent:
            options = " ".join(f"--save-{Path(name).stem}" for name in lacking)
            raise UserError(f"{options}: {folder.path} is finished and has none. {spent}")
        elif status in ("failed", "stopped") and (spent or not again):
            why = f"{reason}. {spent}" if again else reason
            self.outcomes[number] = Outcome(id, status, why, earlier=not spent)
        elif status == "damaged" and spent:
            self.outcomes[number] = Outcome(id, status, f"{reason}. {spent}")
        else:
            if status == "damaged":
                log.warning("%s is damaged and begins again: %s", folder.path, reason)
                folder.set_aside()
            folder.retry()
            self._make_ready(number, spent)

    def _make_ready(self, number: int, spent: str | None) -> None:
        """Prepare a run; one that is ``spent`` can only go on from a checkpoint."""
        try:
            recorder = self._recorder(number)
        except Unwritable:
            raise
        except Exception as error:
            self._fail(number, error)
        else:
            if spent and recorder.checkpoint is None:
                id = self._folders[number].path.name
                self.outcomes[number] = Outcome(id, "damaged", f"it has no checkpoint. {spent}")
            else:
                self.ready[number] = recorder

    def _recorder(self, number: int) -> Recorder:
        """Return the recorder of a run, prepared with the noise that is on record."""
        spec, folder, options = self._specs[number], self._folders[number], self._options
        observe = partial(options.progress, spec) if options.progress else None
        setup = options.setup or prepare(spec, options.execution, self._federations)
        earlier = folder.code or NO_CODE
        if folder.status == "done":
            missing = {name: folder.path / name for name in self._lacking(folder)}
            again = keyed(setup, earlier) if setup.code else setup
            return Recorder(again, None, observe, missing, finished=folder)
        recorder = Recorder(setup, folder, observe, {name: folder.path / name for name in options.save})
        if recorder.checkpoint is not None and setup.code not in ("", earlier):
            log.warning(
                "%s began with other code: it goes on with the noise of code %s", folder.path, earlier
            )
            return recorder.of(keyed(setup, earlier))
        return recorder

    def _lacking(self, folder: RunFolder) -> list[str]:
        """Return the files that are to be saved and that a finished run does not have."""
        return [name for name in self._options.save if not folder.has(name)]

    def _stacks(self, numbers: Sequence[int]) -> list[list[int]]:
        """Part runs that are ready into stacks that fit into memory; runs that cannot be stacked are alone."""
        groups: dict[Hashable, list[int]] = {}
        for number in numbers:
            recorder = self.ready[number]
            why = obstacle(recorder.setup)
            if why is not None and len(numbers) > 1:
                log.info("%s runs alone: %s", recorder.setup.id, why)
            key = number if why is not None else (signature(recorder.setup), stack_point(recorder.checkpoint))
            groups.setdefault(key, []).append(number)
        return [stack for group in groups.values() for stack in self._fitting(group)]

    def _fitting(self, group: Sequence[int]) -> list[list[int]]:
        """Cut runs that can be stacked into stacks that fit into memory; if not even one fits, all fail."""
        ready, execution = self.ready, self._options.execution
        try:
            room = fit(ready[group[0]].setup, execution, len(group))
        except UserError as error:
            for number in group:
                self._fail(number, error)
            return []
        if room.setup.in_chunks:
            log.warning("%s: %s", room.setup.id, room.note)
            for number in group:
                ready[number] = ready[number].of(replace(ready[number].setup, in_chunks=True))
        pieces = cut([ready[number].setup for number in group], execution.stack, room.most)
        return [[group[place] for place in piece] for piece in pieces]

    def _simulate(self, stack: Sequence[int]) -> list[list[int]]:
        """Carry out runs as one stack; return the smaller stacks in which those that an error has left go on."""
        unfinished: list[int] = []
        try:
            simulate_all([self.ready[number] for number in stack])
        except (Unwritable, CallbackError):
            raise
        except Exception as error:
            unfinished = self._left(stack, error)
        for number in stack:
            if (end := self.ready[number].end) is not None:
                self.outcomes[number] = _outcome(self._folders[number].path.name, end)
        self.ready |= {number: self._recorder(number) for number in unfinished}
        return [smaller for some in _split_stack(unfinished, self._specs) for smaller in self._stacks(some)]

    def _left(self, stack: Sequence[int], error: Exception) -> list[int]:
        """Return the runs of a stack that go on after an error; one that was alone has failed."""
        unfinished = [number for number in stack if self.ready[number].end is None]
        if not unfinished:
            log.warning("after the end of %d runs: %s", len(stack), error)
        elif len(stack) == 1:
            self._fail(stack[0], error)
            return []
        else:
            log.info("%d runs continue in smaller stacks from their checkpoints: %s", len(unfinished), error)
        return unfinished

    def _fail(self, number: int, error: Exception) -> None:
        """Record that a run has failed."""
        reason, folder = " ".join(str(error).split()), self._folders[number]
        if not isinstance(error, UserError):  # such messages say all
            cls = type(self.ready[number].setup.algorithm) if number in self.ready else Algorithm
            reason = f"{type(error).__name__}: {reason}{authors_line(error, cls)}"
        how = {"execution": _how(self._options.execution), "traceback": traceback.format_exc()}
        folder.fail({"reason": reason, "timing": how})
        self.outcomes[number] = Outcome(folder.path.name, "failed", reason)


def _how(execution: Execution) -> dict[str, Any]:
    """Return the execution options that may decide whether a run fails."""
    return {"device": execution.device, "threads": execution.threads, "vectorize": execution.vectorize}


def _outcome(id: str, end: End) -> Outcome:
    """Return the outcome of a run from its recorded end."""
    if isinstance(end, Failure):
        return Outcome(id, "failed", str(end))
    return Outcome(id, "stopped", str(end)) if isinstance(end, StopEarly) else Outcome(id, "done")


def _refuse_other_noise(requested: str | None, spec: RunSpec, folder: RunFolder, status: str) -> None:
    """Raise UserError if a run to be continued has the noise of other code than requested."""
    earlier = folder.code or NO_CODE
    if spec.privacy is not None and requested not in (None, earlier) and status in ("done", "interrupted"):
        raise UserError(
            f"noise-code: {folder.path} is {status} and has the noise of code {earlier}, given {requested}; use "
            "another results folder"
        )


def _spent(spec: RunSpec, folder: RunFolder) -> str | None:
    """Return why a run must not be repeated, if its noise cannot be drawn again and some of it is on record."""
    if spec.privacy is None or not spec.privacy.secure_rng or not folder.recorded:
        return None
    return (
        "Under privacy.secure_rng a repeated round has new noise, which spends its budget again and is not "
        f"counted; to repeat the run all the same, remove {folder.path}"
    )


def _split_stack(numbers: Sequence[int], specs: Sequence[RunSpec]) -> list[list[int]]:
    """Part the runs of a stack that raised: by seed, as runs of one seed share batches, or else one by one."""
    seeds: dict[int, list[int]] = {}
    for number in numbers:
        seeds.setdefault(specs[number].seed, []).append(number)
    return list(seeds.values()) if len(seeds) > 1 else [[number] for number in numbers]
