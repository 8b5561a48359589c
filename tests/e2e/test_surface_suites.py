"""Suites tuned by a surface: what is run, what is chosen, what is kept, and that it can be interrupted."""

import csv
from collections import Counter

import pytest
import yaml

from harness.cli.parser import main
from harness.config import code
from harness.executors.tuning.suite import Tuning
from harness.report.data.tuning import Searched
from harness.storage.store import Store, read_suite
from tests.support.written import blank

SUITE = {
    "suite": "tuned",
    "base": {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 4, "selection": 0.25},
        "model": "logistic",
        "eval_every": 10,
    },
    "sweep": {
        "algorithm": ["fedavg", "fednova"],
        "privacy": [
            None,
            {"placement": "central", "clip": 1, "epsilon": 4},
            {"placement": "central", "clip": 1, "epsilon": 1},
        ],
        "seed": [0, 1, 2, 3, 4],
    },
    "tune": {
        "settings": {
            "algorithm.lr": {"log_uniform": [0.003, 0.3], "fixed": True},
            "privacy.clip": {"log_uniform": [0.1, 1], "fixed": True},
            "rounds": {"choice": [1, 3]},
        },
        "metric": "auroc",
        "budget": 8,
        "repeats": [1, 2, 3],
        "finalists": 2,
    },
    "report": {"by": "auroc", "baseline": "fedavg"},
}


def suite(folder, *options, out="out", **tune):
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(SUITE | {"tune": SUITE["tune"] | tune}))
    return main(["suite", str(path), "--out", str(folder / out), *(options or ("--jobs", "1"))])


def kept(folder, out="out"):
    return read_suite(folder / out / "tuned" / "suite.json")[0]


def by_method(searches):
    """Return the searches of each method: without privacy, and at both budgets."""
    return [searches[:3], searches[3:]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", blank)
        assert suite(folder) == 0
    return folder


def test_budgets_are_searched_together_with_noise_that_they_share(finished):
    records = Store(finished / "out").records("tuned-tuning")
    search_runs = [record for record in records if record.spec["seed"] > 100]
    private = [record for record in search_runs if record.spec["privacy"]]
    assert {record.spec["privacy"]["draws"] for record in private} == {"paired"}
    tried = {}
    for record in private:
        spec = record.spec
        key = (
            spec["algorithm"]["name"],
            spec["algorithm"]["lr"],
            spec["privacy"]["clip"],
            spec["rounds"],
            spec["seed"],
        )
        tried.setdefault(key, set()).add(spec["privacy"]["epsilon"])
    assert {tuple(sorted(budgets)) for budgets in tried.values()} == {(1.0, 4.0)}
    seeds = {name: {key[-1] for key in tried if key[0] == name} for name in ("fedavg", "fednova")}
    assert len(seeds["fedavg"]) == len(seeds["fednova"]) == 3
    assert not seeds["fedavg"] & seeds["fednova"]


def test_reported_runs_have_the_chosen_settings_and_noise_of_their_own(finished):
    content, store = kept(finished), Store(finished / "out")
    searches = content["tuning"]["searches"]
    assert len(searches) == 6
    for record in store.records("tuned"):
        search = record.search
        settings = search["trials"][search["chosen"]]["settings"]
        assert record.spec["algorithm"]["lr"] == settings["algorithm.lr"]
        assert record.spec["privacy"] is None or record.spec["privacy"]["draws"] == "own"
    for search in searches:
        assert all(len(trial["seeds"]) == len(trial["values"]) for trial in search["trials"])
        assert len(search["trials"][search["chosen"]]["seeds"]) == 3


def test_a_repeated_suite_says_its_searches_and_runs_nothing(finished, capsys, monkeypatch):
    """Of each method one without privacy and one over both budgets."""
    before = kept(finished)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
    monkeypatch.setattr("harness.executors.local.simulate_all", lambda *_: pytest.fail("a run is made again"))
    capsys.readouterr()
    assert suite(finished) == 0
    assert kept(finished) == before
    said = " ".join(capsys.readouterr().err.split())
    assert "tuning tuned: 4 searches by selection_auroc, 8 + 9 + 2 runs for each budget; more where" in said
    assert "runs of other finalists, with the reported seeds" in said


def test_finalists_have_reported_runs_too(finished):
    searches = kept(finished)["tuning"]["searches"]
    others = [
        (search, finalist)
        for search in searches
        for finalist in search["finalists"]
        if finalist["trial"] != search["chosen"]
    ]
    assert others, "the test needs searches that could have chosen otherwise"
    for _, finalist in others:
        assert sorted(finalist["metrics"]) == ["0", "1", "2", "3", "4"]
        assert all(
            "auroc" in metrics and "selection_auroc" not in metrics
            for metrics in finalist["metrics"].values()
        )
    assert all(sum(finalist["share"] for finalist in search["finalists"]) <= 1.0001 for search in searches)


def test_what_was_chosen_is_compared_with_the_reported_runs(finished):
    text = (finished / "out" / "tuned" / "tuned.md").read_text()
    assert "Reported: selection AUROC of what was chosen, over the reported seeds." in text
    assert "how much better it looked in the search, in points;" in text
    assert "-0.0" not in text and "+0.0" not in text


def test_the_price_of_a_search_stands_beside_it(finished):
    """Both budgets choose by the runs of both, so they have one price, far above what a run costs."""
    prices = []
    for plain, *private in by_method(kept(finished)["tuning"]["searches"]):
        assert "price" not in plain and private[0]["price"] == private[1]["price"]
        price = private[0]["price"]
        assert price["runs"] == sum(len(t["seeds"]) for search in private for t in search["trials"])
        assert price["unfinished"] == 0 and price["epsilon"] > 20
        prices += [price["epsilon"]] * 2
    folder = finished / "out" / "tuned"
    text = (folder / "tuned.md").read_text()
    assert "Private runs" in text and "were all of them published" in text
    assert (
        "The search is not counted in ε: its choice, and the samples that choose, are taken for public."
        in text
    )
    rows = list(csv.DictReader((folder / "tuned.csv").read_text().splitlines()))
    priced = [float(row["value"]) for row in rows if row["column"] == "ε of all runs" and not row["seed"]]
    assert sorted(priced) == sorted(prices)


def test_a_plan_says_what_it_does_not_know_of_a_search(finished, capsys):
    capsys.readouterr()
    assert main(["plan", str(finished / "tuned.yaml"), "--untimed"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "planned at the mean of their ranges, and searches with the runs that they make at least" in said
    assert "More runs, at most:" in said and "of settings that another budget prefers" in said


def test_resuming_says_that_finalists_are_missing(tmp_path, monkeypatch, capsys):
    """What they are follows from the file of the suite, which a results folder lacks."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
    monkeypatch.setitem(SUITE, "sweep", SUITE["sweep"] | {"algorithm": ["fedavg"], "seed": [0, 1]})
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Tuning, "try_finalists", lambda *_: False)
        assert suite(tmp_path) == 0
    missing = "suite tuned: runs of other settings that its searches choose are missing; repeat its command"
    capsys.readouterr()
    main(["resume", str(tmp_path / "out")])
    assert missing in " ".join(capsys.readouterr().err.split())
    assert suite(tmp_path) == 0
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "out")]) == 0
    assert missing not in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_search_is_the_same_on_two_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
    monkeypatch.setattr(code, "OURS", code._ours())  # the workers' noise follows from the code as it is
    monkeypatch.setitem(SUITE, "sweep", SUITE["sweep"] | {"algorithm": ["fedavg"], "seed": [0, 1]})
    assert suite(tmp_path, out="one") == 0
    assert suite(tmp_path, "--jobs", "2", out="two") == 0
    assert kept(tmp_path, "two")["tuning"] == kept(tmp_path, "one")["tuning"]


def test_more_seeds_are_reported_where_the_mean_is_uncertain(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)
    monkeypatch.setitem(SUITE, "sweep", SUITE["sweep"] | {"algorithm": ["fedavg"], "seed": [0, 1]})
    assert suite(tmp_path, standard_error=1e-5, most_seeds=4) == 0
    seeds = {}
    for record in Store(tmp_path / "out").records("tuned"):
        seeds.setdefault(record.search["number"], set()).add(record.spec["seed"])
    assert set(map(tuple, seeds.values())) == {(0, 1, 2, 3)}
    assert suite(tmp_path, out="calm", standard_error=1.0) == 0
    assert len(Store(tmp_path / "calm").records("tuned")) == 6


def test_what_was_chosen_at_an_end_of_a_list_is_said(finished):
    """Hand tuning beat rows whose local steps were the most of their list, and nothing had said so."""
    searches = kept(finished)["tuning"]["searches"]
    chosen = Counter(search["trials"][search["chosen"]]["settings"]["rounds"] for search in searches)
    ends = ", ".join(f"rounds {value} in {count}" for value, count in chosen.most_common())
    text = (finished / "out" / "tuned" / "tuned.md").read_text()
    assert f"At an end of its list, of {len(searches)} searches: {ends}." in text


def test_what_is_not_the_least_or_most_of_a_list_lies_at_no_end():
    def at_ends(value, **over):
        trial = {"settings": {"rounds": value}}
        return Searched((), {"tune": {"settings": {"rounds": over}}, "trials": [trial], "chosen": 0}).at_ends

    assert at_ends(3, choice=[1, 3, 9]) == at_ends(9, log_integer=[1, 9]) == at_ends(3, choice=[3]) == {}
    assert at_ends(9, choice=[9, 1, 3]) == {"rounds": 9}
    assert at_ends("b", choice=["a", "b"]) == {}
