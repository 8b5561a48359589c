"""Results go out whole: as a table of every evaluation, and as curves for TensorBoard."""

import json
import math
import sys

import pandas as pd
import pytest
import yaml

from harness.cli.parser import main
from harness.config.report import Pivot
from harness.report.data.export import write_tidy
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.tidy import tidy
from harness.report.tables.pivot import grids_csv, tabulate
from harness.report.tables.write import csv_text
from harness.storage.files import output_text
from harness.storage.seals import read_sealed
from harness.storage.store import RunRecord, Store
from tests.support import records

MM4 = {"kind": "quadratic_minimax", "P": [1, 2], "B": [1, 2], "Q": [1, 2], "c": [2, -2], "d": [0, 4]}
SUITE = {
    "suite": "ladder",
    "base": {
        "data": "breast-cancer",
        "partition": {"kind": "dirichlet", "alpha": 1.0, "clients": 4},
        "model": "logistic",
        "rounds": 4,
        "eval_every": 2,
    },
    "sweep": [
        {
            "algorithm": [{"name": "fedavg", "lr": 0.05}],
            "privacy": [None, {"placement": "central", "epsilon": 8, "clip": 1}],
            "compression.beta": [0.0, [[0, 0.5], [2, 0.75]]],
            "seed": [0, 1],
        },
        {"algorithm": ["local_sgda"], "seed": [0]},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A suite of eight runs, one skipped and one missing; beside it a run and one that failed."""
    root = tmp_path_factory.mktemp("exported")
    path, out = root / "ladder.yaml", str(root / "results")
    path.write_text(yaml.safe_dump(SUITE))
    assert main(["suite", str(path), "--jobs", "1", "--out", out]) == 0
    saddle = {"problem": MM4, "algorithm": {"name": "local_sgda", "local_steps": 2}, "rounds": 4}
    wild = SUITE["base"] | {"algorithm": {"name": "fedavg", "lr": 1e38}}
    for spec, code in ((saddle, 0), (wild, 1)):
        path.write_text(yaml.safe_dump(spec))
        assert main(["run", "--spec", str(path), "--out", out]) == code
    content, _ = read_sealed(root / "results" / "ladder" / "suite.json")
    content["cells"].append(content["cells"][0] | {"id": "0123456789abcdef"})
    Store(root / "results").write_suite("ladder", content)
    return root / "results"


def test_every_run_has_a_row_and_every_evaluation_has_one(folder):
    frame, records = tidy(Store(folder).records()), Store(folder).records()
    assert len(frame) == sum(max(1, len(record.rounds)) for record in records)
    assert frame.groupby("status")["id"].nunique().to_dict() == {
        "done": 9,
        "failed": 1,
        "missing": 1,
        "skipped": 0,
    }
    done = frame[(frame["status"] == "done") & (frame["suite"] == "ladder")]
    assert (done.groupby("id")["round"].agg(list).map(tuple) == (0, 2, 4)).all()


def test_runs_without_evaluations_say_why(folder):
    frame = tidy(Store(folder).records())
    (skipped,) = frame[frame["status"] == "skipped"].to_dict("records")
    assert skipped["algorithm.name"] == "local_sgda" and "solves problems of kind" in skipped["reason"]
    assert pd.isna(skipped["round"]) and pd.isna(skipped["accuracy"])
    failed = frame[frame["status"] == "failed"]
    assert failed["reason"].str.contains("diverged").all()


def test_figures_are_those_on_disk(folder):
    frame = tidy(Store(folder).records("ladder"))
    for record in Store(folder).records("ladder"):
        rows = frame[frame["id"] == record.id].to_dict("records")
        for row, line in zip(rows, record.rounds, strict=False):
            assert row["accuracy"] == line["metrics"]["accuracy"]
            assert (row["bytes_up"], row["flops"]) == (line["bytes_up"], line["flops"])
            assert row["seconds"] == line["timing"]["seconds"]
            if line["privacy"]:
                assert row["epsilon_total"] == line["privacy"]["epsilon_total"]
                assert row["releases"] == line["privacy"]["releases"]
            else:
                assert pd.isna(row["epsilon_total"])


def test_columns_have_the_types_of_what_they_hold(folder):
    frame = tidy(Store(folder).records("ladder"))
    assert frame["algorithm.lr"].dtype == "float64" and frame["accuracy"].dtype == "float64"
    assert frame["seed"].dtype == "int64" and frame["round"].dtype == "Int64"
    assert frame["partition.standardize"].dtype == "bool"  # skipped combinations say it too
    schedules = frame["compression.beta"]  # a number here and a schedule there: text
    assert set(schedules.dropna()) == {"0.0", "[[0, 0.5], [2, 0.75]]"}


def test_infinite_epsilon_and_clashing_names_are_exported():
    line = {
        "round": 1,
        "metrics": {"seed": 0.5},
        "privacy": {"epsilon_total": "inf"},
        "timing": {"seconds": 1.0},
    }
    frame = tidy(
        [RunRecord("a", "", "", {"algorithm": {"name": "fedavg"}, "seed": 3}, "done", None, "", [line])]
    )
    (row,) = frame.to_dict("records")
    assert math.isinf(row["epsilon_total"]) and row["seed"] == 3 and row["metrics.seed"] == 0.5


def test_diagnostics_have_columns_and_runs_without_them_none():
    def record(id, line):
        spec = {"algorithm": {"name": "fedavg"}, "seed": 3}
        return RunRecord(id, "", "", spec, "done", None, "", [{"round": 1, "metrics": {"loss": 1.0}} | line])

    known = {"clipped_share": 0.5, "update_norm_p10": 0.1}
    frame = tidy([record("a", {}), record("b", {"diagnostics": known}), record("c", {"diagnostics": None})])
    assert frame["clipped_share"].isna().tolist() == [True, False, True]
    assert frame.loc[1, "clipped_share"] == 0.5 and frame.loc[1, "update_norm_p10"] == 0.1
    assert frame["cell"].nunique() == 1 and list(frame.columns)[-2:] == ["cell", "task"]


def test_a_seed_of_more_than_64_bits_is_exported():
    frame = tidy([RunRecord("a", "", "", {"algorithm": "fedavg", "seed": 2**70}, "missing", None, "", [])])
    assert frame.loc[0, "seed"] == 2.0**70


def test_parquet_and_csv_hold_the_tidy_table(folder, tmp_path):
    parquet, csv = tmp_path / "new" / "all.parquet", tmp_path / "all.csv"
    assert main(["export", str(folder), "--parquet", str(parquet), "--csv", str(csv)]) == 0
    frame = tidy(Store(folder).records())
    pd.testing.assert_frame_equal(pd.read_parquet(parquet), frame)
    read = pd.read_csv(csv)
    assert list(read.columns) == list(frame.columns) and len(read) == len(frame)
    assert read["accuracy"].equals(frame["accuracy"])
    assert [path.name for path in parquet.parent.iterdir()] == ["all.parquet"]


def test_csv_files_hold_no_formulas(tmp_path):
    """A column, a file or a client may have such a name; a spreadsheet would compute it. Numbers stay numbers."""
    data = {"name": "csv", "path": "=1+1.csv", "label": "@label", "sensitive": "+1 group", "client": "-1e3"}
    record = records.done(records.spec("=cmd()", lr=-0.5, data=data), suite="-suite", accuracy=0.5)
    write_tidy(tidy([record]), tmp_path / "tidy.csv")
    output_text(tmp_path / "board.csv", csv_text(leaderboard(Results([record]))))
    grids = tabulate(Results([record]), Pivot("data.path", "data.sensitive"), "accuracy")
    (tmp_path / "grids.csv").write_text(grids_csv(grids))
    for name in ("tidy", "board", "grids"):
        found = pd.read_csv(tmp_path / f"{name}.csv", dtype=str, keep_default_na=False)
        assert len(found) == 1
        assert not [cell for cell in found.to_numpy().ravel() if cell.startswith(("=", "+", "@", "-s"))]
    row = pd.read_csv(tmp_path / "tidy.csv").iloc[0]
    assert (row["data.path"], row["data.label"], row["data.sensitive"]) == (
        "'=1+1.csv",
        "'@label",
        "'+1 group",
    )
    assert (row["data.client"], row["algorithm.lr"], row["suite"]) == (-1000.0, -0.5, "'-suite")


def test_one_suite_can_be_exported_alone(folder, tmp_path):
    path = tmp_path / "ladder.parquet"
    assert main(["export", str(folder), "--suite", "ladder", "--parquet", str(path)]) == 0
    assert set(pd.read_parquet(path)["suite"]) == {"ladder"}


def test_a_leaderboard_goes_out_as_parquet(folder, tmp_path, capsys):
    path = tmp_path / "board.parquet"
    assert main(["leaderboard", str(folder), "--suite", "ladder", "--parquet", str(path), "--json"]) == 0
    rows, frame = json.loads(capsys.readouterr().out), pd.read_parquet(path)
    assert list(frame["cell"]) == [row["cell"] for row in rows]
    assert frame["bytes_up"].dtype == "Int64"


def curves(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    return events


def test_tensorboard_gets_every_figure_of_every_run(folder, tmp_path):
    board = tmp_path / "board"
    for _ in range(2):  # the second time nothing comes twice
        assert main(["export", str(folder), "--suite", "ladder", "--tensorboard", str(board)]) == 0
    records = [record for record in Store(folder).records("ladder") if record.rounds]
    assert len(records) == 8
    for record in records:
        place = board / "ladder" / "fedavg" / f"seed-{record.spec['seed']}" / record.id
        assert len(list(place.iterdir())) == 1
        events = curves(place)
        for name, value in (
            ("accuracy", lambda line: line["metrics"]["accuracy"]),
            ("bytes_up", lambda line: line["bytes_up"]),
        ):
            found = events.Scalars(name)
            assert [event.step for event in found] == [line["round"] for line in record.rounds]
            assert [event.value for event in found] == pytest.approx([value(line) for line in record.rounds])
            assert [event.wall_time for event in found] == [
                line["timing"]["seconds"] for line in record.rounds
            ]
        assert ("epsilon_total" in events.Tags()["scalars"]) == (record.spec["privacy"] is not None)
        (text,) = events.Tensors("spec/text_summary")
        assert '"lr": 0.05' in text.tensor_proto.string_val[0].decode()
        assert "_hparams_/session_start_info" in events.summary_metadata
    assert not [path for path in board.iterdir() if path.name != "ladder"]


def test_an_export_that_says_nothing_to_write_is_refused(folder, tmp_path, capsys):
    assert main(["export", str(folder)]) == 2
    assert "--parquet FILE, --csv FILE, --clients FILE or --tensorboard FOLDER" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["export", str(tmp_path / "nowhere"), "--csv", str(tmp_path / "t.csv")]) == 2
    assert "no results folder" in capsys.readouterr().err
    assert main(["export", str(folder), "--suite", "other", "--csv", str(tmp_path / "t.csv")]) == 2
    assert "holds no runs of suite other" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("option", "library"), [("--parquet", "pyarrow"), ("--tensorboard", "torch.utils.tensorboard")]
)
def test_without_the_extra_its_name_is_said(folder, tmp_path, monkeypatch, capsys, option, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["export", str(folder), option, str(tmp_path / "out")]) == 2
    assert "pip install 'fedfrontier[export]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
