"""``run --cell`` makes the runs of a published row again and compares their figures with those published."""

import csv
import json
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev

import pytest

from datasets.catalog import available
from harness.api.repeating import _reach
from harness.cli.parser import main
from harness.config import code
from harness.config.recorded import run_id, versions
from harness.report.data.published import read_fields, read_row
from harness.storage.cells import from_csv
from tests.support.runs import given

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
SECONDS = 5.0  # of all seeds of a row that are repeated here; of dearer rows one seed is
SUITE = {
    "suite": "small",
    "sweep": {
        "privacy": [None, {"placement": "central", "noise_multiplier": 0.5, "clip": 0.7}],
        "seed": [4, 7, 9],
    },
}


def written(path, rows):
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def repeated(capsys, table, cell, out, *options):
    """Return the exit code of a repetition, and what it prints as JSON."""
    capsys.readouterr()
    ended = main(["run", "--cell", f"{table}:{cell}", "--out", str(out), "--json", *options])
    return ended, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def published(tmp_path_factory, data):
    """A leaderboard of two rows with three seeds each, the second with noise; its data are a user's file."""
    folder = tmp_path_factory.mktemp("published")
    base = given(data, partition={"kind": "iid", "clients": 7, "selection": 0.2, "selection_seed": 3})
    (folder / "small.yaml").write_text(json.dumps(SUITE | {"base": base}))
    made = ["suite", str(folder / "small.yaml"), "--jobs", "1", "--diagnostics", "--out", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "OURS", "earlier")
        assert main(made) == 0
    return folder / "small" / "leaderboard.csv"


@pytest.fixture
def rows(published):
    """The rows of that leaderboard: without privacy, and with."""
    return sorted(read_fields(published.read_text()), key=lambda row: row["dp_unit"])


def has_specs(path):
    """Whether the rows of a table say how to repeat them."""
    (head,) = from_csv(path.read_text().partition("\n")[0])
    return "spec" in head


REPEATABLE = [path for path in sorted(REFERENCE.glob("*/leaderboard.csv")) if has_specs(path)]


def cheapest(path, private):
    """The cheapest row that today's code has made, with privacy or without, without pruning if there is one.

    Which entries a pruned message or model keeps can turn on the last bit, which depends on the machine.
    """

    def cost(row):
        pruned = float(row["alpha"] or 0) > 0 or float(row["beta"] or 0) > 0
        return pruned, float(row["seconds"]) * int(row["seeds"])

    rows = [
        row for row in read_fields(path.read_text()) if bool(row["dp_unit"]) == private and row["seconds"]
    ]
    rows = [row for row in rows if json.loads(row["versions"]) == versions(json.loads(row["spec"]))]
    return min(rows, key=cost, default=None)


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("path", REPEATABLE, ids=lambda path: path.parent.name)
def test_the_cheapest_cells_of_a_reference_come_out_again(path, private, tmp_path, capsys):
    row = cheapest(path, private)
    if row is None:
        pytest.skip("no such row, or of earlier versions of the code only")
    if row["dataset"] == "cifar10" and available("cifar10") is None:
        pytest.skip("cifar10 is not here, and in no package that could be fetched")
    dear = float(row["seconds"]) * int(row["seeds"]) > SECONDS
    options = ["--seed", row["seed_list"].split()[0]] if dear else []
    ended, found = repeated(capsys, path, row["cell"], tmp_path, *options)
    assert found["state"] in ("identical", "within tolerance"), found["figures"]
    # A single seed has no spreads, and a problem without samples few measures.
    fewest = (2 if dear else 3) if not row["dataset"] else 5 if dear else 30
    assert ended == 0 and len(found["figures"]) > fewest


def test_the_quickstart_can_be_repeated():
    assert REFERENCE / "quickstart" / "leaderboard.csv" in REPEATABLE


def test_both_rows_come_out_again_with_their_noise(published, rows, data, tmp_path, capsys):
    """Under today's code too, with the figures that ``--diagnostics`` had added."""
    for row in rows:
        given = ["--set", f"data.path={data}"]
        ended, found = repeated(capsys, published, row["cell"], tmp_path, *given)
        assert (ended, found["state"], found["seeds"], found["earlier"]) == (0, "identical", 3, 0)
        assert {"auroc_mean", "accuracy_std", "bytes_up", "train_accuracy_mean"} <= found["figures"].keys()
        assert "seconds" not in found["figures"] and "rank" not in found["figures"]
        assert sorted(found["runs"]) == row["seed_list"].split()
    assert "epsilon_total" in found["figures"] and "noise_std" in found["figures"]
    ids = {path.name for path in (published.parents[1] / "runs").iterdir()}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == ids


def test_the_seeds_of_a_row_may_have_the_noise_of_several_codes(published, rows, data, tmp_path, capsys):
    _, row = rows
    base = json.loads(row["spec"]) | {
        "data": {"name": "csv", "path": str(data), "label": "label", "sensitive": "group"}
    }
    codes = [letter * 32 for letter in "ba"]
    for seed, digest in enumerate(codes):
        (tmp_path / "run.yaml").write_text(json.dumps(base | {"seed": seed}))
        options = ["--noise-code", digest, "--out", str(tmp_path / "two")]
        assert main(["run", "--spec", str(tmp_path / "run.yaml"), *options]) == 0
    table = tmp_path / "two.csv"
    assert main(["leaderboard", str(tmp_path / "two"), "--csv", str(table)]) == 0
    (own,) = read_fields(table.read_text())
    assert own["noise_code"].split() == codes
    ended, found = repeated(capsys, table, own["cell"], tmp_path / "again", "--set", f"data.path={data}")
    assert (ended, found["state"]) == (0, "identical")
    written(table, [own | {"noise_code": f"{own['noise_code']} {'c' * 32}"}])
    assert main(["run", "--cell", f"{table}:{own['cell']}"]) == 2
    assert "the noise of several codes" in capsys.readouterr().err


def test_a_row_with_other_figures_is_noticed(rows, data, tmp_path, capsys):
    row = rows[0]
    options = ["--out", str(tmp_path / "out"), "--set", f"data.path={data}"]
    for field, factor in (("auroc_mean", 1.001), ("bytes_up", 2), ("loss_std", 0.9)):
        value = json.loads(row[field])
        table = written(tmp_path / "forged.csv", [row | {field: str(type(value)(value * factor))}])
        assert main(["run", "--cell", f"{table}:{row['cell']}", *options]) == 1
        printed = capsys.readouterr().out
        assert field in printed and "1 differ" in printed
    assert "Read, not made again: 3 finished runs" in printed


def test_a_seed_is_compared_with_what_mean_and_deviation_allow(rows, data, tmp_path, capsys):
    row = rows[0]
    table = written(tmp_path / "table.csv", [row])
    options = ["--seed", "7", "--set", f"data.path={data}"]
    ended, found = repeated(capsys, table, row["cell"], tmp_path / "out", *options)
    assert ended == 0 and list(found["runs"]) == ["7"] and found["seeds"] == 3
    assert "accuracy_mean" in found["figures"] and "bytes_up" not in found["figures"]
    forged = row | {"loss_mean": str(float(row["loss_mean"]) + 2 * float(row["loss_std"]))}
    ended, found = repeated(capsys, written(table, [forged]), row["cell"], tmp_path / "out", *options)
    assert ended == 1 and found["state"] == "different" and found["earlier"] == 1
    assert found["figures"]["loss_mean"]["difference"] > 1e-6


@pytest.mark.parametrize("values", [[0.1, 0.7, 0.2], [1.0, 1.0, 1.0, 5.0], [3.0, 4.0]])
def test_means_of_some_seeds_reach_as_far_as_is_said(values):
    """The bound holds for every choice; one value apart from all others, which are equal, is on it."""
    row = {"done": len(values), "x_mean": fmean(values), "x_std": stdev(values)}
    for count in range(1, len(values) + 1):
        means = [fmean(some) for some in combinations(values, count)]
        farthest = max(abs(mean - row["x_mean"]) for mean in means)
        assert farthest <= _reach(row, "x_mean", count) + 1e-12
    assert _reach(row, "x_mean", len(values)) == 0
    if values[0] == 1.0:
        assert _reach(row, "x_mean", 1) == pytest.approx(5.0 - row["x_mean"])


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"cell": "0123456789ab"}, [], "unknown cell of"),
        (
            {"versions": '{"algorithm": 99, "partition": 1, "problem": 4}'},
            [],
            "other versions: algorithm 99, here",
        ),
        ({"versions": ""}, [], "other versions"),
        ({"data_digest": "0" * 64}, [], "the data here differ from those"),
        ({"spec": "[]"}, [], "no valid settings"),
        ({"seed_list": ""}, [], "no valid settings"),
        ({}, ["--seed", "5"], "unknown seed of the row '5'"),
        ({}, ["--rounds", "5"], "--rounds: --cell repeats a row as it is"),
        ({}, ["--set", "rounds=5"], "--set rounds: --cell repeats a row as it is"),
        ({}, ["--noise-code", "none"], "--noise-code: --cell repeats a row as it is"),
    ],
)
def test_what_cannot_be_repeated_is_refused_before_anything_is_written(
    changes, options, said, rows, data, tmp_path, capsys
):
    row = rows[0]
    table = written(tmp_path / "table.csv", [row | changes])
    options = [*options, "--set", f"data.path={data}", "--out", str(tmp_path / "out")]
    assert main(["run", "--cell", f"{table}:{row['cell']}", *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


def test_a_row_over_a_users_file_says_which_file(rows, tmp_path, capsys):
    row = rows[0]
    table = written(tmp_path / "table.csv", [row])
    assert main(["run", "--cell", f"{table}:{row['cell']}", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert row["data_digest"] in told and "--set data.path=FILE" in told


def test_noise_of_the_systems_entropy_is_not_drawn_again(rows, data, tmp_path, capsys):
    row = rows[1]
    spec = json.loads(row["spec"])
    spec["privacy"]["secure_rng"] = True
    table = written(tmp_path / "table.csv", [row | {"spec": json.dumps(spec)}])
    assert main(["run", "--cell", f"{table}:{row['cell']}", "--set", f"data.path={data}"]) == 2
    assert "cannot be drawn again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fedreco", "mechanisms"])
def test_tables_of_earlier_versions_say_that_they_cannot(name, capsys):
    table = REFERENCE / name / "leaderboard.csv"
    if table in REPEATABLE:
        pytest.skip("it has been made anew")
    assert main(["run", "--cell", f"{table}:0123456789ab"]) == 2
    assert "has no column spec; an earlier version wrote it" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["table.csv", ":0123", "table.csv:"])
def test_a_cell_is_a_file_and_an_id(text, capsys):
    assert main(["run", "--cell", text]) == 2
    assert "--cell: FILE.csv:ID" in capsys.readouterr().err


def test_every_row_of_a_reference_has_its_runs_in_suite_json():
    """Their ids follow from the row: from its settings, its data and the versions of the code."""
    for path in REPEATABLE:
        content = json.loads((path.parent / "suite.json").read_text())
        listed = {cell["id"] for cell in content["cells"]}
        for fields in read_fields(path.read_text()):
            row = read_row(path, fields["cell"])
            ids = {
                run_id(row.settings | {"seed": seed}, fields["data_digest"], row.versions)
                for seed in row.seeds
            }
            assert ids <= listed, f"{path}: {fields['cell']}"


def test_a_row_can_be_taken_with_other_settings(rows, data, tmp_path, capsys):
    """A referee who tuned a published cell again had to parse its settings out of the CSV."""
    table = written(tmp_path / "table.csv", rows)
    row = rows[1]
    options = [
        "--set",
        f"data.path={data}",
        "--set",
        "algorithm.lr=0.7",
        "--seed",
        "5",
        "--out",
        str(tmp_path),
    ]
    assert main(["run", "--spec", f"{table}:{row['cell']}", *options]) == 0
    (spec,) = (json.loads(path.read_text())["spec"] for path in tmp_path.glob("runs/*/spec.json"))
    own = json.loads(row["spec"])
    assert spec["algorithm"]["lr"] == 0.7 and spec["seed"] == 5
    assert spec["privacy"]["noise_multiplier"] == own["privacy"]["noise_multiplier"]
    assert spec["partition"]["selection_seed"] == own["partition"]["selection_seed"] == 3
    assert main(["run", "--spec", str(table)]) == 2
    assert "a row of a leaderboard is FILE.csv:ID" in capsys.readouterr().err
