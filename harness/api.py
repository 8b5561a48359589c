"""The public Python interface: ``import harness``, then ``harness.run``, ``harness.load_results`` and so on.

These names are stable; all other names in the packages may change between versions.
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
from harness.config.run import RunSpec, read_spec
from harness.config.yaml import read_yaml
from harness.core.registry import UserError
from harness.executors.scheduler import run_one
from harness.report import tidy
from harness.simulation import build
from harness.simulation.build import Execution, Setup
from harness.simulation.calibration import calibrated
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
    """Run one benchmark like ``python -m harness run``, unless it is done already.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        A validated spec, the fields of a run file, or the path of one.
    out : str or Path
        Results folder.
    execution : Execution, optional
        Execution options, which do not affect the result.
    retry : bool
        Repeat a failed run; not under ``privacy.secure_rng``, where repeated rounds spend their budget again.
    save_predictions : bool
        Write ``predictions.csv`` beside the results.
    progress : Callable, optional
        Called at the start (round 0) and after every round, with the round and the last evaluation.

    Returns
    -------
    RunRecord
        ``status`` is ``done``, ``failed`` (for example diverged, see ``reason``), ``running`` (in another process)
        or ``damaged`` (under ``privacy.secure_rng``, where it is not repeated). ``rounds`` holds the evaluations,
        ``final`` the content of ``done.json``.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid or its parts are incompatible, or predictions are asked of a finished run whose
        noise cannot be drawn again; then nothing has been written.
    """
    checked = _checked(spec)
    execution, root = execution or Execution(), Path(out)
    before = torch.get_num_threads()
    torch.set_num_threads(execution.threads)  # like the command: the number of threads affects rounding
    try:
        calibrated(build.prepare(checked, execution))
        observe = (lambda _, round, line: progress(round, line)) if progress else None
        outcome = run_one(
            checked, root, execution, retry=retry, progress=observe, save_predictions=save_predictions
        )
    finally:
        torch.set_num_threads(before)
    return Store(root).record(outcome.id, checked.model_dump(mode="json"))


def prepare(spec: RunSpec | Mapping[str, Any] | str | Path, *, execution: Execution | None = None) -> Setup:
    """Prepare a run with the noise that its budget requires, without running it.

    `Simulation` takes its ``problem``, ``federation`` and ``algorithm``; `Simulation.from_setup` takes all of it.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        A validated spec, the fields of a run file, or the path of one.
    execution : Execution, optional
        Execution options.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid or its parts are incompatible.
    """
    return calibrated(build.prepare(_checked(spec), execution))


def _checked(spec: RunSpec | Mapping[str, Any] | str | Path) -> RunSpec:
    """Read and validate a spec."""
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
        If the folder does not exist or holds no runs.
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
        Only this suite's runs, with the report settings of its file as defaults.
    by : str, optional
        Measure to rank by: a metric, bytes, flops, seconds or epsilon. Default: accuracy.
    baseline : str, optional
        Algorithm to compare with, paired by seed.
    target : Mapping, optional
        A measure and the value to reach, such as ``{"accuracy": 0.8}``.
    """
    plugins.load()
    store = Store(Path(folder))
    results = report.Results(store.some_records(suite))
    options: dict[str, Any] = {"by": by, "baseline": baseline, "target": read_target(target)}
    stored = read_stored(store.report_settings(suite)) if suite else ReportSpec()
    spec = replace(stored, **{name: value for name, value in options.items() if value is not None})
    spec = results.ranked(spec)
    return report.leaderboard(results, spec.by, spec.baseline, spec.target)


def load_plugin(path: str | Path) -> None:
    """Load a file that registers algorithms, models, codecs, metrics, data sets or partitions, as ``--plugin``.

    Raises
    ------
    UserError
        If it cannot be read, raises, registers nothing, takes an existing name or has changed since.
    """
    plugins.load([path])
