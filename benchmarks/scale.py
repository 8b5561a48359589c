"""Print how cost grows: ``python -m benchmarks.scale population | stack | blocks | images | workers | store``.

With the population: a cohort of 100 of ever more clients, each size in a process of its own, so that its memory is
its own. With runs side by side: seconds that one run's round takes in stacks of 1 to 64. With clients: those of a
round that computes a cohort together, or in blocks of one client. With images: the share of a step that gathers
them, which runs of one seed could at most save by sharing them. With worker processes:
whole sweeps, from a YAML file to the leaderboard. With a results folder: the commands that read one, by how many
finished runs it holds, ten seeds a cell or one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from algorithms.centralized.scaffold import Scaffold
from benchmarks.limit import WORK, ready
from benchmarks.speed import MEGABYTE, Remote, Round, compare, time_in_turns
from benchmarks.sweeps import SUITES, suite
from benchmarks.workloads import W2, Ours, Workload
from datasets.federation import Batch
from harness import models, run
from harness.config.recorded import run_id
from harness.config.run import read_spec
from harness.core.execution.vectorize import ClientExecutor
from harness.core.settings.compression import Compression
from harness.core.units import counted
from harness.problems.classify import classifier
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.simulation import Simulation
from harness.storage.store import Store

SMALL = replace(W2, samples=20, local_epochs=1)  # 100,000 of them hold 840 MB
POPULATIONS = (100, 1_000, 10_000, 100_000)
READERS = ("status", "leaderboard", "report")
RUN = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 10},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "rounds": 10,
    "eval_every": 1,
}
STACKS = (1, 2, 4, 8, 16, 32, 64)


def population(options: argparse.Namespace) -> None:
    """Measure a round of a cohort of 100, by how many clients there are: without state, with rows of two kinds."""
    feedback = Compression(beta=0.9, error_feedback=True)
    kinds: dict[str, dict[str, Any]] = {
        "FedAvg": {},
        "SCAFFOLD": {"algorithm": Scaffold(lr=0.1, batch_size=32)},
        "FedAvg, top 10 % with error feedback": {"compression": feedback},
    }
    for name, settings in kinds.items():
        print(f"{name}: softmax regression 105 -> 2, 20 samples a client, cohort 100", flush=True)
        rounds = {
            f"of {total:,} clients": Remote(partial(_ours, replace(SMALL, clients=total), settings))
            for total in options.populations
        }
        compare(time_in_turns(dict(rounds), options.repeats, options.rounds))
        for total, (label, candidate) in zip(options.populations, rounds.items(), strict=True):
            data = total * SMALL.samples * SMALL.shape[0] * 4 / MEGABYTE
            print(
                f"  {label:<42} {candidate.close() / MEGABYTE:10.0f} MB at most, {data:.0f} MB of it features"
            )


def _ours(work: Workload, settings: dict[str, Any]) -> Round:
    torch.set_num_threads(1)
    return Ours(work, "vmap", cohort=100, **settings)


def stack(options: argparse.Namespace) -> None:
    """Measure a round of one run, by how many runs go side by side."""
    torch.set_num_threads(1)
    ladder = ("FedAvg on Adult, 3 clients, 5 steps of 128", SUITES["ladder"]["base"])
    for about, content in (ladder, WORK["w2"], WORK["w5"], WORK["w6"]):
        print(f"{about}; a run's round, in stacks", flush=True)
        candidates = {f"of {size}": ready(content, size).step for size in options.stacks}
        seconds = time_in_turns(candidates, options.repeats, options.rounds)
        sizes = zip(seconds.items(), options.stacks, strict=True)
        compare({label: [value / size for value in values] for (label, values), size in sizes})


def blocks(options: argparse.Namespace) -> None:
    """Measure a round of perceptrons, all clients of the cohort together and client by client."""
    torch.set_num_threads(1)
    for clients, hidden in ((20, [200]), (100, [16]), (100, [64]), (100, [200]), (50, [512, 512])):
        content = {
            "data": "adult",
            "partition": {"kind": "iid", "clients": clients},
            "model": {"name": "mlp", "hidden": hidden},
            "algorithm": {"name": "fedavg", "local_steps": 10, "batch_size": 32},
        }
        setup = calibrated(prepare(read_spec(content)))
        ways = {"together": False, "client by client": True}
        candidates = {name: Simulation.from_setup(setup, in_chunks=way).step for name, way in ways.items()}
        parameters = sum(value.numel() for value in setup.start.values())
        print(f"{clients} clients, hidden {hidden}, {parameters:,} parameters, 10 steps of 32", flush=True)
        compare(time_in_turns(candidates, options.repeats, options.rounds))


def images(options: argparse.Namespace) -> None:
    """Measure which share of a convolutional network's step gathers its batch."""
    torch.set_num_threads(1)
    for name, shape in (
        ("fedavg_cnn", (1, 28, 28)),
        ("fedreco_cnn", (1, 28, 28)),
        ("fedsgda_cnn", (3, 32, 32)),
    ):
        problem, executor, samples = classifier(models.build(name, shape, 10)), ClientExecutor("loop"), 10_000
        labels = torch.randint(0, 10, (samples,))
        pool = Batch(torch.randn(samples, *shape), labels, torch.zeros_like(labels), torch.ones(samples))
        x, seconds = problem.init(torch.Generator())["x"][None], []
        for _ in range(options.repeats * options.rounds):
            began, places = time.perf_counter(), torch.randint(0, samples, (1, 48))
            batch = pool.at(places)
            gathered = time.perf_counter()
            executor.gradient(problem.loss, 1, [x], batch)
            seconds.append((gathered - began, time.perf_counter() - gathered))
        gather, gradient = map(statistics.median, zip(*seconds, strict=True))
        print(f"  {name:<14} gathering 48 images {1e3 * gather:6.2f} ms, gradient {1e3 * gradient:6.1f} ms")


def workers(options: argparse.Namespace) -> None:
    """Measure a sweep of a minute end to end, on one worker and on two."""
    print("the ladder with 170 seeds: 1,360 runs from YAML to leaderboard", flush=True)
    ways = {jobs: partial(suite, "minute", "auto", jobs) for jobs in (1, 2)}
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(options.repeats):
        for jobs, way in ways.items():
            seconds[jobs].append(way())
    ratios = [alone / together for alone, together in zip(*seconds.values(), strict=True)]
    for jobs, values in seconds.items():
        print(f"  {counted(jobs, 'worker'):<42} {statistics.median(values):10.1f} s", flush=True)
    print(f"  {'one to together':<42} {statistics.median(ratios):10.2f}", flush=True)


def store(options: argparse.Namespace) -> None:
    """Measure commands that read a results folder, by how many runs and cells it holds."""
    for seeds in (10, 1):
        print(f"results folders of runs with {seeds} seed{'s' * (seeds > 1)} a cell", flush=True)
        before: dict[str, float] = {}
        for runs in options.runs:
            with tempfile.TemporaryDirectory() as place:
                finished_runs(Path(place), runs, seeds)
                for command in READERS:
                    seconds = _seconds([command, place])
                    growth = f"x {seconds / before[command]:.1f}" if command in before else ""
                    before[command] = seconds
                    print(f"  {command:<12} {runs:7,} runs {seconds:10.1f} s {growth:>8}", flush=True)


def finished_runs(folder: Path, runs: int, seeds: int) -> None:
    """Fill a results folder with a suite of finished runs: one real run under other step sizes and seeds."""
    done = run(RUN, folder)
    store = Store(folder)
    original = store.folder(str(done.id))
    spec, cells = dict(done.spec), []
    with mock.patch("os.fsync"):  # the disk is not what is measured
        for number in range(runs):
            copied_spec = {**spec, "seed": number % seeds}
            copied_spec["algorithm"] = {**spec["algorithm"], "lr": 0.0005 + 0.001 * (number // seeds)}
            id = run_id(copied_spec, done.digest, done.versions)
            copy = store.folder(id)
            copy.path.mkdir(exist_ok=True)
            provenance = {"digest": done.digest, "versions": done.versions}
            copy.start(
                {"id": id, "spec": copied_spec, "source": done.source, **provenance, "held": done.held}
            )
            shutil.copy(original.path / "rounds.jsonl", copy.path)
            copy.finish(done.final)
            cells.append({"id": id, "spec": copied_spec, "reason": None, **provenance})
        store.write_suite("copies", {"suite": "copies", "profile": "", "title": "copies", "cells": cells})


def _seconds(arguments: list[str]) -> float:
    """Return the seconds of one command in a process of its own."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "harness", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


COMMANDS = {
    "store": store,
    "population": population,
    "stack": stack,
    "blocks": blocks,
    "images": images,
    "workers": workers,
}


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in a turn")
    parser.add_argument("--populations", type=int, nargs="+", default=POPULATIONS, help="clients")
    parser.add_argument("--stacks", type=int, nargs="+", default=STACKS, help="runs side by side")
    parser.add_argument(
        "--runs", type=int, nargs="+", default=(1_250, 2_500, 5_000, 10_000, 20_000), help="of a folder"
    )
    options = parser.parse_args()
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
