"""Tuned suites: the search, what is chosen by it, and what the report says of it."""

import csv
import json
from dataclasses import replace
from itertools import combinations

import pytest
import yaml

from harness.cli.parser import main
from harness.config.searches import points
from harness.config.suite import make_suite
from harness.report.data.results import Results
from harness.report.data.tuning import searched
from harness.report.tables.tuning import tuning_tables
from harness.storage.store import Store, read_suite
from tests.support.records import done, spec, undone
from tests.support.written import blank

pytestmark = pytest.mark.usefixtures("blank_pictures")

TUNED = {
    "suite": "tuned",
    "base": {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 4, "selection": 0.25},
        "model": "logistic",
        "eval_every": 10,
    },
    "sweep": {
        "algorithm": ["fedavg", "fedprox"],
        "privacy": [None, {"placement": "central", "clip": 1, "epsilon": 0.3}],
        "compression.beta": [0, 0.5],
        "seed": [0, 1],
    },
    "tune": {
        "settings": {
            "algorithm.lr": {"log_uniform": [0.003, 0.1]},
            "privacy.clip": {"log_uniform": [0.1, 1]},
            "rounds": {"choice": [1, 8]},
        },
        "sampler": "latin",
        "budget": 5,
        "metric": "auroc",
        "seeds": [100, 101],
        "once_for": ["compression.beta"],
    },
    "report": {"by": "auroc", "baseline": "fedavg"},
}


def write(folder, **changes):
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(TUNED | changes))
    return str(path)


def suite(folder, *options, out="out", **changes):
    return main(["suite", write(folder, **changes), "--out", str(folder / out), "--jobs", "1", *options])


def kept(folder, out="out"):
    return read_suite(folder / out / "tuned" / "suite.json")[0]


def tuning(**changes):
    return TUNED["tune"] | changes


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", blank)
        assert suite(folder) == 0
    return folder


def test_every_combination_takes_what_its_search_found_best(finished):
    content = kept(finished)
    tried = content["tuning"]["searches"]
    assert len(tried) == 4
    tune = make_suite(TUNED).tune
    for search in tried:
        assert [trial["settings"] for trial in search["trials"]] == points(tune, search["paths"])
        assert sorted(len(trial["values"]) for trial in search["trials"]) == [1, 1, 1, 2, 2]
        first = [trial["values"][0] for trial in search["trials"]]
        further = [number for number, trial in enumerate(search["trials"]) if len(trial["values"]) == 2]
        assert sorted(first[number] for number in further) == sorted(first)[-2:]
        means = {number: sum(search["trials"][number]["values"]) / 2 for number in further}
        assert means[search["chosen"]] == max(means.values())
    for cell in content["cells"]:
        chosen = tried[cell["search"]]["trials"][tried[cell["search"]]["chosen"]]["settings"]
        spec = cell["spec"]
        assert spec["algorithm"]["lr"] == chosen["algorithm.lr"]
        assert spec["rounds"] == chosen["rounds"]
        assert ("privacy.clip" in chosen) == (spec["privacy"] is not None)
        if spec["privacy"]:
            assert spec["privacy"]["clip"] == chosen["privacy.clip"]
    assert len({cell["search"] for cell in content["cells"]}) == 4


def test_figures_are_those_of_the_runs_of_the_search(finished):
    store = Store(finished / "out")
    records = store.records("tuned-tuning")
    assert len(records) == 4 * (5 + 2)
    assert {record.spec["seed"] for record in records} == {100, 101}
    values = {
        (spec["privacy"] is None, spec["algorithm"]["name"], spec["algorithm"]["lr"], spec["seed"]): metrics
        for spec, metrics in ((record.spec, record.final["metrics"]) for record in records)
    }
    for cell in Results(store.records("tuned")).cells:
        search, spec = cell.records[0].search, cell.spec
        for trial in search["trials"]:
            own = spec["privacy"] is None, cell.algorithm, trial["settings"]["algorithm.lr"]
            seeds = (100, 101)[: len(trial["values"])]
            sought = [values[*own, seed]["selection_auroc"] for seed in seeds]
            assert trial["values"] == [float(f"{value:.6g}") for value in sought]
            assert trial["tests"] == [float(f"{values[*own, 100]['auroc']:.6g}")]


def test_the_search_is_no_result(finished):
    """Its runs are read if they are asked for, and stand in no other table."""
    store = Store(finished / "out")
    assert {record.suite for record in store.records()} == {"tuned"}
    assert len(store.records()) == 16
    assert main(["report", str(finished / "out"), "--suite", "tuned-tuning"]) == 0


def test_cells_are_compared_though_each_chose_for_itself(finished, capsys):
    table = finished / "table.csv"
    assert main(["leaderboard", str(finished / "out"), "--suite", "tuned", "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    lengths = {(row["algorithm"], row["epsilon_asked"]): row["rounds"] for row in rows}
    assert len(set(lengths.values())) == 2, "the test needs searches that end in different lengths"
    for row in rows:
        assert row["tuned"] == "best of 5 by selection_auroc, seeds 100 101"
        assert (row["baseline"] == "fedavg") == (row["algorithm"] == "fedprox")
        if row["epsilon_total"]:
            assert float(row["epsilon_with_search"]) > float(row["epsilon_total"])
        else:
            assert row["epsilon_with_search"] == ""
    capsys.readouterr()
    assert main(["report", str(finished / "out"), "--suite", "tuned"]) == 0
    said = capsys.readouterr().out
    assert "each row with the best of 5 settings" in " ".join(said.split())
    assert "tuned for each budget" not in " ".join(said.split())
    assert "ε = 0.3, 50 % of message entries" in " ".join(said.split())


def test_what_a_search_of_fewer_settings_would_have_found(finished):
    """Against all choices of so many settings."""
    for search in searched(Results(Store(finished / "out").records("tuned"))):
        search.found["trials"][3].update(values=[None], tests=[None])  # failed: tried, and never the best
        pairs = [(trial["values"][0], trial["tests"][0]) for trial in search.found["trials"]]
        for number in range(1, 6):
            known = [[pair for pair in own if pair[0] is not None] for own in combinations(pairs, number)]
            picked = [max(own)[1] for own in known if own]
            assert search.best_of(number) == pytest.approx(sum(picked) / len(picked), abs=1e-12)
        assert search.best_of(6) is None


def test_a_repeated_suite_runs_nothing_again(finished, capsys):
    before = kept(finished)
    capsys.readouterr()
    assert suite(finished) == 0
    assert kept(finished) == before


def test_the_page_has_the_table_of_choices(finished):
    page = (finished / "out" / "tuned" / "index.html").read_text()
    assert "What tuning chose" in page
    assert "ε with the search" in page
    text = (finished / "out" / "tuned" / "tuned.md").read_text()
    assert "| fedavg, ε = 0.3 |" in text
    assert "| fedprox, no privacy |" in text


def test_a_setting_that_fails_is_not_chosen(tmp_path):
    """A step size at which runs diverge, among four that work."""
    rates = {"algorithm.lr": {"choice": [1e38, 0.1, 0.2, 0.3, 0.05]}}
    sweep = {"algorithm": ["fedavg"], "seed": [0]}
    assert suite(tmp_path, sweep=sweep, tune=tuning(settings=rates, once_for=[])) == 0
    (search,) = kept(tmp_path)["tuning"]["searches"]
    first = [(trial["settings"]["algorithm.lr"], trial["values"][0]) for trial in search["trials"]]
    assert {value is None for rate, value in first if rate > 1} == {True}
    assert search["trials"][search["chosen"]]["settings"]["algorithm.lr"] < 1
    (found,) = searched(Results(Store(tmp_path / "out").records("tuned")))
    assert found.failed == 1
    assert found.best_of(5) is not None  # the failed one is among the five


def test_combinations_of_a_search_that_found_nothing_are_skipped_with_the_reason(tmp_path):
    rates = {"algorithm.lr": {"choice": [1e38, 2e38]}}
    sweep = {"algorithm": ["fedavg"], "seed": [0]}
    assert suite(tmp_path, sweep=sweep, tune=tuning(settings=rates, once_for=[])) == 0
    (record,) = Store(tmp_path / "out").records("tuned")
    assert record.status == "skipped"
    assert record.reason == "tuning: none of 2 settings has a selection_auroc"


def test_a_private_combination_without_a_usable_setting_has_its_row():
    """What a skipped combination keeps of its privacy is what the file said."""
    asked = spec(privacy={"placement": "central", "clip": 1, "epsilon": 4})
    search = {
        "number": 0,
        "paths": ["rounds"],
        "chosen": None,
        "epsilon": None,
        "tune": TUNED["tune"] | {"halving": 3},
    }
    search["trials"] = [{"settings": {"rounds": 1}, "values": [None], "tests": [None]}]
    (table,) = tuning_tables(Results([replace(undone(asked, "skipped", "tuning: none"), search=search)]))
    assert table.rows == ("fedavg",)
    assert table.places["fedavg", "Chosen"].text == "none had figures"


@pytest.mark.parametrize(
    ("metric", "sought", "reported", "curse"),
    [("auroc", 0.9, 0.88, "+2.0"), ("auroc", 0.88, 0.88001, "0.0"), ("loss", 0.3, 0.5, "+0.2")],
)
def test_luck_is_above_zero_whichever_way_is_better(metric, sought, reported, curse):
    """In points, where a measure is a share: 100 (0.9 - 0.88); a loss is better where it is lower."""
    trial = {"settings": {"rounds": 1}, "values": [sought], "tests": [sought]}
    search = {"number": 0, "paths": ["rounds"], "chosen": 0, "epsilon": None, "trials": [trial]}
    search["tune"] = TUNED["tune"] | {"halving": 3, "metric": metric}
    record = done(spec(), **{f"selection_{metric}": reported})
    (table,) = tuning_tables(Results([replace(record, search=search)]))
    assert table.places["fedavg", "Curse"].text == curse
    assert ("in points" in table.note) == (metric == "auroc")


def test_a_sampler_of_optuna_learns_in_batches(tmp_path):
    pytest.importorskip("optuna")
    sweep = {"algorithm": ["fedavg"], "seed": [0]}
    settings = {path: over for path, over in TUNED["tune"]["settings"].items() if path != "privacy.clip"}
    tune = tuning(settings=settings, sampler="RandomSampler", batch=2, once_for=[])
    for out in ("one", "other"):
        assert suite(tmp_path, out=out, sweep=sweep, tune=tune) == 0
    one, other = (kept(tmp_path, out)["tuning"]["searches"] for out in ("one", "other"))
    assert one == other
    assert len({trial["settings"]["algorithm.lr"] for trial in one[0]["trials"]}) == 5
    assert {trial["settings"]["rounds"] for trial in one[0]["trials"]} <= {1, 8}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tune": tuning(sampler="TPESamplr")}, "Did you mean 'TPESampler'"),
        (
            {"tune": tuning(metric="eqopp")},
            "tune.metric: eqopp of the selection samples is not known for fedavg",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_it_begins(tmp_path, capsys, changes, text):
    assert suite(tmp_path, **changes) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert text in said
    assert not list((tmp_path / "out").glob("runs/*"))


def test_strict_privacy_refuses_to_be_tuned(tmp_path, capsys):
    sweep = TUNED["sweep"] | {"privacy": [{"placement": "central", "clip": 1, "epsilon": 0.3}]}
    base = TUNED["base"] | {"partition": TUNED["base"]["partition"] | {"standardize": False}}
    algorithms = [{"name": "fedavg", "local_steps": 2}]
    assert suite(tmp_path, "--strict", base=base, sweep=sweep | {"algorithm": algorithms}) == 2
    assert "strict runs record no figures of selection samples" in " ".join(capsys.readouterr().err.split())


def test_a_plan_counts_the_search(tmp_path, capsys):
    assert main(["plan", write(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 16 + 4 * (5 + 2)
    tiny = ["--limit-hours", "1e-9"]
    assert suite(tmp_path, *tiny) == 2
    assert "--limit-hours: these runs take about" in " ".join(capsys.readouterr().err.split())


def test_searches_that_differ_in_the_kind_of_noise_have_rows_of_their_own():
    """They had one name, and the last one's choice stood in both rows."""
    plain = {"placement": "central", "clip": 1, "epsilon": 4}
    ways = [plain, plain | {"mechanism": "banded"}, plain | {"adjacency": "zero-out"}]
    records = []
    for number, privacy in enumerate(ways):
        search = {
            "number": number,
            "paths": ["rounds"],
            "epsilon": None,
            "tune": TUNED["tune"] | {"halving": 3},
        }
        search["chosen"] = 0
        search["trials"] = [{"settings": {"rounds": number + 1}, "values": [0.5], "tests": [0.5]}]
        records.append(replace(undone(spec(privacy=privacy), "skipped", "no"), search=search))
    (table,) = tuning_tables(Results(records))
    assert len(set(table.rows)) == 3
    assert [table.places[row, "Chosen"].text for row in table.rows] == ["rounds=1", "rounds=2", "rounds=3"]


def test_a_search_replaces_no_suite_of_its_name(tmp_path, capsys):
    """It is called tuned-tuning; a suite of earlier versions or of another tool may have that name."""
    root = tmp_path / "out"
    Store(root).open().write_suite("tuned-tuning", {"suite": "tuned-tuning", "profile": "", "cells": []})
    before = (root / "tuned-tuning" / "suite.json").read_bytes()
    assert suite(tmp_path) == 2
    assert "holds another suite of that name; give --name" in " ".join(capsys.readouterr().err.split())
    assert (root / "tuned-tuning" / "suite.json").read_bytes() == before
    assert not list(root.glob("runs/*"))


@pytest.mark.parametrize("name", ["mine-tuning", "Mine-Tuning", "Runs", "manifest.json", "ALL", "claim"])
def test_a_suite_takes_no_name_that_a_results_folder_needs(tmp_path, capsys, name):
    assert suite(tmp_path, suite=name) == 2
    assert suite(tmp_path, "--name", name) == 2
    assert main(["sweep", "--algorithm", "fedavg", "--data", "breast-cancer", "--name", name]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("error: suite: ") == 3
    assert not (tmp_path / "out").exists()
