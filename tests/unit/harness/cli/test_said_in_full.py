"""What commands say where something is missing, single or too much to list."""

import json

import pytest

from harness.cli.parser import main
from harness.core.registry import counted, unknown

RUN = ["--algorithm", "fedavg", "--data", "breast-cancer", "--clients", "3", "--rounds", "1"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two suites of one run each."""
    out = tmp_path_factory.mktemp("said") / "out"
    for name in ("first", "second"):
        lr = {"first": "0.1", "second": "0.2"}[name]
        command = ["sweep", *RUN, "--sweep", f"algorithm.lr={lr}", "--name", name, "--out", str(out)]
        assert main([*command, "--jobs", "1", "--json"]) == 0
    return out


def test_of_many_allowed_names_the_nearest_are_listed():
    said = str(unknown("column", "accuracy_meen", [f"column_{n}" for n in range(200)] + ["accuracy_mean"]))
    assert "Did you mean 'accuracy_mean'?" in said and "Nearest of the 201 allowed: accuracy_mean" in said
    assert said.count("column_") == 7
    assert "Allowed: a, b." in str(unknown("column", "c", ["a", "b"]))


@pytest.mark.parametrize("option", ["--algorithm", "--data", "--model"])
def test_an_unknown_part_may_be_one_of_a_plugin(option, capsys):
    assert main(["plan", *RUN, option, "of_mine"]) == 2
    assert "needs the file that registers it: --plugin FILE.py" in " ".join(capsys.readouterr().err.split())


def test_a_number_goes_with_its_noun(results, capsys):
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert main(["status", str(results), "--suite", "first"]) == 0
    assert "1 run, 1 done" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_sweep_prints_its_leaderboard_as_json(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["sweep", *RUN, "--sweep", "seed=0,1", "--out", out, "--jobs", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert main(["leaderboard", out, "--json"]) == 0
    (same,) = json.loads(capsys.readouterr().out)
    assert row["algorithm"] == "fedavg" and row["seeds"] == same["seeds"] == 2
    assert row["accuracy_mean"] == same["accuracy_mean"]


def test_a_damaged_record_of_a_suite_hides_no_other(results, capsys):
    path = results / "second" / "suite.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        assert main(["status", str(results), "--json"]) == 1
        rows = json.loads(capsys.readouterr().out)
    finally:
        path.write_bytes(whole)
    assert [(row["suite"], row["status"]) for row in rows] == [
        ("first", "done"),
        ("-", "done"),
        ("second", "damaged"),
    ]
    assert "suite.json is damaged" in rows[-1]["reason"]


def test_a_difference_without_a_baseline_says_what_it_needs(results, capsys):
    assert main(["leaderboard", str(results), "--columns", "algorithm,difference"]) == 0
    assert "give --baseline NAME" in " ".join(capsys.readouterr().err.split())
    assert main(["leaderboard", str(results), "--columns", "algorithm,accuracy"]) == 0
    assert "--baseline" not in capsys.readouterr().err


def test_bold_that_marks_nothing_says_so(results, tmp_path, capsys):
    board = ["leaderboard", str(results), "--suite", "first", "--markdown", str(tmp_path / "board.md")]
    assert main([*board, "--bold-best"]) == 0
    assert "nothing is in bold" in " ".join(capsys.readouterr().err.split())


def test_a_plan_shows_the_rate_of_secret_cohorts(capsys):
    private = ["--clients", "10", "--set", "privacy={placement: central, epsilon: 8, clip: 1}"]
    assert main(["plan", *RUN, *private, "--set", "cohort.size=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sampling_rate"] == 0.3
    assert main(["plan", *RUN, *private, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sampling_rate"] is None


def test_a_plan_says_that_attacks_take_more(capsys, tmp_path):
    asked = ["plan", *RUN, "--set", "attacks=[membership]"]
    assert main(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "without the time of attacks (membership), which is not counted" in said
    assert main([*asked, "--limit-hours", "1e-9"]) == 2
    assert "not counting attacks" in " ".join(capsys.readouterr().err.split())
    assert main(["plan", *RUN]) == 0
    assert "attacks" not in capsys.readouterr().out
