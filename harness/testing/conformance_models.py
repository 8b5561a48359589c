"""Conformance checks of a model: what is trained moves and travels, and what is frozen does neither.

Models with layers for adapters are tried with them, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from datasets.federation import Batch, Federation
from harness import models
from harness.core import rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import UserError
from harness.core.flat_model import Ravel, constants_digest
from harness.problems.classify import classifier
from harness.simulation.simulation import Simulation
from harness.testing.small_tasks import Failed, checked

SHAPES = ((6,), (1, 28, 28), (3, 32, 32), (20, 1), (192, 3, 3))  # tables, images, text, activations
OUTPUTS, CLIENTS, SAMPLES = 4, 3, 8
SEEDS = (0, 1, 2)
TOLERANCE = 1e-4  # in float32, of the largest output


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
    checks = [_trained_moves, _frozen_stays, _starts_apart, _message_is_trained]
    if models.adaptable_layers(name, shape, OUTPUTS):
        checks += [_factors_move, _product_is_added]
    return [{"model": name, **checked(check, partial(check, name, module, shape))} for check in checks]


def _built(name: str) -> tuple[nn.Module, models.Shape]:
    refusals = []
    for shape in SHAPES:
        try:
            return models.build(name, shape, OUTPUTS), shape
        except UserError as error:
            refusals.append(f"{shape}: {error}")
    raise UserError(f"check {name}: none of these inputs fits. {'; '.join(refusals)}")


def _round(module: nn.Module, shape: models.Shape, seed: int = 0, steps: int = 1) -> Simulation:
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
    settings: dict[str, Any] = {"local_steps": steps, "batch_size": SAMPLES, "lr": 0.1}
    algorithm = ALGORITHMS["fedavg"](**settings)
    run = Simulation(classifier(module), federation, algorithm, seeds=(seed,))
    run.step()
    return run


def _trained_moves(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Every trained parameter moves."""
    _check_moves(module, shape)


def _check_moves(module: nn.Module, shape: models.Shape, steps: int = 1) -> None:
    """Raise `Failed` if a parameter is the same after a round under all seeds."""
    still = {parameter for parameter, _ in module.named_parameters()}
    for seed in SEEDS:
        run = _round(module, shape, seed, steps)
        moved = Ravel(module).parameters(run.state.x - run.start["x"])
        still -= {parameter for parameter, step in moved.items() if bool(step.any())}
    if still:
        raise Failed(f"a round of FedAvg did not move {', '.join(sorted(still))}")


def _frozen_stays(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Frozen parameters and buffers stay as they are, and are the same whenever the model is built."""
    _check_stays(module, shape)
    if constants_digest(models.build(name, shape, OUTPUTS)) != constants_digest(module):
        raise Failed("built again, the model has other frozen parameters or buffers")


def _check_stays(module: nn.Module, shape: models.Shape) -> None:
    """Raise `Failed` if a round changes a constant."""
    before = {constant: value.clone() for constant, value in module.named_buffers()}
    _round(module, shape).evaluate()
    changed = [
        constant for constant, value in module.named_buffers() if not torch.equal(value, before[constant])
    ]
    if changed:
        raise Failed(f"a round changed {', '.join(changed)}")


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


def _with_adapters(name: str, shape: models.Shape, kind: str) -> nn.Module:
    """Return the model with adapters of rank 1 on every layer that can have one, and alpha other than the rank."""
    layers = models.adaptable_layers(name, shape, OUTPUTS)
    return models.build(
        name, shape, OUTPUTS, {"adapter": {"kind": kind, "rank": 1, "on": layers, "alpha": 2}}
    )


def _factors_move(name: str, module: nn.Module, shape: models.Shape) -> None:
    """With an adapter, its factors move and the network stays."""
    for kind in ("lora", "ffa_lora"):
        adapted = _with_adapters(name, shape, kind)
        _check_moves(adapted, shape, steps=2)  # in the first B is zero, and so is the gradient by A
        _check_stays(adapted, shape)


def _product_is_added(name: str, module: nn.Module, shape: models.Shape) -> None:
    """Layers with an adapter compute what weights W + alpha / rank B A do."""
    generator = rng.stream(0, "check", "adapter")
    for layer in models.adapters_of(_with_adapters(name, shape, "lora")):
        base, down, up = layer.base, layer.down.weight, layer.up.weight
        with torch.no_grad():
            for factor in (down, up):
                factor.copy_(torch.randn(factor.shape, generator=generator))
            rank, alpha = layer.adapter.rank, layer.adapter.alpha
            product = torch.einsum("or,r...->o...", up.flatten(1), down)
            weight = base.weight + (1 if alpha is None else alpha / rank) * product
            if isinstance(base, nn.Conv2d):
                sides = [
                    dilation * (size - 1) + 8
                    for dilation, size in zip(base.dilation, base.kernel_size, strict=True)
                ]
                x = torch.randn(2, base.in_channels, *sides, generator=generator)
                expected = base._conv_forward(x, weight, base.bias)
            else:
                x = torch.randn(2, base.in_features, generator=generator)
                expected = functional.linear(x, weight, base.bias)
            gap = float((layer(x) - expected).abs().max() / expected.abs().max())
        if not gap < TOLERANCE:
            raise Failed(
                f"an adapted {type(base).__name__} {tuple(weight.shape)} is off by {gap:.2g} of its outputs"
            )
