"""Task of every peer: data, model and local work, and the report of its rounds. Needs nothing but torch.

The driver (``__main__.py``) writes a folder with `save`; a peer's script, run by the peer's own Python, reads it.
Standard output carries one JSON object a line: a round's number and seconds, and at the end how many of the test
samples the model gets right. Everything else that is printed goes to standard error. With ``--wait`` a round
begins when a line arrives on standard input, so that candidates can be timed in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters


@dataclass(frozen=True)
class Task:
    """FedAvg of one model, all clients in every round.

    Attributes
    ----------
    model : {"logistic", "fedavg_cnn"}
        As in `build`.
    shape, classes
        Of one input; of the labels.
    sizes : list of int
        Samples of each client. A client's samples are adjacent in the data.
    batch_size, local_epochs, local_steps, lr
        Local work: passes over the own data, or steps from the beginning of one pass.
    placement : {"central", "local"} or None
        Who adds noise: the server to the sum of the clients' changes, or each client to its own change.
    clip, noise : float
        Bound on the norm of a client's change; standard deviation of that noise.
    evaluate_every : int
        Rounds between two evaluations on the test data; 0: only after the last.
    """

    model: str
    shape: list[int]
    classes: int
    sizes: list[int]
    batch_size: int
    local_epochs: int | None
    local_steps: int | None
    lr: float
    placement: Literal["central", "local"] | None = None
    clip: float = 1.0
    noise: float = 0.0
    evaluate_every: int = 0

    def batches(
        self, x: Tensor, y: Tensor, generator: torch.Generator | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through one client's samples once, in random order."""
        for places in torch.randperm(len(y), generator=generator).split(self.batch_size):
            yield x[places], y[places]

    def train(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Do one client's local work."""
        optimizer = torch.optim.SGD(module.parameters(), lr=self.lr)
        for _ in range(self.local_epochs or 1):
            for step, (inputs, labels) in enumerate(self.batches(x, y)):
                if step == self.local_steps:
                    break
                optimizer.zero_grad()
                functional.cross_entropy(module(inputs), labels).backward()
                optimizer.step()


@dataclass(frozen=True)
class Data:
    """Clients' samples one after the other, test samples, and the start values of all parameters in one vector."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    start: Tensor


def save(folder: Path, task: Task, data: Data) -> None:
    """Write what the scripts read."""
    (folder / "task.json").write_text(json.dumps(asdict(task)))
    torch.save(vars(data), folder / "data.pt")


@cache
def load(folder: str) -> tuple[Task, Data]:
    """Read what the driver wrote; once a process."""
    task = Task(**json.loads((Path(folder) / "task.json").read_text()))
    return task, Data(**torch.load(Path(folder) / "data.pt"))


def client(folder: str, number: int) -> tuple[Tensor, Tensor]:
    """Return the samples of one client."""
    task, data = load(folder)
    first = sum(task.sizes[:number])
    mine = slice(first, first + task.sizes[number])
    return data.x[mine], data.y[mine]


def build(folder: str) -> nn.Module:
    """Return a model of one's own, with the start values."""
    return deepcopy(_started(folder))


@cache
def _started(folder: str) -> nn.Module:
    # Made once a process: drawing torch's own start values for every client would only take time. Its parameters
    # share the memory of the vector, so it is never handed out itself.
    task, data = load(folder)
    module = network(task.model, task.shape, task.classes)
    vector_to_parameters(data.start, module.parameters())
    return module


def network(model: str, shape: list[int], classes: int) -> nn.Module:
    """Return the network that `harness.models` has under this name."""
    planes, height, width = shape if len(shape) == 3 else (1, 1, *shape)
    if model == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(planes * height * width, classes))
    return nn.Sequential(
        nn.Conv2d(planes, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of samples that the module gets right."""
    parts = zip(x.split(1000), y.split(1000), strict=True)
    return sum(int((module(inputs).argmax(1) == labels).sum()) for inputs, labels in parts) / len(y)


class Rounds:
    """Begins and ends the rounds of one peer's process.

    Parameters
    ----------
    folder : str
        The driver's.
    total : int
        How many rounds there are.
    wait : bool
        Whether a round begins when the driver says so.
    follow : Callable or None
        Called at each beginning, to let other processes of this peer begin as well.
    quiet : bool
        For such another process: say nothing.
    """

    def __init__(
        self,
        folder: str,
        total: int,
        wait: bool,
        follow: Callable[[], None] | None = None,
        quiet: bool = False,
    ) -> None:
        self.task, self.data = load(folder)
        self.total, self.wait, self.follow, self.quiet = total, wait, follow, quiet
        self.number = 0
        self._began = 0.0
        sys.stdout.flush()
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # peers print a lot

    def begin(self) -> None:
        """Wait for the beginning of the next round, if there is one."""
        if self.number == self.total:
            return
        if self.wait and not sys.stdin.readline():
            raise SystemExit("the driver is gone")
        if self.follow is not None:
            self.follow()
        self._began = time.perf_counter()

    def end(self, module: Callable[[], nn.Module]) -> None:
        """Tell the round that has just ended, and go into the next one.

        Parameters
        ----------
        module : Callable
            Returns the server's model; called when it is evaluated.
        """
        seconds = time.perf_counter() - self._began
        self.number += 1
        last, every = self.number == self.total, self.task.evaluate_every
        score = None
        if not self.quiet and (last or (every and self.number % every == 0)):
            score = accuracy(module(), self.data.test_x, self.data.test_y)
        self.tell(round=self.number, seconds=seconds, warm_up=self.number == 1, accuracy=score)
        self.begin()

    def tell(self, **said: object) -> None:
        """Write one line for the driver."""
        if not self.quiet:
            print(json.dumps(said), file=self._out, flush=True)


def options(layouts: tuple[str, ...]) -> argparse.Namespace:
    """Read a script's command line, and give torch the threads of one worker.

    Parameters
    ----------
    layouts : tuple of str
        What the peer can do, e.g. ``2x1``: two workers with one torch thread each.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--layout", choices=layouts, default=layouts[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()
    args.workers, args.threads = (int(part) for part in args.layout.split("-")[-1].split("x"))
    torch.set_num_threads(args.threads)
    return args
