"""Regression: its solution by least squares, units of figures, tenths of labels, what needs classes."""

import json

import numpy as np
import pytest
import torch

import harness
from datasets.catalog import load
from datasets.counting import count
from datasets.dataset import tenths
from datasets.errors import DataError
from datasets.federation import federate
from datasets.partition import PARTITIONS
from datasets.splitting import Splitting
from harness.cli.parser import main
from harness.core.errors import Incompatible
from harness.metrics.predictions import read_predictions

SPEC = {
    "data": "diabetes",
    "partition": {"kind": "iid", "clients": 4},
    "problem": "regression",
    "model": "logistic",
    "rounds": 400,
    "eval_every": 400,
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 1, "batch_size": None},
}


def test_one_step_of_all_samples_a_round_ends_at_least_squares(tmp_path):
    """Clients of one size: the mean of their gradients is the gradient of the mean squared error."""
    draw, path = np.random.default_rng(0), tmp_path / "rows.csv"
    x, noise = draw.normal(size=(200, 3)), draw.normal(size=200)
    rows = np.column_stack([x, 40 + x @ [3, -7, 1] + 2 * noise])
    path.write_text("a,b,c,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    spec = SPEC | {"data": {"name": "csv", "path": str(path), "label": "y"}, "precision": "float64"}
    record, setup = harness.run(spec, tmp_path / "out"), harness.prepare(spec)
    made, pool = setup.federation, setup.federation.pool
    train, test = (pool.at(index[index >= 0]) for index in (made.splits["train"], made.splits["test"]))
    design, probe = (torch.nn.functional.pad(part.x, (0, 1), value=1.0) for part in (train, test))
    weights = torch.linalg.lstsq(design, train.y.unsqueeze(-1)).solution
    error = (probe @ weights).squeeze(-1) - test.y
    found = record.final["metrics"]
    assert found["rmse"] == pytest.approx(float(error.square().mean().sqrt()) * made.std, rel=1e-6)
    assert found["loss"] == pytest.approx(float(error.square().mean()) / 2, rel=1e-6)


def test_labels_are_standardized_by_training_samples_and_figures_are_in_their_unit():
    data = load("diabetes")
    made = federate(data, PARTITIONS["iid"](), 5, np.random.default_rng(0))
    train = made.splits["train"][made.splits["train"] >= 0]
    own = data.y.double()[train]
    assert (made.mean, made.std) == pytest.approx((float(own.mean()), float(own.std(correction=0))))
    assert float(made.pool.y[train].mean()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(
        made.pool.y.double() * made.std + made.mean, data.y.double(), rtol=1e-5, atol=1e-3
    )
    assert "mean and standard deviation over all training samples of the label" in made.public
    plain = federate(data, PARTITIONS["iid"](), 5, np.random.default_rng(0), standardize=False)
    assert (plain.mean, plain.std) == (0, 1) and torch.equal(plain.pool.y, data.y)


def test_figures_are_those_of_the_written_predictions(tmp_path):
    record = harness.run(SPEC | {"rounds": 3}, tmp_path, save_predictions=True)
    found = record.final["metrics"]
    held = read_predictions(tmp_path / "runs" / record.id / "predictions.csv")
    errors = held.score - held.y_true
    assert held.classes == () and held.y_pred is None and held.y_true.max() > 200
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-12)
    assert found["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-12)
    assert found["r2"] == pytest.approx(1 - (errors**2).mean() / held.y_true.var(), rel=1e-9)
    of_group = [np.abs(errors[held.group == group]).mean() for group in (0, 1)]
    assert found["mae_gap"] == pytest.approx(abs(of_group[0] - of_group[1]), rel=1e-9)
    of_client = [np.abs(errors[held.client == client]).mean() for client in range(4)]
    assert found["worst_mae"] == pytest.approx(max(of_client), rel=1e-12)
    assert "accuracy" not in found and "auroc" not in found


def test_classes_have_no_figures_of_numbers(tmp_path):
    spec = SPEC | {"data": "breast-cancer", "problem": "classify", "rounds": 1, "eval_every": 1}
    found = harness.run(spec, tmp_path).final["metrics"]
    assert "accuracy" in found and not {"mae", "rmse", "r2", "worst_mae", "mae_gap"} & set(found)


def test_numbers_are_told_apart_by_tenths():
    place, names = tenths(torch.arange(100.0))
    assert np.bincount(place).tolist() == [10] * 10 and names[0] == "0 to 9" and names[-1] == "90 to 99"
    assert tenths(torch.tensor([5.7e-8, 1.0, 3.0, 3.0]))[1][0] == "0"
    assert tenths(torch.tensor([2e-9, 4e-9]))[1] == ("2e-09", "4e-09")
    place, names = tenths(torch.tensor([0.0, 2, 2, 2, 2, 2, 2, 10]))
    assert place.tolist() == [0, 1, 1, 1, 1, 1, 1, 2] and names == ("0", "2", "10")


def test_labels_skewed_by_tenths_differ_between_clients():
    data = load("diabetes")
    skewed = PARTITIONS["shards"](by_class=True)
    made = federate(data, skewed, 5, np.random.default_rng(0), Splitting(stratify=("label",)))
    means = [float(made.pool.y[index[index >= 0]].mean()) for index in made.splits["train"]]
    even = federate(data, PARTITIONS["iid"](), 5, np.random.default_rng(0))
    alike = [float(even.pool.y[index[index >= 0]].mean()) for index in even.splits["train"]]
    assert np.ptp(means) > 3 * np.ptp(alike)
    held = count(made)
    assert len(held.classes) == 10 and sum(map(sum, held.classes.values())) == 442
    assert next(iter(held.classes)).startswith("25 to")  # in the unit of the label


def test_a_csv_file_may_predict_numbers(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "".join(f"{i},{i % 7},{3 * i + 0.5}\n" for i in range(150)))
    data = load("csv", path=path, label="y", task="regression")
    assert data.classes == () and data.y[:2].tolist() == [0.5, 3.5] and data.features == ("a", "b")
    spec = SPEC | {"data": {"name": "csv", "path": str(path), "label": "y"}}
    assert harness.run(spec, tmp_path / "out").final["metrics"]["r2"] > 0.99


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"data": "breast-cancer"},
            "no numbers to predict; .*chemistry.* and files "
            "\\(csv, parquet, arrow, excel, files, leaf, tff, images\\) have",
        ),
        ({"problem": "classify"}, "has numbers to predict and no classes; use problem: regression"),
        ({"problem": "auroc", "algorithm": "fedsgda_m"}, "use problem: regression"),
        ({"data": {"name": "diabetes", "binary": "halves"}}, "numbers instead of classes"),
        ({"algorithm": "fedproto", "model": "mlp"}, "fedproto distinguishes classes"),
        ({"algorithm": "fedrod", "model": "mlp"}, "fedrod distinguishes classes"),
        ({"algorithm": "fedpac", "model": "mlp"}, "fedpac distinguishes classes"),
        ({"algorithm": {"name": "fedcr", "latent": 2}, "model": "mlp"}, "fedcr distinguishes classes"),
        ({"algorithm": "fedreg"}, "fedreg distinguishes classes"),
        ({"algorithm": "fairfed"}, "fairfed distinguishes classes"),
        ({"algorithm": "fcfl"}, "fcfl distinguishes classes"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path, change, reason):
    with pytest.raises((DataError, Incompatible), match=reason) as refused:
        harness.run(SPEC | {"rounds": 1, "eval_every": 1} | change, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bad", ["a,y\n1,2\n2,2\n3,2\n", "a,y\n1,u\n2,v\n3,w\n"])
def test_labels_that_are_no_numbers_are_refused(tmp_path, bad):
    path = tmp_path / "rows.csv"
    path.write_text(bad)
    with pytest.raises(DataError, match=r"fewer than two values|is text; regression needs numbers"):
        load("csv", path=path, label="y", task="regression")


@pytest.mark.parametrize(
    "treated",
    [
        {"privacy": {"placement": "local", "clip": 1.0, "epsilon": 8.0}},
        {"privacy": {"unit": "record", "clip": 1.0, "epsilon": 8.0}},
        {"compression": {"alpha": 0.5}, "model": "mlp"},
        {"algorithm": {"name": "fedrep", "local_steps": 2}, "model": "mlp"},
        {"algorithm": "fedminmax"},
        {"algorithm": "scaffold", "compression": {"beta": 0.5}},
    ],
)
def test_messages_are_treated_as_elsewhere(tmp_path, treated):
    record = harness.run(SPEC | {"rounds": 3, "eval_every": 3} | treated, tmp_path)
    assert record.status == "done" and record.final["metrics"]["mae"] < 1000


@pytest.mark.slow
def test_the_leaderboard_ranks_by_error(tmp_path, capsys):
    for name in ("fedavg", "local"):
        harness.run(SPEC | {"rounds": 30, "eval_every": 30, "algorithm": name}, tmp_path)
    board = harness.leaderboard(tmp_path)
    assert board["ranked_by"].unique().tolist() == ["mae"] and board["rank"].tolist() == [1, 2]
    assert board["mae_mean"].is_monotonic_increasing
    assert main(["leaderboard", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["mae_mean"] == pytest.approx(board["mae_mean"].iloc[0])
    assert main(["report", str(tmp_path)]) == 0
    assert "MAE" in capsys.readouterr().out
