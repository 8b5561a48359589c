"""How far runs are is read from what they write, at any moment, without getting into anybody's way."""

import io
import json
import os
import re

import pandas as pd
import pytest
from rich.console import Console

from harness.cli import console
from harness.cli import progress as board_of
from harness.cli.parser import main
from harness.cli.progress import SuiteProgress
from harness.cli.report import next_step as step_after_report
from harness.config.run import read_spec
from harness.executors.scheduler import Outcome
from harness.simulation import status
from harness.simulation.status import RunStatus, Watch, overview, run_status
from harness.storage.store import Store

SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": "fedavg",
    "rounds": 40,
}


def line(round, **more):
    return {"round": round, "metrics": {"accuracy": round / 100, "loss": 1.0}, "privacy": None, **more}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path).open()


def begun(store, id, *rounds, **more):
    folder = store.folder(id)
    folder.path.mkdir(parents=True, exist_ok=True)
    for round in rounds:
        folder.evaluations.append(line(round, **more))
    return folder


@pytest.mark.parametrize("width", [0, 1_000, 100_000])
@pytest.mark.parametrize("end", ["", '{"round": 4, "met', "{\n", "\n"])
def test_the_last_whole_line_is_found_from_the_end(store, width, end):
    """Also when the last line is not whole."""
    folder = begun(store, "a", 1, 2, 3, filler="x" * width)
    with open(folder.path / "rounds.jsonl", "a") as file:
        file.write(end)
    assert folder.evaluations.last()["round"] == 3


@pytest.mark.parametrize("content", ["", "{", "\n", "1\n"])
def test_without_a_whole_line_a_run_stands_at_its_beginning(store, content):
    folder = begun(store, "a")
    assert run_status(folder) == RunStatus()
    (folder.path / "rounds.jsonl").write_text(content)
    assert run_status(folder) == RunStatus(0, None, None)


def test_only_the_end_of_a_long_file_is_read(store):
    """The file is a tebibyte of nothing, of which the disk holds nothing, and one line."""
    folder = begun(store, "a", 1)
    with open(folder.path / "rounds.jsonl", "r+b") as file:
        file.truncate(2**40)
        file.seek(0, 2)
        file.write(b"\n" + json.dumps(line(7)).encode() + b"\n")
    assert folder.evaluations.last()["round"] == 7


def test_what_is_left_is_told_by_rounds(store):
    """Runs of 40 rounds each: done before, under way from round 10 at 30, not begun.

    Made since the beginning are 20 rounds, missing 10 + 40. When the second has ended, it is 30 and 40.
    """
    begun(store, "done", 40).finish({"round": 40})
    folder = begun(store, "half", 0, 10)
    watch = Watch(store, {"done": 40, "half": 40, "later": 40})
    assert watch.left({}) is None
    watch.begin(["done", "half"])
    watch.end("done")
    folder.evaluations.append(line(30, privacy={"epsilon_total": 2.5}))
    now = watch.under_way()
    assert now == {"half": RunStatus(30, {"accuracy": 0.3, "loss": 1.0}, 2.5)}
    assert watch.made(now) == 1.75
    assert watch.left(now) == 50 / 20
    folder.evaluations.append(line(40))
    watch.end("half")
    assert watch.under_way() == {} and watch.made({}) == 2
    assert watch.left({}) == 40 / 30
    assert watch.left({}, later=2) == (40 + 2 * 40) / 30, "runs of the next rungs are as long as these"


def test_statuses_of_a_moment_ago_need_not_be_read_again(store, monkeypatch):
    """A suite asks at every end of a run, of which there are many at once."""
    reads = []
    monkeypatch.setattr(
        status, "run_status", lambda folder: reads.append(folder.path.name) or run_status(folder)
    )
    folders = {id: begun(store, id, 0, 10) for id in ("a", "b", "c")}
    watch = Watch(store, dict.fromkeys(folders, 40))
    watch.begin(folders)
    folders["a"].evaluations.append(line(20))
    reads.clear()
    assert {id: one.round for id, one in watch.under_way(3600).items()} == {"a": 10, "b": 10, "c": 10}
    watch.end("b")
    assert set(watch.under_way(3600)) == {"a", "c"} and reads == ["b"]
    assert watch.left(watch.under_way(3600)) is None  # nobody has made a round since the beginning
    assert {id: one.round for id, one in watch.under_way().items()} == {"a": 20, "c": 10}
    assert watch.left(watch.under_way(3600)) == (20 + 30) / 10


def test_an_overview_lists_every_run_and_changes_nothing(store, tmp_path):
    spec = read_spec(SPEC).model_dump(mode="json")
    begun(store, "aa", 0, 40).finish({"round": 40})
    begun(store, "bb", 0, 20, privacy={"epsilon_total": "inf"})
    begun(store, "cc", 0).fail({"reason": "diverged"})
    cells = [{"id": id, "spec": spec} for id in ("aa", "bb", "cc", "dd", "ee")]
    skipped = {"id": None, "spec": {"algorithm": "afl"}, "reason": "does not go together"}
    store.write_suite("x", {"suite": "x", "profile": "smoke", "cells": [*cells, skipped]})
    os.utime(store.folder("bb").path / "rounds.jsonl", (0, 0))
    with store.folder("dd").claim():
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        rows = {row["id"]: row for row in overview(store)}
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    told = {id: (row["status"], row.get("round"), row["reason"]) for id, row in rows.items()}
    assert told == {
        "aa": ("done", 40, None),
        "bb": ("interrupted", 20, None),
        "cc": ("failed", 0, "diverged"),
        "dd": ("running", 0, None),
        "ee": ("missing", 0, None),
        None: ("skipped", None, "does not go together"),
    }
    assert rows["bb"]["metrics"] == {"accuracy": 0.2, "loss": 1.0} and rows["bb"]["epsilon"] == "inf"
    assert rows["bb"]["written"] > 10**9 and 0 <= rows["aa"]["written"] < 60 and rows["ee"]["written"] is None
    assert rows[None]["algorithm"] == "afl" and rows["aa"]["algorithm"] == "fedavg"


def test_the_status_counts_and_shows_what_each_run_has_come_to(store, tmp_path, capsys, monkeypatch):
    screen = Console(width=120, file=io.StringIO())
    monkeypatch.setattr(console, "out", screen)
    spec = read_spec(SPEC).model_dump(mode="json")
    begun(store, "aa", 0, 40).finish({"round": 40})
    begun(store, "bb", 0, 20, privacy={"epsilon_total": 2.468}).fail({"reason": "out of luck"})
    store.write_suite(
        "x", {"suite": "x", "profile": "smoke", "cells": [{"id": id, "spec": spec} for id in ("aa", "bb")]}
    )
    assert main(["status", str(tmp_path)]) == 1
    said = screen.file.getvalue()
    assert "2 runs, 1 done, 1 failed" in said
    (row,) = [row for row in said.splitlines() if " bb " in row]
    assert re.search(r"fedavg +0 +failed +20/40 +accuracy 0\.2000 +2\.47 +0:00:\d\d ago +out of luck", row)
    assert main(["status", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1]["epsilon"] == 2.468


def test_the_bar_shows_the_share_of_rounds_and_failures(store):
    specs = {f"id{seed}": read_spec(SPEC | {"seed": seed}) for seed in range(3)}
    shown = SuiteProgress("many", store, specs)
    shown.begin(range(2))
    begun(store, "id0", 20, privacy={"epsilon_total": 1.234})
    shown.refresh()
    (bar,) = shown._bar.tasks
    assert (bar.description, bar.completed) == ("many", 0.5)
    assert re.fullmatch(r"about 0:\d\d:\d\d left", bar.fields["status"])
    shown.finished(Outcome("id0", "failed", "out of luck"))
    shown.refresh()
    assert bar.completed == 1 and bar.fields["status"].endswith("1 failed")


def test_without_a_terminal_every_finished_run_is_a_line(store, capsys):
    with SuiteProgress(
        "two", store, {f"id{seed}": read_spec(SPEC | {"seed": seed}) for seed in range(2)}
    ) as shown:
        shown.begin([0])
        begun(store, "id0", 20)
        begun(store, "id0", 40)
        shown.finished(Outcome("id0", "done"))
        shown.begin([1])
        shown.finished(Outcome("id1", "failed", "out of luck"))
    first, second, reason = capsys.readouterr().err.split("\n")[:3]
    assert re.fullmatch(r"1/2 fedavg on breast-cancer, seed 0 done, about 0:\d\d:\d\d left", first)
    label = "fedavg on breast-cancer, seed 1"
    assert second.startswith(f"2/2 {label} failed") and reason == f"{label} (id1) failed: out of luck"


def test_without_a_terminal_a_long_suite_has_a_line_for_every_tenth(store, capsys):
    specs = {f"id{seed}": read_spec(SPEC | {"seed": seed}) for seed in range(25)}
    with SuiteProgress("many", store, specs) as shown:
        for number, id in enumerate(specs):
            shown.begin([number])
            shown.finished(Outcome(id, "failed", "out of luck") if number == 3 else Outcome(id, "done"))
    lines = capsys.readouterr().err.splitlines()
    counted = [int(line.split("/")[0]) for line in lines if "/25" in line]
    assert counted == [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]
    assert [line for line in lines if "out of luck" in line] == [
        "fedavg on breast-cancer, seed 3 (id3) failed: out of luck"
    ]


def test_a_label_names_budget_and_ratios_of_a_run():
    private = {"privacy": {"placement": "central", "epsilon": 2, "clip": 1}}
    scheduled = {"compression": {"alpha": [[0, 0.0], [5, 0.5]], "beta": 0.9}}
    assert board_of.run_label(read_spec({**SPEC, **private, **scheduled, "seed": 3})) == (
        "fedavg on breast-cancer, ε 2, scheduled alpha, beta 0.9, seed 3"
    )


def test_on_a_terminal_the_board_follows_the_files_by_itself(store, monkeypatch):
    """Without being asked, and a folder that does not answer for a moment does not end it."""
    console = Console(force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(board_of, "log", console)
    monkeypatch.setattr(board_of, "REFRESH_SECONDS", 0.01)
    looks = []

    def look(folder):
        looks.append(folder)
        if len(looks) == 2:
            raise OSError("stale file handle")
        return RunStatus(len(looks))

    with SuiteProgress("one", store, {"id0": read_spec(SPEC)}) as shown:
        monkeypatch.setattr("harness.simulation.status.run_status", look)
        shown.begin([0])
        while len(looks) < 6:
            shown._over.wait(0.01)
    assert not shown._thread.is_alive()
    assert shown._bar.tasks[0].completed >= 5 / SPEC["rounds"]


def test_a_search_that_is_unfinished_has_a_status(store, capsys):
    """An interrupted search of 72 runs was "0 runs", without a way to go on."""
    begun(store, "a", 1, 2)
    search = {"suite": "s-tuning", "profile": "", "searches_for": "s", "cells": [{"id": "a"}]}
    store.write_suite("s-tuning", search)
    for of in ([], ["--suite", "s"], ["--suite", "s-tuning"]):
        assert main(["status", str(store.root), *of]) == 0
        printed = capsys.readouterr()
        assert "1 run, 1 interrupted" in printed.out
        assert "Next: repeat the command of suite s; its search is unfinished." in printed.err
        if of != ["--suite", "s-tuning"]:
            assert main(["leaderboard", str(store.root), *of]) == 2
            assert "its search is unfinished; repeat the command of suite s" in capsys.readouterr().err
    rows = pd.DataFrame([{"epsilon_total": 8.0, "missing": 0, "failed": 0}])
    assert step_after_report(store, "s", rows) and not step_after_report(store, "s-tuning", rows)
    store.write_suite("s", {"suite": "s", "profile": "", "cells": []})  # the search has ended
    assert not list(overview(store))
    assert main(["leaderboard", str(store.root), "--suite", "t"]) == 2
    assert "holds no runs of suite t; it has s" in capsys.readouterr().err
