"""What a run has written is read back as written, or the run is damaged; nothing in between."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core import rng
from harness.executors.scheduler import run_one
from harness.metrics import evaluate, read_predictions
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.simulation.setup import Execution
from harness.storage import seals
from harness.storage.files import Damaged, Unwritable
from harness.storage.seals import read_sealed, sha256, write_sealed
from harness.storage.store import Store
from harness.storage.verification import verify

SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 2},
    "rounds": 3,
    "eval_every": 1,
}
SEALED = ("spec.json", "rounds.jsonl", "predictions.csv", "done.json")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A results folder with one finished run and its predictions."""
    root = tmp_path_factory.mktemp("finished")
    assert run_one(read_spec(SPEC), root, Execution(), save=["predictions.csv"]).status == "done"
    return root


@pytest.fixture
def copy(finished, tmp_path):
    """Return a copy of it that may be damaged, and the folder of its run."""
    root = tmp_path / "copy"
    shutil.copytree(finished, root)
    (folder,) = Store(root).run_folders()
    return root, folder


def told(root):
    """Return all that tables are made of, and how the run stands."""
    (record,) = Store(root).records()
    return record, (record.spec, record.rounds, record.final, record.digest, record.versions, record.held)


def damages(whole, flips, cuts):
    """Yield contents with one bit turned, and shortened ones."""
    draw = random.Random(7)
    for _ in range(flips):
        place, bit = draw.randrange(len(whole)), draw.randrange(8)
        yield whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
    for _ in range(cuts):
        yield whole[: draw.randrange(len(whole))]


@pytest.mark.parametrize("name", SEALED)
def test_no_damage_to_a_finished_run_goes_unnoticed(copy, name):
    """One bit turned, or the end cut off: none of its figures is read then, so none gets into a table."""
    root, folder = copy
    whole, (before, expected) = (folder.path / name).read_bytes(), told(root)
    assert before.status == "done"
    for content in damages(whole, flips=100, cuts=25):
        (folder.path / name).write_bytes(content)
        record, _ = told(root)
        assert record.status == "damaged" and name in record.reason
        assert record.rounds == [] and record.final == {}
        if name != "spec.json":
            assert (record.spec, record.digest) == (before.spec, before.digest)
    assert leaderboard(Results([record]))["damaged"].sum() == 1
    (folder.path / name).write_bytes(whole)
    assert told(root)[1] == expected


@pytest.mark.parametrize("name", ["spec.json", "rounds.jsonl", "predictions.csv"])
def test_a_missing_file_is_damage(copy, name):
    root, folder = copy
    (folder.path / name).unlink()
    assert folder.read()[:2] == ("damaged", f"{name} is missing")
    assert told(root)[0].status == "damaged"


def test_a_run_cannot_take_the_place_of_another(copy):
    root, folder = copy
    other = folder.path.with_name("0123456789abcdef")
    folder.path.rename(other)
    record, _ = told(root)
    assert record.status == "damaged" and "belongs to run" in record.reason


def test_a_lost_seal_is_damage_and_an_old_run_is_read(copy):
    """A run of an earlier version has no versions in its spec.json, so it never had a seal."""
    root, folder = copy
    _, expected = told(root)
    done = read_sealed(folder.path / "done.json")[0]
    (folder.path / "done.json").write_text(json.dumps(done))
    assert told(root)[0].reason == "done.json has lost its seal"
    started = json.loads((folder.path / "spec.json").read_text())
    del started["versions"], started["timing"]
    (folder.path / "spec.json").write_text(json.dumps(started))
    record, found = told(root)
    assert record.status == "done" and found[1:3] == expected[1:3]
    assert [verdict.state for verdict in verify(Store(root))] == ["not sealed"]


def test_a_damaged_run_is_told_left_out_and_made_again(copy, capsys, caplog):
    root, folder = copy
    path = folder.path / "rounds.jsonl"
    expected, seen = told(root)[1], leaderboard(Results(Store(root).records()))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert main(["status", str(root)]) == 1
    assert "damaged" in capsys.readouterr().out
    assert main(["verify", str(root)]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "rounds.jsonl is damaged" in said and "1 run and 0 suites: 1 damaged" in said
    assert main(["leaderboard", str(root)]) == 0
    assert "0/1, 1 damaged" in capsys.readouterr().out and "is damaged and left out" in caplog.text
    assert run_one(read_spec(SPEC), root, Execution()).status == "done"
    assert (folder.path / "rounds.jsonl.damaged").exists()
    again = leaderboard(Results(Store(root).records()))
    assert again.drop(columns="seconds").equals(seen.drop(columns="seconds"))
    assert told(root)[1][0] == expected[0]
    assert main(["verify", str(root)]) == 0


def test_a_suite_file_is_sealed(tmp_path):
    store = Store(tmp_path).open()
    store.write_suite("one", {"suite": "one", "profile": "", "cells": [], "report": {"by": "auroc"}})
    path = tmp_path / "one" / "suite.json"
    assert store.report_settings("one") == {"by": "auroc"}
    path.write_text(path.read_text().replace("auroc", "eqopp"))
    with pytest.raises(Damaged, match=r"suite\.json is damaged"):
        store.report_settings("one")
    assert [verdict.faults for verdict in verify(store)] == [("suite.json is damaged",)]


def test_a_seal_leaves_the_content_as_it_is(tmp_path):
    content = {"a": seals.BLANK, "timing": {"seconds": 1.5}, "b": [1, "é"]}
    digest = write_sealed(tmp_path / "x.json", content, {"other": "0"})
    found, seal = read_sealed(tmp_path / "x.json")
    assert found == content and seal["other"] == "0"
    assert digest == sha256(tmp_path / "x.json")


def recomputed(folder):
    """Return the figures that follow from a run's predictions."""
    return evaluate(read_predictions(folder.path / "predictions.csv"), SPEC["partition"]["clients"])


def test_a_record_reads_every_file_once(finished, monkeypatch):
    """What is compared with the seal is what the record is made of, also if the file changes meanwhile."""
    opened = []

    def recording(file, *args, **kwargs):
        opened.append(Path(file).name)
        return whole(file, *args, **kwargs)

    whole = os.open
    monkeypatch.setattr(os, "open", recording)
    (folder,) = Store(finished).run_folders()
    record = Store(finished).record(folder.path.name, SPEC)
    assert record.status == "done" and len(record.rounds) == 4
    assert {name: opened.count(name) for name in ("done.json", *seals.RECORDED)} == {
        "done.json": 1, "spec.json": 1, "rounds.jsonl": 1,
    }  # fmt: skip


def test_predictions_recompute_the_figures_of_their_run(finished, tmp_path):
    """Written with the run, and asked for when it is done; then the seal holds them too."""
    (folder,) = Store(finished).run_folders()
    metrics = folder.end()["metrics"]
    assert recomputed(folder) == metrics
    assert run_one(read_spec(SPEC), tmp_path, Execution()).status == "done"
    (later,) = Store(tmp_path).run_folders()
    assert run_one(read_spec(SPEC), tmp_path, Execution(), save=["predictions.csv"]).status == "done"
    assert recomputed(later) == metrics == later.end()["metrics"]
    assert later.has("predictions.csv") and later.status == "done"
    (later.path / "predictions.csv").write_text("client,y_true\n")
    assert later.read()[:2] == ("damaged", "predictions.csv is damaged")


NOISY = {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0}


def test_predictions_of_other_figures_are_refused(tmp_path, monkeypatch):
    """The run was recorded where it was computed otherwise, which shows in its noise here."""
    spec = read_spec(SPEC | {"privacy": NOISY})
    assert run_one(spec, tmp_path, Execution()).status == "done"
    (folder,) = Store(tmp_path).run_folders()
    before, stream = folder.end(), rng.noise_stream
    monkeypatch.setattr(rng, "noise_stream", lambda run, *purpose: stream(f"other {run}", *purpose))
    with pytest.raises(
        Unwritable, match=r"predictions\.csv is not written: repeated, the run ends with accuracy"
    ):
        run_one(spec, tmp_path, Execution(), save=["predictions.csv"])
    assert not (folder.path / "predictions.csv").exists()
    assert folder.status == "done" and folder.end() == before
