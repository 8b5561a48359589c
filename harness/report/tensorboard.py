"""Runs in TensorBoard, as they end; for other tools write a `Callback` (docs/examples/trackers.py)."""

from __future__ import annotations

from pathlib import Path

from harness.report.data.export import write_tensorboard
from harness.simulation.callbacks import Callback
from harness.storage.store import RunRecord


class TensorBoard(Callback):
    """Callback that writes every run that ends to event files.

    A run that is written again replaces the first.

    Parameters
    ----------
    folder : str or Path
        Folder of the event files, see `write_tensorboard`.

    Raises
    ------
    UserError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        write_tensorboard((), self._folder)  # refuses if it is not installed

    def on_run_end(self, record: RunRecord) -> None:
        """Write the event files of the run."""
        write_tensorboard([record], self._folder)
