"""Results on disk survive crashes, damage, and other processes."""

import json
import os
import subprocess
import sys

import pytest
import torch

from harness.core.errors import UserError
from harness.storage.files import read_json, write_json
from harness.storage.store import FORMAT, Busy, RunFolder, Store


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "runs" / "abc"
    path.mkdir(parents=True)
    return RunFolder(path)


def lines(count):
    return [{"round": n, "metrics": {"accuracy": n / 10}} for n in range(count)]


def test_evaluations_are_read_back_in_order(folder):
    assert folder.evaluations.all() == []
    for line in lines(3):
        folder.evaluations.append(line)
    assert folder.evaluations.all() == lines(3)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_cut_off_by_a_crash_is_left_out(folder, cut):
    for line in lines(3):
        folder.evaluations.append(line)
    path = folder.path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert folder.evaluations.all() == lines(2)


def test_after_a_cut_lines_are_whole_and_appending_works(folder):
    """Without the rewriting a new line would continue the broken one."""
    for line in lines(3):
        folder.evaluations.append(line)
    path = folder.path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    folder.evaluations.keep(2)
    folder.evaluations.append({"round": 9})
    assert folder.evaluations.all() == [*lines(2), {"round": 9}]
    assert path.read_text().count("\n") == 3


def test_lines_after_the_checkpoint_are_dropped(folder):
    for line in lines(5):
        folder.evaluations.append(line)
    folder.evaluations.keep(2)
    assert folder.evaluations.all() == lines(2)
    folder.evaluations.keep(0)
    assert folder.evaluations.all() == []


def test_a_checkpoint_comes_back_bit_by_bit(folder):
    state = {"x": torch.randn(5, dtype=torch.float64), "n": torch.tensor(3)}
    folder.evaluations.append({"round": 0})
    folder.save({"round": 4, "state": state, "lines": 1})
    found = folder.load()
    assert found["round"] == 4
    assert all(torch.equal(found["state"][name], state[name]) for name in state)
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoint.pt", "rounds.jsonl"]


def test_a_checkpoint_of_another_run_counts_as_none(folder, caplog):
    folder.evaluations.append({"round": 0})
    folder.save({"round": 4, "lines": 1})
    other = RunFolder(folder.path.with_name("def"))
    folder.path.rename(other.path)
    assert other.load() is None
    assert "is of run abc; this run starts again" in caplog.text


def test_a_checkpoint_does_not_go_on_from_other_lines(folder, caplog):
    """The lines are as many, and one of them says something else than when they were counted."""
    for line in lines(2):
        folder.evaluations.append(line)
    folder.save({"round": 4, "lines": 2})
    folder.evaluations.append({"round": 2, "metrics": {"accuracy": 0.2}})
    path = folder.path / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0.2", b"0.7"))
    assert folder.load()["lines"] == 2  # the third line is repeated anyway
    path.write_bytes(whole.replace(b"0.1", b"0.7"))
    assert folder.load() is None
    assert "rounds.jsonl is damaged; the run starts again" in caplog.text


def test_lines_that_are_changed_behind_a_run_are_noticed_at_its_end(folder):
    """What counts is what the run has said, not what has become of it."""
    folder.evaluations.append({"round": 0, "metrics": {"accuracy": 0.5}})
    path = folder.path / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9"))
    folder.evaluations.append({"round": 1})
    folder.finish({"round": 1})
    assert folder.read()[:2] == ("damaged", "rounds.jsonl is damaged")


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", b"PK\x03\x04 half an archive"])
def test_a_damaged_checkpoint_counts_as_none(folder, damage):
    (folder.path / "checkpoint.pt").write_bytes(damage)
    assert folder.load() is None


def test_a_truncated_checkpoint_counts_as_none(folder):
    folder.save({"round": 4, "state": {"x": torch.ones(1000)}, "lines": 0})
    path = folder.path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert folder.load() is None


def test_a_checkpoint_ahead_of_its_lines_counts_as_none(folder):
    """It says 3 evaluations were written, but the file has 1: resuming would lose two."""
    folder.evaluations.append({"round": 0})
    folder.save({"round": 4, "lines": 3})
    assert folder.load() is None


def test_a_checkpoint_that_would_run_code_is_not_opened(folder):
    """Weights only: a pickled object is refused, not executed."""

    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('executed')",))

    torch.save({"round": 1, "trap": Trap()}, folder.path / "checkpoint.pt")
    assert folder.load() is None


def test_a_failed_save_leaves_the_old_checkpoint_and_no_rubbish(folder):
    folder.save({"round": 1, "lines": 0})
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        folder.save({"round": 2, "bad": lambda: None})
    assert folder.load()["round"] == 1
    assert [path.name for path in folder.path.iterdir()] == ["checkpoint.pt"]


def test_the_status_follows_the_files(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.status == "missing"
    with folder.claim():
        assert folder.status == "running"
    assert folder.status == "interrupted"
    folder.fail({"reason": "diverged"})
    assert folder.status == "failed"
    folder.retry()
    folder.save({"round": 1, "lines": 0})
    folder.finish({"round": 7})
    assert folder.status == "done"
    assert not (folder.path / "checkpoint.pt").exists()


@pytest.mark.slow
def test_the_last_write_is_that_of_its_own_files(tmp_path):
    folder = RunFolder(tmp_path / "a")
    assert folder.written is None
    folder.path.mkdir()
    for name, time in (
        ("spec.json", 10),
        ("rounds.jsonl", 30),
        ("done.json", 20),
        ("claim", 40),
        ("x.damaged", 50),
    ):
        (folder.path / name).touch()
        os.utime(folder.path / name, (time, time))
    assert folder.written == 30


def test_a_claim_keeps_another_process_out_until_the_holder_dies(folder):
    """The child takes the claim and is killed without any chance to clean up."""
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom harness.storage.store import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claim():\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "held\n"
        assert folder.status == "running"
        with pytest.raises(Busy), folder.claim():
            pass
    finally:
        child.kill()
        child.communicate()
    assert folder.status == "interrupted"
    with folder.claim():
        pass


@pytest.mark.parametrize("content", ["{", "", "[1, 2]", "\xff\xfe"])
def test_a_damaged_file_is_named_with_the_mend(tmp_path, content):
    path = tmp_path / "done.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=r"done\.json is damaged; remove it"):
        read_json(path)


def test_files_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_of_another_format_is_refused_and_not_touched(tmp_path):
    (tmp_path / "store.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(UserError, match=f"format {FORMAT + 1}.*format {FORMAT}.*Nothing was changed"):
        Store(tmp_path)
    assert json.loads((tmp_path / "store.json").read_text()) == {"format": FORMAT + 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_format_file_is_a_user_error(tmp_path):
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        Store(tmp_path)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    path = tmp_path / "results"
    path.write_text("mine")
    with pytest.raises(UserError, match="is a file"):
        Store(path)
    with pytest.raises(UserError, match="cannot be written"):
        Store(path / "below").open()
    assert path.read_text() == "mine"


def test_opening_twice_keeps_what_is_there(tmp_path):
    store = Store(tmp_path / "results").open()
    write_json(store.root / "store.json", {"format": FORMAT, "note": "kept"})
    assert read_json(Store(store.root).open().root / "store.json")["note"] == "kept"


def spec(seed):
    return {"algorithm": {"name": "fedavg"}, "seed": seed}


def finished(store, id, **final):
    folder = store.folder(id)
    with folder.claim():
        folder.start({"id": id, "source": "a test", "digest": "0", "spec": spec(1)})
        folder.evaluations.append({"round": 0})
        folder.finish({"round": 1, **final})


def test_records_list_suites_first_then_single_runs_each_once(tmp_path):
    store = Store(tmp_path).open()
    finished(store, "in-suite", metrics={"accuracy": 0.5})
    finished(store, "alone")
    broken = store.folder("broken")
    broken.path.mkdir()
    broken.start({"id": "broken", "source": "a test", "spec": spec(2)})
    broken.fail({"reason": "diverged in round 3"})
    cells = [
        {"id": "in-suite", "spec": spec(1)},
        {"id": "broken", "spec": spec(2)},
        {"id": "not-yet", "spec": spec(3)},
        {"id": None, "spec": spec(4), "reason": "does not go together"},
    ]
    store.write_suite("demo", {"suite": "demo", "profile": "smoke", "cells": cells})
    found = store.records()
    assert [(r.id, r.suite, r.status) for r in found] == [
        ("in-suite", "demo", "done"),
        ("broken", "demo", "failed"),
        ("not-yet", "demo", "missing"),
        (None, "demo", "skipped"),
        ("alone", "", "done"),
    ]
    assert found[0].final["metrics"] == {"accuracy": 0.5}
    assert found[0].rounds == [{"round": 0}]
    assert found[1].reason == "diverged in round 3"
    assert found[3].reason == "does not go together"
    assert [r.id for r in store.records("demo")] == ["in-suite", "broken", "not-yet", None]
    assert store.records("no such suite") == []
    assert not (tmp_path / "runs" / "not-yet").exists()  # reading makes no folders
