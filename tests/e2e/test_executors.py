"""Who computes never shows in the files, also when one of them dies on the way."""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from killing import CANCER, OFTEN, tiny

from harness.cli.parser import main
from harness.config import code, plugins
from harness.config.run import read_spec
from harness.core.errors import Interrupted, UserError
from harness.core.registry import PLUGGED
from harness.executors import ray as on_ray
from harness.executors import scheduler
from harness.executors.processes import Processes
from harness.executors.ray import work
from harness.executors.scheduler import Outcome, run_all
from harness.executors.server import METHOD, start_server
from harness.simulation import loop
from harness.simulation.build import identify
from harness.simulation.setup import Execution
from harness.storage.store import Store
from tests.support.written import saved, wait_for, written

ROOT = Path(__file__).parents[2]
ALONE = Execution(stack=1)
LONG = [read_spec(CANCER | {"rounds": 1200, "eval_every": 50, "seed": seed}) for seed in range(3)]
SHORT = [read_spec(CANCER | {"rounds": 20, "eval_every": 10, "seed": seed}) for seed in range(3)]


@pytest.fixture(scope="module")
def often(tmp_path_factory):
    """Let workers write checkpoints often: a plugin reaches them wherever they are."""
    path, before = tmp_path_factory.mktemp("plugin") / "often.py", loop.CHECKPOINT_SECONDS
    path.write_text(OFTEN)
    known = plugins._parts().keys()
    plugins.load([path])
    yield
    loop.CHECKPOINT_SECONDS = before
    plugins._files.pop(path.resolve())
    for kind, name in plugins._parts().keys() - known:
        del plugins.REGISTRIES[kind][name]
        del PLUGGED[kind, name]


@pytest.fixture(scope="module")
def alone(often, tmp_path_factory):
    """What the runs write if nobody dies; side by side they write the same as apart (`tests/equivalence`)."""
    root = tmp_path_factory.mktemp("alone")
    run_all(LONG, root)
    return written(root)


@pytest.fixture(scope="module")
def short_alone(tmp_path_factory):
    root = tmp_path_factory.mktemp("short-alone")
    run_all(SHORT, root)
    return written(root)


class Mortals:
    """Workers that carry out nothing and die of certain runs."""

    size = 2

    def __init__(self, deadly, specs):
        self.deadly, self.specs, self.begun = deadly, specs, []
        self.busy = []

    def start(self, unit, specs, patience):
        self.begun.append((list(unit), patience > 0))
        self.busy.append(unit)

    def ended(self):
        unit = self.busy.pop(0)
        dead = any(number in self.deadly for number in unit)
        return [(unit, None if dead else [Outcome(identify(self.specs[number]), "done") for number in unit])]


def test_a_run_that_kills_its_worker_is_given_up_alone(tmp_path):
    """Six runs in threes; number 4 kills whoever takes it. Its neighbors 3 and 5 are done by themselves."""
    specs = [read_spec(CANCER | {"rounds": 2, "seed": seed}) for seed in range(6)]
    Store(tmp_path).open()
    workers, found = Mortals({4}, specs), {}

    def end(unit, outcomes):
        found.update(zip(unit, outcomes, strict=True))

    scheduler._distribute(specs, tmp_path, workers, Execution(), None, end)
    assert workers.begun[:2] == [([0, 1, 2], False), ([3, 4, 5], False)]
    assert sorted(workers.begun[2:]) == [([3], True), ([4], True), ([4], True), ([5], True)]
    assert [found[number].status for number in range(6)] == ["done"] * 4 + ["failed", "done"]
    folder = Store(tmp_path).folder(identify(specs[4]))
    assert folder.read()[:2] == ("failed", "its worker died 3 times") and found[4].reason == folder.read()[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"executor": "rays"}, "unknown executor 'rays'. Did you mean 'ray'"),
        ({"address": "10.0.0.1:6379"}, "needs executor ray, given '10.0.0.1:6379'"),
        ({"executor": "serial", "jobs": 3}, "executor serial has one job, given 3"),
        (
            {"executor": "ray", "jobs": 2},
            "--address HOST:PORT; on one machine processes are faster: --jobs N",
        ),
    ],
)
def test_impossible_executions_are_refused_before_writing(given, said, tmp_path):
    with pytest.raises(UserError, match=said):
        run_all(LONG, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def when(condition, then):
    """Do something in a thread as soon as a condition holds; returns the thread."""

    def watch():
        wait_for(condition)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def kill_a_worker(root, killed):
    """Kill one of those who hold a run's claim; their own process, wherever it was started from."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # gone by now, or not ours to look at
            target = link.readlink()
            if target.name == "claim" and target.is_relative_to(root):
                os.kill(int(link.parts[2]), signal.SIGKILL)
                killed.append(target)
                return


def kill_the_server():
    """Kill the fork server, if it runs, and do not wait for its end."""
    server = multiprocessing.forkserver._forkserver._forkserver_pid
    if server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(METHOD != "forkserver", reason="Linux has a fork server")
@pytest.mark.parametrize("moment", ["before workers", "as a worker starts", "while workers import"])
def test_runs_outlive_a_fork_server_killed_at_the_start(moment, tmp_path, short_alone, monkeypatch):
    """Workers that it made may end with it; each run is then given to another."""
    start_server()
    killed = []

    def kill():
        if not killed:
            killed.append(True)
            kill_the_server()

    if moment == "before workers":
        kill()
    elif moment == "as a worker starts":
        running = multiprocessing.forkserver.ForkServer.ensure_running

        def ensure(self):
            running(self)
            kill()

        monkeypatch.setattr(multiprocessing.forkserver.ForkServer, "ensure_running", ensure)

    def begin(units):
        if moment == "while workers import":
            kill()

    outcomes = run_all(SHORT, tmp_path, jobs=2, execution=ALONE, begin=begin)
    assert killed and [outcome.status for outcome in outcomes] == ["done"] * 3
    assert written(tmp_path) == short_alone


@pytest.mark.slow
@pytest.mark.skipif(METHOD != "forkserver", reason="Linux has a fork server")
def test_runs_outlive_a_fork_server_killed_in_a_run(tmp_path, alone):
    """Runs whose workers end with it go on from their checkpoints."""
    start_server()
    killer = when(saved(tmp_path, 2), kill_the_server)
    outcomes = run_all(LONG, tmp_path, jobs=2, execution=ALONE)
    killer.join()
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert written(tmp_path) == alone


@pytest.mark.slow
def test_a_killed_worker_delays_its_own_run_only(tmp_path, alone):
    killed, begun = [], []
    killer = when(saved(tmp_path, 2), lambda: kill_a_worker(tmp_path, killed))
    outcomes = run_all(LONG, tmp_path, jobs=2, execution=ALONE, begin=begun.extend)
    killer.join()
    assert killed and [outcome.status for outcome in outcomes] == ["done"] * 3
    assert sorted(begun) in ([0, 0, 1, 2], [0, 1, 1, 2])  # one run was handed out twice
    assert written(tmp_path) == alone


def test_a_worker_that_died_idle_is_replaced(tmp_path):
    specs = [read_spec(CANCER | {"rounds": 2, "seed": seed}) for seed in range(2)]
    with Processes(1, tmp_path, ALONE, retry=False) as workers:
        for number, spec in enumerate(specs):
            workers.start([number], [spec], 0.0)
            ((unit, outcomes),) = workers.ended()
            assert unit == [number] and [outcome.status for outcome in outcomes] == ["done"]
            (worker,) = multiprocessing.active_children()
            worker.kill()
            with pytest.raises(BrokenProcessPool):  # until that is noticed
                workers._idle[0].submit(int).result()


def test_ctrl_c_waits_for_a_worker_that_is_starting(tmp_path, monkeypatch):
    """A worker that its parent leaves half started writes a traceback."""

    class Starting(Future):
        def submit(self, *work):
            signal.raise_signal(signal.SIGINT)
            return self

        def shutdown(self, **options):
            stopped.append(True)

    stopped = []
    monkeypatch.setattr(Processes, "_pool", lambda self: Starting())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    with pytest.raises(KeyboardInterrupt), Processes(1, tmp_path, ALONE, retry=False) as workers:
        workers.start([0], [read_spec(CANCER)], 0.0)
    assert stopped and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_workers_know_the_environment_as_it_is_when_they_start(tmp_path, monkeypatch):
    """The server that they are copies of may be older."""
    start_server()
    monkeypatch.setenv("FEDFRONTIER_DATA", str(tmp_path / "elsewhere"))
    with Processes(1, tmp_path, ALONE, retry=False) as workers:
        assert workers._pool().submit(os.getenv, "FEDFRONTIER_DATA").result() == str(tmp_path / "elsewhere")


WORKER = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from harness.executors.server import METHOD, start_server

start_server()
with ProcessPoolExecutor(1, get_context(METHOD)) as pool:
    print(pool.submit(eval, "sorted({'algorithms', 'pandas', 'torch'} & {*__import__('sys').modules})").result())
"""


@pytest.mark.slow
@pytest.mark.skipif(METHOD != "forkserver", reason="Linux has a fork server")
def test_workers_begin_with_the_modules_of_the_command_not_of_its_folder(tmp_path):
    (tmp_path / "algorithms.py").write_text("raise RuntimeError('not ours')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", WORKER],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("['algorithms', 'pandas', 'torch']\n", "")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU, on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, at import and at its start
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Or workers wait for whatever else a busy machine does. Ray spells it so.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        made.add_node(**node)
    yield made
    ray.shutdown()
    made.shutdown()


quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@quiet
@pytest.mark.slow
def test_a_cluster_with_a_killed_worker_writes_the_same_files(cluster, tmp_path, alone):
    killed, begun = [], []
    killer = when(saved(tmp_path, 2), lambda: kill_a_worker(tmp_path, killed))
    outcomes = run_all(
        LONG,
        tmp_path,
        jobs=None,
        executor="ray",
        address=cluster.address,
        execution=ALONE,
        begin=begun.extend,
    )
    killer.join()
    assert killed and [outcome.status for outcome in outcomes] == ["done"] * 3
    assert sorted(begun) in ([0, 0, 1, 2], [0, 1, 1, 2])  # two at once: one a CPU of the cluster
    assert written(tmp_path) == alone


@quiet
@pytest.mark.slow
def test_a_node_that_is_lost_costs_its_run_a_moment(cluster, tmp_path, alone):
    """A third node goes; its run waits for the claim of the worker that is dying with it."""
    node, begun = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20), []
    loss = when(saved(tmp_path, 3), lambda: cluster.remove_node(node, allow_graceful=False))
    outcomes = run_all(
        LONG, tmp_path, jobs=3, executor="ray", address=cluster.address, execution=ALONE, begin=begun.extend
    )
    loss.join()
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert sorted(begun) in ([0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2])
    assert written(tmp_path) == alone


@quiet
@pytest.mark.slow
def test_an_interrupted_suite_on_a_cluster_resumes(cluster, tmp_path, alone):
    """Ctrl-C, long before a checkpoint would be due; stacks are made of what the cluster left over."""
    endless = [spec.model_copy(update={"rounds": 10**6}) for spec in LONG[:2]]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    def evaluated():
        return len([path for path in tmp_path.glob("runs/*/rounds.jsonl") if path.stat().st_size > 2000]) == 2

    ctrl_c = when(evaluated, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all(endless, tmp_path, executor="ray", jobs=2, address=cluster.address, execution=ALONE)
    finally:
        ctrl_c.join()
        signal.signal(signal.SIGINT, before)
    folders = [Store(tmp_path).folder(identify(spec)) for spec in endless]
    assert [folder.status for folder in folders] == ["interrupted"] * 2
    for folder in folders:
        assert folder.load()["lines"] == len(folder.evaluations.all()) > 1  # saved when it was interrupted


@quiet
@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_command_on_a_cluster_writes_what_others_write(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(code, "OURS", code._ours())  # as in the workers
    base = {key: value for key, value in CANCER.items() if key != "seed"} | {"rounds": 20}
    sweep = {"algorithm.batch_size": [8, 16], "seed": "0..1"}
    suite, there, here = tmp_path / "four.yaml", tmp_path / "there", tmp_path / "here"
    suite.write_text(yaml.safe_dump({"suite": "four", "base": base, "sweep": sweep}))
    line = ["suite", str(suite), "--out"]
    assert main([*line, str(there), "--executor", "ray", "--address", cluster.address]) == 0
    assert main([*line, str(here), "--jobs", "1"]) == 0
    assert written(there) == written(here) != {}


@quiet
@pytest.mark.slow
def test_a_lost_cluster_is_told_and_what_has_ended_is_kept(cluster, tmp_path, monkeypatch):
    """Ray keeps tasks for a node to come; the command waited for it without end."""
    specs = [read_spec(CANCER | {"rounds": 2, "seed": seed}) for seed in range(2)]
    monkeypatch.setattr(on_ray, "ALIVE_SECONDS", 0.1)
    with on_ray.Cluster(cluster.address, 1, tmp_path, ALONE, False) as joined:
        joined.start([0], specs[:1], 0.0)
        assert [outcome.status for _, ended in joined.ended() for outcome in ended] == ["done"]
        joined.start([1], [specs[1].model_copy(update={"rounds": 10**6})], 0.0)
        monkeypatch.setattr(joined._ray, "nodes", lambda: [{"Alive": False}, {"Alive": False}])
        with pytest.raises(
            Interrupted, match=r"cluster is lost \(no node is alive\); what has ended is kept"
        ):
            joined.ended()
    assert Store(tmp_path).folder(identify(specs[0])).status == "done"


@quiet
@pytest.mark.slow
def test_a_task_that_sees_another_folder_says_so(cluster, tmp_path, monkeypatch):
    """As on a node with a folder of that name of its own: nothing is computed there."""
    monkeypatch.setattr(on_ray.Store, "made", 12345)
    with pytest.raises(
        UserError, match=r"sees another folder at .*the results folder must be one that all nodes share"
    ):
        run_all(LONG, tmp_path, executor="ray", address=cluster.address)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("missing", ["results", "place"])
def test_a_node_without_the_folders_says_which(missing, tmp_path):
    folder = {"results": str(tmp_path), "place": str(tmp_path)} | {missing: str(tmp_path / "not here")}
    with pytest.raises(UserError, match=r"has no folder .*not here; all nodes need to see the same files"):
        work(tiny(1), (folder["results"], None, folder["place"]), (), Execution(), False, 0.0)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: .*refused"),
        ("127.0.0.1:99999", "no Ray cluster answers at 127.0.0.1:99999"),
        ("head", "HOST:PORT of a Ray cluster's head, or auto, given 'head'"),
        ("ray://head:10001", "HOST:PORT of a Ray cluster's head, or auto, given 'ray://head:10001'"),
    ],
)
def test_an_address_at_which_no_cluster_answers_is_refused(address, said, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=said):
        run_all(LONG, tmp_path, executor="ray", address=address)


def test_without_the_extra_ray_is_refused_with_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs the extra 'ray': pip install 'fedfrontier\[ray\]'"):
        run_all(LONG, tmp_path, executor="ray", address="auto")
