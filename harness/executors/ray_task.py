"""What a worker of a Ray cluster does. Ray imports this module in the worker before anything else of ours."""

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from harness.core.garbage import first_imports

with first_imports():
    import torch

    from harness.config import plugins
    from harness.config.run import RunSpec
    from harness.core.registry import UserError
    from harness.executors.local import Outcome, run_together
    from harness.simulation.build import Execution
    from harness.storage.store import Store


def work(
    specs: list[RunSpec],
    folder: tuple[str, int | None, str],
    plugged: Sequence[plugins.Plugin],
    execution: Execution,
    retry: bool,
    patience: float,
) -> list[Outcome]:
    """Call `run_together` in a worker of the cluster."""
    path, made, working_directory = folder
    host = socket.gethostname()
    for needed in (path, working_directory):
        if not Path(needed).is_dir():
            raise UserError(f"node {host} has no folder {needed}; all nodes need to see the same files")
    os.chdir(working_directory)  # relative paths of data must have the same meaning
    root = Path(path)
    if Store(root).made != made:
        raise UserError(
            f"node {host} sees another folder at {root}, without the store.json that was written there; the "
            "results folder must be one that all nodes share"
        )
    # Ray cancels tasks by this signal, which processes ignore if the suite runs in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    plugins.restore(plugged)
    return run_together(specs, root, execution, retry=retry, patience=patience)
