"""Other frameworks' scripts as processes: how they are started, asked for a round, and watched."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
PEERS = {
    "flower": ("flower.py", ("2x1", "1x2"), "'flwr[simulation]==1.41.0'"),
    "pfl": ("pfl_.py", ("1x2", "2x1"), "pfl==0.6.0"),
    "blazefl": (
        "blazefl_.py",
        ("threads-2x1", "processes-2x1", "1x2"),
        "numpy tqdm && pip install --no-deps --ignore-requires-python blazefl==2.0.3",
    ),
    "fluke": ("fluke_.py", ("1x2",), "fluke-fl==0.8.1"),
}


class Unable(Exception):
    """A peer cannot do this."""


@dataclass
class Peer:
    """A peer's script that runs a round when it is called.

    Attributes
    ----------
    command : list of str
        What is started.
    threads : int
        Torch threads of each of its workers.
    folder : Path
        Its working directory.
    """

    command: list[str]
    threads: int
    folder: Path

    def __post_init__(self) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [*self.command, "--wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self.folder,
            env=surroundings(self.threads),
        )

    def __call__(self) -> dict[str, Any]:
        """Run one round, and return the script's report of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has said why, or its log has
            print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise Unable(f"ended early:\n{self._log.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "none" in answer:
            raise Unable(answer["none"])
        return answer

    def close(self) -> tuple[float, float]:
        """Run the last round; returns the peak memory of all its processes in bytes, and its accuracy."""
        peak, answer = memory(self._process.pid), self()
        self._process.wait()
        return peak, answer["accuracy"]

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.terminate()


def surroundings(threads: int) -> dict[str, str]:
    """Return the environment variables of a peer; ours has packages whose names others use as well."""
    number = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | number


def memory(root: int) -> float:
    """Return the peak memory of a process and all below it; pages they share count in each."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it has just ended
        number = int(status.parent.name)
        parents[number] = int(lines["PPid"])
        peaks[number] = 1024.0 * int(lines.get("VmHWM", "0 kB").split()[0])
    family, below = set[int](), {root}
    while below:
        family |= below
        below = {number for number, parent in parents.items() if parent in below}
    return sum(peaks.get(number, 0.0) for number in family)


def find_interpreters(envs: Path, only: list[str]) -> dict[str, str]:
    """Return the Python of each installed peer, and print how to install the others."""
    interpreters = {}
    for name, (_, _, packages) in PEERS.items():
        python = envs.absolute() / name / "bin" / "python"
        if name in only and python.exists():
            interpreters[name] = str(python)
        elif name in only:
            print(
                f"  {name}: not installed: python -m venv {envs / name} && . {envs / name}/bin/activate"
                f" && pip install {TORCH} && pip install {packages}"
            )
    return interpreters


def command(python: str, name: str, folder: Path, layout: str, rounds: int) -> list[str]:
    """Return what starts a peer's script."""
    script = str(HERE / PEERS[name][0])
    return [python, script, str(folder), "--layout", layout, "--rounds", str(rounds)]
