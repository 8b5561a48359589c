"""Cost of privacy and compression in seconds: the channel, per-example gradients, pruned models."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workloads import Workload
from datasets.federation import Batch
from harness import models
from harness.core.clients.pruning import prune_models
from harness.core.execution.vectorize import ClientExecutor
from harness.problems.classify import classifier
from privacy.gaussian import gaussian_noise

W3 = Workload("fedsgda_cnn", (1, 28, 28), 10, 1, 50, 10, batch_size=50, local_epochs=1, lr=0.01)
CLIP, NOISE = 1.0, 1.0
MODES = ("hooks", "functorch", "ghost")


def plain_step(work: Workload, device: str = "cpu") -> Callable[[], None]:
    """Return a step of SGD without privacy."""
    module, (x, y) = work.module().to(device), (part.to(device) for part in work.data())
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def opacus_step(work: Workload, mode: str) -> Callable[[], None]:
    """Return a step of DP-SGD by Opacus' engine, in one of its modes."""
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook")
    module, (x, y) = work.module(), work.data()
    optimizer = torch.optim.SGD(module.parameters(), lr=work.lr)
    engine_parts: Any = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=work.batch_size),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
        poisson_sampling=False,
    )
    private, optimizer = engine_parts[0], engine_parts[1]
    criterion = engine_parts[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        criterion(private(x), y).backward()
        optimizer.step()

    return step


def our_step(work: Workload, device: str = "cpu") -> Callable[[], None]:
    """Return a step of DP-SGD as `Clients.grad` makes it for one client."""
    problem, executor = classifier(work.module()), ClientExecutor("loop")
    x, y = (part.to(device) for part in work.data())
    batch = Batch(x, y, torch.zeros_like(y), torch.ones(len(y), device=device))
    batch = Batch(*(part.unsqueeze(0) for part in batch))
    state = {"x": problem.init(torch.Generator().manual_seed(0))["x"].unsqueeze(0).to(device)}
    stream = np.random.default_rng(0)

    def step() -> None:
        (total,) = executor.clipped_sums(problem.loss, 1, (state["x"],), batch, norm=CLIP)
        noise = gaussian_noise(total, NOISE * CLIP, [stream])
        state["x"] = state["x"] - work.lr / work.batch_size * (total + noise)

    return step


def pruned_step(name: str, shape: tuple[int, ...], batch_size: int, alpha: float) -> Callable[[], None]:
    """Return a gradient of a network without a share of its units, as a client computes it."""
    problem = classifier(models.build(name, shape, 10))
    x = problem.init(torch.Generator().manual_seed(0))["x"]
    (smaller,) = prune_models(problem, x, alpha, None).models
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1, batch_size, *shape, generator=generator)
    y = torch.randint(10, (1, batch_size), generator=generator)
    batch, executor, full = (
        Batch(inputs, y, y * 0, torch.ones(y.shape)),
        ClientExecutor("loop"),
        x.unsqueeze(0),
    )

    def step() -> None:
        (small,) = executor.gradient(smaller.problem.loss, 1, (smaller.take(full),), batch)
        smaller.put(small, full)

    return step
