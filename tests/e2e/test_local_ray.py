"""Ray on this machine: it starts beside the command's own start, answers to its command only, and ends with it."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from killing import CANCER

from harness.executors import local_ray
from harness.executors import ray as on_ray
from harness.simulation.build import Execution
from harness.storage.store import Store
from tests.support.written import wait_for, written

quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
MARK = "FEDFRONTIER_TEST_MARK"


class Started:
    """Stands for a cluster, and says with how many CPUs it was started."""

    def __init__(self, size):
        self.size, self.closed = size, False

    def close(self, *, wait):
        assert not wait  # the command goes on
        self.closed = True


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("suite quickstart --executor ray --jobs 3", [3]),
        ("sweep --executor=ray --jobs=16 --sweep seed=0..3", [16]),
        ("resume results --executor ray", [None]),
        ("retry results --executor ray --jobs all", [None]),
        ("suite quickstart --executor ray --address auto", []),
        ("suite quickstart --address=10.0.0.1:6379 --executor ray", []),
        ("suite quickstart --executor rays", []),
        ("suite --executor ray --help", []),
        ("suite ray", []),
        ("report results --executor ray", []),
        ("", []),
    ],
)
def test_the_cluster_begins_early_where_it_will_be_wanted(line, expected, monkeypatch):
    monkeypatch.setattr(local_ray, "LocalRay", Started)
    monkeypatch.setattr(local_ray, "_of_command", [])
    local_ray.begin(line.split())
    begun = [*local_ray._of_command]
    assert [one.size for one in begun] == expected
    assert local_ray.of_command() is (begun[0] if begun else None)
    local_ray.end()
    assert local_ray.of_command() is None and all(one.closed for one in begun)


def processes(mark):
    """Return the processes that were started under a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables, state = path.read_bytes(), (path.parent / "stat").read_text()
        except OSError:  # has ended, or is somebody else's
            continue
        if mark.encode() in variables and state.rpartition(")")[2].split()[0] != "Z":
            found.append(path.parent.name)
    return found


@pytest.fixture
def command(tmp_path):
    """Start a command of the harness on Ray, of whose processes none may be left in the end."""
    pytest.importorskip("ray")
    mark, begun = uuid.uuid4().hex, []

    def start(*arguments):
        line = [sys.executable, "-m", "harness", *arguments, "--executor", "ray", "--jobs", "2"]
        variables = os.environ | {MARK: mark, "FEDFRONTIER_CACHE": str(tmp_path / "cache")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen(line, env=variables, start_new_session=True, **pipes))
        return begun[-1]

    start.mark = mark
    yield start
    for one in begun:
        one.kill()
        one.wait()
    wait_for(lambda: not processes(mark))


def suite_of(path, rounds):
    """Write a suite of four runs, two by two side by side, and return its path."""
    base = {key: value for key, value in CANCER.items() if key != "seed"} | {"rounds": rounds}
    sweep = {"algorithm.batch_size": [8, 16], "seed": "0..1"}
    path.write_text(yaml.safe_dump({"suite": "four", "base": base, "sweep": sweep}))
    return str(path)


@pytest.mark.slow
def test_a_command_on_ray_writes_what_others_write(command, tmp_path):
    suite, there, here = suite_of(tmp_path / "four.yaml", 20), tmp_path / "there", tmp_path / "here"
    done = command("suite", suite, "--out", str(there))
    _, told = done.communicate(timeout=120)
    assert done.returncode == 0, told
    alone = [sys.executable, "-m", "harness", "suite", suite, "--out", str(here), "--jobs", "1"]
    subprocess.run(alone, check=True, capture_output=True)
    assert written(there) == written(here) != {}


@pytest.mark.slow
def test_a_mistake_is_told_and_leaves_no_cluster(command, tmp_path):
    mistaken = command("suite", str(tmp_path / "nowhere.yaml"))
    _, told = mistaken.communicate(timeout=60)
    assert mistaken.returncode == 2 and "no such file" in told


def under_way(folder):
    """Return the runs that have ended a round; before it there is nothing to save."""
    return [path for path in folder.glob("runs/*/rounds.jsonl") if path.read_text().count("\n") > 1]


@pytest.mark.slow
def test_an_interrupted_command_leaves_checkpoints_and_no_cluster(command, tmp_path):
    folder = tmp_path / "results"
    stopped = command("suite", suite_of(tmp_path / "four.yaml", 100_000), "--out", str(folder))
    wait_for(lambda: len(under_way(folder)) == 4, 60)
    os.killpg(stopped.pid, signal.SIGINT)
    _, told = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and "interrupted" in told
    store = Store(folder)
    assert {store.folder(path.name).status for path in folder.glob("runs/*")} <= {"interrupted", "missing"}
    assert len([*folder.glob("runs/*/checkpoint.pt")]) == 4


@pytest.mark.slow
def test_a_command_whose_node_manager_dies_says_so_and_goes_on_when_repeated(command, tmp_path):
    """Ray keeps tasks for a node to come; the command waited for it without end, or ended in a traceback."""
    folder, suite = tmp_path / "results", suite_of(tmp_path / "four.yaml", 3_000)
    lost = command("suite", suite, "--out", str(folder))
    wait_for(lambda: under_way(folder), 60)
    own = [
        one
        for one in processes(command.mark)
        if b"raylet/raylet" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    os.kill(int(own[0]), signal.SIGKILL)
    _, told = lost.communicate(timeout=120)
    said = " ".join(told.split())
    assert lost.returncode == 130 and "Traceback" not in told
    assert "error: the Ray cluster is lost" in said and "the same command continues from here" in said
    again = command("suite", suite, "--out", str(folder))
    _, told = again.communicate(timeout=240)
    assert again.returncode == 0, told


STRANGER = """
import sys, ray
try:
    ray.init(sys.argv[1], logging_level="error", log_to_driver=False)
except Exception as error:
    sys.exit(f"refused: {type(error).__name__}")
print("connected")
"""


@quiet
@pytest.mark.slow
def test_a_stranger_cannot_use_a_cluster_on_this_machine(tmp_path, monkeypatch):
    """Ports listen on all interfaces: without the token of the run, nobody gets in; with it, everybody does."""
    ray = pytest.importorskip("ray")
    ray.shutdown()
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    with on_ray.Cluster(None, 1, tmp_path, Execution(), False):
        address = ray.get_runtime_context().gcs_address
        own = {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        plain = {name: value for name, value in os.environ.items() if name not in own}
        tried = [plain, plain | own | {"RAY_AUTH_TOKEN": "0" * 64}, plain | own]
        command = [sys.executable, "-c", STRANGER, address]
        ends = [
            subprocess.run(
                command, env=env | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120
            )
            for env in tried
        ]
    assert [end.returncode for end in ends] == [1, 1, 0], [end.stderr for end in ends]
    assert ends[2].stdout == "connected\n" and "refused: ConnectionError" in ends[0].stderr
    assert "RAY_AUTH_TOKEN" not in os.environ


usually_scheduled = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER,
    reason="needs Linux and the usual scheduling policy",
)


@quiet
@pytest.mark.slow
@usually_scheduled
def test_all_processes_of_ray_are_scheduled_as_batch_and_this_one_is_not(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    mark, policies = uuid.uuid4().hex, {}
    monkeypatch.setenv(MARK, mark)
    with on_ray.Cluster(None, 1, tmp_path, Execution(), False):
        assert ray.get(ray.remote(lambda: True).remote())  # a worker is there
        for one in set(map(int, processes(mark))) - {os.getpid()}:
            with suppress(ProcessLookupError):  # it has ended
                policies[one] = os.sched_getscheduler(one)
    assert len(policies) > 5 and set(policies.values()) == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@usually_scheduled
def test_a_thread_that_only_takes_idle_time_goes_on_doing_so():
    policies = []

    def idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        local_ray._as_batch()
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=idle)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_IDLE] and os.sched_getscheduler(0) == os.SCHED_OTHER
