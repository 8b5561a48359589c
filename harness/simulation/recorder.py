"""Recording of a run: its evaluations, its checkpoint and its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from datasets.counting import count
from datasets.topology import directed_edges, spectral_gap
from harness.config.code import NO_CODE, code_of
from harness.config.recorded import versions as versions_of
from harness.config.run import RunSpec
from harness.core.clients.row_table import RowTable
from harness.metrics import Predictions, by_client, by_group, write_predictions
from harness.simulation.callbacks import CallbackError, StopEarly
from harness.simulation.evaluation import solution
from harness.simulation.saved_model import save_model
from harness.simulation.setup import Prepared, Setup
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Failure
from harness.simulation.stacking import FIELDS, Checkpoint, split
from harness.simulation.statement import not_covered, public_information
from harness.storage.environment import machine, versions
from harness.storage.files import Unwritable
from harness.storage.outcomes import REPEATED
from harness.storage.run_files import MODEL, PREDICTIONS
from harness.storage.store import RunFolder

log = logging.getLogger(__name__)

MAX_COUNTS = 20_000  # sample counts by client and class or group that are recorded per run
MOST_NAMED = 1_000  # clients with names up to which each has its results recorded

Progress = Callable[[int, dict[str, Any]], None]
End = dict[str, Any] | Failure | StopEarly


class Recorder:
    """Writer of one run's evaluations, checkpoints and end.

    Parameters
    ----------
    setup : Prepared
        The run.
    folder : RunFolder, optional
        Destination; the caller holds its claim. None: nothing is written.
    progress : Callable, optional
        Called with the round and the last evaluation after every round.
    save : Mapping[str, Path]
        Files to write at the end, by their names in `harness.storage.run_folder.EXTRAS`.
    finished : RunFolder, optional
        A finished run, repeated for such files; nothing else is written.

    Attributes
    ----------
    setup : Prepared
        The run.
    checkpoint : dict or None
        Checkpoint of the folder.
    lines, spent : int, float
        Evaluations written, and seconds of computation so far; in a stack, the run's share of them.
    end : dict, Failure, StopEarly or None
        Content of ``done.json``, or why there is none, once that is on record; None before.
    """

    def __init__(
        self,
        setup: Prepared,
        folder: RunFolder | None = None,
        progress: Progress | None = None,
        save: Mapping[str, Path] = MappingProxyType({}),
        finished: RunFolder | None = None,
    ) -> None:
        self.setup = setup
        saved = _unpacked(folder.load()) if folder else None
        self.checkpoint: Checkpoint | None = saved if saved is not None and saved.keys() >= FIELDS else None
        self.lines: int = self.checkpoint["lines"] if self.checkpoint else 0
        self.spent: float = self.checkpoint["seconds"] if self.checkpoint else 0.0
        self._folder, self._progress, self._save = folder, progress, save
        self._finished = finished
        self.end: End | None = None
        self._stopped: StopEarly | None = None
        self._attacks: dict[str, Any] = {}
        self._line: dict[str, Any] = {}
        self._last: Predictions | None = None

    def of(self, setup: Prepared) -> Recorder:
        """Return the recorder of the run as prepared otherwise: with other noise, or its cohort in chunks."""
        recorder = copy(self)
        recorder.setup = setup
        return recorder

    def open(self, setup: Setup, expected: Callable[[int], dict[str, int]] | None = None) -> None:
        """Start the folder of a run.

        Parameters
        ----------
        setup : Setup
            With calibrated noise and possibly the data pool of a stack.
        expected : Callable, optional
            The costs to record after a round, instead of the actual ones, which would tell about messages before
            their noise, and who is in a secret cohort.
        """
        self._setup, self._expected = setup, expected
        if self._folder:
            data = {"source": setup.federation.source, "digest": setup.federation.digest}
            spec, meta = setup.spec.model_dump(mode="json"), setup.algorithm.meta
            self._folder.evaluations.keep(self.lines)
            self._folder.start(
                {
                    **{
                        "id": setup.id,
                        **data,
                        "versions": versions_of(spec, setup.problem.frozen),
                        "spec": spec,
                    },
                    **({"code": setup.code} if setup.code not in ("", NO_CODE) else {}),
                    "meta": {"family": meta.family, "pooled": meta.pooled},
                    **_held(setup),
                    **_tested(setup),
                }
            )

    def evaluate(self, run: Simulation, number: int) -> bool:
        """Evaluate one run of a simulation and record the result; return False if the run has diverged."""
        last = run.round == self._setup.spec.rounds
        metrics, self._last = run.evaluate(number, final=last)
        # Problems that rank have only a training loss, which a private run may not write.
        loss_expected = self._last is not None and (self._last.loss is not None or run.unprotected == "all")
        if (
            loss_expected
            and metrics.get("loss") is None
            and not (run.rows_private and run.keeps_models(number))
        ):
            return False
        if last and self._setup.spec.attacks is not None:
            from harness.simulation.attacks.measure import attacked  # imports parts of scipy that are slow

            values, self._attacks = attacked(self._setup, run, number)
            metrics |= values
        at = run.snapshot(number)
        cost = at.cost if self._expected is None else self._expected(at.round)
        parties = {name: _numbers(each) for name, each in at.errors.items()}
        self._line = {
            "round": at.round,
            "metrics": metrics,
            "bytes_up": cost["up"],
            "bytes_down": cost["down"],
            "flops": cost["flops"],
            "oracle_calls": cost["oracle_calls"],
            "privacy": at.privacy,
            **({"diagnostics": dict(at.diagnostics)} if at.diagnostics else {}),
            **({"parties": parties} if parties else {}),
            "timing": self._seconds(last),
        }
        if self.lines < _evaluations(at.round, self._setup.spec):  # a resumed run may have recorded it
            self.lines += 1
            if self._folder:
                self._folder.evaluations.append(self._line)
        return True

    @property
    def _secret(self) -> bool:
        return self._setup.privacy is not None and self._setup.privacy.secret_cohorts

    def _seconds(self, last: bool) -> dict[str, float]:
        """Return how long the run took so far, except where that tells too much about a secret cohort.

        Times of single rounds tell who is in it, and their sum still tells a little, so strict leaves it out too.
        """
        strict = self._setup.privacy is not None and self._setup.privacy.spec.strict
        return {} if self._secret and (strict or not last) else {"seconds": self.spent}

    def report(self, round: int) -> bool:
        """Call the progress function; return False if it stops the run.

        Raises
        ------
        CallbackError
            If it raises anything else.
        """
        if self._progress:
            try:
                self._progress(round, self._line)
            except StopEarly as error:
                self._stopped = error
                return False
            except Exception as error:
                raise CallbackError(str(error)) from error
        return True

    @property
    def written(self) -> Checkpoint:
        """Entries of a checkpoint about the evaluations so far."""
        digest = {"digest": self._folder.evaluations.digest} if self._folder else {}
        return {"lines": self.lines, "seconds": self.spent, **digest}

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint on disk."""
        if self._folder:
            self._folder.save(tree_map_only(RowTable, RowTable.packed, checkpoint))

    def finish(self, run: Simulation, number: int) -> None:
        """Record the end of one run of a simulation."""
        setup, predictions = self._setup, self._last
        self._write_extras(run, number)
        final = {k: v for k, v in self._line.items() if k != "timing"} | {"clients": setup.federation.clients}
        # Parameters of a predictor are no result, but the variables of an outer problem are.
        if setup.problem.predict is None or setup.problem.kind == "bilevel":
            small = solution(run.snapshot(number).state, personal=setup.privacy is None)
            final |= {"solution": small} if small else {}
        final |= {"groups": by_group(predictions)} if predictions is not None and predictions.groups else {}
        final |= _by_client(setup, predictions, self._secret and run.keeps_models(number))
        final |= {"mixing": _mixing(setup.mixing)} if setup.mixing is not None else {}
        final |= {"attacks": self._attacks} if self._attacks else {}
        if setup.code and setup.code != (here := code_of(setup.spec.model_dump(mode="json"))):
            final["privacy"] = final["privacy"] | {
                REPEATED: f"that of code {setup.code}, repeated by code {here}"
            }
        final |= {"events": events} if (events := run.released(number)) is not None else {}
        final |= {"public": public_information(setup)}
        if setup.privacy is not None:  # what the claim does not cover comes before it
            claims = {"not_covered": not_covered(setup, keeps_models=run.keeps_models(number))}
            final = claims | final
        # How runs are stacked depends on counts of samples, and could depend on who is in a secret cohort.
        hidden = self._secret or (setup.privacy is not None and setup.privacy.counts_private)
        beside = {} if hidden else {"stacked": len(run.each)}
        final["timing"] = {**self._seconds(last=True), **environment(setup), **beside}
        if self._folder:
            self._folder.finish(final)
        self.end = final

    def _write_extras(self, run: Simulation, number: int) -> None:
        """Write the files that were asked for."""
        written = []
        if self._save and self._finished:
            self._compare(self._finished.end())
        if PREDICTIONS in self._save and self._last is not None:
            write_predictions(self._last, self._save[PREDICTIONS], self._setup.federation.names)
            written.append(PREDICTIONS)
        if MODEL in self._save:
            save_model(self._setup, run, number, self._line, self._save[MODEL])
            written.append(MODEL)
        if self._finished and written:
            self._finished.seal(*written)

    def _compare(self, recorded: Mapping[str, Any]) -> None:
        """Refuse predictions from which other values would follow than those recorded."""
        now, then = self._line["metrics"], recorded["metrics"]
        differing = [name for name in then if then[name] != now.get(name)]
        if differing:
            shown = ", ".join(f"{name} {now.get(name)} instead of {then[name]}" for name in differing[:2])
            raise Unwritable(
                f"{' and '.join(map(str, self._save.values()))} is not written: repeated, the run ends with "
                f"{shown}. It was recorded on another machine or by another way to compute; remove its folder and "
                "run it again with what is to be saved"
            )

    def fail(self, error: Failure) -> None:
        """Record that the run has failed."""
        if self._folder:
            self._folder.fail({"reason": str(error), "round": error.round})
        self.end = error

    def stop(self, round: int) -> None:
        """Record that the run was stopped after a round."""
        assert self._stopped is not None
        why = str(self._stopped)
        if self._folder:
            reason = f"stopped early in round {round}{why and ': '}{why}"
            self._folder.fail({"status": "stopped", "reason": reason, "round": round})
        self.end = self._stopped


class PendingCheckpoint:
    """The last complete round of a run or a stack, saved when a checkpoint is due or an error ends the rounds.

    Parameters
    ----------
    recorders : sequence of Recorder
        Recorders of the single runs.
    setup, checkpoint : Setup, dict
        The run or stack and its checkpoint.
    """

    def __init__(self, recorders: tuple[Recorder, ...], setup: Setup, checkpoint: Checkpoint) -> None:
        self._recorders, self._setup, self._checkpoint = recorders, setup, checkpoint
        self._written = [recorder.written for recorder in recorders]

    def save(self) -> None:
        """Write the checkpoint of every run that has not ended into its folder."""
        for number, (recorder, written) in enumerate(zip(self._recorders, self._written, strict=True)):
            if recorder.end is None:
                recorder.save({**split(self._checkpoint, number, self._setup), **written})

    def rescue(self) -> None:
        """Save after an error, which a second one must not hide. Before the first round nothing is lost."""
        if not self._checkpoint.get("round"):
            return
        try:
            self.save()
        except Exception as error:
            log.warning("the last round is not saved, and runs continue from earlier ones: %s", error)


def _unpacked(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint with the tables of clients' rows, which a file holds as plain values."""
    if checkpoint is None:
        return None
    kept = {name: checkpoint[name].items() for name in ("state", "channel") if name in checkpoint}
    return checkpoint | {
        name: {key: RowTable.unpacked(field) if isinstance(field, dict) else field for key, field in pairs}
        for name, pairs in kept.items()
    }


def _evaluations(round: int, spec: RunSpec) -> int:
    """Return the number of evaluations up to a round, with those of round 0 and of the last."""
    return 1 + -(-round // spec.eval_every) if round == spec.rounds else 1 + round // spec.eval_every


def _numbers(values: Tensor) -> list[float | None]:
    """Return a list for JSON, which has no infinity."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _held(setup: Setup) -> dict[str, Any]:
    """Return the sample counts of clients; nothing under privacy, for parties, or for too many counts."""
    if setup.spec.data is None or setup.problem.kind == "vertical" or setup.privacy is not None:
        return {}
    held = count(setup.federation)
    return {"held": held.packed()} if held.numbers <= MAX_COUNTS else {}


def _tested(setup: Setup) -> dict[str, Any]:
    """Return the number of test samples, what tells them from others, and which of two classes is the positive one.

    With them the accuracy of always predicting their most frequent class. Strict privacy tells neither that nor a
    digest, which depends on which samples are of one user.
    """
    federation, strict = setup.federation, setup.privacy is not None and setup.privacy.spec.strict
    if setup.spec.data is None or "test" not in federation.splits:
        return {}
    index = federation.splits["test"][:1] if setup.problem.kind == "vertical" else federation.splits["test"]
    digest = {} if strict or not federation.tested else {"digest": federation.tested}
    positive = {"positive": federation.classes[1]} if len(federation.classes) == 2 else {}
    share = None if strict else federation.constant_accuracy("test")
    constant = {} if share is None else {"constant": share}
    return {"tested": {"samples": int((index >= 0).sum()), **digest, **positive, **constant}}


def _by_client(setup: Setup, predictions: Predictions | None, secret_parts: bool) -> dict[str, Any]:
    """Return the results of clients that have names, on test data, which are public in every claim.

    Strict privacy tells none. Nor does a run with a secret cohort whose clients keep parts of their models
    (``secret_parts``): a part that was never trained would tell who never took part.
    """
    names, privacy = setup.federation.names, setup.privacy
    strict = privacy is not None and privacy.spec.strict
    if predictions is None or not names or len(names) > MOST_NAMED or strict or secret_parts:
        return {}
    return {"by_client": by_client(predictions, names)}


def _mixing(mixing: Tensor) -> dict[str, float | int]:
    """Return how fast the run's graph averages, and its number of directed edges."""
    gap = spectral_gap(mixing.cpu())
    return {"lambda": gap.second, "p": gap.p, "directed_edges": directed_edges(mixing)}


def environment(setup: Setup) -> dict[str, Any]:
    """Return versions, hardware and execution options of a run; recorded, never hashed."""
    device = next(iter(setup.start.values())).device
    return {
        **versions(),
        **machine(),
        "device": str(device),
        **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        "vectorize": setup.executor.mode,
        "threads": setup.executor.threads,
        **({} if setup.privacy is None else {"diagnostics": setup.diagnostics}),
    }
