"""What Python code gets of the harness: the same runs and tables as the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

import harness
from harness.cli.commands import PLACEMENTS, SAMPLINGS, UNITS
from harness.cli.parser import GROUPS, main
from harness.core.errors import UserError
from harness.storage.store import Store
from privacy import calculator

ROOT = Path(__file__).parents[3]
SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 1.0, "clients": 4},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.05},
    "rounds": 4,
    "eval_every": 2,
}


def plain(line):
    return {key: value for key, value in line.items() if key != "timing"}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, harness; print('torch' in sys.modules, 'harness.api' in sys.modules, *dir(harness))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert told[:2] == ["False", "False"]
    assert set(harness.__all__) <= set(told[2:])
    assert all(getattr(harness, name) is not None for name in harness.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = harness.nothing


def test_a_run_from_python_is_the_run_of_the_command_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    assert main(["run", "--spec", str(path), "--out", str(tmp_path / "line")]) == 0
    record = harness.run(SPEC, tmp_path / "python")
    (other,) = Store(tmp_path / "line").records()
    assert (record.id, record.status, record.source) == (other.id, "done", other.source)
    assert [plain(line) for line in record.rounds] == [plain(line) for line in other.rounds]
    assert plain(record.final) == plain(other.final)


def test_a_mapping_a_file_and_a_checked_spec_are_one_run(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    calls = []

    class Count(harness.Callback):
        def on_round(self, run, round, evaluation):
            calls.append(round)

    checked = harness.RunSpec.model_validate(SPEC)
    records = [
        harness.run(one, tmp_path / "out", callbacks=[Count()]) for one in (SPEC, str(path), path, checked)
    ]
    assert len({record.id for record in records}) == 1
    assert calls == [0, 1, 2, 3, 4]  # once: the others found it done


def test_a_diverged_run_keeps_its_reason_and_reruns_on_request(tmp_path):
    wild = SPEC | {"algorithm": {"name": "fedavg", "lr": 1e38}}
    record = harness.run(wild, tmp_path)
    assert record.status == "failed" and "diverged" in record.reason
    folder = Store(tmp_path).folder(record.id)
    folder.fail({"reason": "something passing"})
    assert harness.run(wild, tmp_path).reason == "something passing"
    assert "diverged" in harness.run(wild, tmp_path, retry=True).reason


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    refused = [
        (SPEC | {"algorithm": "fedavgg"}, "Did you mean 'fedavg'"),
        (SPEC | {"algorithm": "local_sgda"}, r"is erm. Problems that it solves: auroc,"),
        ({"suite": "mine", "base": SPEC, "sweep": {}}, "python -m harness suite FILE"),
        (
            SPEC | {"algorithm": "local", "privacy": {"epsilon": 8, "placement": "central"}, "rounds": 0},
            "rounds",
        ),
        (str(tmp_path / "nowhere.yaml"), "no such file"),
    ]
    for spec, says in refused:
        with pytest.raises(harness.UserError, match=says):
            harness.run(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_threads_of_torch_are_as_before(tmp_path):
    torch.set_num_threads(2)
    harness.run(SPEC, tmp_path)
    assert torch.get_num_threads() == 2


def test_results_are_a_frame_with_a_row_an_evaluation(tmp_path):
    for seed in range(2):
        harness.run(SPEC | {"seed": seed}, tmp_path)
    frame = harness.load_results(tmp_path)
    assert list(frame["round"]) == [0, 2, 4] * 2 and set(frame["seed"]) == {0, 1}
    assert frame.groupby("seed")["accuracy"].last().min() > 0.5
    assert set(frame["partition.alpha"]) == {1.0}
    with pytest.raises(harness.UserError, match="holds no runs of suite other"):
        harness.load_results(tmp_path, suite="other")
    with pytest.raises(harness.UserError, match="no results folder"):
        harness.load_results(tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_the_api_gives_the_leaderboard_of_the_command(tmp_path, capsys):
    suite = {
        "suite": "two",
        "base": SPEC,
        "sweep": {"algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
        "report": {"by": "worst_client", "baseline": "fedavg", "target": {"accuracy": 0.5}},
    }
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(suite))
    out = tmp_path / "out"
    assert main(["suite", str(tmp_path / "two.yaml"), "--jobs", "1", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["leaderboard", str(out), "--suite", "two", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    frame = harness.leaderboard(out, "two")
    pd.testing.assert_frame_equal(frame, harness.leaderboard(str(out), suite="two", by="worst_client"))
    assert json.loads(frame.to_json(orient="records")) == told
    assert set(frame["ranked_by"]) == {"worst_client"} and (frame["reached"] == 2).all()
    assert frame["baseline"].notna().sum() == 1
    by_bytes = harness.leaderboard(out, by="bytes", target={"accuracy": 2.0})
    assert set(by_bytes["ranked_by"]) == {"bytes"} and (by_bytes["reached"] == 0).all()


def test_a_plugin_is_loaded_for_python_too(tmp_path, registries):
    harness.load_plugin(ROOT / "docs" / "examples" / "plugin.py")
    record = harness.run(SPEC | {"data": "wine", "algorithm": "local_momentum"}, tmp_path)
    assert record.status == "done" and "median_client" in record.final["metrics"]
    assert "median_client" in harness.load_results(tmp_path)


def test_a_sweep_from_python_is_the_sweep_of_the_command_line(tmp_path, capsys):
    over = {"algorithm.lr": [0.05, 0.1], "seed": range(2)}
    made = harness.sweep(SPEC, over, tmp_path / "python", progress=False)
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    lists = ["--sweep", "algorithm.lr=0.05,0.1", "--sweep", "seed=0..1"]
    assert main(["sweep", "--spec", str(path), *lists, "--jobs", "1", "--out", str(tmp_path / "line")]) == 0
    records = Store(tmp_path / "line").records("sweep")
    assert [(one.id, plain(one.final)) for one in made.records] == [
        (one.id, plain(one.final)) for one in records
    ]
    assert made.ends == {"done": 4} and len(made.leaderboard()) == 2 and len(made.results()) == 12
    assert "<table" in made._repr_html_() and "4 done" in made._repr_html_()


def test_a_suite_by_content_takes_a_profile_and_other_values(tmp_path):
    content = {"suite": "mine", "base": SPEC, "profiles": {"smoke": {"base": {"rounds": 1}}, "paper": {}}}
    small = harness.suite(content, tmp_path, over={"seed": [5]}, progress=False)
    assert [(one.spec["rounds"], one.spec["seed"]) for one in small.records] == [(1, 5)]
    with pytest.raises(harness.UserError, match="profile"):
        harness.suite(content, tmp_path, profile="papre")


def test_a_plan_from_python_has_the_rows_of_the_command(capsys):
    private = SPEC | {"privacy": {"placement": "central", "epsilon": 8, "clip": 1}}
    frame = harness.plan(private, {"privacy.epsilon": [8, 2]})
    assert list(frame["epsilon_total"].round(2)) == [8, 2] and (frame["noise_multiplier"] > 0).all()
    content = {"suite": "mine", "base": private, "sweep": {"privacy.epsilon": [8, 2]}}
    again = harness.plan(content)
    assert list(again["bytes_up"]) == list(frame["bytes_up"]) and list(again["id"]) == list(frame["id"])


@pytest.mark.slow
def test_a_search_from_python_tells_what_it_chose(tmp_path):
    made = harness.tune(
        SPEC | {"partition": {**SPEC["partition"], "selection": 0.2}},
        {"algorithm.lr": {"choice": [1e-6, 0.1]}},
        tmp_path, over={"seed": range(2)}, search={"budget": 2, "repeats": [1, 1, 1]}, progress=False,
    )  # fmt: skip
    assert list(made.chosen()["algorithm.lr"]) == [0.1, 0.1] and made.ends == {"done": 2}


@pytest.mark.slow
def test_a_search_from_python_has_the_ranges_of_the_command(tmp_path):
    made = harness.tune(
        SPEC, out=tmp_path, search={"budget": 1, "repeats": [1, 1, 1]}, over={"seed": [0]}, progress=False
    )
    assert {"algorithm.lr", "algorithm.local_steps", "rounds"} < set(made.chosen())
    assert made.records[0].spec["partition"]["selection"] == 0.2


def test_a_recommendation_from_python_says_what_excludes(tmp_path):
    made = harness.sweep(SPEC, {"algorithm.lr": [1e-6, 0.1], "seed": range(2)}, tmp_path, progress=False)
    board = made.leaderboard()
    line = (board["accuracy_mean"].min() + board["accuracy_mean"].max()) / 2
    found = harness.recommend(tmp_path, [f"accuracy >= {line}"])
    assert len(found) == 1 and found.attrs["said"]
    none = harness.recommend(tmp_path, ["accuracy >= 2"])
    assert none.empty and "accuracy >= 2" in " ".join(none.attrs["said"])
    with pytest.raises(harness.UserError, match="a list of bounds"):
        harness.recommend(tmp_path, "accuracy >= 2")


@pytest.mark.slow
def test_a_report_from_python_writes_what_the_command_writes(tmp_path, capsys):
    made = harness.sweep(SPEC, {"seed": range(2)}, tmp_path, progress=False)
    report = harness.write_report(tmp_path, "sweep", pivots=[("algorithm.name", "rounds")])
    pages = report.page.read_bytes()
    assert main(["report", str(tmp_path), "--suite", "sweep", "--pivot", "algorithm.name,rounds"]) == 0
    assert report.page.read_bytes() == pages and {"pivot.md", "curves.svg"} <= report.files.keys()
    assert "<svg" in report._repr_html_()
    pd.testing.assert_frame_equal(report.leaderboard(), made.leaderboard())


def test_a_record_says_which_run_it_is_and_how_it_ended(tmp_path):
    record = harness.run(SPEC | {"algorithm": {"name": "fedavg", "lr": 1e38}}, tmp_path)
    assert len(repr(record)) < 200 and repr(record).startswith(
        f"RunRecord(id='{record.id}', suite='', status='failed'"
    )


#: Commands whose function has another name, or that no script needs.
OTHERWISE = {"report": "write_report", "data": "describe"}
OF_A_TERMINAL = {"list", "doctor", "completion", "new"}


def test_every_command_is_a_function():
    commands = {name for group in GROUPS.values() for name in group} - OF_A_TERMINAL
    assert sorted(name for name in commands if OTHERWISE.get(name, name) not in harness.__all__) == []


def test_folders_are_looked_after_from_python(tmp_path):
    """What the commands print is tested with the commands; here that each function does what its command does."""
    one, two = tmp_path / "one", tmp_path / "two"
    done = harness.run(SPEC, one)
    harness.run({**SPEC, "seed": 1}, two)
    assert harness.status(one)["status"].tolist() == ["done"]
    assert harness.merge([one, two], tmp_path / "both").copied == 2
    harness.archive(tmp_path / "both", tmp_path / "both.tar.gz")
    found = harness.verify(tmp_path / "both.tar.gz", sample=1, seed=0)
    assert found.sound and [replay.state for replay in found.replays] == ["identical"]
    harness.export(one, csv=tmp_path / "all.csv")
    assert len(pd.read_csv(tmp_path / "all.csv")) == len(harness.load_results(one))
    assert harness.resume(one).total() == 0 and harness.retry(one).total() == 0
    (one / "runs" / done.id / "rounds.jsonl").write_text("")
    assert not harness.verify(one).sound
    for call in (lambda: harness.status(tmp_path / "none"), lambda: harness.archive(one, tmp_path / "a.zip")):
        with pytest.raises(UserError):
            call()


def test_epsilon_in_python_is_that_of_the_command(capsys):
    frame = harness.epsilon(1.1, cohort=(10, 100), rounds=20, sampling="poisson")
    line = "epsilon --noise-multiplier 1.1 --cohort 10/100 --rounds 20 --sampling poisson --json"
    assert main(line.split()) == 0
    assert frame["epsilon"].tolist() == [
        row["epsilon"] for row in json.loads(capsys.readouterr().out)["rows"]
    ]
    noise = harness.epsilon(for_epsilon=2.0, rounds=20)["noise_multiplier"].iloc[-1]
    assert harness.epsilon(noise, rounds=20)["epsilon"].iloc[-1] == pytest.approx(2.0, rel=1e-3)
    for wrong in ({}, {"rounds": 0}, {"cohort": (3, 2)}, {"unit": "person"}, {"rate": 0.1, "cohort": (1, 2)}):
        with pytest.raises(UserError, match="epsilon: "):
            harness.epsilon(**({"noise_multiplier": 1.0, **wrong} if wrong else {}))
    assert (UNITS, PLACEMENTS, SAMPLINGS) == (calculator.UNITS, calculator.PLACEMENTS, calculator.SAMPLINGS)
