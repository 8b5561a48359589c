"""What Python code may use: ``import harness``, then ``harness.run``, ``harness.load_results`` and the others.

The names here are kept; whatever else lies in the packages may change from version to version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from harness import report
from harness.config import plugins
from harness.config.report import ReportSpec, read_stored, read_target
from harness.config.run import RunSpec, read_spec, read_yaml
from harness.core.registry import UserError
from harness.executors.scheduler import run_one
from harness.report import tidy
from harness.simulation import build
from harness.simulation.build import Execution, Setup
from harness.simulation.calibration import settled
from harness.simulation.simulation import Simulation
from harness.storage.store import RunRecord, Store

__all__ = [
    "Execution",
    "RunRecord",
    "RunSpec",
    "Setup",
    "Simulation",
    "UserError",
    "leaderboard",
    "load_plugin",
    "load_results",
    "prepare",
    "run",
]


def run(
    spec: RunSpec | Mapping[str, Any] | str | Path,
    out: str | Path = "results",
    *,
    execution: Execution | None = None,
    retry: bool = False,
    save_predictions: bool = False,
    progress: Callable[[int, dict[str, Any]], None] | None = None,
) -> RunRecord:
    """Run one benchmark as ``python -m harness run`` does, unless it has been run already.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        What to run: checked already, as the fields of a run file, or the run file.
    out : str or Path
        Results folder.
    execution : Execution, optional
        Device, threads, vectorization; none of them shows in the result.
    retry : bool
        Run it again if it has failed before.
    save_predictions : bool
        Write ``predictions.csv`` beside the results.
    progress : Callable, optional
        Called at the start (0) and after every round, with its number and the last evaluation.

    Returns
    -------
    RunRecord
        Look at its ``status``: ``done``, ``failed`` (a run that diverges is a result too; ``reason`` says why)
        or ``running`` (another process has it). ``rounds`` holds the evaluations, ``final`` the end.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid, or its parts do not go together; then nothing has been written.
    """
    checked = _checked(spec)
    execution, root = execution or Execution(), Path(out)
    before = torch.get_num_threads()
    torch.set_num_threads(execution.threads)  # as the command does: sums are rounded by how they are cut up
    try:
        settled(build.prepare(checked, execution))
        told = (lambda _, round, line: progress(round, line)) if progress else None
        outcome = run_one(
            checked, root, execution, retry=retry, progress=told, save_predictions=save_predictions
        )
    finally:
        torch.set_num_threads(before)
    return Store(root).record(outcome.id, checked.model_dump(mode="json"))


def prepare(spec: RunSpec | Mapping[str, Any] | str | Path, *, execution: Execution | None = None) -> Setup:
    """Load and build what a run needs, with the noise that its budget asks for; run nothing.

    Its ``problem``, ``federation`` and ``algorithm`` are what `Simulation` takes. `Simulation.from_setup` takes all
    of it.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        The run: checked already, as the fields of a run file, or the run file.
    execution : Execution, optional
        Device and the like.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid, or its parts do not go together.
    """
    return settled(build.prepare(_checked(spec), execution))


def _checked(spec: RunSpec | Mapping[str, Any] | str | Path) -> RunSpec:
    """Return a checked spec."""
    plugins.load()
    if isinstance(spec, str | Path):
        spec = read_yaml(Path(spec))
    return spec if isinstance(spec, RunSpec) else read_spec(spec)


def load_results(folder: str | Path, suite: str | None = None) -> pd.DataFrame:
    """Return the results in a folder as one tidy table, see `harness.report.data.tidy`.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs.

    Raises
    ------
    UserError
        If there is no such folder, or no run in it.
    """
    return tidy(Store(Path(folder)).some_records(suite))


def leaderboard(
    folder: str | Path,
    suite: str | None = None,
    *,
    by: str | None = None,
    baseline: str | None = None,
    target: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Return the leaderboard of a folder, one row per cell, see `harness.report.data.leaderboard`.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs; what is not given below is then as its file wants it.
    by : str, optional
        What ranks: a metric, bytes, flops, seconds, epsilon; accuracy unless the suite says otherwise.
    baseline : str, optional
        Algorithm to take paired differences to.
    target : Mapping, optional
        A measure and the value that is good enough, as ``{"accuracy": 0.8}``.
    """
    plugins.load()
    store = Store(Path(folder))
    records = store.some_records(suite)
    asked: dict[str, Any] = {"by": by, "baseline": baseline, "target": read_target(target)}
    stored = read_stored(store.report_settings(suite)) if suite else ReportSpec()
    spec = replace(stored, **{name: value for name, value in asked.items() if value is not None})
    return report.leaderboard(records, spec.by, spec.baseline, spec.target)


def load_plugin(path: str | Path) -> None:
    """Load a file that registers algorithms, metrics, data sets or partitions, as ``--plugin`` does.

    Raises
    ------
    UserError
        If it cannot be read, raises, registers nothing, takes a name that there is, or has changed since.
    """
    plugins.load([path])
