"""Results of named clients, and what they gain over training alone."""

from statistics import fmean

import numpy as np
import pytest
import torch

from harness import run
from harness.cli.parser import main
from harness.metrics import Predictions, by_client, evaluate
from harness.report.data.clients import clients_table
from harness.report.data.results import Results
from harness.report.plots import clients
from harness.storage.store import Store

NAMES = ("Rome", "Bern", "Oslo", "Bonn")


def predictions(**changes):
    """Rome has both classes, Oslo one, Bern and Bonn nothing."""
    made = {
        "client": np.array([0, 0, 0, 2]),
        "y_true": np.array([1, 0, 1, 1]),
        "score": np.array([0.9, 0.3, 0.2, 0.4]),
        "y_pred": np.array([1, 0, 0, 0]),
        "classes": ("no", "yes"),
        "loss": np.array([0.1, 0.2, 0.6, np.inf]),
    }
    return Predictions(**{**made, **changes})


def test_every_client_with_samples_has_its_figures():
    assert by_client(predictions(), NAMES) == {
        "client": ["Rome", "Oslo"],
        "n": [3, 1],
        "positives": [2, 1],
        "accuracy": [pytest.approx(2 / 3), 0.0],
        "auroc": [0.5, None],
        "sensitivity_95": [0.5, None],
        "loss": [pytest.approx(0.3), None],
    }
    bare = by_client(predictions(y_pred=None, loss=None), NAMES)
    ranks = {"auroc": [0.5, None], "sensitivity_95": [0.5, None]}
    assert bare == {"client": ["Rome", "Oslo"], "n": [3, 1], "positives": [2, 1], **ranks}


def test_they_average_to_the_metrics():
    draw = np.random.default_rng(0)
    p = predictions(
        client=np.repeat(np.arange(4), 25),
        y_true=draw.integers(0, 2, 100),
        score=draw.random(100).round(1),
        y_pred=draw.integers(0, 2, 100),
        loss=draw.random(100),
    )
    found, metrics = by_client(p, NAMES), evaluate(p, 4)
    assert np.mean(found["accuracy"]) == pytest.approx(metrics["client_accuracy"])
    assert np.min(found["accuracy"]) == pytest.approx(metrics["worst_client"])
    assert np.mean(found["auroc"]) == pytest.approx(metrics["auroc_clients"])
    assert np.mean(found["loss"]) == pytest.approx(metrics["loss"])


def spec(path, algorithm, **changes):
    return {
        "data": {"name": "csv", "path": str(path), "label": "ill", "client": "site"},
        "partition": "natural",
        "model": "logistic",
        "algorithm": {"name": algorithm, "batch_size": 8},
        "rounds": 2,
        **changes,
    }


@pytest.fixture
def hospitals(tmp_path):
    draw = torch.Generator().manual_seed(0)
    rows = [
        f"{NAMES[n % 4]},{float(torch.randn((), generator=draw)) + n % 2:.3f},{n % 2}" for n in range(120)
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["site,dose,ill", *rows]))
    return path


def test_a_run_records_them_and_the_command_exports_them(hospitals, tmp_path, capsys):
    out = tmp_path / "out"
    for algorithm in ("fedavg", "local"):
        run(spec(hospitals, algorithm), out)
    table = clients_table(Results(Store(out).records()))
    assert sorted(set(table["client"])) == sorted(NAMES) and len(table) == 8
    fedavg, local = (table[table["algorithm"] == name].set_index("client") for name in ("fedavg", "local"))
    assert (local["accuracy_gain"] == 0).all()
    gain = fedavg["accuracy"] - local["accuracy"]
    assert np.allclose(fedavg["accuracy_gain"], gain[fedavg.index])
    assert main(["export", str(out), "--clients", str(tmp_path / "c.csv")]) == 0
    assert (tmp_path / "c.csv").read_text().count("Rome") == 2


def test_gains_are_over_training_alone_without_privacy_where_both_were_run(hospitals, tmp_path):
    """A sweep over budgets has several runs of it, and no client had a gain."""
    private = {"unit": "record", "placement": "local", "epsilon": 8.0, "clip": 1.0}
    for algorithm in ("fedavg", "local"):
        for privacy in (None, private):
            run(spec(hospitals, algorithm, privacy=privacy), tmp_path / "out")
    table = clients_table(Results(Store(tmp_path / "out").records()))
    alone = table[(table["algorithm"] == "local") & table["epsilon_total"].isna()].set_index("client")
    assert len(table) == 16 and table["accuracy_gain"].notna().all()
    gains = table["accuracy"] - alone["accuracy"].reindex(table["client"]).to_numpy()
    assert np.allclose(table["accuracy_gain"], gains)


def test_the_picture_names_the_clients(hospitals, tmp_path, monkeypatch):
    for seed in (0, 1):
        run(spec(hospitals, "fedavg", seed=seed), tmp_path / "out")
    records = Store(tmp_path / "out").records()
    drawn = {}
    monkeypatch.setattr(clients, "save", lambda figure, path, note: drawn.update(figure=figure, note=note))
    clients.named_clients(Results(records), tmp_path / "clients")
    (axes,) = drawn["figure"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == sorted(NAMES)
    means = {
        name: fmean(r.final["by_client"]["accuracy"][at] for r in records)
        for at, name in enumerate(sorted(NAMES))
    }
    assert axes.containers[0].lines[0].get_xdata().tolist() == pytest.approx(list(means.values()))
    monkeypatch.setattr(clients, "MOST", 2)
    clients.named_clients(Results(records), tmp_path / "clients")
    shown = [label.get_text() for label in drawn["figure"].axes[0].get_yticklabels()]
    assert shown == sorted(means, key=means.get)[:2] and "the 2 worst of 4 clients" in drawn["note"]
    for record in records:
        del record.final["by_client"]
    assert clients.named_clients(Results(records), tmp_path / "clients") is None


def test_the_picture_shows_the_measure_that_ranks(hospitals, tmp_path, monkeypatch):
    """Of samples of one class there is no AUROC: accuracy is drawn then, and the title says so."""
    run(spec(hospitals, "fedavg"), tmp_path / "out")
    (record,) = Store(tmp_path / "out").records()
    drawn = {}
    monkeypatch.setattr(clients, "save", lambda figure, path, note: drawn.update(axes=figure.axes[0]))

    def shown():
        clients.named_clients(Results([record]), tmp_path / "clients", "auroc")
        values = drawn["axes"].containers[0].lines[0].get_xdata().tolist()
        return values, drawn["axes"].get_title(loc="left"), drawn["axes"].get_xlabel()

    values, title, label = shown()
    assert values == pytest.approx(record.final["by_client"]["accuracy"])
    assert "Accuracy, as clients have no AUROC" in title and label.startswith("Accuracy on")
    record.final["by_client"]["auroc"] = [0.6, 0.7, 0.8, 0.9]
    values, title, label = shown()
    assert values == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert "as clients" not in title and label.startswith("AUROC on")


def test_privacy_decides_what_is_told(hospitals, tmp_path, capsys):
    private = {"unit": "client", "placement": "central", "epsilon": 8.0, "clip": 1.0}
    usual = run(spec(hospitals, "fedavg", privacy=private), tmp_path / "usual").final["by_client"]
    assert usual["client"] == sorted(NAMES) and "accuracy" in usual
    secret = {**private, "sampling": "poisson"}
    for algorithm, there in (("fedavg", True), ("ditto", False)):
        made = run(spec(hospitals, algorithm, privacy=secret, cohort={"size": 2}), tmp_path / algorithm)
        assert ("by_client" in made.final) == there, "parts that were never trained tell who never took part"
    told = {"partition": {"kind": "natural", "standardize": False}, "privacy": {**private, "strict": True}}
    told["algorithm"] = {"name": "fedavg", "batch_size": 8, "local_steps": 2}
    strict = run({**spec(hospitals, "fedavg"), **told}, tmp_path / "strict")
    assert "by_client" not in strict.final
    assert main(["export", str(tmp_path / "strict"), "--clients", str(tmp_path / "c.csv")]) == 2
    assert "no finished run has clients with names" in capsys.readouterr().err
