"""Print what a round's time goes to, and how near it is to the machine's limit: ``python -m benchmarks.limit``.

The rounds are those of whole runs, as ``python -m harness run`` makes them. A clock is put around four sorts of
work: data (which samples, and gathering them), arithmetic (gradients and other functions of clients), channel (what
happens to messages), and the rest: an algorithm's own lines and bookkeeping. Work inside other work is not counted
twice. The limit is the rate of multiplying two large matrices, measured in the same process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from harness.config.run import read_spec
from harness.core.clients.batches import Batches
from harness.core.clients.clients import Clients
from harness.core.execution import tracing
from harness.core.execution.vectorize import ClientExecutor
from harness.core.wire.channel import Channel
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import stack_setups

ADULT = {"data": "adult", "model": "logistic"}
DIRICHLET = {"kind": "dirichlet", "alpha": 1.0}
WORK: dict[str, tuple[str, dict[str, Any]]] = {
    "w2": (
        "softmax regression on Adult, 100 clients, 50 steps of 32",
        ADULT
        | {
            "partition": DIRICHLET | {"clients": 100, "at_least": 20},
            "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 50, "batch_size": 32},
        },
    ),
    "w4": (
        "AUROC on Fashion-MNIST, FedSGDA-M, 16 clients, Q = 20, batches of 50, the paper's network",
        {
            "data": {"name": "fashion-mnist", "binary": "halves", "drop_negatives": 0.8},
            "partition": {"kind": "iid", "clients": 16, "test": "official"},
            "problem": "auroc",
            "model": "fedsgda_cnn",
            "algorithm": {"name": "fedsgda_m", "lr_x": 0.3, "lr_y": 0.1, "local_steps": 20, "batch_size": 50},
        },
    ),
    "w5": (
        "AUROC on Adult, K-GT-Minimax, ring of 16, K = 10",
        ADULT
        | {
            "partition": DIRICHLET | {"clients": 16, "at_least": 20},
            "problem": "auroc",
            "algorithm": {"name": "k_gt_minimax", "local_steps": 10, "batch_size": 50},
            "topology": "ring",
        },
    ),
    "w6": (
        "group weights on Adult, FedBiOAcc, 3 clients, 5 steps of 128",
        ADULT
        | {
            "data": {"name": "adult", "sensitive": "race2"},
            "partition": {"kind": "iid", "clients": 3},
            "problem": "fair_weights",
            "algorithm": {"name": "fedbioacc", "local_steps": 5, "outer_rounds": 10_000, "batch_size": 128},
        },
    ),
}
SORTS: dict[str, tuple[tuple[type, tuple[str, ...]], ...]] = {
    "data": ((Clients, ("batches", "data")), (Batches, ("__iter__",))),
    "arithmetic": ((ClientExecutor, ("map", "gradient", "clipped_sums", "each")),),
    "channel": ((Channel, ("down", "rebroadcast", "mean", "gather", "scatter", "mix")),),
}
REST = "rest"
WARM_UP = 4  # rounds


class Clock:
    """Whose time it is."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*SORTS, REST), 0.0)
        self._sorts = [REST]
        self._since = time.perf_counter()

    def turn(self, sort: str | None) -> None:
        """Enter a sort of work; without one, return to the sort before."""
        now = time.perf_counter()
        self.seconds[self._sorts[-1]] += now - self._since
        self._since = now
        if sort is None:
            self._sorts.pop()
        else:
            self._sorts.append(sort)

    def around(self, fn: Callable[..., Any], sort: str) -> Callable[..., Any]:
        """Return the function with its time taken; of an iterator that of every item."""

        @wraps(fn)
        def timed(*args: Any, **options: Any) -> Any:
            self.turn(sort)
            try:
                result = fn(*args, **options)
            finally:
                self.turn(None)
            return self._items(result, sort) if fn.__name__ == "__iter__" else result

        return timed

    def _items(self, items: Iterator[Any], sort: str) -> Iterator[Any]:
        while True:
            self.turn(sort)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.turn(None)
            yield item


@contextmanager
def clocked() -> Iterator[Clock]:
    """Put a clock around the four sorts of work."""
    clock = Clock()
    originals = [
        (cls, name, getattr(cls, name)) for parts in SORTS.values() for cls, names in parts for name in names
    ]
    for sort, parts in SORTS.items():
        for cls, names in parts:
            for name in names:
                setattr(cls, name, clock.around(getattr(cls, name), sort))
    try:
        yield clock
    finally:
        for cls, name, fn in originals:
            setattr(cls, name, fn)


def rate(repeats: int = 7) -> float:
    """Return floating-point operations a second of multiplying two matrices of 1024 x 1024: the best of some."""
    a = torch.randn(1024, 1024)
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 1024**3 / (time.perf_counter() - began))
    return best


def ready(content: dict[str, Any], stack: int) -> Simulation:
    """Return runs side by side after some rounds, with their functions recorded."""
    tracing.CALLS = 2  # a short measurement would see little else than the calls before
    every = [content | {"rounds": 10_000, "seed": seed} for seed in range(stack)]
    runs = [calibrated(prepare(read_spec(content_of_run), Execution())) for content_of_run in every]
    run = Simulation.from_setup(runs[0] if stack == 1 else calibrated(stack_setups(runs)))
    for _ in range(WARM_UP):
        run.step()
    return run


def measure(name: str, rounds: int, repeats: int, stack: int) -> None:
    """Print one workload."""
    about, content = WORK[name]
    run = ready(content, stack)
    limit, seconds, shares, done = rate(), [], [], []
    for _ in range(repeats):
        before = _flops(run)
        with clocked() as clock:
            began = time.perf_counter()
            for _ in range(rounds):
                run.step()
            clock.turn(REST)
            spent = time.perf_counter() - began
        seconds.append(spent / rounds / stack)
        done.append((_flops(run) - before) / rounds / stack)
        shares.append({sort: value / spent for sort, value in clock.seconds.items()})
    middle = statistics.median(seconds)
    parts = ", ".join(
        f"{sort} {statistics.median(share[sort] for share in shares):.0%}" for sort in shares[0]
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"{name.upper()}: {about}" + (f"; {stack} runs side by side" if stack > 1 else ""))
    print(
        f"  {middle * 1e3:.1f} ms a round ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}), "
        f"{done[0] / 1e6:.1f} MFLOP, {done[0] / middle / limit:.1%} of {limit / 1e9:.0f} GFLOP/s"
    )
    print(f"  {parts}; {peak:.0f} MB at most so far")


def _flops(run: Simulation) -> float:
    return float(run.cost.flops.double().sum())


def main() -> None:
    """Read the options and measure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("work", nargs="*", choices=[*WORK, []], help="default: all")
    options.add_argument("--rounds", type=int, default=5, help="rounds in a turn")
    options.add_argument("--repeats", type=int, default=7, help="turns")
    options.add_argument("--stack", type=int, default=1, help="runs side by side; figures are a run's")
    options.add_argument("--threads", type=int, default=1, help="torch threads")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads; medians over {args.repeats} turns")
    for name in args.work or WORK:
        measure(name, args.rounds, args.repeats, args.stack)


if __name__ == "__main__":
    main()
