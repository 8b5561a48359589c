"""Runs of other data or other code never share a row; records of earlier versions keep theirs."""

import hashlib
import json

import pandas as pd
import pytest
from killing import CANCER

from harness.cli.parser import main
from harness.config import plugins
from harness.config.report import Choice, Pivot
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.registry import PLUGGED
from harness.executors.scheduler import run_one
from harness.report.data.leaderboard import leaderboard
from harness.report.data.results import Results
from harness.report.data.tidy import tidy
from harness.report.tables.model_selection import chosen_tables
from harness.report.tables.pivot import tabulate
from harness.simulation import build
from harness.storage.store import Store

TABLE = {
    "data": "csv:{path}?label=y",
    "partition": {"kind": "iid", "clients": 2},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "local_steps": 2},
    "rounds": 2,
    "eval_every": 2,
}

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def replaced(tmp_path):
    """A results folder: seed 0 on a file, then seeds 0 and 1 on another file of that name."""
    path, root = tmp_path / "m.csv", tmp_path / "out"
    for shift, seeds in ((0, [0]), (3, [0, 1])):
        rows = "\n".join(f"{(n * 7 + shift) % 10},{n % 2}" for n in range(60))
        path.write_text(f"x,y\n{rows}\n")
        for seed in seeds:
            spec = read_spec(TABLE | {"data": TABLE["data"].format(path=path), "seed": seed})
            assert run_one(spec, root).status == "done"
    return root


def test_runs_on_a_replaced_file_have_a_row_of_their_own(replaced):
    records = Store(replaced).records()
    frame = leaderboard(Results(records))
    assert sorted(frame["done"]) == [1, 2] and frame["task"].nunique() == 2
    for row in frame.to_dict("records"):
        assert f"data.digest={digest_of(records, row['done'])}" in row["settings"]
    table = tidy(records)
    assert table["cell"].nunique() == table["data.digest"].nunique() == 2


def digest_of(records, count):
    digests = [record.digest for record in records]
    return next(digest for digest in digests if digests.count(digest) == count)[:12]


def test_they_are_apart_in_pivots_and_choices_too(replaced):
    records = Store(replaced).records()
    grids = tabulate(Results(records), Pivot("algorithm.name", "model.name"), "accuracy")
    assert sorted(len(place.values) for grid in grids for place in grid.places.values()) == [1, 2]
    assert len({grid.title for grid in grids}) == 2
    tables = chosen_tables(Results(records), Choice(by="accuracy", show=("accuracy",)))
    assert sorted(grid.places["fedavg", "Seeds"].text for grid in tables) == ["1/1", "2/2"]


def test_the_report_shows_both(replaced, capsys):
    assert main(["report", str(replaced)]) == 0
    frame = pd.read_csv(replaced / "all" / "leaderboard.csv")
    assert sorted(frame["done"]) == [1, 2] and frame["settings"].str.contains("data.digest=").all()


def test_copies_of_a_file_are_one_data_set_and_others_are_not(replaced, tmp_path):
    """A file is called by name and digest. Another method ran on a copy, which has the first of the names."""
    copy = tmp_path / "z" / "n.csv"
    copy.parent.mkdir()
    copy.write_bytes((tmp_path / "m.csv").read_bytes())
    spec = TABLE | {"data": TABLE["data"].format(path=copy), "algorithm": "fedprox"}
    assert run_one(read_spec(spec), replaced).status == "done"
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    frame = leaderboard(Results(Store(replaced).records()))
    same = frame[frame["dataset"] == f"m.csv {digest[:6]}"]
    assert sorted(same["algorithm"]) == ["fedavg", "fedprox"] and same["task"].nunique() == 1
    (other,) = set(frame["dataset"]) - set(same["dataset"])
    assert other.startswith("m.csv ") and len(frame) == 3


PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from torch import Tensor
from harness.core import Algorithm, Channel, Clients, Descent, Increment, Meta, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class Mine(Descent):
    """A step of gradient descent."""

    meta: ClassVar = Meta("mine", "centralized", ("erm",), "a test")
    lr: float = step_size(0.1)

    class State(NamedTuple):
        x: Tensor

    def init(self, start, clients, channel):
        return self.State(start["x"])

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for batch in clients.batches(self):
            x, _ = self.step(x, clients.grad(x, batch), batch, None, lr=FACTOR)
        return self.State(state.x + channel.mean(Increment(x, of=x_t)))
'''


@pytest.fixture
def forget():
    """Forget plugins that were loaded, as a new process would."""

    def clear():
        for kind, name in [key for key in PLUGGED if key[0] == "algorithm" and key[1] == "mine"]:
            del ALGORITHMS[name], PLUGGED[kind, name]
        plugins._files.clear()

    yield clear
    clear()


def test_an_edited_plugin_has_a_row_of_its_own(tmp_path, forget, capsys):
    path, root = tmp_path / "mine.py", tmp_path / "out"
    for factor, seeds in ((0.1, "0"), (-0.1, "1")):
        forget()
        path.write_text(PLUGIN.replace("FACTOR", str(factor)))
        command = ["run", "--plugin", str(path), "--algorithm", "mine", "--data", "breast-cancer"]
        command += ["--rounds", "2", "--seed", seeds, "--out", str(root)]
        assert main(command) == 0, capsys.readouterr().err
    forget()
    frame = leaderboard(Results(Store(root).records()))
    assert list(frame["done"]) == [1, 1]
    assert frame["settings"].str.contains(r"versions\.plugins\.algorithm=sha256:").all()


def test_a_suite_row_holds_runs_that_have_not_begun(tmp_path):
    """suite.json says on which data and by which code they will be."""
    specs = [read_spec(CANCER | {"rounds": 2, "seed": seed}) for seed in (0, 1)]
    root = tmp_path / "out"
    done = run_one(specs[0], root)
    store = Store(root)
    (record,) = store.records()
    cells = [
        {"id": id, "spec": spec.model_dump(mode="json"), "digest": record.digest, "versions": record.versions}
        for id, spec in ((done.id, specs[0]), (build.identify(specs[1]), specs[1]))
    ]
    store.write_suite("two", {"suite": "two", "profile": "", "cells": cells})
    frame = leaderboard(Results(store.records("two")))
    assert len(frame) == 1 and tuple(frame.loc[0, ["done", "missing"]]) == (1, 1)


def old(root, seed, **changes):
    """Make the record of a run look as an earlier version wrote it, without newer settings, versions and seals."""
    for path in root.glob("runs/*/spec.json"):
        content = json.loads(path.read_text())
        if content["spec"]["seed"] != seed:
            continue
        del content["versions"], content["timing"]
        for name in ("weight_decay", "grad_clip"):
            del content["spec"]["algorithm"][name]
        del content["spec"]["partition"]["selection"], content["spec"]["compression"]["downlink"]
        path.write_text(json.dumps(content | changes))
        done = json.loads((path.parent / "done.json").read_text())
        del done["timing"]["seal"]
        (path.parent / "done.json").write_text(json.dumps(done))


@pytest.fixture
def two_seeds(tmp_path):
    for seed in (0, 1):
        run_one(read_spec(CANCER | {"rounds": 2, "seed": seed, "algorithm": "fedavg"}), tmp_path)
    return tmp_path


def test_a_record_without_newer_settings_keeps_its_row(two_seeds):
    """The ids tell that both seeds are of one spec, the same data and versions."""
    before = leaderboard(Results(Store(two_seeds).records()))
    old(two_seeds, 0)
    after = leaderboard(Results(Store(two_seeds).records()))
    assert list(after["done"]) == [2]
    assert after.equals(before)


def test_what_cannot_be_told_is_a_row_of_unknown_versions(two_seeds, monkeypatch):
    """The old run was made by another version: its id does not follow from today's."""
    old(two_seeds, 0, digest="0" * 64)
    frame = leaderboard(Results(Store(two_seeds).records()))
    assert list(frame["done"]) == [1, 1]
    assert sum("versions.algorithm=unknown" in text for text in frame["settings"]) == 1
    assert all("data.digest=" in text for text in frame["settings"])


def test_settings_that_only_new_records_have_do_not_tell_rows_apart(two_seeds):
    run_one(read_spec(CANCER | {"rounds": 2, "algorithm": {"name": "fedavg", "lr": 0.2}}), two_seeds)
    before = leaderboard(Results(Store(two_seeds).records()))
    old(two_seeds, 0)
    after = leaderboard(Results(Store(two_seeds).records()))
    assert list(after["settings"]) == list(before["settings"])
