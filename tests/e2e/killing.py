"""Start suites and have them killed: ``python killing.py`` reads requests from its input, one a line.

It has run the suite once, and forks a child for each request: a kill costs no new start of Python, and nobody
imports, reads data or calibrates noise again.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from harness.config.run import read_spec
from harness.executors.scheduler import run_all
from harness.simulation import loop
from harness.simulation.setup import Execution
from harness.storage import evaluations, files, run_folder, store
from tests.support.runs import MM4

# A plugin that lets workers write checkpoints often, wherever they are.
OFTEN = """
from datasets.catalog import data_set
from harness.simulation import loop

loop.CHECKPOINT_SECONDS = 0.1


@data_set("of-nobody", "0 x 0")  # a plugin registers something
def of_nobody():
    raise NotImplementedError
"""

CANCER = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": {"name": "scaffold", "local_steps": 2, "batch_size": 16},
    "eval_every": 1,
}
MINIMAX = {
    "problem": MM4,
    "algorithm": {"name": "k_gt_minimax", "local_steps": 2},
    "topology": "ring",
    "eval_every": 3,
}
PRIVATE = CANCER | {
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 16},
    "privacy": {"placement": "local", "epsilon": 8.0, "clip": 1.0},
    "compression": {"beta": 0.5, "codec": "q4", "error_feedback": True},
}


def tiny(rounds):
    """Return three settings: one of three seeds, a private one of two, and a gossip one."""
    given = [(CANCER, 3), (PRIVATE, 2), (MINIMAX, 1)]
    return [
        read_spec(one | {"rounds": rounds, "seed": seed}) for one, seeds in given for seed in range(seeds)
    ]


class Bomb:
    """Counts what is done to files, and kills this process's group at one of the counts; 0: never."""

    def __init__(self, at):
        self.at, self.count = at, 0

    def tick(self, before=lambda: None):
        self.count += 1
        if self.count == self.at:
            before()
            os.killpg(0, signal.SIGKILL)

    def plant(self):
        """Before and after each write, sync and renaming, and within a line."""
        honest, append = files.writing, files.append

        class Writing:
            def __init__(inner, path):
                inner.honest = honest(path)

            def __enter__(inner):
                self.tick()
                return inner.honest.__enter__()

            def __exit__(inner, *error):
                done = inner.honest.__exit__(*error)
                self.tick()
                return done

        def counted(step):
            def stepping(*given):
                self.tick()
                step(*given)

            return stepping

        def appending(path, content):
            self.tick(lambda: append(path, content[:20]))
            append(path, content)

        files.writing = evaluations.writing = run_folder.writing = store.writing = Writing
        files.append = appending
        for name in ("rename", "remove", "sync", "sync_folder"):
            setattr(files, name, counted(getattr(files, name)))


def carry_out(request):
    """Run the tiny suite in this process, a child; returns what was counted."""
    bomb = Bomb(request.get("at", 0))
    bomb.plant()
    loop.CHECKPOINT_SECONDS = request.get("every", -1.0)
    outcomes = run_all(
        tiny(request["rounds"]), Path(request["root"]), execution=Execution(stack=request["stack"])
    )
    return {"statuses": [outcome.status for outcome in outcomes], "count": bomb.count}


def serve(request):
    """Fork a child for a request, kill it if it says so, and tell how it ended."""
    read, write = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(read)
        code = 1
        try:
            with open(write, "w") as answer:
                json.dump(carry_out(request), answer)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    if request.get("after") is not None:
        time.sleep(request["after"])
        os.kill(child, signal.SIGKILL)
    with open(read) as answer:
        said = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "seconds": time.monotonic() - began, **(json.loads(said) if said else {})}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run_all(tiny(2), Path(folder))
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
