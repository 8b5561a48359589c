"""The command ``tune``: from a run file to one with the settings that a search chose."""

import json
from pathlib import Path

import pytest
import yaml

from harness.cli.parser import main, parser
from harness.cli.tune import given_search
from harness.config.run import read_spec
from harness.config.yaml import read_yaml
from harness.core.errors import UserError
from harness.storage.store import Store

pytestmark = pytest.mark.usefixtures("blank_pictures")

RUN = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "local_epochs": 1},
    "privacy": {"placement": "central", "clip": 1, "epsilon": 8},
    "rounds": 3,
}


def write(folder, content, name="mine.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return str(path)


def made(folder, content, *options):
    return given_search(parser().parse_args(["tune", write(folder, content), *options]))


def test_what_is_chosen_is_printed_with_its_intervals_and_can_be_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("harness.config.default_search.ROUNDS", {"choice": [1, 2, 3]})
    out = tmp_path / "out"
    options = ["--budget", "3", "--epsilon", "none,8", "--metric", "auroc", "--jobs", "1", "--out", str(out)]
    assert main(["tune", write(tmp_path, RUN), "--seeds", "0..4", *options, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row[""] for row in rows] == ["fedavg, no privacy", "fedavg, ε = 8"]
    reported = {(bool(r.spec["privacy"]), r.spec["seed"]): r for r in Store(out).records("mine-tuned")}
    for row in rows:
        assert row["seeds"] == "5"
        low, high = (float(end) for end in row["95 % over seeds"].strip("[]").split(", "))
        wide = [float(end) for end in row["over searches too"].strip("[]").split(", ")]
        assert low <= float(row["AUROC"]) <= high and wide[0] < wide[1]
        first = reported["ε" in row[""], 0]
        assert read_spec(read_yaml(Path(row["file"]))) == read_spec(first.spec)
        capsys.readouterr()
        assert main(["run", "--spec", row["file"], "--out", str(out)]) == 0
        assert first.id in "".join(capsys.readouterr().out.split())
    assert main(["tune", write(tmp_path, RUN), "--seeds", "0..4", *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "What tuning chose: mine-tuned" in said and "Page:" in said
    assert f"Run it: python -m harness run --spec {rows[0]['file']}".split()[-1] in said


def test_a_run_file_is_a_suite_of_one_cell(tmp_path):
    suite = made(tmp_path, RUN)
    assert (suite.name, suite.profile, suite.report.by) == ("mine-tuned", "", "accuracy")
    assert [cell.spec.seed for cell in suite.combinations] == list(range(10))
    assert {cell.spec.partition.selection_seed for cell in suite.combinations} == {0}
    started = made(tmp_path, {"id": "0123", "spec": read_spec(RUN).model_dump(mode="json")}, "--name", "own")
    assert started.name == "own" and len(started.combinations) == 10


def test_a_suite_keeps_its_name_and_seeds_where_it_has_a_search(tmp_path):
    part = {**RUN["partition"], "selection": 0.2}
    suite = {"suite": "theirs", "base": RUN | {"partition": part}, "sweep": {"seed": [3, 4]}}
    own = suite | {"tune": {"settings": {"rounds": {"choice": [1, 2]}}}}
    assert made(tmp_path, suite).name == "theirs-tuned"
    searched = made(tmp_path, own, "--budget", "7")
    assert (searched.name, searched.tune.budget, list(searched.tune.settings)) == ("theirs", 7, ["rounds"])
    assert [cell.spec.seed for cell in searched.combinations] == [3, 4]
    budgets = [cell.spec.privacy for cell in made(tmp_path, own, "--epsilon", "none,2").combinations]
    assert [privacy and privacy.epsilon for privacy in budgets] == [None, 2.0, None, 2.0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--seeds", ""], "--seeds: a list such as 8,2 is needed, given ''"),
        (["--budget", "0"], "tune.budget: input should be greater than or equal to 1, given 0"),
        (["--metric", "aurocc"], "Did you mean 'auroc'"),
        (
            ["--metric", "mae"],
            "tune.metric: mae of the selection samples is not known for fedavg on breast-cancer",
        ),
        (["--metric", "mae"], "known are accuracy, auroc, loss"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path, capsys, options, text):
    assert main(["tune", write(tmp_path, RUN), *options, "--out", str(tmp_path / "out")]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "out").glob("runs/*"))


def test_a_search_by_accuracy_warns_where_one_class_is_very_frequent(tmp_path, caplog, capsys, monkeypatch):
    """19 of 20 labels are the same."""

    def end(*arguments):
        raise UserError("no search here")

    monkeypatch.setattr("harness.executors.tuning.search.climb", end)
    rows = [f"{number % 7},{number % 20 == 0}" for number in range(400)]
    (tmp_path / "rare.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    file = write(tmp_path, RUN | {"data": f"csv:{tmp_path / 'rare.csv'}?label=y"})
    for options, warned in (([], True), (["--metric", "auroc"], False)):
        assert main(["tune", file, *options, "--out", str(tmp_path / "out")]) == 2
        assert "no search here" in capsys.readouterr().err
        assert ("accuracy hardly tells settings apart" in caplog.text) == warned
        caplog.clear()
