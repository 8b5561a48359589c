"""Runs in experiment trackers: TensorBoard's own files, and the examples of docs for other tools."""

import sys
from types import SimpleNamespace

import pytest

import harness
from docs.examples import trackers
from harness.cli.parser import main

SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": "fedavg",
    "privacy": {"placement": "central", "epsilon": 8, "clip": 1},
    "rounds": 4,
    "eval_every": 2,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_tensorboard_holds_the_runs_of_a_command(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    given = ["--algorithm", "fedavg", "--data", "breast-cancer", "--rounds", "4", "--eval-every", "2"]
    place = tmp_path / "events"
    assert main(["run", *given, "--out", str(tmp_path / "out"), "--tensorboard", str(place)]) == 0
    (folder,) = {path.parent for path in place.rglob("events.out.tfevents*")}
    events = accumulator.EventAccumulator(str(folder)).Reload()
    assert [point.step for point in events.Scalars("accuracy")] == [0, 2, 4]


def test_without_tensorboard_the_option_is_refused_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    given = ["run", "--algorithm", "fedavg", "--data", "breast-cancer", "--out", str(tmp_path / "out")]
    assert main([*given, "--tensorboard", str(tmp_path / "events")]) == 2
    assert "pip install 'fedfrontier[export]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own use of its database
def test_mlflow_holds_curves_settings_and_status(tmp_path):
    """Read back through MLflow's own client; a run written again replaces the first."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for _ in range(2):
        tracker = trackers.MLflow(uri)
        made = harness.sweep(SPEC, {"seed": range(2)}, tmp_path / "out", callbacks=[tracker], progress=False)
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    records = {record.id: record for record in made.records}
    assert sorted(run.data.tags["fedfrontier.id"] for run in runs) == sorted(records)
    for run in runs:
        record = records[run.data.tags["fedfrontier.id"]]
        curve = client.get_metric_history(run.info.run_id, "accuracy")
        assert {(point.step, point.value) for point in curve} == {
            (line["round"], line["metrics"]["accuracy"]) for line in record.rounds
        }
        assert run.data.params["privacy.epsilon"] == "8.0" and run.info.status == "FINISHED"
        assert run.data.metrics["epsilon_total"] == record.rounds[-1]["privacy"]["epsilon_total"]


@pytest.mark.parametrize(("module", "tracker"), [("wandb", "WeightsAndBiases"), ("aim", "Aim")])
def test_other_tools_are_told_each_figure_at_its_round(tmp_path, monkeypatch, module, tracker):
    """A stand-in with the calls of the tool, which is not installed here, notes what it is told."""
    told = []

    class Run(dict):
        def __init__(self, **options):
            super().__init__()

        def log(self, figures, step):
            told.extend((name, value, step) for name, value in figures.items())

        def track(self, value, name, step):
            told.append((name, value, step))

        def finish(self, exit_code):
            told.append(("exit", exit_code, None))

        def close(self):
            told.append(("exit", 0, None))

    monkeypatch.setitem(sys.modules, module, SimpleNamespace(init=Run, Run=Run))
    record = harness.run(SPEC, tmp_path, callbacks=[getattr(trackers, tracker)("here")])
    assert [(value, step) for name, value, step in told if name == "accuracy"] == [
        (line["metrics"]["accuracy"], line["round"]) for line in record.rounds
    ]
    assert told[-1][:2] == ("exit", 0)
