"""Rounds and runs of all candidates, in turns."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import vector_to_parameters

from benchmarks import sweeps
from benchmarks.peers import task as tasks
from benchmarks.peers.processes import PEERS, Peer, Unable, command, find_interpreters, surroundings
from benchmarks.peers.task import Data, Task
from benchmarks.references import PlainLoop
from benchmarks.speed import MEGABYTE, Remote, Round, compare, time_in_turns
from benchmarks.workloads import CENTRAL, Ours, Workload
from datasets.catalog import load

NOT_IN_STEPS = {"fluke": "its loader shuffles all of a client's data for each pass, also if a pass is a step"}
UNPROTECTED = ("blazefl", "fluke")
SPARE = 3  # rounds besides those that are timed: of the start, of warming up, and after memory was read


def write_workload(work: Workload, dp: bool) -> tuple[Task, Data]:
    """Return a workload as peers read it; they are judged by every tenth sample of the clients' data."""
    x, y = work.data()
    task = Task(
        model=work.model,
        shape=list(work.shape),
        classes=work.classes,
        sizes=[work.samples] * work.clients,
        batch_size=work.batch_size,
        local_epochs=work.local_epochs,
        local_steps=None,
        lr=work.lr,
        placement="central" if dp else None,
        clip=CENTRAL.bound(),
        noise=CENTRAL.noise_multiplier * CENTRAL.factor * CENTRAL.bound(),
    )
    return task, Data(x, y, x[::10], y[::10], work.start())


def homegrown(work: Workload, dp: bool, only: list[str]) -> dict[str, Remote]:
    """Return the plain loop in its two layouts, and ours."""
    os.environ["OMP_NUM_THREADS"] = "2"  # what is not a worker's is done with both
    privacy = CENTRAL if dp else None
    bound = {"clip": CENTRAL.bound(), "noise": write_workload(work, dp)[0].noise} if dp else {}
    loops = {
        f"plain loop {workers}x{threads}": Remote(partial(PlainLoop, work, workers, threads, **bound))
        for workers, threads in ((2, 1), (1, 2))
    }
    if "fedfrontier" in only and work.model == "logistic":
        loops["fedfrontier 1x2, vectorized"] = Remote(partial(Ours, work, "vmap", privacy=privacy))
    elif "fedfrontier" in only:
        for workers, threads in ((2, 1), (1, 2)):
            loops[f"fedfrontier {workers}x{threads}"] = Remote(
                partial(Ours, work, "loop", workers, privacy=privacy)
            )
    return loops


def rounds(work: Workload, options: argparse.Namespace, dp: bool) -> None:
    """Time a round of every candidate, in turns."""
    work = replace(work, clients=options.clients or work.clients, samples=options.samples or work.samples)
    repeats, each = options.repeats or 5, options.rounds or (3 if work.model == "logistic" else 1)
    print(
        f"{options.what}: {work.model}, {work.clients} clients x {work.samples} samples, batch {work.batch_size}, "
        f"{work.local_epochs} epochs{', central noise' if dp else ''}; {repeats} turns of {each} rounds",
        flush=True,
    )
    task, data = write_workload(work, dp)
    judged: dict[str, tuple[float, float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tasks.save(folder, task, data)
        pythons = find_interpreters(options.envs, options.only)
        remotes = homegrown(work, dp, options.only)
        peers: dict[str, Peer] = {}
        for remote in remotes.values():
            remote()
        for name, python in pythons.items():
            for layout in PEERS[name][1]:
                threads = int(layout[-1])
                line = command(python, name, folder, layout, repeats * each + SPARE)
                peer = Peer(line, threads, folder)
                stack.callback(peer.kill)
                try:
                    peer()
                except Unable as reason:
                    print(f"  {name} {layout}: {reason}")
                    continue
                peers[f"{name} {layout}"] = peer
        candidates: dict[str, Round] = {**remotes, **peers}
        seconds = time_in_turns(candidates, repeats, each)
        for label, remote in remotes.items():
            remote()
            module = tasks.network(task.model, task.shape, task.classes)
            vector_to_parameters(remote.vector(), module.parameters())
            judged[label] = remote.close(), tasks.accuracy(module, data.test_x, data.test_y)
        for label, other in peers.items():
            judged[label] = other.close()
    plain = [label for label in seconds if label.startswith("plain")]
    best = min(plain, key=lambda label: statistics.median(seconds[label]))
    compare({best: seconds.pop(best), **seconds})
    for label, (peak, right) in judged.items():
        apart = "   more than a point from the plain loop" if abs(right - judged[best][1]) > 0.01 else ""
        print(f"  {label:<42} {peak / MEGABYTE:10.0f} MB at most   accuracy {right:6.1%}{apart}")


def adult(sweep: str) -> tuple[Task, Data]:
    """Return a run of a sweep of `benchmarks.sweeps`, with so little noise that accuracy says something."""
    data, base = load("adult"), sweeps.SUITES[sweep]["base"]
    assert data.continuous is not None
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    mean, deviation = data.x[train].mean(0), data.x[train].std(0)
    x = torch.where(data.continuous, (data.x - mean) / deviation, data.x)
    shape = [x.shape[1]]
    start = tasks.network("logistic", shape, 2).state_dict()
    task = Task(
        model="logistic",
        shape=shape,
        classes=2,
        sizes=[len(part) for part in train.tensor_split(base["partition"]["clients"])],
        batch_size=base["algorithm"]["batch_size"],
        local_epochs=None,
        local_steps=base["algorithm"]["local_steps"],
        lr=sweeps.STEP_SIZE,
        placement=base.get("privacy", {}).get("placement", "local"),
        clip=sweeps.CLIP,
        noise=0.01 * sweeps.CLIP,
        evaluate_every=base["eval_every"],
    )
    vector = torch.cat([torch.zeros_like(value).flatten() for value in start.values()])
    return task, Data(x[train], data.y[train], x[test], data.y[test], vector)


def sweep(options: argparse.Namespace) -> None:
    """Time whole runs of peers beside our whole sweep: two at once, as our two jobs are, and one after another."""
    name, repeats = options.what, options.repeats or 3
    runs, length = sweeps.RUNS[name], options.rounds or sweeps.SUITES[name]["base"]["rounds"]
    print(
        f"{name}: {runs} runs of {length} rounds; of peers {repeats} pairs and as many alone are made",
        flush=True,
    )
    seconds: dict[str, float] = {}
    if "fedfrontier" in options.only:
        for label, stack in (("side by side", "auto"), ("one by one", "off")):
            seconds[f"fedfrontier, {label}, 2 jobs"] = sweeps.suite(name, stack, 2)
    if "plain" in options.only and name == "ladder":
        seconds["plain script, from 5 runs, by 2"] = sweeps.plain(5, runs, 2)
    reference = next(iter(seconds.values()), None)
    for label, value in seconds.items():
        print(f"  {label:<42} {value:10.1f} s   ratio {value / (reference or value):8.2f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tasks.save(folder, *adult(name))
        for peer, python in find_interpreters(options.envs, options.only).items():
            if peer in NOT_IN_STEPS:
                print(f"  {peer}: {NOT_IN_STEPS[peer]}")
                continue
            kind = PEERS[peer][1][0].rpartition("-")[0]
            layout = f"{kind}-1x1" if kind else "1x1"
            line = command(python, peer, folder, layout, length)
            measure_runs(f"{peer} {layout}", line, folder, repeats, runs, reference)


def measure_runs(
    label: str, line: list[str], folder: Path, repeats: int, requested: int, reference: float | None
) -> None:
    """Time some runs of one peer, and print the time of all requested runs, in pairs and one by one."""
    pairs: list[float] = []
    singles: list[float] = []
    rounds: list[float] = []
    ended = ""
    for _ in range(repeats):
        for count, spent in ((2, pairs), (1, singles)):
            began = time.perf_counter()
            lines = run_script(label, line, folder, count)
            if lines is None:
                return
            spent.append(time.perf_counter() - began)
            if count == 2:
                rounds.append(sum(line_of_round["seconds"] for line_of_round in lines))
            ended = f"accuracy {lines[-1]['accuracy']:.1%}"
    noise = ", without noise: it has none of this kind" if label.split()[0] in UNPROTECTED else ""
    for way, runs, spent in (("two at once", 2, pairs), ("one after another", 1, singles)):
        total = requested / runs * statistics.median(spent)
        ratio = f"   ratio {total / reference:8.2f}" if reference else ""
        print(
            f"  {f'{label}, {way}':<42} {total:10.1f} s{ratio}   {requested // runs} times the median of "
            f"{min(spent):.1f} to {max(spent):.1f} s; {ended}{noise}",
            flush=True,
        )
    alone = requested / 2 * statistics.median(rounds)
    ratio = f"   ratio {alone / reference:8.2f}" if reference else ""
    print(f"  {f'{label}, rounds without start-up':<42} {alone:10.1f} s{ratio}   two at once", flush=True)


def run_script(label: str, line: list[str], folder: Path, count: int) -> list[dict[str, Any]] | None:
    """Run scripts at once, with a thread each; return the rounds of the first, None if one fails."""
    runs = [
        subprocess.Popen(
            line, cwd=folder, env=surroundings(1), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    outputs = [run.communicate() for run in runs]
    for run, (_, errors) in zip(runs, outputs, strict=True):
        if run.returncode:
            print(f"  {label}: ended with {run.returncode}:\n{errors[-3000:]}")
            return None
    return [json.loads(line_of_round) for line_of_round in outputs[0][0].splitlines()]
