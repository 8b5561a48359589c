"""The trained model in a file, and what it predicts of a table."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import harness
from datasets.federation import Inputs
from harness.cli.parser import main
from harness.simulation.saved_columns import features, read_rows
from harness.simulation.saved_model import SavedModel
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
    assert harness.predict(folder, str(table))["prediction"].tolist() == found["prediction"].tolist()
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_finished_run_writes_its_model_later(table, tmp_path):
    run = spec(table)
    first = harness.run(run, tmp_path / "out")
    path = tmp_path / "out" / "runs" / first.id / "model.safetensors"
    assert not path.exists()
    before = Store(tmp_path / "out").folder(first.id).evaluations.all()
    harness.run(run, tmp_path / "out", save_model=True)
    assert (
        Store(tmp_path / "out").folder(first.id).evaluations.all() == before
        and SavedModel.read(path).about.run == first.id
    )
    assert Store(tmp_path / "out").folder(first.id).has("model.safetensors")


def test_numbers_are_predicted_on_their_own_scale(table, tmp_path):
    record = harness.run(
        spec(table, "cost", problem="regression", rounds=60), tmp_path / "out", save_model=True
    )
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    found = model.predict(model.rows(table))["prediction"]
    assert np.abs(found - TABLE["cost"]).max() < 0.2 * TABLE["cost"].std()


def test_each_client_has_its_own_model(table, tmp_path, capsys):
    record = harness.run(spec(table, algorithm="ditto"), tmp_path / "out", save_model=True)
    folder = str(tmp_path / "out" / "runs" / record.id)
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    of = {name: model.predict(model.rows(table), name)["p(yes)"] for name in "ab"}
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
    assert about.privacy.epsilon_total == record.final["privacy"]["epsilon_total"]


def test_rows_that_do_not_fit_are_refused_with_their_place(table, tmp_path, capsys):
    record = harness.run(spec(table, rounds=1), tmp_path / "out", save_model=True)
    folder = str(tmp_path / "out" / "runs" / record.id)
    for change, said in (
        (TABLE.drop(columns="ward"), "the table lacks the column 'ward' that the model needs; it has: 'age'"),
        (TABLE.assign(age=["x"] * ROWS), "the column 'age' needs numbers"),
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
    known = model.predict(model.rows(table))["p(yes)"]
    assert not np.allclose(known, model.predict(model.rows(other))["p(yes)"])


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
    assert set(about.origins) == {"age", "joined", "ward"} and about.classes == ("no", "yes")
    json.dumps(about.model_dump())


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


ZIPS = RNG.choice(["01067", "90210", "1067"], 60)
CODES = pd.DataFrame(
    {"zip": ZIPS, "dose": RNG.integers(0, 9, 60), "y": np.where(ZIPS == "01067", "yes", "no")}
)


@pytest.fixture
def coded(tmp_path):
    """A model trained on a column of codes, a function that applies it to a frame, and the predictions."""
    pytest.importorskip("pyarrow")
    CODES.to_csv(tmp_path / "codes.csv", index=False)
    run = {
        "data": f"csv:{tmp_path}/codes.csv?label=y&text=zip",
        "partition": {"kind": "iid", "clients": 2},
        "model": "mlp",
        "algorithm": {"name": "fedavg", "lr": 0.3},
        "rounds": 30,
    }
    record = harness.run(run, tmp_path / "out", save_model=True)

    def predicted(frame, suffix="csv", **written):
        path = tmp_path / f"rows.{suffix}"
        frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False, **written)
        arguments = ["predict", str(tmp_path / "out" / "runs" / record.id), str(path)]
        assert main([*arguments, "--csv", str(tmp_path / "p.csv")]) == 0
        return pd.read_csv(tmp_path / "p.csv")

    return predicted, predicted(CODES)


def test_a_table_is_read_by_the_types_of_the_training(coded):
    """Of a column of codes, read as numbers, none was known, and every prediction was "no"."""
    predicted, whole = coded
    assert (whole["prediction"] == CODES["y"]).all()
    for same in (
        predicted(CODES, "parquet"),
        predicted(CODES, sep=";"),
        predicted(CODES[["y", "dose", "zip"]]),
    ):
        pd.testing.assert_frame_equal(same, whole, check_exact=True)
    for part in ([3], [5, 1], range(20, 60), np.flatnonzero(ZIPS == "1067")):
        for suffix in ("csv", "parquet"):
            own = predicted(CODES.iloc[part], suffix)
            pd.testing.assert_frame_equal(own, whole.iloc[part].reset_index(drop=True), check_exact=True)


def test_a_table_without_rows_gives_no_predictions(coded):
    predicted, whole = coded
    for suffix in ("csv", "parquet"):
        assert list(predicted(CODES.iloc[:0], suffix)) == list(whole)
        assert not len(predicted(CODES.iloc[:0], suffix))


def test_values_that_training_had_not_are_told(coded, caplog):
    predicted, _ = coded
    predicted(CODES.assign(zip=["4711", "5", *ZIPS[2:]]))
    assert "column 'zip': 2 of 60 rows have values that training had not, '4711', '5'" in caplog.text


def test_numbers_of_one_value_may_be_written_in_two_ways(tmp_path):
    """pandas writes the codes 1 and 2 of a column with a hole as 1.0 and 2.0, and Parquet as numbers."""
    codes = pd.Series(RNG.integers(1, 4, 60))
    frame = pd.DataFrame(
        {"kind": codes, "dose": RNG.integers(0, 9, 60), "y": np.where(codes == 2, "yes", "no")}
    )
    frame.astype({"kind": float}).to_csv(tmp_path / "t.csv", index=False)
    run = {
        "data": f"csv:{tmp_path}/t.csv?label=y&text=kind",
        "partition": {"kind": "iid", "clients": 2},
        "model": "logistic",
        "algorithm": "fedavg",
        "rounds": 5,
    }
    record = harness.run(run, tmp_path / "out", save_model=True)
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    assert "kind=2.0" in model.about.features
    frame.to_csv(tmp_path / "other.csv", index=False)
    found = [model.predict(model.rows(tmp_path / name))["p(yes)"] for name in ("t.csv", "other.csv")]
    assert found[0].tolist() == found[1].tolist()


def test_missing_numbers_are_filled_with_the_training_mean(coded, tmp_path, capsys):
    predicted, _ = coded
    holes = CODES.assign(dose=CODES["dose"].where(CODES.index != 4))
    holes.to_csv(tmp_path / "holes.csv", index=False)
    folder = next((tmp_path / "out" / "runs").iterdir())
    arguments = ["predict", str(folder), str(tmp_path / "holes.csv"), "--csv", str(tmp_path / "p.csv")]
    assert main(arguments) == 2
    assert (
        "in row 5 below the header; fill it or leave the row out, or give --fill" in capsys.readouterr().err
    )
    assert main([*arguments, "--fill", "--keep", "zip"]) == 0
    filled = pd.read_csv(tmp_path / "p.csv", dtype={"zip": str})
    assert filled["zip"].tolist() == ZIPS.tolist()
    model = SavedModel.read(folder)
    mean = float(model.inputs.shift[model.inputs.features.index("dose")])
    other = predicted(CODES.assign(dose=CODES["dose"].astype(float).where(CODES.index != 4, mean)))
    np.testing.assert_allclose(filled["p(yes)"], other["p(yes)"], rtol=1e-6)


def test_options_of_the_table_may_differ_from_those_of_the_training(coded, tmp_path, capsys):
    _, whole = coded
    folder = str(next((tmp_path / "out" / "runs").iterdir()))
    CODES.assign(dose=CODES["dose"].map(lambda n: f"{n},0")).to_csv(tmp_path / "de.csv", index=False, sep=";")
    arguments = [f"csv:{tmp_path}/de.csv?decimal=,", "--csv", str(tmp_path / "p.csv")]
    assert main(["predict", folder, *arguments]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "p.csv"), whole)
    assert main(["predict", folder, str(tmp_path / "de.csv")]) == 2
    assert (
        "the column 'dose' needs numbers, as in training; row 1 below the header has"
        in capsys.readouterr().err
    )
    assert main(["predict", folder, f"csv:{tmp_path}/de.csv?label=y"]) == 2
    assert "unknown option of a table to predict 'label'" in capsys.readouterr().err


def test_a_model_that_its_run_does_not_name_is_refused(table, tmp_path, capsys):
    """Somebody put it there: the end of the run has no checksum of it."""
    with_model = harness.run(spec(table, rounds=1), tmp_path / "one", save_model=True)
    without = harness.run(spec(table, rounds=2), tmp_path / "two")
    model = (tmp_path / "one" / "runs" / with_model.id / "model.safetensors").read_bytes()
    folder = tmp_path / "two" / "runs" / without.id
    for name in ("model.safetensors", "other.safetensors"):
        (folder / name).write_bytes(model)
        assert main(["predict", str(folder / name), str(table)]) == 2
        assert "done.json names no such file" in capsys.readouterr().err
    (folder / "done.json").unlink()
    assert main(["predict", str(folder), str(table)]) == 2
    assert "a run that has not ended" in capsys.readouterr().err


WRONG = [None, 1, "x", [], {}, [1], ["x"], {"a": 1}, True, [float("nan")], [[]]]


def test_malformed_metadata_gives_a_sentence_for_each_mistake(coded, tmp_path, capsys):
    """Nine of these gave tracebacks."""
    source = next((tmp_path / "out" / "runs").iterdir()) / "model.safetensors"
    with safe_open(source, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    content = json.loads(metadata["spec"])
    changes = [{name: json.dumps(value)} for name in metadata for value in WRONG]
    changes += [{name: text} for name in metadata for text in ("{", "[" * 100_000)]
    changes += [
        {"spec": json.dumps({**content, part: value})}
        for part in ("model", "problem", "algorithm", "data")
        for value in WRONG
    ]
    changes += [
        {"spec": json.dumps({**content, "data": {**content["data"], name: value}})}
        for name in ("decimal", "na", "delimiter", "encoding", "thousands")
        for value in WRONG[1:]
    ]
    path, refused = tmp_path / "planted.safetensors", 0
    for change in changes:
        save_file(tensors, path, {**metadata, **change})
        code = main(["predict", str(path), str(tmp_path / "codes.csv"), "--csv", str(tmp_path / "p.csv")])
        said = capsys.readouterr().err.strip().splitlines()
        assert code in (0, 2) and "Traceback" not in "".join(said)
        assert code == 0 or (said and all(line.startswith("error: ") for line in said)), change
        refused += code == 2
    assert refused > 0.8 * len(changes)
    for shape in ("flat", "front"):
        changed = {
            name: part.flatten() if shape == "flat" else part[None][:0] for name, part in tensors.items()
        }
        save_file(changed, path, metadata)
        assert main(["predict", str(path), str(tmp_path / "codes.csv")]) == 2


def test_one_hot_columns_of_other_readers_are_known(tmp_path):
    """Those of Adult are called workclass_Private; a table may have the column workclass, or these."""
    inputs = Inputs(
        ("job_a", "job_b", "age"), ("job", "job", "age"), torch.zeros(3).double(), torch.ones(3).double()
    )
    for text in ("job,age\na,1\nb,2\n", "job_a,job_b,age\n1,0,1\n0,1,2\n"):
        (tmp_path / "t.csv").write_text(text)
        rows = read_rows(tmp_path / "t.csv", inputs, {})
        assert features(inputs, rows.columns, rows.length).tolist() == [[1, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize("trained", ["csv", "parquet"])
def test_dates_are_those_of_the_training_in_any_format(tmp_path, trained):
    """They are categories in a CSV file and numbers in a Parquet file."""
    pytest.importorskip("pyarrow")
    days = pd.to_datetime(["2024-01-05", "2024-02-07", "2024-03-09"] * 20)
    frame = pd.DataFrame({"day": days, "dose": range(60), "y": np.where(days.month == 2, "yes", "no")})
    frame["seen"] = frame["day"] + pd.to_timedelta(frame["dose"] % 5, "h")
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    run = {
        "data": f"{tmp_path}/t.{trained}?label=y",
        "partition": {"kind": "iid", "clients": 2},
        "model": "logistic",
        "algorithm": "fedavg",
        "rounds": 3,
    }
    record = harness.run(run, tmp_path / "out", save_model=True)
    model = SavedModel.read(tmp_path / "out" / "runs" / record.id)
    found = [model.predict(model.rows(tmp_path / f"t.{kind}"))["p(yes)"] for kind in ("csv", "parquet")]
    assert found[0].tolist() == found[1].tolist() and len(set(found[0].round(6))) > 2
