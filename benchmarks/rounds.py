"""Time lone rounds of this checkout and of another one, in turns.

``python -m benchmarks.rounds FOLDER [ALGORITHM ...]`` prints the CPU time of a round of every algorithm that both
have, and ratios of this checkout's to the other's: of the least times, and the median of those of neighboring turns
with its quartiles. Rounds are of small tasks, where what is around the arithmetic shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SECONDS = 0.15  # of a turn, about
WARM = 6  # rounds before the first turn, in which functions are recorded

# Reads specs and numbers of rounds, answers with CPU seconds. Runs in either checkout.
WORKER = """
import json, sys, time
import torch
torch.set_num_threads(1)
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
metas = {name: ALGORITHMS[name].meta for name in ALGORITHMS}
print(json.dumps({n: [m.solves, m.gossip, m.groups, m.steps] for n, m in metas.items()}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, dict):
        run = Simulation.from_setup(calibrated(prepare(read_spec(asked))))
        print("ready", flush=True)
    else:
        began = time.thread_time()
        for _ in range(asked):
            run.step(ahead=1e9)
        print(time.thread_time() - began, flush=True)
"""


class Checkout:
    """A process that computes rounds with the code of a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WORKER]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=folder, **pipes)
        self.algorithms: dict[str, list[Any]] = json.loads(self._answer())

    def ask(self, what: object) -> str:
        """Send a spec or a number of rounds, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout has ended; its message is above")
        return line

    def time(self, rounds: int) -> float:
        """Return the CPU seconds of one of several rounds."""
        return float(self.ask(rounds)) / rounds


def task(name: str, solves: Sequence[str], gossip: bool, groups: bool, steps: int | None) -> dict[str, Any]:
    """Return the spec of a small task that an algorithm solves."""
    adult, hidden = {"name": "adult", "sensitive": "sex"}, {"name": "mlp", "hidden": [16]}
    work: dict[str, Any] = {} if "vertical" in solves else {"local_steps": steps or 5}
    work |= {"latent": 8, "draws": 3} if name == "fedcr" else {}
    spec: dict[str, Any] = {
        "data": adult if groups or "bilevel" in solves else "breast-cancer",
        "partition": {"kind": "iid", "clients": 8},
        "model": hidden,
        "algorithm": {"name": name, "batch_size": 32, **work},
        "rounds": 10**6,
        "eval_every": 10**6,
    }
    if "erm" not in solves:
        kinds = {"minimax": "fair_classification", "bilevel": "fair_weights", "vertical": "vertical"}
        spec["problem"] = kinds[solves[0]]
    if "vertical" in solves:
        spec["partition"] = {"kind": "columns", "clients": 3}
    return spec | ({"topology": "ring"} if gossip else {})


def main() -> None:
    """Print a line an algorithm."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="another checkout")
    options.add_argument("algorithms", nargs="*", help="default: all that both have")
    options.add_argument("--turns", type=int, default=13)
    args = options.parse_args()
    ours, theirs = Checkout(HERE), Checkout(args.folder.resolve())
    common = [name for name in ours.algorithms if name in theirs.algorithms]
    for name in args.algorithms or common:
        spec = task(name, *ours.algorithms[name])
        for checkout in (ours, theirs):
            checkout.ask(spec)
            checkout.time(WARM)
        rounds = max(1, int(SECONDS / theirs.time(3)))
        mine: list[float] = []
        other: list[float] = []
        for turn in range(args.turns):
            for checkout, times in ((ours, mine), (theirs, other))[:: 1 if turn % 2 else -1]:
                times.append(checkout.time(rounds))
        ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle = statistics.median(ratios)
        least = f"{min(mine) * 1e3:8.2f} ms {min(other) * 1e3:8.2f} ms  least {min(mine) / min(other):.2f}"
        print(f"{name:26} {least}  median {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
