"""Optimizer steps of clients and server, and step-size schedules, as pure functions.

Rows are independent, so runs may be stacked. Optimizer states are passed in and returned. With the default settings
a client step is ``x - lr * g`` and a server step ``x + lr * dx``, without further state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor

from harness.core.per_run import apply, is_one
from privacy.clipping import scale_to_norm

Schedule = Literal["exponential", "constant", "step", "cosine"]
Number = TypeVar("Number", float, Tensor)
ServerOptimizer = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]

# State of each server optimizer per vector: first moment (or momentum buffer) and second moment.
SERVER_MEMORY: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "yogi": ("m", "v"),
    "adagrad": ("m", "v"),
}


class Taken(Protocol):
    """A batch with which clients take a step, or do not."""

    @property
    def active(self) -> Tensor:
        """1 for rows that take the step, ``(..., 1)``."""


def rate(schedule: Schedule, round: int, decay: float, period: int | None) -> float:
    """Return the factor of the initial step sizes in a round.

    Parameters
    ----------
    schedule : {"exponential", "constant", "step", "cosine"}
        ``decay ** round``; 1; ``decay ** (round // period)``; half a cosine wave from 1 towards 0, constant from
        round ``period - 1`` on.
    round : int
        From 0.
    decay : float
        Factor of the exponential and the step schedule.
    period : int or None
        Rounds of the step and the cosine schedule.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "exponential":
        return decay**round
    assert period is not None
    if schedule == "step":
        return decay ** (round // period)
    return (1 + math.cos(math.pi * min(round, period - 1) / period)) / 2


def moved(x: Tensor, step: Tensor) -> Tensor:
    """Return ``x - step``, written over `step`, which the caller must have just computed.

    New memory for the rows of large models costs more than the subtraction.
    """
    fits = step.shape == x.shape and step.dtype == x.dtype and not (x.requires_grad or step.requires_grad)
    return torch.sub(x, step, out=step) if fits else x - step


def directions(
    points: Sequence[Tensor],
    gradients: Sequence[Tensor],
    batch: Taken,
    buffers: Sequence[Tensor] | None = None,
    *,
    plus: Sequence[Tensor | None] | None = None,
    correction: Sequence[Tensor] | None = None,
    ascend: Sequence[bool] = (),
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    grad_clip: float | None = None,
) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
    """Return the directions of a client's step and its new momentum buffers, as `torch.optim.SGD` computes them.

    The direction is zero for clients whose batch is padding: their gradients are zero, and all else is masked.

    Parameters
    ----------
    points, gradients : sequence of Tensor
        The variables and their gradients, rows ``(..., n)`` each.
    batch : LocalBatch or Batch
        The batch of the gradients.
    buffers : sequence of Tensor or None
        Momentum buffers returned by the previous step; None in the first step.
    plus : sequence of Tensor or None
        Terms added to the gradients before clipping, like a pull; None for no term.
    correction : sequence of Tensor or None
        Terms added after clipping, which follow from earlier messages.
    ascend : sequence of bool
        Which variables are maximized, so that weight decay has the opposite sign; empty: none.
    momentum, weight_decay : float
        ``buffer = momentum * buffer + gradient + weight_decay * point``; the direction is the buffer.
    grad_clip : float or None
        Bound on the joint L2 norm of the gradients plus the added terms; None: no bound.
    """
    if plus is None and correction is None and not (momentum or weight_decay):
        return (gradients if grad_clip is None else scale_to_norm(gradients, grad_clip)), None
    active = batch.active
    if plus is not None:
        gradients = [
            g if term is None else g + active * term for g, term in zip(gradients, plus, strict=True)
        ]
    if grad_clip is not None:
        gradients = scale_to_norm(gradients, grad_clip)
    if correction is not None:
        gradients = [g + active * term for g, term in zip(gradients, correction, strict=True)]
    if weight_decay:
        signs = [-1.0 if up else 1.0 for up in ascend] or [1.0] * len(points)
        triples = zip(gradients, signs, points, strict=True)
        gradients = [g + active * (sign * weight_decay * x) for g, sign, x in triples]
    if not momentum:
        return gradients, None
    if buffers is not None:
        gradients = [momentum * b + g for b, g in zip(buffers, gradients, strict=True)]
    return [active * g for g in gradients], gradients


def reach(num_steps: Number, momentum: float) -> Number:
    """Return the distance of this many steps along a constant gradient, in units of ``lr`` times the gradient.

    Without momentum it is the number of steps.
    """
    if not momentum:
        return num_steps
    if isinstance(num_steps, Tensor):
        exact = num_steps.double()
        last = (exact * apply(math.log, momentum)).exp()
        far: Tensor = ((exact - momentum * (1 - last) / (1 - momentum)) / (1 - momentum)).to(num_steps)
        return far
    length: float = (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)
    return length


def server_start(x: Tensor, optimizer: ServerOptimizer, tau: float) -> list[Tensor]:
    """Return a server optimizer's initial state for a vector; empty for sgd."""
    begin = {"m": 0.0, "v": tau**2}
    return [torch.full_like(x, begin[moment]) for moment in SERVER_MEMORY[optimizer]]


def server_step(
    x: Tensor,
    dx: Tensor,
    memory: Sequence[Tensor] = (),
    *,
    optimizer: ServerOptimizer = "sgd",
    lr: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Move a server vector ``(..., n)`` along the clients' average increment; return it and the new state.

    ``sgd`` adds ``lr * dx``. ``momentum``: Hsu, Qi, Brown, arXiv:1909.06335. ``adam``, ``yogi``, ``adagrad``:
    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295, Algorithm 2, without bias
    correction.
    """
    if optimizer == "sgd":
        return x + (dx if is_one(lr) else lr * dx), ()
    if optimizer == "momentum":
        m = beta1 * memory[0] + dx
        return x + lr * m, (m,)
    m, v, square = beta1 * memory[0] + (1 - beta1) * dx, memory[1], dx.square()
    if optimizer == "adam":
        v = beta2 * v + (1 - beta2) * square
    elif optimizer == "yogi":
        v = v - (1 - beta2) * square * (v - square).sign()
    else:
        v = v + square
    return x + lr * m / (v.sqrt() + tau), (m, v)
