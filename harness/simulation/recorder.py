"""What is written down of one run: its evaluations, its checkpoint, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datasets.client_statistics import count
from datasets.topology import directed_edges, spectral_gap
from harness.metrics import Predictions, by_group, write_predictions
from harness.simulation.build import Setup
from harness.simulation.evaluation import solution
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import PARTS, Checkpoint, split
from harness.storage.environment import machine, versions
from harness.storage.store import RunFolder

# What every claim of this harness takes as public, beside what the data set itself lists.
PUBLIC = (
    "numbers of training samples of the clients",
    "the evaluations printed here, with their counts of bytes and operations",
)

MOST_NUMBERS = 20_000  # of samples held, by client and class or group, that are written down of one run

Progress = Callable[[int, dict[str, Any]], None]


class Journal:
    """One run as it is written down.

    Parameters
    ----------
    setup : Setup
        The run.
    folder : RunFolder, optional
        Where evaluations and checkpoints go; the caller holds its claim. None: nowhere.
    progress : Callable, optional
        Called with the round and the last evaluation after every round.
    predictions : Path, optional
        File for the final predictions.

    Attributes
    ----------
    checkpoint : dict or None
        Where the folder says that the run stands.
    lines, spent : int, float
        Evaluations written, and seconds of computation so far; of a stack, the run's share of them.
    end : dict or Diverged
        What became of it, when it has ended.
    """

    end: dict[str, Any] | Diverged

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder | None = None,
        progress: Progress | None = None,
        predictions: Path | None = None,
    ) -> None:
        self.setup = setup
        found = folder.load() if folder else None
        self.checkpoint: Checkpoint | None = found if found is not None and found.keys() >= PARTS else None
        self.lines: int = self.checkpoint["lines"] if self.checkpoint else 0
        self.spent: float = self.checkpoint["seconds"] if self.checkpoint else 0.0
        self._folder, self._progress, self._predictions = folder, progress, predictions
        self._line: dict[str, Any] = {}
        self._found: Predictions | None = None

    def open(self, setup: Setup) -> None:
        """Begin to write, with the noise settled and the data where the stack has put them."""
        self.setup = setup
        if self._folder:
            read = {"source": setup.federation.source, "digest": setup.federation.digest}
            plugged = {"plugins": plugins} if (plugins := setup.spec.plugins()) else {}
            spec = setup.spec.model_dump(mode="json")
            self._folder.start({"id": setup.id, **read, **plugged, "spec": spec, **_held(setup)})
            self._folder.keep(self.lines)

    def evaluate(self, run: Simulation, number: int) -> bool:
        """Evaluate one run of a simulation and write it down; False if it has diverged."""
        figures, self._found = run.evaluate(number, final=run.round == self.setup.spec.rounds)
        if self._found is not None and figures.get("loss") is None:
            return False
        at = run.snapshot(number)
        parties = {name: each.tolist() for name, each in at.errors.items()}
        self._line = {
            "round": at.round,
            "metrics": figures,
            "bytes_up": at.cost["up"],
            "bytes_down": at.cost["down"],
            "flops": at.cost["flops"],
            "oracle_calls": at.cost["oracle_calls"],
            "privacy": at.privacy,
            **({"diagnostics": dict(at.diagnostics)} if at.diagnostics else {}),
            **({"parties": parties} if parties else {}),
            "timing": {"seconds": self.spent},
        }
        if self.checkpoint is None or at.round > self.checkpoint["round"]:
            self.lines += 1
            if self._folder:
                self._folder.append(self._line)
        return True

    def tell(self, round: int) -> None:
        """Say how far the run is."""
        if self._progress:
            self._progress(round, self._line)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint on disk."""
        if self._folder:
            self._folder.save(checkpoint)

    def finish(self, run: Simulation, number: int) -> None:
        """Write down that one run of a simulation is done."""
        setup, found = self.setup, self._found
        if self._predictions and found is not None:
            write_predictions(found, self._predictions)
        final = {k: v for k, v in self._line.items() if k != "timing"} | {"clients": setup.federation.clients}
        # Of a model that predicts, the parameters are no result; the variables of an outer problem are.
        told = setup.problem.predict is None or setup.problem.kind == "bilevel"
        small = solution(run.snapshot(number).state, personal=setup.privacy is None) if told else None
        final |= {"solution": small} if small else {}
        final |= {"groups": by_group(found)} if found is not None and found.groups else {}
        final |= {"mixing": _mixing(setup.mixing)} if setup.mixing is not None else {}
        final |= {"public": [*setup.federation.public, *_public(setup)]}
        final["timing"] = {"seconds": self.spent, **environment(setup), "stacked": run.num_runs}
        if self._folder:
            self._folder.finish(final)
        self.end = final

    def fail(self, error: Diverged) -> None:
        """Write down that the run has diverged."""
        if self._folder:
            self._folder.fail({"reason": str(error), "round": error.round})
        self.end = error


class PendingCheckpoint:
    """The last whole round of runs side by side, to be saved if it comes to that.

    Parameters
    ----------
    journals : sequence of Journal
        The runs.
    setup, checkpoint : Setup, dict
        The stack and its checkpoint.
    """

    def __init__(self, journals: tuple[Journal, ...], setup: Setup, checkpoint: Checkpoint) -> None:
        self._journals, self._setup, self._checkpoint = journals, setup, checkpoint
        self._written = [{"lines": journal.lines, "seconds": journal.spent} for journal in journals]

    def save(self) -> None:
        """Write the checkpoint of every run into its folder."""
        for number, (journal, written) in enumerate(zip(self._journals, self._written, strict=True)):
            journal.save({**split(self._checkpoint, number, self._setup), **written})


def _held(setup: Setup) -> dict[str, Any]:
    """Say who holds what, for the picture of a report; not of parties, who share samples, nor of too many."""
    if setup.spec.data is None or setup.problem.kind == "vertical":
        return {}
    held = count(setup.federation)
    return {"held": held.packed()} if held.numbers <= MOST_NUMBERS else {}


def _mixing(mixing: Tensor) -> dict[str, float | int]:
    """Say how fast the run's graph averages, and what a message along all its edges is multiplied by."""
    gap = spectral_gap(mixing.cpu())
    return {"lambda": gap.second, "p": gap.p, "directed_edges": directed_edges(mixing)}


def _public(setup: Setup) -> list[str]:
    if setup.privacy is None:
        return []
    secret = (
        setup.privacy.unit == "client" and setup.privacy.sampling == "poisson"
    )  # amplification rests on it
    known = PUBLIC[1:] if setup.privacy.strict else PUBLIC
    if setup.problem.kind == "vertical":
        return [*known, "which people are in which batch"]
    return [*known, *([] if secret else ["who takes part in which round"])]


def environment(setup: Setup) -> dict[str, Any]:
    """Return on what a run was computed; recorded, never hashed."""
    device = next(iter(setup.start.values())).device
    return {
        **versions(),
        **machine(),
        "device": str(device),
        **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        "vectorize": setup.rows.mode,
        "threads": setup.rows.threads,
        **({"noise": "system entropy" if setup.privacy.secure else "seed"} if setup.privacy else {}),
    }
