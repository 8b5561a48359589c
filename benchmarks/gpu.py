"""Print the table of a GPU, in less than ten minutes: ``python -m benchmarks.gpu``.

It has what the device computes beside the CPU, W1 and W3 of `benchmarks.speed`, the CIFAR-10 benchmark of
pfl-research, convolutions of several runs side by side, and how much of the device's peak that takes.
``--device cpu --small`` goes through the same code in a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from benchmarks.mechanisms import W3, our_step, plain_step
from benchmarks.references import PlainLoop
from benchmarks.workloads import CENTRAL, LOCAL, TENTH, W1, W2, Ours, Workload

#: pfl-research: 1,000 users of 50 images, 50 of them a round, one epoch in batches of 10, 1,500 rounds.
PFL = Workload("fedavg_cnn", (3, 32, 32), 10, 1000, 50, 10, batch_size=10, local_epochs=1, lr=0.1)
PFL_COHORT, PFL_ROUNDS = 50, 1500
ROUNDS = 3  # after which models of two devices are compared


class Row(NamedTuple):
    """A line of the table."""

    what: str
    found: str
    beside: str


def table(device: str, small: bool) -> Iterator[Row]:
    """Yield the lines of the table.

    Parameters
    ----------
    device : str
        A device of torch.
    small : bool
        Whether everything is so small that a CPU takes a minute.
    """
    yield from _equal(device, small)
    w1 = replace(W1, clients=2, samples=48) if small else W1
    ours, plain = Ours(w1, "vmap", device=device), PlainLoop(w1, 1, device=device)
    loop = Ours(w1, "loop", device=device)
    beside = _seconds(plain, device)
    yield Row(
        f"W1, a round of {w1.clients} clients",
        f"{_seconds(ours, device):.3g} s vectorized, {_seconds(loop, device):.3g} s in a loop",
        f"{beside:.3g} s: a module and an optimizer",
    )
    yield Row(
        "W3, a step with every record clipped",
        f"{_seconds(our_step(W3, device), device):.3g} s",
        f"{_seconds(plain_step(W3, device), device):.3g} s: a step of SGD",
    )
    pfl = replace(PFL, clients=10, model="fedsgda_cnn") if small else PFL
    cohort = min(PFL_COHORT, pfl.clients // 2)
    run = Ours(pfl, "vmap", cohort=cohort, privacy=CENTRAL, device=device)
    run()
    before = run.run.cost.flops.sum().item()
    seconds = _seconds(run, device, rounds := 2 if small else 10)
    flops = (run.run.cost.flops.sum().item() - before) / (rounds + 1)
    yield Row(
        f"pfl's CIFAR-10, a round of {cohort} users with central noise",
        f"{seconds:.3g} s; {PFL_ROUNDS:,} rounds: {seconds * PFL_ROUNDS / 60:.3g} min",
        f"{_seconds(Ours(pfl, 'loop', cohort=cohort, privacy=CENTRAL, device=device), device):.3g} s in a loop",
    )
    stacked = Ours(pfl, "vmap", cohort=cohort, privacy=CENTRAL, runs=2 if small else 4, device=device)
    runs = len(stacked.run.each)
    yield Row(
        f"{runs} runs of it side by side",
        f"{_seconds(stacked, device) / runs:.3g} s a run",
        f"{seconds:.3g} s",
    )
    peak = _peak(device, 512 if small else 8192)
    yield Row(
        "Share of peak, that round", f"{flops / seconds / peak:.1%}", f"{peak / 1e12:.3g} TFLOP/s: a product"
    )


def _equal(device: str, small: bool) -> Iterator[Row]:
    """Yield how far models of the device and of the CPU are apart, as a share of how far they have moved."""
    images = replace(W1, clients=2, samples=48) if small else replace(W1, clients=4, samples=96)
    cases = {
        "softmax regression, central noise": (W2, CENTRAL, {}),
        "CNN, a tenth of the entries": (images, None, {"compression": TENTH}),
        "CNN, noise of the clients": (images, LOCAL, {}),
    }
    for name, (work, privacy, rest) in cases.items():
        there, here = (Ours(work, "vmap", privacy=privacy, device=where, **rest) for where in (device, "cpu"))
        start = here.vector().clone()
        for _ in range(ROUNDS):
            there()
            here()
        apart = (there.vector().cpu() - here.vector()).norm() / (here.vector() - start).norm()
        yield Row(f"After {ROUNDS} rounds: {name}", f"{apart:.1e} from the CPU's", "0")


def _seconds(do: Callable[[], object], device: str, rounds: int = 3) -> float:
    """Return the median time of something, after a first time."""
    do()
    times = []
    for _ in range(rounds):
        _wait(device)
        begin = time.perf_counter()
        do()
        _wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _wait(device: str) -> None:
    """Wait until the device has computed what it was told."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: str, side: int) -> float:
    """Return how many operations a second a product of matrices of single precision reaches."""
    one = torch.randn(side, side, device=device)
    return 2 * side**3 / _seconds(lambda: one @ one, device, rounds=5)


def main(arguments: list[str] | None = None) -> int:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="a device of torch (default: cuda)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it works")
    options = parser.parse_args(arguments)
    kind = torch.device(options.device).type
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device on this machine; use --device cpu --small to see the table")
    torch.set_num_threads(1 if options.small else torch.get_num_threads())
    name = torch.cuda.get_device_name(options.device) if kind == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}{', small' * options.small}\n")
    print("| what | here | beside |\n| :-- | :-- | :-- |")
    for row in table(options.device, options.small):
        print(f"| {row.what} | {row.found} | {row.beside} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
