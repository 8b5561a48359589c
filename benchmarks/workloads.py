"""The workloads that are timed: clients with made-up data, and one round of our FedAvg over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.centralized.fedavg import FedAvg
from datasets.federation import Batch, Federation, stack
from harness import models
from harness.core import Algorithm
from harness.core.execution.vectorize import ClientExecutor, Mode
from harness.core.settings.compression import PLAIN, Compression
from harness.core.settings.privacy import Privacy
from harness.problems.classify import classifier
from harness.simulation.simulation import Simulation


@dataclass(frozen=True)
class Workload:
    """FedAvg of one model over clients with equally many samples.

    Attributes
    ----------
    model : str
        Name in `harness.models`.
    shape : tuple[int, ...]
        Of one input.
    classes, clients, samples : int
        Classes of the labels, clients, and samples of each client.
    labels : int
        Classes that one client holds.
    batch_size, local_epochs, lr
        As in `FedAvg`.
    signal : float
        How far classes lie apart: what is added to the noise of a sample is this times a normal vector of its
        class. With 0 there is nothing to learn.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    labels: int
    batch_size: int
    local_epochs: int
    lr: float
    signal: float = 0.0

    def module(self) -> nn.Module:
        """Return the model, with torch's own start values."""
        return models.build(self.model, self.shape, self.classes)

    def data(self) -> tuple[Tensor, Tensor]:
        """Return normal features ``(clients * samples, *shape)`` and labels; a client's samples are adjacent."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients * self.samples, *self.shape, generator=generator)
        first = torch.arange(self.clients).repeat_interleave(self.samples)
        y = (first + torch.randint(self.labels, first.shape, generator=generator)) % self.classes
        if self.signal:
            x += self.signal * torch.randn(self.classes, *self.shape, generator=generator)[y]
        return x, y

    def start(self) -> Tensor:
        """Return the start values of all parameters in one vector, as the harness draws them."""
        return classifier(self.module()).init(torch.Generator().manual_seed(0))["x"]

    def federation(self) -> Federation:
        """Return those data as a federation."""
        x, y = self.data()
        index = torch.arange(len(y)).view(self.clients, self.samples)
        return Federation(
            pool=Batch(x, y, torch.zeros_like(y), torch.ones(len(y))),
            splits={"train": index, "test": index},
            classes=tuple(str(label) for label in range(self.classes)),
            groups=(),
            source="random numbers",
            digest="",
        )


W1 = Workload("fedavg_cnn", (1, 28, 28), 10, 50, 980, 4, batch_size=48, local_epochs=1, lr=0.01)
FAMILY = Workload("fedreco_cnn", (1, 28, 28), 10, 10, 240, 4, batch_size=48, local_epochs=2, lr=0.01)
W2 = Workload("logistic", (105,), 2, 100, 300, 2, batch_size=32, local_epochs=5, lr=0.1)

LOCAL = Privacy.of(1.0, clip=1.0)
CENTRAL = Privacy.of(0.005, clip=1.0, placement="central")  # so little that something is learned
TENTH = Compression(beta=0.9)


class Ours:
    """FedAvg, or another algorithm, as the harness runs it, one round at a call.

    Parameters
    ----------
    work : Workload
        What.
    mode, threads
        As in `ClientExecutor`.
    cohort : int or None
        Clients a round, drawn anew every round; None: all.
    privacy, compression
        Of the channel.
    algorithm : Algorithm or None
        In place of FedAvg with the workload's local work.
    computes : torch.dtype or None
        What the network computes in, if not in single precision.
    runs : int
        Runs that differ in their seed, side by side.
    device : str
        Where data and models are.
    """

    def __init__(
        self,
        work: Workload,
        mode: Mode,
        threads: int = 1,
        cohort: int | None = None,
        privacy: Privacy | None = None,
        compression: Compression = PLAIN,
        algorithm: Algorithm | None = None,
        computes: torch.dtype | None = None,
        runs: int = 1,
        device: str = "cpu",
    ) -> None:
        usual = FedAvg(lr=work.lr, local_epochs=work.local_epochs, batch_size=work.batch_size)
        algorithm = algorithm or usual
        module = work.module()
        models.compute_in(computes, module)
        problem = classifier(module)
        start = algorithm.view(problem).init(torch.Generator().manual_seed(0))
        federation = work.federation().to(device, torch.float32)
        if runs > 1:
            federation = stack([federation] * runs)
            start = {name: value.expand(runs, -1).clone() for name, value in start.items()}
        self.run = Simulation(
            problem,
            federation,
            algorithm,
            privacy,
            compression,
            range(runs),
            cohort=cohort,
            start={name: value.to(device) for name, value in start.items()},
            executor=ClientExecutor(mode, threads),
        )

    def vector(self) -> Tensor:
        """Return the parameters of the common model."""
        vector: Tensor = self.run.algorithm.model(self.run.state)
        return vector

    def __call__(self) -> None:
        """Run one round."""
        self.run.step(ahead=1e9)  # record what is computed at once, as in a run of many rounds
