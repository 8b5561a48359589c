"""Print what a round, and a sweep, takes here and in other frameworks: ``python -m benchmarks.peers --help``.

Each framework lives in an environment of its own (``--envs FOLDER``; see the README beside this package) and runs
there as a script of this package. All candidates get the same data, start, model and local work, and two torch
threads in all, in every layout they can do: two workers with one thread, or one with two.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.measure import rounds, sweep
from benchmarks.peers.processes import PEERS
from benchmarks.workloads import W1, W2

SWEEPS = ("ladder", "tuned")


def main() -> int:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("what", choices=["w1", "w2", "dp", *SWEEPS], help="dp: W1 with central privacy")
    parser.add_argument("--envs", type=Path, default=Path(".peers"), help="folder with an environment a peer")
    names = ["plain", "fedfrontier", *PEERS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, help="candidates (rounds: besides plain)"
    )
    parser.add_argument("--clients", type=int, help="fewer clients, for a quick look")
    parser.add_argument("--samples", type=int, help="fewer samples of each, likewise")
    parser.add_argument("--repeats", type=int, help="turns (default 5; sweeps: runs of each peer, 3)")
    parser.add_argument(
        "--rounds", type=int, help="rounds a turn (default w2 3, others 1; sweeps: those of a run)"
    )
    options = parser.parse_args()
    if options.what in SWEEPS:
        sweep(options)
    else:
        work = replace(W2, signal=0.1) if options.what == "w2" else replace(W1, signal=2.0)
        rounds(work, options, dp=options.what == "dp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
