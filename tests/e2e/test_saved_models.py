"""The trained model in a file, and what it predicts of a table."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import harness
from harness.cli.parser import main
from harness.simulation.saved_model import SavedModel, read_rows
from harness.storage.store import Store

RNG = np.random.default_rng(7)
ROWS = 240
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(20, 80, ROWS),
        "joined": 1.7e9 + RNG.integers(0, 1000, ROWS),  # float32 holds these to 128
        "ward": RNG.choice(["north", "south", "east"], ROWS),
        "site": RNG.choice(["a", "b", "c"], ROWS),
    }
)
TABLE["ill"] = np.where(
    TABLE["age"] + 20 * (TABLE["ward"] == "north") + RNG.normal(0, 9, ROWS) > 55, "yes", "no"
)
TABLE["cost"] = 1000.0 + 30 * TABLE["age"]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "ward.csv"
    TABLE.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the file of a saved model, away from its run."""
    root = tmp_path_factory.mktemp("trained")
    TABLE.to_csv(root / "ward.csv", index=False)
    record = harness.run(spec(root / "ward.csv", rounds=1), root / "out", save_model=True)
    return (root / "out" / "runs" / record.id / "model.safetensors").rename(root / "model.safetensors")


def spec(path, label="ill", **more):
    drop = "cost" if label == "ill" else "ill"
    return {
        "data": {"name": "csv", "path": str(path), "label": label, "client": "site", "drop": [drop]},
        "partition": {"kind": "natural", "column": "site"},
        "model": "logistic",
        "algorithm": {"name": "fedavg", "lr": 0.5},
        "rounds": 10,
        **more,
    }


def applied(run):
    """Return the outputs of a run's model on all rows of the table, computed from its own pool."""
    setup = harness.prepare(run)
    simulation = harness.Simulation.from_setup(setup)
    for _ in range(run["rounds"]):
        simulation.step()
    with torch.no_grad():
        return simulation, setup.problem.predict, setup.federation


def test_predictions_are_those_of_the_run(table, tmp_path, capsys):
    """Every row of the table, read anew, has the probabilities that the run's own data give."""
    run = spec(table)
    record = harness.run(run, tmp_path / "out", save_model=True)
    folder = tmp_path / "out" / "runs" / record.id
    assert main(["predict", str(folder), str(table), "--csv", str(tmp_path / "p.csv")]) == 0
    assert record.id in capsys.readouterr().err
    found = pd.read_csv(tmp_path / "p.csv")
    simulation, predict, federation = applied(run)
    with torch.no_grad():
        shares = predict(simulation.personal(), federation.pool.x).double().softmax(-1)
    assert list(found) == ["prediction", "p(no)", "p(yes)"] and len(found) == ROWS
    np.testing.assert_allclose(found[["p(no)", "p(yes)"]], shares, rtol=1e-6)
    assert (found["prediction"] == TABLE["ill"]).mean() > 0.8
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_finished_run_writes_its_model_later(table, tmp_path):
    run = spec(table)
    first = harness.run(run, tmp_path / "out")
    path = tmp_path / "out" / "runs" / first.id / "model.safetensors"
    assert not path.exists()
    before = Store(tmp_path / "out").folder(first.id).rounds()
    harness.run(run, tmp_path / "out", save_model=True)
    assert (
        Store(tmp_path / "out").folder(first.id).rounds() == before
        and SavedModel.read(path).about["run"] == first.id
    )
    assert Store(tmp_path / "out").folder(first.id).has("model.safetensors")


def test_numbers_are_predicted_on_their_own_scale(table, tmp_path):
    record = harness.run(
        spec(table, "cost", problem="regression", rounds=60), tmp_path / "out", save_model=True
    )
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    found = model.predict(read_rows(table)[0])["prediction"]
    assert np.abs(found - TABLE["cost"]).max() < 0.2 * TABLE["cost"].std()


def test_each_client_has_its_own_model(table, tmp_path, capsys):
    record = harness.run(spec(table, algorithm="ditto"), tmp_path / "out", save_model=True)
    folder = str(tmp_path / "out" / "runs" / record.id)
    rows = read_rows(table)[0]
    of = {
        name: SavedModel.read(tmp_path / "out" / "runs" / record.id).predict(rows, name)["p(yes)"]
        for name in "ab"
    }
    assert not np.allclose(of["a"], of["b"])
    assert main(["predict", folder, str(table)]) == 2
    assert "give one of a, b, c" in capsys.readouterr().err
    assert main(["predict", folder, str(table), "--client", "d"]) == 2
    assert "unknown client 'd'" in capsys.readouterr().err


def test_models_that_no_budget_protects_are_not_saved(table, tmp_path):
    """Refused before the run: a file of all clients' models would release what the noise protects."""
    private = {"placement": "central", "epsilon": 8, "clip": 1}
    with pytest.raises(harness.UserError, match="which the budget does not protect"):
        harness.run(spec(table, algorithm="ditto", privacy=private), tmp_path / "out", save_model=True)
    local = {"placement": "local", "epsilon": 8, "clip": 1}
    graph = {"algorithm": "beer", "topology": {"kind": "ring"}, "privacy": local}
    with pytest.raises(harness.UserError, match="which the budget does not protect"):
        harness.run(spec(table, **graph), tmp_path / "out", save_model=True)
    assert not (tmp_path / "out").exists()
    record = harness.run(spec(table, privacy=private), tmp_path / "out", save_model=True)
    about = SavedModel.read(tmp_path / "out" / "runs" / record.id).about
    assert about["privacy"]["epsilon_total"] == record.final["privacy"]["epsilon_total"]


def test_rows_that_do_not_fit_are_refused_with_their_place(table, tmp_path, capsys):
    record = harness.run(spec(table, rounds=1), tmp_path / "out", save_model=True)
    folder = str(tmp_path / "out" / "runs" / record.id)
    for change, said in (
        (TABLE.drop(columns="ward"), "unknown column of the table 'ward'"),
        (TABLE.assign(age=["x"] * ROWS), "column 'age' needs numbers"),
        (
            TABLE.assign(age=TABLE["age"].where(TABLE.index != 4)),
            "column 'age' has no value in row 5 below",
        ),
    ):
        change.to_csv(tmp_path / "other.csv", index=False)
        assert main(["predict", folder, str(tmp_path / "other.csv")]) == 2
        assert said in capsys.readouterr().err
    assert main(["predict", str(tmp_path), str(table)]) == 2
    (tmp_path / "bad.safetensors").write_bytes(b"not a model")
    assert main(["predict", str(tmp_path / "bad.safetensors"), str(table)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_value_that_training_had_not_is_none_of_the_known(table, tmp_path):
    record = harness.run(spec(table, rounds=2), tmp_path / "out", save_model=True)
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    other = tmp_path / "other.csv"
    TABLE.assign(ward="moon").to_csv(other, index=False)
    ravel, vector = model.function()
    weights = ravel.parameters(vector)["head.weight"]
    wards = [place for place, name in enumerate(model.inputs.features) if name.startswith("ward=")]
    assert len(wards) == 3 and weights[:, wards].abs().sum() > 0
    known = model.predict(read_rows(table)[0])["p(yes)"]
    assert not np.allclose(known, model.predict(read_rows(other)[0])["p(yes)"])


def test_what_has_no_columns_is_refused_before_a_run(tmp_path):
    digits = {
        "data": "digits",
        "partition": {"kind": "iid", "clients": 3},
        "model": "logistic",
        "algorithm": "fedavg",
    }
    with pytest.raises(harness.UserError, match="models of tables are saved"):
        harness.run(digits, tmp_path / "out", save_model=True)
    parties = {"data": "breast-cancer", "partition": {"kind": "columns", "clients": 2}, "problem": "vertical"}
    with pytest.raises(harness.UserError, match="no model that one party could apply"):
        harness.run(parties | {"model": "mlp", "algorithm": "splitnn"}, tmp_path / "out", save_model=True)
    assert not (tmp_path / "out").exists()


def test_a_saved_model_is_plain_data(table, tmp_path):
    """Its metadata is JSON, and names the columns that it reads."""
    record = harness.run(spec(table, rounds=1), tmp_path / "out", save_model=True)
    about = SavedModel.read(tmp_path / "out" / "runs" / record.id).about
    assert set(about["origins"]) == {"age", "joined", "ward"} and about["classes"] == ["no", "yes"]
    json.dumps(about)


def test_a_damaged_model_predicts_nothing(table, tmp_path, capsys):
    """A changed bit gave other predictions without a word; a model that was copied elsewhere has no checksum."""
    record = harness.run(spec(table), tmp_path / "out", save_model=True)
    path = tmp_path / "out" / "runs" / record.id / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x80]))
    for given in (path, path.parent):
        assert main(["predict", str(given), str(table)]) == 2
        said = capsys.readouterr()
        assert "model.safetensors is damaged" in said.err and not said.out
    path.write_bytes(whole)
    assert main(["predict", str(path), str(table)]) == 0
    copied = tmp_path / "elsewhere.safetensors"
    copied.write_bytes(whole)
    assert main(["predict", str(copied), str(table)]) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("features", []),
        ("origins", ["age"]),
        ("shift", "x"),
        ("scale", [None]),
        ("classes", 3),
        ("label", [None]),
        ("clients", {"a": 1}),
        ("privacy", 8),
        ("source", None),
        ("spec", {"model": {"name": "logistic"}}),
        ("model", {"name": "none such"}),
        ("model", {"name": "mlp", "hidden": "x"}),
        ("model", None),
        ("problem", None),
    ],
)
def test_metadata_that_is_none_is_refused(field, value, table, trained, tmp_path, capsys):
    """Files come from others; nine kinds of them ended with a traceback."""
    with safe_open(trained, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    if field in ("model", "problem"):
        field, value = "spec", {**json.loads(metadata["spec"]), field: value}
    path = tmp_path / "x.safetensors"
    path.write_bytes(save(tensors, {**metadata, field: json.dumps(value)}))
    code = main(["predict", str(path), str(table)])
    said = capsys.readouterr()
    assert code == 2, said
    assert said.err.startswith("error: ")


def test_an_empty_table_is_refused(table, trained, tmp_path, capsys):
    empty = tmp_path / "empty.csv"
    empty.write_text(table.read_text().partition("\n")[0] + "\n")
    assert main(["predict", str(trained), str(empty)]) == 2
    assert "no rows" in capsys.readouterr().err


def test_a_model_that_its_run_has_not_written_is_refused(table, tmp_path, capsys):
    record = harness.run(spec(table, rounds=1), tmp_path / "out")
    path = tmp_path / "out" / "runs" / record.id / "model.safetensors"
    path.write_bytes(b"planted")
    assert main(["predict", str(path), str(table)]) == 2
    assert "is not sealed by done.json" in capsys.readouterr().err
