"""``suite.json`` has every spec once, and readers see all of it in every run."""

import json
from pathlib import Path

import pytest

from harness.config.suite import make_suite
from harness.executors.work import in_suite
from harness.storage.files import Damaged
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.suite_file import read_suite, write_suite

QUICKSTART = Path(__file__).parents[4] / "results" / "reference" / "quickstart" / "suite.json"
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


def test_files_of_earlier_versions_are_read():
    content, _ = read_suite(QUICKSTART)
    assert len(content["cells"]) == 150 and all("spec" in cell for cell in content["cells"])


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
