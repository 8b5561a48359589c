"""Conformance checks of a model: what is trained moves and travels, and what is frozen does neither."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from datasets.federation import Batch, Federation
from harness import models
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.flat_model import Ravel, constants_digest
from harness.core.registry import UserError
from harness.problems.classify import classifier
from harness.simulation.simulation import Simulation
from harness.testing.small_tasks import Failed, checked

SHAPES = ((6,), (1, 28, 28), (3, 32, 32), (20, 1))  # of inputs: tables, images, text
OUTPUTS, CLIENTS, SAMPLES = 4, 3, 8
SEEDS = (0, 1, 2)


def check_model(name: str) -> list[dict[str, Any]]:
    """Run the conformance checks on a model with default settings.

    Parameters
    ----------
    name : str
        Registry name. The model is built for the first of `SHAPES` that it accepts.

    Returns
    -------
    list of dict
        As of `harness.testing.conformance.check`, with ``model`` in place of ``algorithm``.

    Raises
    ------
    UserError
        If the model accepts none of the shapes.
    """
    module, shape = _built(name)
    return [
        {"model": name, **checked(check, partial(check, name, module, shape))}
        for check in (_trained_moves, _frozen_stays, _starts_apart, _message_is_trained)
    ]


def _built(name: str) -> tuple[nn.Module, models.Shape]:
    refusals = []
    for shape in SHAPES:
        try:
            return models.build(name, shape, OUTPUTS), shape
        except UserError as error:
            refusals.append(f"{shape}: {error}")
    raise UserError(f"check {name}: none of these inputs fits. {'; '.join(refusals)}")


def _round(module: nn.Module, shape: models.Shape, seed: int = 0) -> Simulation:
    """Return a simulation after a round of FedAvg on random samples."""
    generator, total = rng.stream(seed, "check", "model"), CLIENTS * SAMPLES
    if len(shape) == 2:
        x = torch.randint(OUTPUTS, (total, *shape), generator=generator).float()
    else:
        x = torch.randn(total, *shape, generator=generator)
    y = torch.randint(OUTPUTS, (total,), generator=generator)
    pool = Batch(x, y, torch.zeros(total, dtype=torch.int64), torch.ones(total))
    index = torch.arange(total).view(CLIENTS, SAMPLES)
    classes = tuple(map(str, range(OUTPUTS)))
    federation = Federation(pool, {"train": index, "test": index}, classes, (), "check", "check")
    settings: dict[str, Any] = {"local_steps": 1, "batch_size": SAMPLES, "lr": 0.1}
    algorithm = ALGORITHMS["fedavg"](**settings)
    run = Simulation(classifier(module), federation, algorithm, seeds=(seed,))
    run.step()
    return run


def _trained_moves(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Every trained parameter moves."""
    still = {parameter for parameter, _ in module.named_parameters()}
    for seed in SEEDS:
        run = _round(module, shape, seed)
        moved = Ravel(module).parameters(run.state.x - run.start["x"])
        still -= {parameter for parameter, step in moved.items() if bool(step.any())}
    if still:
        raise Failed(f"a round of FedAvg did not move {', '.join(sorted(still))}")


def _frozen_stays(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Frozen parameters and buffers stay as they are, and are the same whenever the model is built."""
    before = {constant: value.clone() for constant, value in module.named_buffers()}
    _round(module, shape).evaluate()
    changed = [
        constant for constant, value in module.named_buffers() if not torch.equal(value, before[constant])
    ]
    if changed:
        raise Failed(f"a round changed {', '.join(changed)}")
    if constants_digest(models.build(name, shape, OUTPUTS)) != constants_digest(module):
        raise Failed("built again, the model has other frozen parameters or buffers")


def _starts_apart(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Start values follow the seed."""
    first, again, other = (Ravel(module).init(rng.stream(seed, "start")) for seed in (0, 0, 1))
    if not torch.equal(first, again):
        raise Failed("start values of one seed differ; draw them from the global generators")
    if torch.equal(first, other):
        raise Failed("start values of two seeds are equal")


def _message_is_trained(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Messages hold the trained parameters and nothing else."""
    size = sum(parameter.numel() for parameter in module.parameters())
    sent, expected = int(_round(module, shape).cost.state()["up"]), 4 * CLIENTS * size
    if sent != expected:
        raise Failed(
            f"{CLIENTS} clients sent {sent:,} bytes in a round; {size:,} parameters are {expected:,}"
        )
