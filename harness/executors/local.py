"""Execution of runs in this process, stacked where possible and faster."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets.federation import Federation, standardizes
from harness.config.code import NONE
from harness.config.run import RunSpec
from harness.core.interruption import remembered
from harness.core.registry import UserError
from harness.simulation.build import Execution, data_key, identify, keyed, load_once, prepare, task
from harness.simulation.callbacks import CallbackError, Observe, StopEarly
from harness.simulation.evaluation import test_samples
from harness.simulation.loop import simulate_all
from harness.simulation.recorder import End, Recorder
from harness.simulation.room import fit
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import POOL_BYTES, cut, obstacle, signature, stack_point
from harness.storage.files import Unwritable
from harness.storage.store import Busy, RunFolder, Store

log = logging.getLogger(__name__)


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
        """The reason, and how to repeat a run whose end was on record before; empty without a reason."""
        again = " (recorded earlier; --retry runs it again)" if self.earlier else ""
        return f"{self.reason}{again}" if self.reason else ""


def run_one(
    spec: RunSpec,
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Observe | None = None,
    save: Collection[str] = (),
) -> Outcome:
    """Carry out a run unless it is done already; errors are recorded in its folder."""
    (outcome,) = run_together([spec], root, execution, retry=retry, progress=progress, save=save)
    return outcome


@remembered()
def run_together(
    specs: Sequence[RunSpec],
    root: Path,
    execution: Execution | None = None,
    *,
    retry: bool = False,
    progress: Observe | None = None,
    save: Collection[str] = (),
    patience: float = 0.0,
) -> list[Outcome]:
    """Carry out runs like `run_one`, stacked where possible and faster.

    ``save`` names files of `harness.storage.run_folder.EXTRAS` to write beside the results.

    A folder that cannot be written raises `Unwritable` for all runs and marks none as failed. ``patience`` is the
    number of seconds to wait for a run that another process holds.

    Under ``privacy.secure_rng`` no round that is on record is repeated: with new noise it would be released twice
    and charged once. What asks for that is refused, and files stay as they are.

    What ``progress`` raises is raised, unless it is `StopEarly`; interrupted runs keep their checkpoints.
    """
    outcomes: dict[int, Outcome] = {}
    for numbers in fitting(specs):
        some = [specs[number] for number in numbers]
        try:
            ended = _run_group(*(some, root, execution or Execution()), retry, progress, save, patience)
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
    own = [
        load_once(spec.data, task(spec))
        for spec in specs
        if spec.data and spec.partition and spec.partition.standardize
    ]
    largest = max((data.x.nbytes for data in own if standardizes(data)), default=0)
    most = max(1, POOL_BYTES // largest) if largest else len(specs)
    groups = list(seeds.values())
    return [sorted(chain(*groups[first : first + most])) for first in range(0, len(groups), most)]


def _run_group(
    specs: Sequence[RunSpec],
    root: Path,
    execution: Execution,
    retry: bool,
    progress: Observe | None,
    save: Collection[str],
    patience: float,
) -> list[Outcome]:
    """Carry out runs whose samples fit into memory together; see `run_together`."""
    store = Store(root).open()
    ids = [identify(spec) for spec in specs]
    folders = [store.folder(id) for id in ids]
    outcomes: dict[int, Outcome] = {}
    ready: dict[int, Recorder] = {}
    federations: dict[str, Federation] = {}

    def recorder(number: int) -> Recorder:
        spec, folder = specs[number], folders[number]
        observe = partial(progress, spec) if progress else None
        setup = prepare(spec, execution, federations)
        earlier = folder.code or NONE  # of the noise on record, which is repeated or continued
        if folder.status == "done":
            wanted = {name: folder.path / name for name in lacking(folder)}
            again = keyed(setup, earlier) if setup.code else setup
            return Recorder(again, None, observe, wanted, finished=folder)
        made = Recorder(setup, folder, observe, {name: folder.path / name for name in save})
        if made.checkpoint is not None and setup.code not in ("", earlier):
            log.warning(
                "%s began with other code: it goes on with the noise of code %s", folder.path, earlier
            )
            made.setup = keyed(setup, earlier)
        return made

    def lacking(folder: RunFolder) -> list[str]:
        return [name for name in save if not folder.has(name)]

    def failed(number: int, error: Exception) -> Outcome:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "  # such messages say all
        reason = kind + " ".join(str(error).split())
        how = {"execution": _how(execution), "traceback": traceback.format_exc()}
        folders[number].fail({"reason": reason, "timing": how})
        return Outcome(ids[number], "failed", reason)

    def refused(numbers: Sequence[int], error: UserError) -> None:
        outcomes.update((number, failed(number, error)) for number in numbers)

    def carry_out(numbers: Sequence[int]) -> None:
        left: list[int] = []
        try:
            simulate_all([ready[number] for number in numbers])
        except (Unwritable, CallbackError):
            raise
        except Exception as error:
            left = [number for number in numbers if ready[number].end is None]
            if not left:
                log.warning("after the end of %d runs: %s", len(numbers), error)
            elif len(numbers) == 1:
                outcomes.update((number, failed(number, error)) for number in left)
                left = []
            else:
                how = "unstacked" if len(_apart(left, specs)) == len(left) else "seed by seed"
                log.info("%d runs continue %s from their checkpoints: %s", len(left), how, error)
        for number in numbers:
            if (end := ready[number].end) is not None:
                outcomes[number] = _outcome(ids[number], end)
        for some in _apart(left, specs):
            ready.update((number, recorder(number)) for number in some)
            for stack in _stacks({number: ready[number] for number in some}, execution, refused):
                carry_out(stack)

    with ExitStack() as claims:
        for number, folder in enumerate(folders):
            try:
                claims.enter_context(folder.claim(patience))
            except Busy:
                outcomes[number] = Outcome(ids[number], "running")
                continue
            status, reason, end = folder.read()
            _refuse_other_noise(execution.noise_code, specs[number], folder, status)
            again = retry or end.get("timing", {}).get("execution", _how(execution)) != _how(execution)
            spent = _spent(specs[number], folder)
            if status == "done" and not lacking(folder):
                outcomes[number] = Outcome(ids[number], "done")
            elif status == "done" and spent:
                options = " ".join(f"--save-{Path(name).stem}" for name in lacking(folder))
                raise UserError(f"{options}: {folder.path} is finished and has none. {spent}")
            elif status in ("failed", "stopped") and not (again and not spent):
                why = f"{reason}. {spent}" if again else reason
                outcomes[number] = Outcome(ids[number], status, why, earlier=not spent)
            elif status == "damaged" and spent:
                outcomes[number] = Outcome(ids[number], status, f"{reason}. {spent}")
            else:
                if status == "damaged":
                    log.warning("%s is damaged and begins again: %s", folder.path, reason)
                    folder.set_aside()
                folder.retry()
                try:
                    made = recorder(number)
                    if spent and made.checkpoint is None:
                        outcomes[number] = Outcome(ids[number], "damaged", f"it has no checkpoint. {spent}")
                    else:
                        ready[number] = made
                except Unwritable:
                    raise
                except Exception as error:
                    outcomes[number] = failed(number, error)
        try:
            for numbers in _stacks(ready, execution, refused):
                carry_out(numbers)
        finally:  # free the samples before the next runs: carry_out refers to itself, so what it refers to stays
            test_samples.cache_clear()
            ready.clear()
            federations.clear()
    return [outcomes[number] for number in range(len(specs))]


def _how(execution: Execution) -> dict[str, Any]:
    """Return how runs are computed, as far as one that failed may not fail otherwise."""
    return {"device": execution.device, "threads": execution.threads, "vectorize": execution.vectorize}


def _outcome(id: str, end: End) -> Outcome:
    """Return the outcome of a run whose end is on record."""
    if isinstance(end, Diverged):
        return Outcome(id, "failed", str(end))
    return Outcome(id, "stopped", str(end)) if isinstance(end, StopEarly) else Outcome(id, "done")


def _refuse_other_noise(wanted: str | None, spec: RunSpec, folder: RunFolder, status: str) -> None:
    """Raise UserError if the noise of some code is asked for, and a run that does not begin anew has another."""
    earlier = folder.code or NONE
    if spec.privacy is not None and wanted not in (None, earlier) and status in ("done", "interrupted"):
        raise UserError(
            f"noise-code: {folder.path} is {status} and has the noise of code {earlier}, given {wanted}; use "
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


def _apart(numbers: Sequence[int], specs: Sequence[RunSpec]) -> list[list[int]]:
    """Part the runs of a stack that raised: by seed, as runs of one seed share batches, or else one by one."""
    seeds: dict[int, list[int]] = {}
    for number in numbers:
        seeds.setdefault(specs[number].seed, []).append(number)
    return list(seeds.values()) if len(seeds) > 1 else [[number] for number in numbers]


def _stacks(
    ready: Mapping[int, Recorder], execution: Execution, refused: Callable[[Sequence[int], UserError], None]
) -> list[list[int]]:
    """Group runs into stacks that fit into memory; runs that cannot be stacked are alone.

    Those of which not even one fits are ``refused``.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, recorder in ready.items():
        why = obstacle(recorder.setup)
        if why is not None and len(ready) > 1:
            log.info("%s runs alone: %s", recorder.setup.id, why)
        key = number if why is not None else (signature(recorder.setup), stack_point(recorder.checkpoint))
        groups.setdefault(key, []).append(number)
    stacks = []
    for group in groups.values():
        try:
            found = fit(ready[group[0]].setup, execution, len(group))
        except UserError as error:
            refused(group, error)
            continue
        if found.setup.in_parts:
            log.warning("%s: %s", found.setup.id, found)
            for number in group:
                ready[number].setup = replace(ready[number].setup, in_parts=True)
        pieces = cut([ready[number].setup for number in group], execution.stack, found.most)
        stacks += [[group[place] for place in piece] for piece in pieces]
    return stacks
