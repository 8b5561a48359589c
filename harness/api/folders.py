"""Functions that look after results folders."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config import plugins
from harness.config.recorded import misnamed, results_folder
from harness.config.report import report_settings
from harness.core.errors import UserError
from harness.executors.local import torch_threads
from harness.executors.replay import Replay, chosen, replay
from harness.executors.suites import carry_on
from harness.executors.work import Work
from harness.report.data import export as exporting
from harness.report.folder import report_folder
from harness.simulation.status import overview
from harness.storage import merge as merging
from harness.storage import verification
from harness.storage.archive import open_results, write_archive
from harness.storage.manifest import Portable
from harness.storage.merge import Merged
from harness.storage.verification import Verdict


def status(folder: str | Path, suite: str | None = None) -> pd.DataFrame:
    """Return the progress of the runs of a folder, like ``python -m harness status``.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs.

    Returns
    -------
    DataFrame
        One row for each run: ``status``, ``round``, ``of`` and more.

    Raises
    ------
    UserError
        If there is no such folder or suite.
    """
    if not Path(folder).exists():
        raise UserError(f"no results folder {folder}")
    rows = list(overview(results_folder(Path(folder)), suite))
    if suite and not rows:
        raise results_folder(Path(folder)).none(suite)
    return pd.DataFrame(rows)


def resume(folder: str | Path, suite: str | None = None, **options: Any) -> Counter[str]:
    """Finish interrupted and missing runs of a folder, like ``python -m harness resume``, and renew the reports.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs.
    **options
        ``jobs``, ``executor``, ``address``, ``execution`` and ``callbacks``, as in `harness.suite`.

    Returns
    -------
    Counter
        How many runs ended in which way; ``skipped`` are those that cannot be made again here.

    Raises
    ------
    UserError
        If there is no such folder or suite.
    """
    plugins.load()
    work = Work(Path(folder), **options)
    with torch_threads(work.execution.threads):
        ends, suites = carry_on(work, suite)
    store = results_folder(Path(folder))
    for name in suites:
        report_folder(store, name, report_settings(store, name))
    return ends


def retry(folder: str | Path, suite: str | None = None, **options: Any) -> Counter[str]:
    """Repeat failed and stopped runs of a folder, like ``python -m harness retry``; as `resume` otherwise."""
    return resume(folder, suite, retry=True, **options)


@dataclass(frozen=True)
class Verification:
    """Result of verifying a folder or an archive.

    Attributes
    ----------
    files : tuple of Verdict
        One for each run and suite: ``place``, ``state`` and ``faults``.
    replays : tuple of Replay
        One for each run that was repeated.
    """

    files: tuple[Verdict, ...]
    replays: tuple[Replay, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged, and no repeated run differs."""
        return all(verdict.state != "damaged" for verdict in self.files) and all(
            repeated.state != "different" for repeated in self.replays
        )


def verify(
    folder: str | Path,
    *,
    sample: int = 0,
    seed: int | None = None,
    tolerance: float = 0.0,
    device: str = "cpu",
) -> Verification:
    """Compare a folder or an archive with its checksums, and repeat runs, like ``python -m harness verify``.

    Parameters
    ----------
    folder : str or Path
        Results folder, or an archive of one.
    sample : int
        How many finished runs are repeated.
    seed : int, optional
        What draws them; drawn in secret by default.
    tolerance : float
        The largest difference of a repeated run that is accepted.
    device : str
        Where runs are repeated.

    Raises
    ------
    UserError
        If there is no such folder.
    """
    plugins.load()
    with open_results(Path(folder)) as root:
        store = results_folder(root)
        files = tuple(verification.verify(store))
        done = [run.path.name for run in store.run_folders() if run.status == "done"] if sample else []
        drawn = chosen(done, sample, secrets.randbits(32) if seed is None else seed)
        return Verification(files, tuple(replay(store, id, tolerance, device) for id in drawn))


def merge(folders: Sequence[str | Path], out: str | Path) -> Merged:
    """Copy the runs and suites of folders into one, like ``python -m harness merge``.

    Parameters
    ----------
    folders : sequence of str or Path
        Results folders, which are only read.
    out : str or Path
        The folder that receives them.

    Returns
    -------
    Merged
        How many runs were copied and were there already, and why others were left.

    Raises
    ------
    UserError
        If suites of one name do not go together.
    """
    return merging.merge([Path(folder) for folder in folders], Path(out), misnamed)


def archive(folder: str | Path, file: str | Path) -> Portable:
    """Pack the results of a folder into one file, like ``python -m harness archive``.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    file : str or Path
        The archive, ``NAME.tar.gz``.

    Returns
    -------
    Portable
        The runs that were packed, and how many were left out.

    Raises
    ------
    UserError
        If the file has another ending, or there is no such folder.
    """
    return write_archive(results_folder(Path(folder)), Path(file))


def export(
    folder: str | Path,
    suite: str | None = None,
    *,
    csv: str | Path | None = None,
    parquet: str | Path | None = None,
    clients: str | Path | None = None,
    tensorboard: str | Path | None = None,
) -> None:
    """Write every evaluation of a folder for other tools, like ``python -m harness export``.

    Parameters
    ----------
    folder : str or Path
        Results folder.
    suite : str, optional
        Only this suite's runs.
    csv, parquet : str or Path, optional
        Files with a row for each evaluation, as `harness.load_results` returns them.
    clients : str or Path, optional
        A CSV file with a row for each finished run and client with a name.
    tensorboard : str or Path, optional
        A folder of TensorBoard events.

    Raises
    ------
    UserError
        If the folder holds no runs, or no run has clients with names.
    """
    records = results_folder(Path(folder)).some_records(suite)
    paths = {"csv": csv, "parquet": parquet, "clients": clients, "tensorboard": tensorboard}
    for _ in exporting.export(
        records, **{name: None if path is None else Path(path) for name, path in paths.items()}
    ):
        pass
