"""Whatever a power cut leaves of a run, a reader sees the truth or nothing, and the same command ends it.

What is written to files and folders is on the disk only after they were synced; until then each part of it may be
there or not.
"""

import json
import os
import shutil
from itertools import pairwise

import pytest
from killing import CANCER

from harness.config.run import read_spec
from harness.executors.scheduler import run_one
from harness.simulation import loop
from harness.storage import files
from harness.storage.store import Store

SPEC = CANCER | {"rounds": 3, "eval_every": 1}
MOST_PENDING = 4  # changes of names of which all subsets are tried


class Inode:
    """A file: what is on the disk, and what programs see."""

    def __init__(self, content=b"", safe=b""):
        self.now, self.safe = content, safe

    def leftovers(self):
        """Return what may be left of it: nothing new, half or all of it, or zeros in its place."""
        new = self.now[len(self.safe) :]
        return [self.safe + part for part in (b"", new[: len(new) // 2], new, bytes(len(new)))]


class Disk:
    """Follows what is done to files, and notes every state that a power cut could leave."""

    def __init__(self, root, monkeypatch):
        self.root, self.states = root, {}
        found = {
            path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "claim"
        }
        self.files = {path: Inode(content, content) for path, content in found.items()}
        self.safe, self.pending = dict(self.files), []
        for name in ("append", "sync", "rename", "remove", "sync_folder"):
            monkeypatch.setattr(files, name, self._following(getattr(self, name), getattr(files, name)))

    def _following(self, note, honest):
        def both(*given):
            if given[0].is_relative_to(self.root):
                note(*given)
                self._snapshot()
            honest(*given)

        return both

    def _inode(self, path):
        if path not in self.files:
            self.files[path] = Inode(path.read_bytes() if path.exists() else b"")
            self.pending.append((path, self.files[path]))
        return self.files[path]

    def append(self, path, content):
        self._inode(path).now += content

    def sync(self, path):
        inode = self._inode(path)
        self._snapshot()
        inode.safe = inode.now

    def rename(self, path, target):
        inode = self._inode(path)
        self.files[target] = self.files.pop(path)
        self.pending.append((path, None, target, inode))

    def remove(self, path):
        if self.files.pop(path, None) is not None:
            self.pending.append((path, None))

    def sync_folder(self, folder):
        due = [change for change in self.pending if change[0].parent == folder]
        self.pending = [change for change in self.pending if change not in due]
        self.safe = self._after(due)

    def _after(self, changes):
        """Return the names on the disk after some changes of them."""
        names = dict(self.safe)
        for change in changes:
            for path, inode in zip(change[::2], change[1::2], strict=True):
                if inode is None:
                    names.pop(path, None)
                else:
                    names[path] = inode
        return names

    def _snapshot(self):
        count = min(len(self.pending), MOST_PENDING)
        early, late = self.pending[: len(self.pending) - count], self.pending[len(self.pending) - count :]
        for chosen in range(2**count):
            names = self._after(early + [change for n, change in enumerate(late) if chosen >> n & 1])
            for left in zip(*(inode.leftovers() for inode in names.values()), strict=True):
                state = tuple(sorted(zip(names, left, strict=True)))
                self.states.setdefault(state)


def truth(root):
    """Return what the run has written, without timings."""
    (record,) = Store(root).records()
    (folder,) = Store(root).run_folders()
    plain = [{k: v for k, v in line.items() if k != "timing"} for line in (*record.rounds, record.final)]
    return record.status, plain, (folder.path / "predictions.csv").read_bytes()


def fresh(root, spec):
    """Begin with nothing."""


def interrupted(root, spec):
    """Begin with a checkpoint."""

    def stop(spec, round, line):
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(spec, root, progress=stop)


def damaged(root, spec):
    """Begin with a finished run one of whose files has lost its end."""
    run_one(spec, root, save=["predictions.csv"])
    (folder,) = Store(root).run_folders()
    os.truncate(folder.path / "rounds.jsonl", 100)


def without_predictions(root, spec):
    """Begin with a finished run whose predictions are asked for."""
    run_one(spec, root)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [fresh, interrupted, damaged, without_predictions])
def test_a_power_cut_at_any_moment_loses_no_truth(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    spec, root = read_spec(SPEC), tmp_path / "recorded"
    run_one(spec, tmp_path / "undisturbed", save=["predictions.csv"])
    expected = truth(tmp_path / "undisturbed")
    Store(root).open()
    begin(root, spec)
    with monkeypatch.context() as patched:
        disk = Disk(root, patched)
        run_one(spec, root, save=["predictions.csv"])
    assert truth(root) == expected
    assert len(disk.states) > (5 if begin is without_predictions else 40)
    for number, state in enumerate(disk.states):
        left = tmp_path / "left"
        shutil.rmtree(left, ignore_errors=True)
        for path, content in state:
            place = left / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        for record in Store(left).records():
            if record.status == "done":
                assert [record.rounds, record.final["metrics"]] == [
                    Store(root).records()[0].rounds,
                    expected[1][-1]["metrics"],
                ], number
        assert run_one(spec, left, save=["predictions.csv"]).status == "done"
        assert truth(left) == expected, number


def test_a_run_is_on_the_disk_before_it_is_called_done(tmp_path, monkeypatch):
    """After its last sync nothing of it is pending, and each step of the order came before the next."""
    root = tmp_path / "recorded"
    Store(root).open()
    disk = Disk(root, monkeypatch)
    run_one(read_spec(SPEC), root, save=["predictions.csv"])
    assert {path.name for path in disk.safe} >= {"spec.json", "rounds.jsonl", "predictions.csv", "done.json"}
    assert all(inode.safe == inode.now for inode in disk.safe.values())
    assert not [change for change in disk.pending if change[1] is not None]
    states = [{path.name: content for path, content in state} for state in disk.states]
    for state in states:
        if "done.json" in state:
            assert json.loads(state["done.json"])
            assert len(state["rounds.jsonl"].splitlines()) == 4 and state["predictions.csv"].endswith(b"\n")
    assert any("done.json" not in a and "done.json" in b for a, b in pairwise(states))
