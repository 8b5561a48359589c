"""Gradient inversion: the samples of a client from its first message.

The attacker knows the model that was sent, the architecture, the number of samples and, or not, their labels. It
looks for samples whose gradient points along the message (cosine) or agrees with it when scaled by the step size
and the number of steps (L2), by Adam from random samples and, where the model begins with a linear layer, from
what the message shows of its inputs. Of all attempts it keeps the one with the largest cosine.

References
----------
L. Zhu, Z. Liu and S. Han, *Deep leakage from gradients*, NeurIPS 2019, https://arxiv.org/abs/1906.08935 (L2).

J. Geiping et al., *Inverting gradients: how easy is it to break privacy in federated learning?*, NeurIPS 2020,
https://arxiv.org/abs/2003.14053 (cosine, inputs of linear layers).

A. Wainakh et al., *User-level label leakage from gradients in federated learning*, PoPETs 2022,
https://arxiv.org/abs/2105.09369 (labels from the gradient of the last layer).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from datasets.federation import Batch
from harness.core import rng
from harness.simulation.attacks.tap import shared_model, step_of, tapped
from harness.simulation.setup import Setup

VICTIMS = 4
MOST = 16  # samples that are looked for at once
STEPS = 300
TINY = 1e-12


class Try(NamedTuple):
    """An attempt: the labels, the message ``(P,)``, samples to begin with, and whether scales must agree (L2)."""

    labels: Tensor
    message: Tensor
    start: Tensor
    scaled: bool


def inversion(setup: Setup) -> dict[str, Any] | None:
    """Attack the first messages of some clients; None where no message is about a model that all have.

    Returns
    -------
    dict
        ``inversion_error``: root mean square of what is wrong in the samples found, over that of guessing the mean
        of all; 0 is exact, 1 or more tells nothing. ``inversion_psnr`` in decibels, the range being that of the
        features. ``inversion_labels``: share of right labels, where there are classes and at most `MOST` samples.
        ``inversion_blind``: the error of an attacker who infers labels too. Means over the clients attacked.
    """
    problem, federation = setup.problem, setup.federation
    if problem.kind != "erm" or problem.predict is None or setup.algorithm.meta.pooled:
        return None
    run, tape = tapped(setup)
    before = shared_model(run)
    run.step()
    after = shared_model(run)
    if before is None or after is None or tape.model is None or not tape.messages or tape.positions is None:
        return None
    message, places, model = tape.messages[0], federation.splits["train"], tape.model
    rows, gradient = step_of(message, model, after)
    step = float(getattr(setup.algorithm, "lr", 1.0) or 1.0) * (setup.algorithm.local_steps or 1)
    scale = 1.0 if gradient else step
    inside = federation.pool.at(places[places >= 0]).x
    sampled = (tape.positions >= 0).flatten(2).any(-1).any(0)  # a Poisson batch may be empty
    present = message.taking_part.nonzero().flatten().tolist()
    members = [client for client in present if sampled[client]][:VICTIMS]
    if not members:
        return None
    drawn = [tape.positions[:, member] for member in members]
    truths = [federation.pool.at(positions[positions >= 0].unique()) for positions in drawn]
    count = min([MOST, *(len(truth.y) for truth in truths)])
    tries: list[list[Try]] = []  # one list for each client, with its labels and without
    for member, truth in zip(members, truths, strict=True):
        row = rows if rows.ndim == 1 else rows[member]
        stream = rng.stream(setup.spec.seed, "attack", "inversion", int(message.ids[member]))
        starts = _starts(setup, row, inside, count, stream)
        labels = [
            truth.y[:count],
            *([_labels(row, len(federation.classes), count)] if federation.classes else []),
        ]
        tries += [
            [Try(guess, row, start, how) for start in starts for how in (False, True)] for guess in labels
        ]
    attempts = [attempt for of_client in tries for attempt in of_client]
    samples, cosines = _descend(setup, model, attempts, inside, scale)
    best = []
    for some in tries:  # the first ones are this list's
        of_client, samples = samples[: len(some)], samples[len(some) :]
        near, cosines = cosines[: len(some)], cosines[len(some) :]
        best.append(of_client[int(near.argmax())])
    each = len(best) // len(truths)
    values = [
        _compared(best[each * n : each * (n + 1)], tries[each * n + each - 1][0].labels, truth, inside)
        for n, truth in enumerate(truths)
    ]
    sizes = [len(truth.y) for truth in truths]
    return {"victims": len(truths), "samples": float(np.mean(sizes)), **_means(values)}


def _means(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of every value over the clients that have it."""
    names = dict.fromkeys(name for of_client in values for name in of_client)
    return {
        name: float(np.mean([of_client[name] for of_client in values if name in of_client])) for name in names
    }


def _compared(samples: Sequence[Tensor], guessed: Tensor, truth: Batch, inside: Tensor) -> dict[str, float]:
    """Return the values of one client: of samples found with its labels, and with guessed ones."""
    error, reference = _errors(samples[0], truth.x, inside)
    width = float(inside.max() - inside.min())
    values = {
        "inversion_error": math.sqrt(error / max(reference, TINY)),
        "inversion_psnr": 10 * math.log10(width**2 / max(error, TINY)),
    }
    if len(samples) > 1:
        error, reference = _errors(samples[1], truth.x, inside)
        values["inversion_blind"] = math.sqrt(error / max(reference, TINY))
        if len(truth.y) == len(guessed):  # of many samples, some have any label
            values["inversion_labels"] = _agreement(guessed, truth.y) / len(guessed)
    return values


def _starts(
    setup: Setup, message: Tensor, inside: Tensor, count: int, stream: torch.Generator
) -> list[Tensor]:
    """Return samples to begin with: random ones, and what the message shows of inputs of a linear layer."""
    mean, std = inside.mean(0), inside.std(0).clamp(min=1e-3)
    starts = [mean + std * torch.randn(count, *inside.shape[1:], generator=stream).to(inside)]
    if (shown := _inputs(setup, message, inside.shape[1:])) is not None:
        starts.append(shown[torch.arange(count) % len(shown)].to(inside).clamp(inside.min(), inside.max()))
    return starts


def _descend(
    setup: Setup, model: Tensor, tries: Sequence[Try], inside: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the samples of all attempts ``(A, n, ...)``, and the cosines of their gradients and the messages."""
    low, high = float(inside.min()), float(inside.max())
    labels, messages = (
        torch.stack([each.labels for each in tries]),
        torch.stack([each.message for each in tries]),
    )
    x = torch.stack([each.start for each in tries]).requires_grad_()
    scaled = torch.tensor([each.scaled for each in tries])
    ones = torch.ones(labels.shape[1], dtype=x.dtype)
    groups = torch.zeros(labels.shape[1], dtype=torch.int64)
    lengths = messages.norm(dim=-1).clamp(min=TINY)

    def gradient(sample: Tensor, label: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda p: setup.problem.loss(p, Batch(sample, label, groups, ones)))(
            model
        )
        return slope

    def cosine(steps: Tensor) -> Tensor:
        product = -(steps * messages).sum(-1)  # steps go against the gradient
        along: Tensor = product / (steps.norm(dim=-1).clamp(min=TINY) * lengths)
        return along

    gradients = torch.func.vmap(gradient)
    optimizer = torch.optim.Adam([x], lr=0.1 * float(inside.std()))
    with torch.enable_grad():
        for _ in range(STEPS):
            optimizer.zero_grad()
            slopes = gradients(x, labels)
            off = (scale * slopes + messages).square().sum(-1) / lengths**2
            torch.where(scaled, off, 1 - cosine(slopes)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                x.clamp_(low, high)
    samples = x.detach()
    return samples, cosine(gradients(samples, labels))


def _inputs(setup: Setup, message: Tensor, features: torch.Size) -> Tensor | None:
    """Return what the message shows of inputs of a first linear layer: rows of its weights over its biases."""
    width = math.prod(features)
    shapes = [tuple(each.shape) for each in setup.problem.module.parameters()] if setup.problem.module else []
    if len(shapes) < 2 or len(shapes[0]) != 2 or shapes[0][1] != width or shapes[1] != shapes[0][:1]:
        return None
    rows = shapes[0][0]
    weights, biases = message[: rows * width].view(rows, width), message[rows * width : rows * (width + 1)]
    kept = biases.abs().argsort(descending=True)
    kept = kept[biases[kept].abs() > TINY]
    return (weights[kept] / biases[kept, None]).view(-1, *features) if len(kept) else None


def _labels(message: Tensor, classes: int, count: int) -> Tensor:
    """Return the likeliest labels: those with the largest rise of their output's bias, in proportion to it."""
    share = message[-classes:].double().clamp(min=0)  # the message is a step against the gradient
    share = share / share.sum() if float(share.sum()) > 0 else torch.full_like(share, 1 / classes)
    taken: list[int] = []
    for _ in range(count):  # largest remainders
        so_far = torch.bincount(torch.tensor(taken, dtype=torch.int64), minlength=classes)
        taken.append(int((share * count - so_far).argmax()))
    return torch.tensor(taken)


def _agreement(guessed: Tensor, truth: Tensor) -> int:
    """Return how many guessed labels are in the batch, each counted once."""
    return (Counter(guessed.tolist()) & Counter(truth.tolist())).total()


def _errors(samples: Tensor, truth: Tensor, inside: Tensor) -> tuple[float, float]:
    """Return mean squared errors of the samples found, matched to true ones, and of the mean of all for these."""
    guessed, true = (each.flatten(1).double() for each in (samples, truth))
    cost: NDArray[np.float64] = torch.cdist(guessed, true).square().numpy()
    rows, columns = linear_sum_assignment(cost)
    mean = inside.flatten(1).double().mean(0)
    return float(cost[rows, columns].mean() / guessed.shape[1]), float((true[columns] - mean).square().mean())
