"""Print how fast a round is, next to the same round written by hand: ``python -m benchmarks.speed --help``."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

import algorithms
from benchmarks.mechanisms import MODES, W3, opacus_step, our_step, plain_step, pruned_step
from benchmarks.references import HandBatched, PlainLoop
from benchmarks.workloads import FAMILY, LOCAL, TENTH, W1, W2, Ours, Workload
from harness.core import ALGORITHMS
from harness.core.execution.memory import keep_freed_memory

MEGABYTE = 1e6
Round = Callable[[], object]
Candidate = Callable[[], Round]


class Remote:
    """A candidate in a process of its own, so that its memory is its own; called like it.

    Parameters
    ----------
    make : Callable
        Makes the candidate there.
    """

    def __init__(self, make: Candidate) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, there), daemon=True)
        self._process.start()

    def __call__(self) -> None:
        """Run one round and wait for its end."""
        self._line.send("round")
        self._line.recv()

    def vector(self) -> Tensor:
        """Return the parameters of the candidate's model, for a candidate that tells them."""
        self._line.send("vector")
        vector: Tensor = self._line.recv()
        return vector

    def close(self) -> float:
        """End the process; returns its peak memory in bytes."""
        self._line.send("end")
        peak: float = self._line.recv()
        self._process.join()
        return peak


def _serve(make: Candidate, line: Connection) -> None:
    run: Any = make()
    while (request := line.recv()) != "end":
        line.send(run() if request == "round" else run.vector())
    # Linux counts in units of 1024 bytes.
    line.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def time_in_turns(candidates: Mapping[str, Round], repeats: int, rounds: int) -> dict[str, list[float]]:
    """Time the candidates in turns, so that whatever else the machine does meets all of them alike.

    Parameters
    ----------
    candidates : mapping of str to Callable
        Each runs one round; one round first warms it up.
    repeats, rounds : int
        Turns, and rounds in a turn.

    Returns
    -------
    dict[str, list[float]]
        Seconds a round, one value a turn. Every other turn goes through the candidates backwards.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for turn in range(repeats):
        for name in list(candidates)[:: -1 if turn % 2 else 1]:
            began = time.perf_counter()
            for _ in range(rounds):
                candidates[name]()
            seconds[name].append((time.perf_counter() - began) / rounds)
    return seconds


def compare(seconds: dict[str, list[float]]) -> None:
    """Print the medians, and the ratio of each candidate to the first: the median over the turns' ratios."""
    reference = next(iter(seconds.values()))
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, reference, strict=True)]
        print(
            f"  {name:<42} {statistics.median(values) * 1e3:10.1f} ms a round"
            f"   ratio {statistics.median(ratios):6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def w2(options: argparse.Namespace) -> None:
    """Softmax regression over 100 clients: our vectorized round against a hand-batched loop."""
    work = scale_workload(W2, options)
    title("W2: softmax regression 105 -> 2, batch 32, 5 epochs", work, "target: ratio at most 1.0")
    hand, ours = partial(HandBatched, work), partial(Ours, work, "vmap")
    makers: dict[str, Candidate] = {
        "hand-batched, freed memory kept as ours": partial(
            _make_prepared, hand, options.threads, keep_freed_memory
        ),
        "hand-batched, closed-form gradient": partial(_make_prepared, hand, options.threads),
        "fedfrontier": partial(_make_prepared, ours, options.threads),
    }
    candidates = {name: Remote(make) for name, make in makers.items()}
    compare(time_in_turns(candidates, options.repeats or 15, options.rounds or 3))
    for candidate in candidates.values():
        candidate.close()


def _make_prepared(make: Candidate, threads: int, *before: Callable[[], object]) -> Round:
    """Make a candidate in this process, after setting threads and calling a preparation."""
    torch.set_num_threads(threads)
    for do in before:
        do()
    return make()


def w1(options: argparse.Namespace) -> None:
    """Two-layer CNN over 50 clients: our loop on two threads against a plain PyTorch loop on two threads."""
    work = scale_workload(W1, options)
    title("W1: CNN on 28x28, batch 48, 1 epoch", work, "targets: ratio at most 1.05, ours below 1200 MB")
    candidates = {
        "plain PyTorch loop, two threads": Remote(partial(PlainLoop, work, 2)),
        "fedfrontier, two threads": Remote(partial(Ours, work, "loop", 2)),
        "fedfrontier, two threads, bfloat16": Remote(partial(Ours, work, "loop", 2, computes=torch.bfloat16)),
    }
    compare(time_in_turns(candidates, options.repeats or 3, options.rounds or 1))
    for name, candidate in candidates.items():
        print(f"  {name:<42} {candidate.close() / MEGABYTE:10.0f} MB at most")


def population(options: argparse.Namespace) -> None:
    """Measure a round's cost by the number of clients, and by the cohort."""
    torch.set_num_threads(options.threads)
    work = replace(W2, samples=100, local_epochs=1)
    title(
        "Population: W2 with 100 samples, 1 epoch, cohort 50", work, "target: flat", clients="100 to 10,000"
    )
    totals = {
        f"cohort 50 of {total:,}": Ours(replace(work, clients=total), "vmap", cohort=50)
        for total in (100, 1_000, 10_000)
    }
    compare(time_in_turns(totals, options.repeats or 15, options.rounds or 10))
    title("Cohort: the same, vectorized, in 1,000 clients", work, "target: at most linear", clients="1,000")
    several = replace(work, clients=1_000)
    cohorts = {f"cohort {size} of 1,000": Ours(several, "vmap", cohort=size) for size in (50, 100, 200)}
    compare(time_in_turns(cohorts, options.repeats or 15, options.rounds or 10))


def w3(options: argparse.Namespace) -> None:
    """One step of per-example DP-SGD: ours against each mode of Opacus."""
    torch.set_num_threads(1)
    title("W3: DP-SGD on FedSGDA's CNN, one step of 50, one thread", W3, "target: below every mode of Opacus")
    candidates = {f"Opacus, {mode}": opacus_step(W3, mode) for mode in MODES}
    candidates |= {"fedfrontier": our_step(W3), "SGD without privacy": plain_step(W3)}
    compare(time_in_turns(candidates, options.repeats or 15, options.rounds or 10))


def channel(options: argparse.Namespace) -> None:
    """Compare a round of W1 with clipping, noise and top-k with one without: the channel's share."""
    work = replace(W1, clients=options.clients or 8)
    title("Channel: W1, local noise, beta 0.9", work, "target: ratio at most 1.33, a quarter of the round")
    candidates = {
        "nothing but counting": Remote(partial(Ours, work, "loop", 2)),
        "clip, noise, top-k": Remote(partial(Ours, work, "loop", 2, privacy=LOCAL, compression=TENTH)),
    }
    compare(time_in_turns(candidates, options.repeats or 5, options.rounds or 1))
    for candidate in candidates.values():
        candidate.close()


def personalized(options: argparse.Namespace) -> None:
    """Time a round of each personalized algorithm beside local training, at two passes over the data."""
    torch.set_num_threads(1)
    algorithms.load()
    work = scale_workload(FAMILY, options)
    title("Personalized family: FedReCo's CNN, batch 48, two passes, one thread", work, "FedReCo at most 2.2")
    one_pass, two_passes = (
        {"local_epochs": 1},
        {"local_epochs": 2},
    )  # of those that go over the data once for the head
    settings: dict[str, dict[str, Any]] = {
        **{name: two_passes for name in ("local", "fedavg", "fedper", "fedbabu", "ditto", "apfl", "fedcr")},
        **{name: one_pass for name in ("fedrep", "fedpac", "fedreco", "fedreco_pvr", "per_fedavg")},
        "pfedme": {**one_pass, "inner_steps": 2},
    }
    candidates: dict[str, Round] = {}
    for name, options_of in settings.items():
        algorithm = ALGORITHMS[name](batch_size=work.batch_size, **{"grad_clip": 10.0, **options_of})
        candidates[name] = Ours(work, "loop", algorithm=algorithm)
    compare(time_in_turns(candidates, options.repeats or 5, options.rounds or 1))


def pruning(options: argparse.Namespace) -> None:
    """Seconds of one gradient of the papers' CNNs at alpha 0, 0.25, 0.5 and 0.75."""
    torch.set_num_threads(1)
    for name, shape in NETWORKS:
        print(f"Pruning: {name} on {shape}, one gradient of 32 samples, one thread", flush=True)
        alphas = (0.0, 0.25, 0.5, 0.75)
        candidates = {f"alpha {alpha}": pruned_step(name, shape, 32, alpha) for alpha in alphas}
        compare(time_in_turns(candidates, options.repeats or 9, options.rounds or 3))


def scale_workload(work: Workload, options: argparse.Namespace) -> Workload:
    """Return the workload with as many clients as asked for."""
    return replace(work, clients=options.clients or work.clients)


def title(name: str, work: Workload, target: str, clients: str | None = None) -> None:
    """Print what is measured."""
    print(f"{name}; {clients or work.clients} clients x {work.samples} samples ({target})", flush=True)


NETWORKS = (
    ("fedavg_cnn", (1, 28, 28)),
    ("fedreco_cnn", (3, 32, 32)),
    ("fedsgda_cnn", (3, 32, 32)),
    ("vgg16", (3, 32, 32)),
)
COMMANDS = {
    "w2": w2,
    "w3": w3,
    "population": population,
    "pruning": pruning,
    "personalized": personalized,
    "channel": channel,
    "w1": w1,
}


def main(arguments: list[str] | None = None) -> int:
    """Run one of the comparisons, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("what", choices=[*COMMANDS, "all"])
    parser.add_argument("--repeats", type=int, help="turns of every candidate (default: w1 3, others 15)")
    parser.add_argument("--rounds", type=int, help="rounds a turn (default: w1 1, w2 3, population 10)")
    parser.add_argument("--clients", type=int, help="of w1, w2 or channel: fewer clients, for a quick look")
    parser.add_argument(
        "--threads", type=int, default=2, help="torch threads of w2 and population (default: 2)"
    )
    options = parser.parse_args(arguments)
    for command in COMMANDS.values() if options.what == "all" else [COMMANDS[options.what]]:
        command(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
