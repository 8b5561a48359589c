"""``suite.json`` has every spec once, and readers see all of it in every run."""

import copy
import json
from pathlib import Path

import pytest

from harness.config.suite import make_suite
from harness.executors.work import in_suite
from harness.storage.files import Damaged
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store
from harness.storage.suite_file import read_suite, write_suite

NATURAL = Path(__file__).parents[4] / "results" / "reference" / "natural" / "suite.json"
SUITE = {
    "suite": "many",
    "base": {"data": "breast-cancer", "partition": {"kind": "iid", "clients": 4}, "model": "logistic"},
    "sweep": {
        "algorithm": ["fedavg", {"name": "scaffold", "lr": 0.05}, "centralized"],
        "privacy": [None, {"placement": "central", "clip": 1, "epsilon": 4}],
        "seed": list(range(20)),
    },
}


@pytest.fixture(scope="module")
def content():
    """Six rows of twenty seeds, of which one is refused: pooled data have no privacy."""
    cells = [in_suite(combination) for combination in make_suite(SUITE).combinations]
    return {"suite": "many", "profile": "", "cells": cells}


def test_runs_that_differ_in_their_seed_share_a_spec(content, tmp_path):
    write_suite(tmp_path / "suite.json", content)
    kept, _ = read_sealed(tmp_path / "suite.json")
    runs = [cell for cell in kept["cells"] if cell["id"] is not None]
    assert len(runs) == 100 and len(kept["specs"]) == 5
    assert all(cell.keys() == {"id", "of", "seed"} for cell in runs)
    assert read_suite(tmp_path / "suite.json")[0] == content


def test_a_run_takes_fewer_bytes_than_a_line_of_text(content, tmp_path):
    """1.9 kB with a spec of its own, 60 bytes beside that of its row."""
    runs = {**content, "cells": [cell for cell in content["cells"] if cell["id"] is not None]}
    write_suite(tmp_path / "suite.json", runs)
    write_sealed(tmp_path / "earlier.json", runs)
    now, before = ((tmp_path / name).stat().st_size for name in ("suite.json", "earlier.json"))
    assert before / 100 > 1500 and now / 100 < 60 + 1.2 * before / 100 / 20


def test_runs_in_any_order_keep_it(content, tmp_path):
    shuffled = {**content, "cells": content["cells"][::7] + content["cells"][::-11]}
    write_suite(tmp_path / "suite.json", shuffled)
    assert read_suite(tmp_path / "suite.json")[0] == shuffled


def test_what_else_differs_is_no_seed(content, tmp_path):
    """Rows of one spec may stand on data that were replaced, or be of another search."""
    first = content["cells"][0]
    cells = [first, first | {"digest": "0" * 64}, first | {"search": 0}, {"id": "0123456789abcdef"}]
    tuning = {"tune": {"metric": "auroc", "seeds": [1]}, "searches": [SEARCH]}
    made = {"suite": "many", "profile": "", "tuning": tuning, "cells": cells}
    write_suite(tmp_path / "suite.json", made)
    assert len(read_sealed(tmp_path / "suite.json")[0]["specs"]) == 3
    assert read_suite(tmp_path / "suite.json")[0] == made


SEARCH = {"paths": [], "trials": [], "chosen": None, "epsilon": None}


def test_files_of_earlier_versions_are_read(tuned, tmp_path):
    write_sealed(tmp_path / "suite.json", tuned)
    assert read_suite(tmp_path / "suite.json")[0] == tuned


def trial(lr, seeds, values):
    return {"settings": {"algorithm.lr": lr}, "seeds": seeds, "values": values, "tests": [0.5]}


@pytest.fixture
def tuned(content):
    """Two budgets that tried the same settings, the first with a finalist whose second run lacks a metric."""
    trials = [trial(0.1, [7, 9], [0.7, None]), trial(0.3, [9], [0.6])]
    metrics = {"0": {"auroc": 0.8, "n": 75}, "1": {"auroc": 0.75}}
    finalists = [
        {"trial": 0, "share": 0.25, "metrics": {}},
        {"trial": 1, "share": 0.75, "metrics": metrics},
    ]
    first = {**SEARCH, "paths": ["algorithm.lr"], "trials": trials, "chosen": 0, "finalists": finalists}
    second = {**SEARCH, "paths": ["algorithm.lr"], "trials": [trial(0.1, [9], [0.5]), trials[1]]}
    searches = [first, second, SEARCH]
    return {**content, "tuning": {"tune": {"metric": "auroc"}, "searches": searches}}


def test_searches_are_written_by_column(tuned, tmp_path):
    write_suite(tmp_path / "suite.json", tuned)
    kept, _ = read_sealed(tmp_path / "suite.json")
    assert kept["tuning"]["settings"] == [{"algorithm.lr": [0.1, 0.3]}]
    first, second, _ = kept["tuning"]["searches"]
    assert first["seeds"] == [7, 9] and first["trials"]["seeds"] == [[0, 1], [1]]
    assert first["finalists"][1]["metrics"] == {
        "seeds": [0, 1],
        "values": {"auroc": [0.8, 0.75], "n": [75, None]},
    }
    assert second["trials"]["settings"] == 0
    assert read_suite(tmp_path / "suite.json")[0] == tuned


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("searches", 0, "trials", "settings"), -1),
        (("searches", 0, "trials", "settings"), True),
        (("searches", 0, "trials", "seeds", 0, 0), -1),
        (("searches", 0, "trials", "seeds", 0), ""),
        (("searches", 0, "trials", "seeds"), None),
        (("searches", 0, "seeds"), None),
        (("searches", 0, "finalists"), ""),
        (("searches", 0, "finalists", 1, "metrics", "seeds", 0), "x"),
        (("searches",), {}),
    ],
)
def test_numbers_of_nothing_are_damage(tuned, tmp_path, place, value):
    """Python counts -1 from the end, and takes a text for an empty list; None leaves a name out."""
    write_suite(tmp_path / "suite.json", tuned)
    kept, _ = read_sealed(tmp_path / "suite.json")
    part, last = kept["tuning"], place[-1]
    for name in place[:-1]:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    write_sealed(tmp_path / "suite.json", kept)
    with pytest.raises(Damaged, match="a column is missing or has another length"):
        read_suite(tmp_path / "suite.json")


def test_trials_of_several_kinds_stay_rows(tuned, tmp_path):
    """A search without seeds of its own is of an earlier version; merged with others it is kept."""
    del tuned["tuning"]["searches"][0]["trials"][0]["seeds"]
    write_suite(tmp_path / "suite.json", tuned)
    assert read_suite(tmp_path / "suite.json")[0] == tuned


def test_results_of_searches_have_six_digits(tuned, tmp_path):
    """Of the results on test samples, which choose nothing, one is kept."""
    tuned["tuning"]["searches"][0]["trials"][1] |= {"values": [0.123456789], "tests": [2 / 3, 0.5]}
    write_suite(tmp_path / "suite.json", tuned)
    (search, *_), now = read_suite(tmp_path / "suite.json")[0]["tuning"]["searches"], tmp_path / "suite.json"
    assert search["trials"][1]["values"] == [0.123457] and search["trials"][1]["tests"] == [0.666667]
    before = now.read_bytes()
    write_suite(now, read_suite(now)[0])
    assert now.read_bytes() == before


def test_records_of_other_suites_are_not_read(content, tmp_path):
    """That of a search may take seconds; a damaged one does not matter."""
    store = Store(tmp_path).open()
    store.write_suite("many", content)
    (tmp_path / "many-tuning").mkdir()
    (tmp_path / "many-tuning" / "suite.json").write_text("damaged")
    assert len(list(store.cells("many"))) == len(content["cells"])
    with pytest.raises(Damaged):
        list(store.cells())


def test_the_largest_record_is_below_three_megabytes():
    """With all trials of 130 searches and the metrics of 537 finalists: 49,119 runs and 10,954."""
    searches = read_suite(NATURAL)[0]["tuning"]["searches"]
    assert NATURAL.stat().st_size < 3e6 and len(searches) == 130
    assert sum(len(trial["values"]) for search in searches for trial in search["trials"]) == 49119
    assert sum(len(one["metrics"]) for search in searches for one in search["finalists"]) == 10954


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("trials", "settings"), 5),
        (("trials", "settings"), None),
        (("trials", "values"), [[0.5]]),
        (("trials", "seeds"), [[0], [7]]),
        (("trials",), "text"),
        (("trials",), {}),
        (("finalists", 1, "metrics", "values", "auroc"), [0.5]),
        (("finalists", 1, "metrics"), {"values": {}}),
        (("finalists",), None),
        (("seeds",), 3),
    ],
)
def test_a_search_without_a_column_is_damage(place, value, tuned, tmp_path):
    path = tmp_path / "suite.json"
    write_suite(path, tuned)
    kept = copy.deepcopy(read_sealed(path)[0])
    *outer, last = ("tuning", "searches", 0, *place)
    part = kept
    for name in outer:
        part = part[name]
    part[last] = value
    path.write_text(json.dumps(kept))
    with pytest.raises(Damaged):
        read_suite(path)


@pytest.mark.parametrize(
    "change",
    [
        {"of": 5},
        {"of": -1},
        {"of": 0, "seed": None},
        {"of": 0, "seed": -1},
        {"of": None},
        {"of": "0"},
    ],
)
def test_a_run_without_its_spec_is_damage(change, content, tmp_path):
    path = tmp_path / "suite.json"
    write_suite(path, content)
    kept, _ = read_sealed(path)
    kept["cells"][0] |= change
    path.write_text(json.dumps(kept))
    with pytest.raises(Damaged):
        read_suite(path)
