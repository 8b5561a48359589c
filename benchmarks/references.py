"""References of the benchmarks: FedAvg as one writes it by hand for one workload only."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from benchmarks.workloads import Workload


class HandBatched:
    """Softmax regression with all clients in one batched product a step and the closed-form gradient.

    Parameters
    ----------
    work : Workload
        What; every client takes part in every round.
    """

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.x, self.y = work.data()
        self.weight = torch.zeros(math.prod(work.shape), work.classes)
        self.bias = torch.zeros(1, work.classes)

    def __call__(self) -> None:
        """Run one round."""
        work = self.work
        weight = self.weight.repeat(work.clients, 1, 1)
        bias = self.bias.repeat(work.clients, 1, 1)
        first = torch.arange(work.clients)[:, None] * work.samples
        for _ in range(work.local_epochs):
            order = torch.rand(work.clients, work.samples).argsort(1) + first
            for places in order.split(work.batch_size, 1):
                x, y = self.x[places], self.y[places]
                error = torch.baddbmm(bias, x, weight).softmax(-1) - functional.one_hot(y, work.classes)
                error *= work.lr / places.shape[1]
                weight.baddbmm_(x.transpose(1, 2), error, alpha=-1)
                bias -= error.sum(1, keepdim=True)
        self.weight, self.bias = weight.mean(0), bias.mean(0)


class PlainLoop:
    """A PyTorch module and optimizer for one client after the other, on workers with torch threads of their own.

    Parameters
    ----------
    work : Workload
        What; every client takes part in every round.
    workers, threads : int
        Worker threads, each with one module and an equal share of the clients; torch threads of each.
    clip, noise : float or None, float
        Central differential privacy: a bound on the norm of what a client changes, and the standard deviation of
        the noise on the sum of these changes.
    device : str
        Where data and modules are.
    """

    def __init__(
        self,
        work: Workload,
        workers: int,
        threads: int = 1,
        clip: float | None = None,
        noise: float = 0.0,
        device: str = "cpu",
    ) -> None:
        self.work = work
        self.x, self.y = (part.to(device) for part in work.data())
        self.clip, self.noise = clip, noise
        self.modules = [work.module().to(device) for _ in range(workers)]
        vector_to_parameters(work.start().to(device), self.modules[0].parameters())
        self.state = {name: value.clone() for name, value in self.modules[0].state_dict().items()}
        self.pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))

    def __call__(self) -> None:
        """Run one round."""
        sums = list(self.pool.map(self._share, range(len(self.modules))))
        mean: dict[str, Any] = {
            name: sum(part[name] for part in sums) / self.work.clients for name in self.state
        }
        if self.clip is None:
            self.state = mean
            return
        for name, change in mean.items():
            self.state[name] += change.add_(torch.randn_like(change), alpha=self.noise / self.work.clients)

    def vector(self) -> Tensor:
        """Return the parameters of the common model."""
        return torch.cat([value.flatten() for value in self.state.values()])

    def _share(self, worker: int) -> dict[str, Tensor]:
        """Return the sum of the models of one worker's clients, or of what they changed, each bounded."""
        work, module = self.work, self.modules[worker]
        optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
        total = {name: torch.zeros_like(value) for name, value in self.state.items()}
        for client in range(worker, work.clients, len(self.modules)):
            module.load_state_dict(self.state)
            for _ in range(work.local_epochs):
                order = torch.randperm(work.samples) + client * work.samples
                for places in order.split(work.batch_size):
                    optimizer.zero_grad()
                    functional.cross_entropy(module(self.x[places]), self.y[places]).backward()
                    optimizer.step()
            trained = module.state_dict()
            if self.clip is None:
                for name, value in trained.items():
                    total[name] += value
                continue
            changes = {name: value - self.state[name] for name, value in trained.items()}
            norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
            for name, change in changes.items():
                total[name].add_(change, alpha=min(1.0, self.clip / max(norm, 1e-30)))
        return total
