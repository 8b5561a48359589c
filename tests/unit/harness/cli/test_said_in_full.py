"""What commands say where something is missing, single or too much to list."""

import json
import re

import pytest

from harness.cli.parser import main
from harness.core.errors import unknown
from harness.core.units import counted, size
from studies.__main__ import main as studies

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


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "run", "1 run"),
        (0, "seed", "0 seeds"),
        (2000, "client", "2,000 clients"),
        ("1", "round", "1 round"),
        ("1 to 3", "seed", "1 to 3 seeds"),
        (1, "search", "1 search"),
        (2, "search", "2 searches"),
    ],
)
def test_only_one_is_singular(count, noun, said):
    assert counted(count, noun) == said


@pytest.mark.slow
def test_nothing_that_is_printed_says_one_with_a_plural(tmp_path, capsys):
    """One client, round, seed and run, in every output that counts them."""
    given = ["--algorithm", "fedavg", "--data", "breast-cancer", "--clients", "1", "--rounds", "1"]
    private = ["--set", "privacy={placement: central, clip: 1, noise_multiplier: 1, noise_cohort: 1}"]
    out, to = str(tmp_path / "out"), str(tmp_path / "subs" / "ada")
    written = str(tmp_path / "table.md")
    commands = [
        ["sweep", *given, *private, "--sweep", "seed=1", "--name", "one", "--jobs", "1", "--out", out],
        ["plan", *given, *private],
        ["status", out],
        ["leaderboard", out, "--markdown", written],
        ["recommend", out, "--where", "accuracy >= 0"],
        ["recommend", out, "--where", "accuracy > 2"],
        ["report", out, "--paper"],
        ["verify", out, "--sample", "1"],
        ["merge", out, "--out", str(tmp_path / "both")],
        ["archive", out, str(tmp_path / "one.tar.gz")],
        ["board", "submit", out, "--suite", "one", "--to", to, "--submitter", "Ada"],
        ["board", "check", to, "--sample", "1"],
        ["board", "check", to, "--sample", "0"],
        ["board", "build", to, "--out", str(tmp_path / "site")],
        ["export", out, "--tensorboard", str(tmp_path / "boards")],
    ]
    texts = {}
    for command in commands:
        (studies if command[0] == "board" else main)(command)
        said = capsys.readouterr()
        texts[" ".join(command[:2])] = texts.get(" ".join(command[:2]), "") + said.out + said.err
    for path in tmp_path.rglob("*"):
        if path.suffix in (".md", ".tex", ".html", ".svg"):
            texts[path.name] = re.sub(r"<(style|script).*?</\1>", "", path.read_text(), flags=re.DOTALL)
    plural = re.compile(r"(?<![\d.,/])1 (?:finished |local |TensorBoard )?[a-z]{3,}s\b")
    found = {place: plural.findall(text) for place, text in texts.items()}
    assert {place: words for place, words in found.items() if words} == {}
    assert len(texts) > 15


def test_a_plan_and_a_run_write_costs_as_tables_do(tmp_path, capsys):
    private = [*RUN, "--rounds", "10", "--set", "privacy={placement: central, clip: 1, noise_multiplier: 1}"]
    assert main(["plan", *private, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert main(["plan", *private]) == 0
    said = capsys.readouterr().out
    assert f"bytes up {size(row['bytes_up'])}" in " ".join(said.split()) and "kB" in size(row["bytes_up"])
    assert "ε total" in said and "FLOP" in said and "epsilon" not in said
    assert main(["run", *private, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"{size(row['bytes_up'] + row['bytes_down'])} both ways" in said and "ε total" in said
    assert main(["plan", *RUN, "--untimed"]) == 0
    assert "time" not in capsys.readouterr().out


def test_a_plan_of_a_run_that_is_refused_says_why(capsys):
    """It was a row with the reason among bytes and seconds of 0, and exit code 0."""
    private = ["--set", "privacy={placement: central, noise_multiplier: 1, noise_cohort: 2}"]
    for more in ([], ["--json"], ["--sweep", "seed=0,1"]):
        assert main(["plan", *RUN, *private, *more]) == 2
        said = capsys.readouterr()
        assert not said.out and "privacy.noise_cohort: at least the 3 clients" in said.err


@pytest.mark.slow
def test_a_plan_of_many_runs_says_that_it_begins(capsys):
    assert main(["plan", *RUN, "--untimed", "--sweep", "seed=0..999"]) == 0
    assert "planning 1,000 runs" in capsys.readouterr().err


def test_a_private_run_says_the_clip_norm_also_of_its_default(tmp_path, capsys):
    """Without `clip` it is 10, which nothing said."""
    private = ["--set", "privacy={placement: central, epsilon: 8}", "--out", str(tmp_path)]
    asked = ["run", "--algorithm", "fedavg", "--data", "breast-cancer", "--clients", "4", "--rounds", "1"]
    assert main([*asked, *private]) == 0
    assert ", clip norm 10.0. Privacy: " in " ".join(capsys.readouterr().out.split())
