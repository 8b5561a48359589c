"""Print what users wait for: whole sweeps, from a YAML file to the leaderboard: ``python -m benchmarks.sweeps``.

The privacy ladder is 8 budgets x 10 seeds of FedAvg on Adult (3 clients, 100 rounds of 5 steps, batches of 128);
the bilevel sweep is FedBiOAcc with 10 seeds; the tuned sweep is FedAvg among 100 clients of Adult, 20 rounds of 10
steps of 32, with 8 budgets x 4 clip norms x 6 step sizes x 2 seeds. Each is run by ``python -m harness suite`` with
runs side by side and one by one, in turns, in processes of their own, report and all. The plain script is the
ladder as one writes it for a paper: a loop over runs, clients and steps; a few runs are timed and the rest
extrapolated, which is said.
With ``--beside FOLDER`` another checkout carries out the same sweeps in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from datasets.catalog import load
from privacy.gaussian import analytic_sigma

EPSILONS = [32.0, 16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25]
CLIENTS, ROUNDS, STEPS, BATCH, STEP_SIZE, CLIP = 3, 100, 5, 128, 0.1, 1.0
BASE = {"model": "logistic", "partition": {"kind": "iid", "clients": CLIENTS}, "eval_every": 10}
SUITES: dict[str, dict[str, Any]] = {
    "ladder": {
        "suite": "ladder",
        "base": BASE
        | {
            "data": "adult",
            "algorithm": {"name": "fedavg", "lr": STEP_SIZE, "local_steps": STEPS, "batch_size": BATCH},
            "rounds": ROUNDS,
        },
        "sweep": {
            "privacy": [{"placement": "local", "clip": CLIP, "epsilon": epsilon} for epsilon in EPSILONS],
            "seed": "0..9",
        },
    },
    "bilevel": {
        "suite": "bilevel",
        "base": BASE
        | {
            "data": {"name": "adult", "sensitive": "race2"},
            "problem": "fair_weights",
            "algorithm": {"name": "fedbioacc", "local_steps": 5, "outer_rounds": 50, "batch_size": BATCH},
            "rounds": 100,
        },
        "sweep": {"seed": "0..9"},
    },
    "tuned": {
        "suite": "tuned",
        "base": BASE
        | {
            "data": "adult",
            "partition": {"kind": "iid", "clients": 100},
            "algorithm": {"name": "fedavg", "local_steps": 10, "batch_size": 32},
            "privacy": {"placement": "central"},
            "rounds": 20,
            "eval_every": 20,
        },
        "sweep": {
            "privacy.epsilon": EPSILONS,
            "privacy.clip": [0.1, 0.3, 1.0, 3.0],
            "algorithm.lr": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
            "seed": "0..1",
        },
    },
}
# The ladder with 170 seeds, which takes two workers a minute.
SUITES["minute"] = {
    **SUITES["ladder"],
    "suite": "minute",
    "sweep": {**SUITES["ladder"]["sweep"], "seed": "0..169"},
}
RUNS = {"ladder": 80, "bilevel": 10, "tuned": 384, "minute": 1360}


def suite(name: str, stack: str, jobs: int, checkout: Path | None = None) -> float:
    """Return the seconds that a suite takes, with a results folder of its own, by this or another checkout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(SUITES[name]))
        command = [sys.executable, "-m", "harness", "suite", str(file), "--out", f"{folder}/results"]
        began = time.perf_counter()
        subprocess.run(
            [*command, "--stack", stack, "--jobs", str(jobs)],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=checkout,
        )
        return time.perf_counter() - began


def plain(runs: int, requested: int, jobs: int) -> float:
    """Return the seconds that a plain script would take for the runs asked for, from some that are made."""
    torch.set_num_threads(1)
    data = load("adult")
    began = time.perf_counter()
    for seed in range(runs):
        torch.manual_seed(seed)
        order = torch.randperm(len(data.y))
        test, train = order[: len(order) // 3], order[len(order) // 3 :].chunk(CLIENTS)
        x, y = data.x, data.y
        sigma = 2 * CLIP * analytic_sigma(EPSILONS[seed % len(EPSILONS)], 1e-5, 1.0) * ROUNDS**0.5
        model = nn.Linear(x.shape[1], 2)
        for number in range(ROUNDS):
            start = nn.utils.parameters_to_vector(model.parameters()).detach()
            moves = []
            for places in train:
                nn.utils.vector_to_parameters(start, model.parameters())
                optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
                for _ in range(STEPS):
                    batch = places[torch.randint(len(places), (BATCH,))]
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                    optimizer.step()
                move = nn.utils.parameters_to_vector(model.parameters()).detach() - start
                move = move * CLIP / max(CLIP, float(move.norm()))
                moves.append(move + sigma * torch.randn_like(move))
            nn.utils.vector_to_parameters(start + torch.stack(moves).mean(0), model.parameters())
            if number % 10 == 9:
                (model(x[test]).argmax(1) == y[test]).float().mean()
    return (time.perf_counter() - began) / runs * requested / jobs


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("work", nargs="*", choices=[*SUITES, []], help="default: all")
    options.add_argument("--beside", type=Path, help="folder of another checkout")
    options.add_argument("--brief", action="store_true", help="only the sweeps with runs side by side")
    options.add_argument("--repeats", type=int, default=3, help="turns")
    options.add_argument("--jobs", type=int, default=2, help="worker processes")
    args = options.parse_args()
    for name in args.work or ("ladder", "bilevel", "tuned"):
        runs = RUNS[name]
        print(f"{name}: {runs} runs, {args.jobs} workers, median of {args.repeats} turns")
        ways: dict[str, Callable[[], float]] = {
            "fedfrontier, side by side": partial(suite, name, "auto", args.jobs),
        }
        if args.beside is not None:
            ways[f"the checkout in {args.beside.name}"] = partial(
                suite, name, "auto", args.jobs, args.beside.resolve()
            )
        if not args.brief:
            ways["fedfrontier, one by one"] = partial(suite, name, "off", args.jobs)
            ways["fedfrontier, one by one, one worker"] = partial(suite, name, "off", 1)
        if name == "ladder" and not args.brief:
            ways[f"plain script, from 5 runs, on {args.jobs} cores"] = partial(plain, 5, runs, args.jobs)
            ways["plain script, one after another"] = partial(plain, 5, runs, 1)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.repeats):
            for way, measure in ways.items():
                seconds[way].append(measure())
        first = seconds["fedfrontier, side by side"]
        for way, values in seconds.items():
            ratios = [value / base for value, base in zip(values, first, strict=True)]
            print(
                f"  {way:<40} {statistics.median(values):8.1f} s   ratio {statistics.median(ratios):6.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
