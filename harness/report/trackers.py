"""Experiment trackers: every run that ends is written to TensorBoard, MLflow, Weights & Biases or Aim.

One `Tracker` writes finished records, so that it works with every executor; the tools differ in a `Sink` each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness.core.registry import UserError, unknown
from harness.report.data.export import figures_of, write_tensorboard
from harness.report.data.tidy import flat_spec
from harness.simulation.callbacks import Callback
from harness.storage.store import RunRecord

LONGEST = 250  # characters of a parameter, as trackers bound them
TAG = "fedfrontier.id"


class Sink(Protocol):
    """A tool that experiments are written to."""

    def write(self, record: RunRecord, settings: Mapping[str, str], name: str) -> None:
        """Write a run, in place of what the tool has of it."""


class Tracker(Callback):
    """Write every run that ends to a tool.

    Parameters
    ----------
    sink : Sink
        The tool.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def on_run_end(self, record: RunRecord) -> None:
        """Write the run."""
        settings = {name: str(value)[:LONGEST] for name, value in flat_spec(record.spec).items()}
        self._sink.write(record, settings, f"{record.spec['algorithm']['name']} seed {record.spec['seed']}")


class TensorBoard:
    """Event files in a folder, see `write_tensorboard`."""

    def __init__(self, place: str) -> None:
        self._folder = Path(place or "tensorboard")
        write_tensorboard((), self._folder)  # refuses if it is not installed

    def write(self, record: RunRecord, settings: Mapping[str, str], name: str) -> None:
        """Write the event files of a run."""
        write_tensorboard([record], self._folder)


class MLflow:
    """A tracking server or a local store; the experiment has the name of the suite."""

    def __init__(self, place: str) -> None:
        client = _imported("mlflow", "mlflow").MlflowClient
        self._client = client(tracking_uri=place) if place else client()

    def write(self, record: RunRecord, settings: Mapping[str, str], name: str) -> None:
        """Write a run, and delete an earlier one of its id."""
        from mlflow.entities import Metric, Param, RunTag

        client, title = self._client, record.suite or "fedfrontier"
        experiment = client.get_experiment_by_name(title)
        number = client.create_experiment(title) if experiment is None else experiment.experiment_id
        for old in client.search_runs([number], f"tags.`{TAG}` = '{record.id}'"):
            client.delete_run(old.info.run_id)
        run = client.create_run(number, run_name=name).info.run_id
        points = [
            Metric(key, value, _milliseconds(line), line["round"])
            for line in record.rounds
            for key, value in figures_of(line).items()
        ]
        tags = {TAG: str(record.id), "fedfrontier.status": record.status, "fedfrontier.data": record.source}
        first = [Param(key, value) for key, value in settings.items()]
        notes = [RunTag(key, value) for key, value in tags.items()]
        client.log_batch(run, params=first[:100], tags=notes)
        for start in range(100, len(first), 100):  # the most parameters a server takes at once
            client.log_batch(run, params=first[start : start + 100])
        for start in range(0, len(points), 1000):
            client.log_batch(run, metrics=points[start : start + 1000])
        client.set_terminated(run, "FINISHED" if record.status == "done" else "FAILED")


class Wandb:
    """A project of Weights & Biases; the group has the name of the suite."""

    def __init__(self, place: str) -> None:
        self._wandb, self._project = _imported("wandb", "wandb"), place or "fedfrontier"

    def write(self, record: RunRecord, settings: Mapping[str, str], name: str) -> None:
        """Write a run under its id, which replaces an earlier one."""
        run = self._wandb.init(
            project=self._project, group=record.suite or None, name=name, id=record.id,
            config={**settings, TAG: record.id, "status": record.status}, reinit=True,
        )  # fmt: skip
        for line in record.rounds:
            run.log(figures_of(line), step=line["round"])
        run.finish(exit_code=0 if record.status == "done" else 1)


class Aim:
    """A repository of Aim; the experiment has the name of the suite."""

    def __init__(self, place: str) -> None:
        self._aim, self._repo = _imported("aim", "aim"), place or "."

    def write(self, record: RunRecord, settings: Mapping[str, str], name: str) -> None:
        """Write a run."""
        run = self._aim.Run(repo=self._repo, experiment=record.suite or "fedfrontier")
        run.name, run["settings"], run[TAG] = name, dict(settings), record.id
        for line in record.rounds:
            for key, value in figures_of(line).items():
                run.track(value, name=key, step=line["round"])
        run.close()


TOOLS: dict[str, Callable[[str], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
    "aim": Aim,
}


def track(text: str) -> Tracker:
    """Return the callback that writes runs to a tool.

    Parameters
    ----------
    text : str
        ``tensorboard:FOLDER``, ``mlflow:URI``, ``wandb:PROJECT`` or ``aim:REPOSITORY``; the tool alone takes its
        usual place.

    Raises
    ------
    UserError
        If there is no such tool, or it is not installed.
    """
    tool, _, place = text.partition(":")
    if tool not in TOOLS:
        raise unknown("tracker", tool, TOOLS)
    return Tracker(TOOLS[tool](place))


def _imported(module: str, library: str) -> Any:
    """Import a tool."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{module} is not installed: pip install {library}") from None


def _milliseconds(line: Mapping[str, Any]) -> int:
    return round(1000 * float(line["timing"].get("seconds", 0.0)))
