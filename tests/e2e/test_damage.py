"""Full disks, read-only folders, damaged files and company: no loss, no run twice, and one clear line."""

import json
import pickle
import resource
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from killing import CANCER

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.simulation import loop as loop
from harness.simulation.build import prepare
from harness.simulation.loop import simulate
from harness.storage.store import Busy, RunFolder, Store, read_suite
from tests.support.runs import write_yaml
from tests.support.written import written

ROOT = Path(__file__).parents[2]
SPEC = CANCER | {"rounds": 12, "eval_every": 1}

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def run(tmp_path, capsys):
    """Return a function that runs SPEC into a folder: its exit code, and its one line if it is refused."""

    def carry_out(out, *options):
        code = main(["run", "--spec", write_yaml(tmp_path / "run.yaml", SPEC), "--out", str(out), *options])
        said = capsys.readouterr().err.strip()
        assert code != 2 or (said.startswith("error: ") and "\n" not in said), said
        return code, said

    return carry_out


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What an undisturbed run writes."""
    root = tmp_path_factory.mktemp("undisturbed")
    assert main(["run", "--spec", write_yaml(root / "run.yaml", SPEC), "--out", str(root / "out")]) == 0
    return written(root / "out")


@contextmanager
def files_of_at_most(size):
    """No file can grow beyond that here: like a full disk, at a known place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("every", [-1.0, 60.0], ids=["at the first checkpoint", "at the seventh evaluation"])
def test_a_full_disk_ends_a_run_in_one_line_and_it_resumes(every, tmp_path, run, expected, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", every)
    with files_of_at_most(3000):
        code, said = run(tmp_path / "out")
    name = "checkpoint.pt" if every < 0 else "rounds.jsonl"
    assert (
        code == 2 and f"{name} cannot be written: File too large" in said and "continues from there" in said
    )
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert RunFolder(folder).status == "interrupted"
    assert {path.name for path in folder.iterdir()} <= {"claim", "spec.json", "rounds.jsonl"}
    assert run(tmp_path / "out")[0] == 0
    assert written(tmp_path / "out") == expected


def test_predictions_without_room_do_not_fail_a_run(tmp_path, run, expected):
    """They are asked for when the run is done, and there is room for half of them."""
    assert run(tmp_path / "out")[0] == 0
    with files_of_at_most(4000):
        code, said = run(tmp_path / "out", "--save-predictions")
    assert code == 2 and "predictions.csv cannot be written: File too large" in said
    assert not list(tmp_path.glob("out/runs/*/failed.json"))
    assert run(tmp_path / "out", "--save-predictions")[0] == 0
    assert len(list(tmp_path.glob("out/runs/*/*predictions.csv*"))) == 1
    assert written(tmp_path / "out") == expected


@pytest.mark.slow
def test_a_full_disk_stops_a_suite_without_failed_runs(tmp_path):
    suite = {"suite": "many", "base": SPEC | {"rounds": 40}, "sweep": {"seed": [0, 1, 2]}}
    command = ["suite", write_yaml(tmp_path / "many.yaml", suite), "--stack", "off", "--jobs"]
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited = subprocess.run(  # workers are copies of a process that may have been started without the limit
        [sys.executable, "-m", "harness", *command, "2", "--out", str(tmp_path / "out")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9000, most)),
        capture_output=True,
        text=True,
    )
    assert limited.returncode == 2 and "rounds.jsonl cannot be written: File too large" in limited.stderr
    assert not list(tmp_path.glob("out/runs/*/failed.json"))
    for out in ("out", "undisturbed"):
        assert main([*command, "1", "--out", str(tmp_path / out)]) == 0
    assert written(tmp_path / "out") == written(tmp_path / "undisturbed")


@pytest.fixture
def disk(tmp_path):
    """A file system of its own; returns a function that mounts it with other options."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(options):
        again = "remount," if path.is_mount() else ""
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", path], capture_output=True
        )
        if made.returncode:
            pytest.skip("nothing can be mounted here")
        return path

    yield mount
    if path.is_mount():
        subprocess.run(["umount", "-l", path], check=True)


def test_a_disk_without_any_room_left_is_named(disk, run, expected):
    path = disk("size=16k")
    code, said = run(path / "out")
    assert code == 2 and "No space left on device" in said
    disk("size=10m")
    assert run(path / "out")[0] == 0
    assert written(path / "out") == expected


def test_a_disk_that_can_only_be_read_is_read_and_not_written(disk, run, capsys):
    path = disk("size=10m")
    assert run(path / "out")[0] == 0
    disk("ro")
    for command in ("status", "leaderboard"):
        assert main([command, str(path / "out")]) == 0
    capsys.readouterr()
    code, said = run(path / "out", "--seed", "1")
    assert code == 2 and "cannot be written: Read-only file system" in said
    code, said = run(path / "elsewhere")
    assert code == 2 and "elsewhere cannot be written: Read-only file system" in said


def test_a_folder_where_none_can_be_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, said = run(tmp_path / "file" / "out")
    assert code == 2 and "cannot be written: Not a directory" in said
    code, said = run(Path("/proc/none"))
    assert code == 2 and "/proc/none cannot be written" in said


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was interrupted after round 6, with its checkpoint of round 5."""
    setup = prepare(read_spec(SPEC))
    folder = Store(tmp_path_factory.mktemp("begun")).open().folder(setup.id)

    def stop(round, line):
        if round == 6:
            raise ConnectionAbortedError

    with pytest.MonkeyPatch.context() as patch, folder.claim(), pytest.raises(ConnectionAbortedError):
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        simulate(setup, folder, stop)
    assert folder.load()["round"] == 5 and len(folder.evaluations.all()) == 7
    return folder.path


@pytest.fixture
def begun(interrupted, tmp_path, monkeypatch):
    """A copy of it, whose next rounds are saved as often."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    shutil.copytree(interrupted.parents[1], tmp_path / "begun")
    return Store(tmp_path / "begun").open().folder(interrupted.name)


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def other(content):
    def damage(path, trap):
        torch.save(content, path)

    return damage


CHECKPOINTS = {
    "random bytes": lambda path, trap: path.write_bytes(bytes(range(256)) * 40),
    "nothing": lambda path, trap: path.write_bytes(b""),
    "half": lambda path, trap: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a pickle that acts": lambda path, trap: path.write_bytes(pickle.dumps(Trap(trap))),
    "an archive that acts": lambda path, trap: torch.save({"round": Trap(trap), "lines": 0}, path),
    "an old form that acts": lambda path, trap: torch.save(
        {"round": Trap(trap), "lines": 0}, path, _use_new_zipfile_serialization=False
    ),
    "a list": other([1, 2]),
    "another shape": other({"round": 3, "lines": 1}),
    "more lines than there are": other({"round": 3, "lines": 99}),
}


@pytest.mark.parametrize("what", CHECKPOINTS)
def test_a_damaged_checkpoint_makes_a_run_begin_again(what, begun, tmp_path, run, expected):
    trap = tmp_path / "sprung"
    CHECKPOINTS[what](begun.path / "checkpoint.pt", trap)
    assert run(begun.path.parents[1])[0] == 0
    assert not trap.exists()
    assert written(begun.path.parents[1]) == expected


def test_no_bit_of_a_checkpoint_can_turn_without_being_noticed(begun):
    """What is loaded is what was saved, or nothing: torch alone would go on with other numbers."""
    path = begun.path / "checkpoint.pt"
    whole, saved = path.read_bytes(), begun.load()
    lost = 0
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        found = begun.load()
        lost += found is None
        assert found is None or repr(found) == repr(saved), f"byte {place}"
    assert lost > 20


@pytest.mark.parametrize("cut", [1, 30, 2000])
def test_a_run_whose_lines_were_cut_off_loses_none(cut, begun, run, expected):
    path = begun.path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert run(begun.path.parents[1])[0] == 0
    assert written(begun.path.parents[1]) == expected


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[1]\n", b"{\n", b"{}{}\n", b"\n"])
def test_a_run_with_a_damaged_line_loses_none(line, begun, run, expected):
    path = begun.path / "rounds.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, line, *rest]))
    assert len(begun.evaluations.all()) == 1
    assert run(begun.path.parents[1])[0] == 0
    assert written(begun.path.parents[1]) == expected


DAMAGED = [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_run_mends_its_damaged_description(content, begun, run, expected, capsys):
    (begun.path / "spec.json").write_bytes(content)
    assert main(["status", str(begun.path.parents[1])]) == 1
    assert "spec.json is damaged" in capsys.readouterr().out
    assert run(begun.path.parents[1])[0] == 0
    assert written(begun.path.parents[1]) == expected


def test_a_damaged_format_is_named_and_can_be_removed(begun, run, expected):
    path = begun.path.parents[1] / "store.json"
    path.write_bytes(b'{"metr')
    code, said = run(begun.path.parents[1])
    assert code == 2 and "store.json is damaged; remove it" in said
    path.unlink()
    assert run(begun.path.parents[1])[0] == 0
    assert written(begun.path.parents[1]) == expected


@pytest.mark.parametrize("name", ["done.json", "failed.json"])
def test_a_run_with_a_damaged_end_begins_again(name, begun, run, expected):
    """What was there is kept beside it."""
    (begun.path / name).write_bytes(b'{"metr')
    assert begun.read()[:2] == ("damaged", f"{name} is damaged")
    assert run(begun.path.parents[1])[0] == 0
    assert (begun.path / f"{name}.damaged").read_bytes() == b'{"metr'
    for kept in begun.path.glob("*.damaged"):
        kept.unlink()  # they need not be JSON
    assert written(begun.path.parents[1]) == expected


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_suite_mends_its_damaged_description(content, tmp_path, capsys):
    suite = {"suite": "one", "base": SPEC | {"rounds": 1}, "sweep": {"seed": [0, 1]}}
    command = [
        "suite",
        write_yaml(tmp_path / "one.yaml", suite),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    ]
    Store(tmp_path / "out").open().write_suite("one", {})
    path = tmp_path / "out" / "one" / "suite.json"
    path.write_bytes(content)
    assert main(["status", str(tmp_path / "out")]) == 1  # it reports what can be read
    assert "suite.json is damaged" in " ".join(capsys.readouterr().out.split())
    for asked in ("leaderboard", "report"):
        assert main([asked, str(tmp_path / "out")]) == 2
        assert "suite.json is damaged; remove it" in capsys.readouterr().err
    assert main(command) == 0
    assert [cell["spec"]["seed"] for cell in read_suite(path)[0]["cells"]] == [0, 1]


def test_a_suite_leaves_runs_of_other_processes_alone(tmp_path, capsys):
    base = SPEC | {"rounds": 1}
    suite = {"suite": "one", "base": base, "sweep": {"seed": [0, 1, 2]}}
    command = [
        "suite",
        write_yaml(tmp_path / "one.yaml", suite),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    ]
    folder = Store(tmp_path / "out").open().folder(prepare(read_spec(base | {"seed": 1})).id)
    with folder.claim():
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "1 run in another process; repeat the command when done" in said
    assert len(list(tmp_path.glob("out/runs/*/done.json"))) == 2 and not folder.evaluations.all()
    assert main(command) == 0
    assert len(list(tmp_path.glob("out/runs/*/done.json"))) == 3


def test_who_only_looks_holds_nobody_up(begun):
    """Asking for the status takes the claim's lock for a moment; a worker must not take that for a holder."""
    over = threading.Event()

    def look():
        while not over.is_set():
            assert begun.status in ("running", "interrupted")

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(30):
            with begun.claim():
                assert begun.status == "running"
    finally:
        over.set()
        for reader in readers:
            reader.join()


def test_a_claim_that_is_about_to_be_given_back_is_waited_for(begun):
    held, enough = threading.Event(), threading.Event()

    def hold():
        with begun.claim():
            held.set()
            enough.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    with pytest.raises(Busy), begun.claim():
        pass
    threading.Timer(0.3, enough.set).start()
    with begun.claim(patience=60):
        assert enough.is_set()
    holder.join()


@pytest.mark.slow
def test_two_suites_on_one_folder_do_each_run_once(tmp_path):
    suite = {"suite": "two", "base": SPEC | {"rounds": 60}, "sweep": {"seed": [0, 1, 2, 3]}}
    command = [
        sys.executable,
        "-m",
        "harness",
        "suite",
        write_yaml(tmp_path / "two.yaml", suite),
        "--jobs",
        "1",
    ]
    command += ["--stack", "off", "--out"]
    both = [
        subprocess.Popen([*command, str(tmp_path / "both")], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200)[1] for process in both]
    for process, text in zip(both, said, strict=True):
        assert process.returncode in (0, 1), text
        assert (process.returncode == 1) == ("in another process" in text), text
    lines = [path.read_text().splitlines() for path in tmp_path.glob("both/runs/*/rounds.jsonl")]
    assert [[json.loads(line)["round"] for line in one] for one in lines] == [list(range(61))] * 4
    assert len(list(tmp_path.glob("both/runs/*/done.json"))) == 4
