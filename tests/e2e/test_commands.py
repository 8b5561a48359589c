"""Stories of the command line: what a user types, and what is then on the screen and on disk."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from harness.cli.parser import main
from harness.cli.report import next_step as step_after_report
from harness.cli.status import next_step
from harness.config.run import read_spec
from harness.storage.store import Store
from tests.support.runs import BL2, MM4, write_yaml
from tests.support.written import saved, wait_for, written

ROOT = Path(__file__).parents[2]
DIGITS = {
    "data": "digits",
    "partition": {"kind": "iid", "clients": 5},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "rounds": 4,
    "eval_every": 2,
}
# fmt: off
CONTRACT = [  # the columns a leaderboard begins with
    "suite", "dataset", "partition", "problem", "model", "algorithm", "dp_unit", "dp_placement",
    "epsilon_release", "epsilon_total", "delta", "clip", "alpha", "beta", "codec", "rounds", "clients",
    "seeds", "accuracy_mean", "accuracy_std", "worst_client_mean", "eqopp_mean", "eqopp_std",
    "auroc_mean", "auroc_std", "bytes_up", "bytes_down", "flops", "seconds", "done", "failed", "skipped",
    "rank",
]
# fmt: on


def listen_to_ctrl_c():
    """Tests started in the background of a shell inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def harness(*arguments, **options):
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=listen_to_ctrl_c, **options)


def final(folder):
    (path,) = folder.glob("runs/*/done.json")
    return json.loads(path.read_text())


def evaluated_twice(folder):
    """Tell whether a run has something to lose."""
    return any(len(path.read_text().splitlines()) > 1 for path in folder.glob("runs/*/rounds.jsonl"))


def test_a_newcomer_runs_fedavg_on_digits(tmp_path, capsys):
    code = main(
        [
            "run",
            "--algorithm",
            "fedavg",
            "--data",
            "digits",
            "--rounds",
            "3",
            "--out",
            str(tmp_path),
            "--json",
        ]
    )
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["round"] == 3 and told["metrics"]["accuracy"] > 0.5
    assert (
        told["bytes_up"] == told["bytes_down"] == 3 * 10 * 4 * 650
    )  # rounds x clients x float32 x parameters


def test_a_run_file_with_matrices_ends_at_the_known_saddle(tmp_path):
    spec = {
        "problem": MM4,
        "algorithm": {"name": "k_gt_minimax", "lr_x": 0.05, "lr_y": 0.05, "local_steps": 5},
        "topology": "ring",
        "rounds": 250,
        "eval_every": 250,
    }
    assert (
        main(["run", "--spec", write_yaml(tmp_path / "mm4.yaml", spec), "--out", str(tmp_path / "out")]) == 0
    )
    solution = final(tmp_path / "out")["solution"]
    assert np.ravel(solution["x"]) == pytest.approx(
        -1.5, abs=1e-6
    )  # one value where the nodes agree, else four
    assert np.ravel(solution["y"]) == pytest.approx(-0.25, abs=1e-6)


def test_the_bilevel_instance_ends_at_its_optimum(tmp_path):
    spec = {
        "problem": BL2,
        "algorithm": {"name": "fedbio", "lr_x": 0.05, "lr_y": 0.1, "neumann_terms": None, "local_steps": 1},
        "rounds": 400,
        "eval_every": 100,
    }
    assert (
        main(["run", "--spec", write_yaml(tmp_path / "bl2.yaml", spec), "--out", str(tmp_path / "out")]) == 0
    )
    solution = final(tmp_path / "out")["solution"]
    assert solution["x"] == pytest.approx([0.75], abs=1e-6)
    assert [y for (y,) in solution["y"]] == pytest.approx([0.75, 1.75], abs=1e-6)


def test_a_finished_run_is_not_run_again(tmp_path):
    command = ["run", "--spec", write_yaml(tmp_path / "run.yaml", DIGITS), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json*")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json*")} == before


LONG = DIGITS | {"algorithm": DIGITS["algorithm"] | {"local_steps": 4}, "rounds": 300, "eval_every": 10}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What LONG writes if nobody stops it."""
    root = tmp_path_factory.mktemp("undisturbed")
    assert main(["run", "--spec", write_yaml(root / "long.yaml", LONG), "--out", str(root)]) == 0
    return written(root)


def test_an_interrupted_run_resumes_and_ends_the_same(tmp_path, undisturbed):
    """Long before a checkpoint would be due: Ctrl-C writes one. Kills are in `test_kills.py`."""
    spec = write_yaml(tmp_path / "long.yaml", LONG)
    process = harness("run", "--spec", spec, "--out", tmp_path / "stopped", stderr=subprocess.DEVNULL)
    wait_for(lambda: evaluated_twice(tmp_path / "stopped"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not list((tmp_path / "stopped").glob("runs/*/done.json")), "it was too quick to be stopped"
    assert list((tmp_path / "stopped").glob("runs/*/checkpoint.pt"))
    assert main(["run", "--spec", spec, "--out", str(tmp_path / "stopped")]) == 0
    assert written(tmp_path / "stopped") == undisturbed


def test_ctrl_c_stops_the_workers_of_a_suite_at_once(tmp_path):
    """Each saves the run it has, and none takes the next one or comes to the end of its own."""
    long = DIGITS | {"rounds": 200_000, "eval_every": 10_000}
    suite = write_yaml(
        tmp_path / "many.yaml", {"suite": "many", "base": long, "sweep": {"seed": list(range(8))}}
    )
    process = harness(
        *("suite", suite, "--out", tmp_path / "out", "--jobs", 2, "--stack", "off"), stderr=subprocess.PIPE
    )
    wait_for(saved(tmp_path / "out", 2))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]  # workers hold the pipe: it ends when all have gone
    assert process.returncode == 130 and b"Traceback" not in said
    assert len(list((tmp_path / "out").glob("runs/*"))) == 2
    assert len(list((tmp_path / "out").glob("runs/*/checkpoint.pt"))) == 2
    assert not list((tmp_path / "out").glob("runs/*/done.json"))


@pytest.mark.parametrize("given", ["0", "-1", "some"])
def test_a_size_of_stacks_that_is_none_is_refused(given, capsys):
    assert main(["suite", "quickstart", "--stack", given]) == 2
    assert f"auto, off or a number of runs of at least 1, given '{given}'" in capsys.readouterr().err


@pytest.mark.usefixtures("blank_pictures")
def test_one_process_and_two_write_the_same_files(tmp_path):
    content = {
        "suite": "pair",
        "base": DIGITS,
        "sweep": {"algorithm": ["fedavg", "scaffold", "k_gt_minimax"], "topology": [None], "seed": [0, 1]},
    }
    content["sweep"]["algorithm"].pop()
    suite = write_yaml(tmp_path / "pair.yaml", content)
    for jobs in ("1", "2"):
        assert main(["suite", suite, "--out", str(tmp_path / jobs), "--jobs", jobs]) == 0
    assert len(written(tmp_path / "1")) == 4 * 3
    assert written(tmp_path / "1") == written(tmp_path / "2")


@pytest.mark.usefixtures("blank_pictures")
def test_a_suite_goes_on_after_skipped_and_failed_runs(tmp_path, capsys):
    content = {
        "suite": "mixed",
        "base": DIGITS,
        "sweep": {"algorithm": ["fedavg", {"name": "fedavg", "lr": 1e38}, "fedsgda_m"]},
    }
    suite = write_yaml(tmp_path / "mixed.yaml", content)
    assert main(["suite", suite, "--out", str(tmp_path / "out"), "--jobs", "1"]) == 1
    capsys.readouterr()
    table = tmp_path / "table.csv"
    assert main(["leaderboard", str(tmp_path / "out"), "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0])[: len(CONTRACT)] == CONTRACT
    counts = [(int(row["done"]), int(row["failed"]), int(row["skipped"])) for row in rows]
    assert sorted(counts) == [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    reasons = " ".join(row["reasons"] for row in rows)
    assert "round 1" in reasons and "solves problems of kind minimax" in reasons


def test_the_plan_is_what_then_happens(tmp_path, capsys):
    spec = write_yaml(tmp_path / "run.yaml", DIGITS)
    assert main(["plan", "--spec", spec, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert main(["run", "--spec", spec, "--out", str(tmp_path / "out")]) == 0
    for name in ("bytes_up", "bytes_down", "flops", "oracle_calls"):
        assert final(tmp_path / "out")[name] == row[name]


def test_every_figure_can_be_made_again_from_the_predictions(tmp_path):
    from sklearn.metrics import accuracy_score, roc_auc_score

    lines = ["a,b,group,label"]
    for number in range(240):
        a, b = (number * 37) % 101 / 101, (number * 53) % 89 / 89
        lines.append(f"{a:.4f},{b:.4f},{'xy'[number % 3 == 0]},{int(a + 0.3 * b > 0.6)}")
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    spec = DIGITS | {
        "data": {"name": "csv", "path": str(tmp_path / "mine.csv"), "label": "label", "sensitive": "group"}
    }
    command = ["run", "--spec", write_yaml(tmp_path / "run.yaml", spec), "--out", str(tmp_path / "out")]
    assert main([*command, "--save-predictions"]) == 0
    metrics = final(tmp_path / "out")["metrics"]
    (path,) = (tmp_path / "out").glob("runs/*/predictions.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    true, predicted = ([int(row[name]) for row in rows] for name in ("y_true", "y_pred"))
    assert accuracy_score(true, predicted) == pytest.approx(metrics["accuracy"])
    assert roc_auc_score(true, [float(row["y_score"]) for row in rows]) == pytest.approx(metrics["auroc"])
    rates = []
    for group in sorted({row["group"] for row in rows}):
        found = [
            p for t, p, row in zip(true, predicted, rows, strict=True) if t == 1 and row["group"] == group
        ]
        rates.append(sum(found) / len(found))
    assert max(rates) - min(rates) == pytest.approx(metrics["eqopp"])


@pytest.mark.parametrize(
    "what",
    [
        "algorithms",
        "codecs",
        "data",
        "mechanisms",
        "metrics",
        "models",
        "partitions",
        "problems",
        "suites",
        "topologies",
    ],
)
def test_everything_can_be_listed(what, capsys):
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows and all("name" in row for row in rows)


def test_status_report_and_partition_picture(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["run", "--spec", write_yaml(tmp_path / "run.yaml", DIGITS), "--out", out]) == 0
    assert main(["status", out, "--json"]) == 0
    text = capsys.readouterr().out
    assert [row["status"] for row in json.loads(text[text.index("[") :])] == ["done"]
    assert main(["report", out]) == 0
    assert "fedavg" in (tmp_path / "out" / "all" / "index.html").read_text()
    picture = tmp_path / "who.png"
    assert (
        main(["data", "draw", str(picture), "--data", "digits", "--partition", "{kind: dirichlet, alpha: 1}"])
        == 0
    )
    assert picture.stat().st_size > 1000


BAD = {
    "unknown algorithm": (["--algorithm", "fedavgg", "--data", "digits"], "fedavg"),
    "unknown data": (["--algorithm", "fedavg", "--data", "digitz"], "digits"),
    "unknown model": (["--algorithm", "fedavg", "--data", "digits", "--model", "logistik"], "logistic"),
    "unknown partition": (
        ["--algorithm", "fedavg", "--data", "digits", "--partition", "dirichlett"],
        "dirichlet",
    ),
    "unknown setting": (["--algorithm", "{name: fedavg, lrr: 1}", "--data", "digits"], "lr"),
    "unknown field": (["--algorithm", "fedavg", "--data", "digits", "--set", "round=3"], "rounds"),
    "wrong type": (["--algorithm", "{name: fedavg, lr: fast}", "--data", "digits"], "lr"),
    "no rounds": (["--algorithm", "fedavg", "--data", "digits", "--rounds", "0"], "rounds"),
    "ratio of one": (["--algorithm", "fedavg", "--data", "digits", "--set", "compression.beta=1"], "[0, 1)"),
    "negative epsilon": (
        ["--algorithm", "fedavg", "--data", "digits", "--set", "privacy.epsilon=-1"],
        "epsilon",
    ),
    "two budgets": (
        [
            "--algorithm",
            "fedavg",
            "--data",
            "digits",
            "--set",
            "privacy={placement: local, epsilon: 1, noise_multiplier: 2}",
        ],
        "exactly one",
    ),
    "partition that is a number": (
        ["--algorithm", "fedavg", "--data", "digits", "--partition", "5"],
        "partition: named fields are needed, given 5",
    ),
    "cohort too large": (["--algorithm", "fedavg", "--data", "digits", "--cohort", "99"], "cohort.size"),
    "more clients than samples": (
        ["--algorithm", "fedavg", "--data", "digits", "--clients", "99999"],
        "clients",
    ),
    "no such csv": (["--algorithm", "fedavg", "--data", "csv:no-such.csv?label=y"], "no-such.csv"),
    "no such run file": (["--spec", "no-such.yaml"], "no-such.yaml"),
    "topology missing": (["--algorithm", "k_gt_minimax", "--problem", json.dumps(MM4)], "topology"),
    "problem that does not fit": (["--algorithm", "fedsgda_m", "--data", "digits"], "minimax"),
    "not positive definite": (
        ["--algorithm", "fedsgda_m", "--problem", json.dumps(MM4 | {"Q": [1, 0, 1, 4]})],
        "positive definite",
    ),
    "ragged coefficients": (
        ["--algorithm", "fedsgda_m", "--problem", json.dumps(MM4 | {"P": [1]})],
        "per client",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.replace(" ", "-"))
def test_a_bad_request_is_refused_in_one_clear_line(case, tmp_path, capsys):
    arguments, named = BAD[case]
    assert main(["run", *arguments, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert (
        named in " ".join(told.err.split()) and told.err.startswith("error: ") and "Traceback" not in told.err
    )
    assert not list(tmp_path.glob("out/runs/*"))


def test_a_csv_without_its_label_names_its_columns(tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("age,income\n1,0\n2,1\n")
    assert main(["run", "--algorithm", "fedavg", "--data", f"csv:{tmp_path}/mine.csv?label=incom"]) == 2
    assert "income" in capsys.readouterr().err


def test_results_of_another_version_are_left_alone(tmp_path, capsys):
    (tmp_path / "store.json").write_text('{"format": 99}')
    assert main(["run", "--spec", write_yaml(tmp_path / "run.yaml", DIGITS), "--out", str(tmp_path)]) == 2
    assert "format 99" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert (
        main(["run", "--spec", write_yaml(tmp_path / "run.yaml", DIGITS), "--out", str(tmp_path / "out")])
        == 2
    )


@pytest.mark.usefixtures("blank_pictures")
def test_a_report_made_again_looks_as_the_suite_s_file_wants_it(tmp_path):
    """Ranking, target and tables are kept with the suite; options say otherwise."""
    content = {
        "suite": "small",
        "base": {
            "problem": {
                "kind": "quadratic_minimax",
                "P": [1, 1],
                "B": [0, 0],
                "Q": [1, 1],
                "c": [1, 3],
                "d": [0, 0],
            },
            "rounds": 20,
            "eval_every": 1,
        },
        "sweep": {
            "algorithm": [{"name": "local_sgda", "local_steps": 1}],
            "algorithm.lr_x": [0.1, 0.5],
            "algorithm.local_steps": [1, 2],
        },
        "report": {
            "by": "stationarity",
            "target": {"stationarity": 0.1},
            "pivot": ["algorithm.lr_x", "algorithm.local_steps", "rounds_to_target"],
        },
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    assert main(["suite", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    pivot = tmp_path / "out" / "small" / "pivot.md"
    first = pivot.read_text()
    assert "To stationarity &lt;= 0.1" in first
    pivot.unlink()
    assert main(["report", str(tmp_path / "out"), "--suite", "small"]) == 0
    assert pivot.read_text() == first
    assert main(["report", str(tmp_path / "out"), "--suite", "small", "--target", "stationarity=0.01"]) == 0
    assert "To stationarity &lt;= 0.01" in pivot.read_text()


@pytest.mark.usefixtures("blank_pictures")
def test_a_sweep_is_a_suite_of_ones_own(tmp_path, capsys):
    """Two budgets, one of them none, and two seeds: four runs under a name, planned before and listed after."""
    spec = write_yaml(tmp_path / "run.yaml", DIGITS | {"privacy": {"placement": "local", "clip": 1}})
    asked = ["--spec", spec, "--sweep", "privacy.epsilon=null,8", "--sweep", "seed=0..1"]
    assert main(["plan", *asked, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    out = str(tmp_path / "results")
    assert main(["sweep", *asked, "--name", "ladder", "--out", out, "--jobs", "1", "--limit-hours", "1"]) == 0
    with open(tmp_path / "results" / "ladder" / "leaderboard.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epsilon_asked"], row["seeds"], row["done"]) for row in rows] == [
        ("", "2", "2"),
        ("8.0", "2", "2"),
    ]
    runs = {path.name for path in (tmp_path / "results" / "runs").iterdir()}
    assert {row["id"] for row in planned} == runs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit-hours", "1e-9"], "--trim leaves out seeds"),
        (["--trim"], "--trim needs --limit-hours"),
        (["--limit-hours", "nan"], "--limit-hours: a number above 0, given nan"),
        (["--draws", "3"], "--draws needs --random KEY=..."),
        (["--sweep", "seed=0..2", "--sweep", "seed=5"], "--sweep seed is given twice"),
        (["--sweep", "seed="], "sweep.seed: the list has no values"),
        (["--executor", "serial", "--jobs", "2"], "executor serial has one job"),
        (["--sweep", "seed"], "--sweep needs KEY=VALUE,..."),
        (["--sweep", "seed=[1"], "is not valid YAML"),
        (["--name", "../elsewhere"], "suite: a name of letters"),
    ],
)
def test_a_sweep_that_cannot_be_started_leaves_nothing_behind(tmp_path, capsys, options, message):
    spec = write_yaml(tmp_path / "run.yaml", DIGITS)
    assert main(["sweep", "--spec", spec, "--jobs", "1", "--out", str(tmp_path / "results"), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("results/*/*"))


def test_a_baseline_that_does_not_run_is_refused_first(tmp_path, capsys):
    content = {"base": DIGITS, "report": {"baseline": "fedprox"}}
    path = write_yaml(tmp_path / "mine.yaml", content)
    assert main(["suite", path, "--out", str(tmp_path / "results"), "--jobs", "1"]) == 2
    assert "unknown baseline 'fedprox'" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("picture", [{"overview": ["eqop"]}, {"curves": ["eqop", "round"]}])
def test_a_measure_that_is_none_is_refused_before_anything_runs(tmp_path, capsys, picture):
    path = write_yaml(tmp_path / "mine.yaml", {"base": DIGITS, "report": picture})
    assert main(["suite", path, "--out", str(tmp_path / "results"), "--jobs", "1"]) == 2
    assert "'eqop'. Did you mean 'eqopp'?" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_runs_that_strict_makes_alike_are_one(capsys):
    asked = ["--algorithm", "fedavg", "--data", "breast-cancer", "--rounds", "2", "--strict"]
    asked += [
        "--set",
        "privacy={placement: central, epsilon: 8, clip: 1}",
        "--set",
        "algorithm.local_steps=2",
    ]
    asked += ["--set", "partition.standardize=false", "--sweep", "privacy.strict=true,false"]
    assert main(["plan", *asked, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


@pytest.mark.usefixtures("blank_pictures")
def test_the_status_of_one_suite_leaves_the_others_out(tmp_path, capsys):
    out = str(tmp_path / "results")
    for name in ("one", "two"):
        asked = ["--spec", write_yaml(tmp_path / "run.yaml", DIGITS), "--sweep", "compression.alpha=0,0.5"]
        assert main(["sweep", *asked, "--name", name, "--jobs", "1", "--out", out]) == 0
    capsys.readouterr()
    assert main(["status", out, "--suite", "two", "--json"]) == 0
    assert [row["suite"] for row in json.loads(capsys.readouterr().out)] == ["two", "two"]
    assert main(["status", out, "--suite", "three"]) == 2
    assert "no runs of suite three" in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_runs_has_a_status(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == "0 runs"


def test_a_plan_ends_with_the_command_that_makes_its_runs(tmp_path, capsys):
    """The command that a plan names has its arguments, except for the option that only plans have."""
    file = write_yaml(tmp_path / "run.yaml", DIGITS)
    planned = (
        (["--spec", file], f"run --spec {file} makes this run."),
        (["--spec", file, "--sweep", "seed=0,1"], f"sweep --spec {file} --sweep seed=0,1 makes these runs."),
    )
    for asked, step in planned:
        assert main(["plan", "--untimed", *asked]) == 0
        assert f"Next: python -m harness {step}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({"done": 3}, "report 'my results' --suite s shows the results."),
        ({"done": 3, "failed": 2}, "retry 'my results' --suite s repeats 2 runs."),
        ({"interrupted": 1, "missing": 2, "failed": 2}, "resume 'my results' --suite s finishes 3 runs."),
        ({"running": 1, "missing": 2}, "status 'my results' --suite s again; 1 run still running."),
    ],
)
def test_a_status_ends_with_what_is_left_to_do(counts, step):
    assert next_step(Path("my results"), "s", Counter(counts)) == f"Next: python -m harness {step}"


@pytest.mark.parametrize(
    ("budgets", "proposed"), [([1.0, 8.0], "--epsilon 1"), ([1.0, 2.0, 8.0], "--epsilon 2"), ([math.inf], "")]
)
def test_a_report_proposes_a_budget_that_was_run(tmp_path, budgets, proposed):
    """Of ε 1 and 8 it was 4.5, for which `recommend` said that no run has it."""
    counts = {"missing": 0, "failed": 0}
    step = step_after_report(
        Store(tmp_path), "s", pd.DataFrame([{"epsilon_total": x, **counts} for x in budgets])
    )
    assert f"{proposed} says" in step if proposed else not step


@pytest.mark.parametrize("command", ["plan", "suite"])
def test_a_run_file_is_told_from_a_suite(command, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("data: breast-cancer\nalgorithm: fedavg\nmodel: logistic\n")
    assert main([command, str(file)]) == 2
    assert "describes a run and not a suite; run, sweep and plan take it as --spec" in capsys.readouterr().err


def test_options_of_a_run_are_refused_for_a_suite(capsys):
    assert main(["plan", "quickstart", "--rounds", "3"]) == 2
    assert "--sweep KEY=VALUE changes suite" in " ".join(capsys.readouterr().err.split())


def test_the_status_of_many_runs_is_counted_by_algorithm(tmp_path, capsys):
    """70 runs of a suite of which two were made: one line an algorithm, and one for the run that failed."""
    out = tmp_path / "results"
    store = Store(out).open()
    given = [
        DIGITS | {"seed": seed, "algorithm": {"name": name}}
        for name in ("fedavg", "local")
        for seed in range(35)
    ]
    cells = [
        {"id": f"{n:016x}", "spec": read_spec(one).model_dump(mode="json"), "reason": None}
        for n, one in enumerate(given)
    ]
    store.write_suite(
        "many", {"suite": "many", "profile": "smoke", "title": "", "report": {}, "cells": cells}
    )
    for number in (0, 40):
        with store.folder(cells[number]["id"]).claim():
            pass
    store.folder(cells[0]["id"]).finish({"round": 4})
    store.folder(cells[40]["id"]).fail({"reason": "no luck"})
    assert main(["status", str(out)]) == 1
    said, step = capsys.readouterr()
    assert "70 runs, 1 done, 1 failed, 68 missing" in " ".join(said.split())
    assert len(said.splitlines()) < 20 and "no luck" in said
    assert f"Next: python -m harness resume {out} finishes 68 runs." in step
    assert main(["status", str(out), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == 70
