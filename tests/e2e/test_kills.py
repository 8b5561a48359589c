"""Whenever a suite is killed, the same command ends with the files of one that nobody disturbed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from killing import CANCER, OFTEN, tiny

from harness.executors.scheduler import run_all
from harness.simulation.setup import Execution
from tests.support.written import saved, untimed, wait_for

ROOT = Path(__file__).parents[2]
ROUNDS = 6
KILLS = 12  # at a count of writes; more come after a delay
DELAYS = (0.3, 0.7)  # of the undisturbed run's duration


def files(root):
    """Return all that a results folder holds, without timings: names of all files, contents of the results."""
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text() or "null"]
        found[str(path.relative_to(root))] = [untimed(json.loads(line)) for line in lines]
    return found


@pytest.fixture(scope="module")
def starter():
    """A process with everything imported, that starts suites and kills them."""
    command = [sys.executable, str(Path(__file__).with_name("killing.py"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask(**request):
            process.stdin.write(json.dumps({"rounds": ROUNDS, "stack": 8, **request}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(starter, tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    told = starter(root=str(root))
    assert told["code"] == 0 and told["statuses"] == ["done"] * 6
    return told, files(root)


@pytest.mark.slow
def test_a_suite_killed_at_any_write_ends_like_one_that_was_not(starter, undisturbed, tmp_path):
    """Before and after writes, syncs and renamings, and within a line."""
    told, expected = undisturbed
    for kill in range(KILLS):
        root, at = tmp_path / str(kill), 1 + (2 * kill + 1) * told["count"] // (2 * KILLS)
        assert starter(root=str(root), at=at)["code"] == -signal.SIGKILL
        again = starter(root=str(root), stack=(1, 2, 8)[kill % 3])
        assert again["code"] == 0, f"killed at write {at}"
        assert files(root) == expected, f"killed at write {at}"


@pytest.mark.slow
def test_a_suite_killed_over_and_over_comes_to_its_end(starter, undisturbed, tmp_path):
    """Each attempt gets a little further than the one before, or to the same checkpoint at least."""
    told, expected = undisturbed
    kills = 0
    while (again := starter(root=str(tmp_path), at=told["count"] // 4))["code"] == -signal.SIGKILL:
        kills += 1
        assert kills < 40
    assert again["code"] == 0 and kills >= 3
    assert files(tmp_path) == expected


@pytest.mark.slow
def test_a_suite_killed_before_any_checkpoint_ends_the_same(starter, undisturbed, tmp_path):
    """Where there are checkpoints, what a kill leaves is what is left by one at the write before it."""
    told, expected = undisturbed
    for share in DELAYS:
        root = tmp_path / str(share)
        assert starter(root=str(root), after=share * told["seconds"], every=60.0)["code"] in (
            -signal.SIGKILL,
            0,  # a busy machine may have been quicker this time
        )
        assert starter(root=str(root), every=60.0)["code"] == 0
        assert files(root) == expected


@pytest.mark.slow
def test_a_killed_suite_leaves_no_worker_and_resumes(tmp_path):
    """Workers that have lost their parent save what they have, and go."""
    base = CANCER | {"rounds": 4000, "eval_every": 500}
    spec = {"suite": "many", "base": base, "sweep": {"seed": [0, 1, 2]}}
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "often.py").write_text(OFTEN)
    command = [sys.executable, "-m", "harness", "suite", str(tmp_path / "many.yaml")]
    command += ["--plugin", str(tmp_path / "often.py")]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out"), "--jobs", "2", "--stack", "off"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(saved(tmp_path / "out", 2))
    process.kill()
    process.communicate(timeout=60)  # workers hold the pipe: it ends when all have gone
    assert process.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("out/runs/*/done.json"))
    assert len(list(tmp_path.glob("out/runs/*/checkpoint.pt"))) == 2  # and nobody took the third run
    seen = []
    specs = [one.model_copy(update={"rounds": 4000, "eval_every": 500}) for one in tiny(1)[:3]]
    with pytest.raises(KeyboardInterrupt):
        run_all(specs, tmp_path / "out", execution=Execution(stack=1), progress=first(seen))
    assert seen[0] > 0  # it went on from the checkpoint


def first(seen):
    def watch(spec, round, line):
        seen.append(round)
        raise KeyboardInterrupt

    return watch
