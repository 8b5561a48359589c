"""Optimizer steps of clients and server, and step-size schedules, as pure functions.

Leading axes are free, and no function decides by a value for several rows at once, so runs may be stacked. What an
optimizer remembers is given and returned. With the default settings a client step is ``x - lr * g`` and a server
step ``x + lr * dx``, and nothing else is computed or kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from datasets.federation import Batch

Schedule = Literal["exponential", "constant", "step", "cosine"]
ServerOptimizer = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]

# What a server optimizer remembers of a vector: first moment (or momentum buffer) and second moment.
SERVER_MEMORY: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "yogi": ("m", "v"),
    "adagrad": ("m", "v"),
}


def rate(schedule: Schedule, round: int, decay: float, period: int | None) -> float:
    """Return what the initial step sizes are multiplied by in a round.

    Parameters
    ----------
    schedule : {"exponential", "constant", "step", "cosine"}
        ``decay ** round``; 1; ``decay ** (round // period)``; half a cosine wave from 1 towards 0, which stays
        where it is in round ``period - 1``.
    round : int
        From 0.
    decay : float
        Factor of the exponential and the step schedule.
    period : int or None
        In rounds, of the step and the cosine schedule.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "exponential":
        return decay**round
    assert period is not None
    if schedule == "step":
        return decay ** (round // period)
    return (1 + math.cos(math.pi * min(round, period - 1) / period)) / 2


def clip(gradients: Sequence[Tensor], bound: float | None) -> Sequence[Tensor]:
    """Scale every row down to a joint L2 norm of at most ``bound`` over the parts ``(..., n)``."""
    if bound is None:
        return gradients
    norms = [torch.linalg.vector_norm(gradient, dim=-1, keepdim=True) for gradient in gradients]
    norm = norms[0] if len(norms) == 1 else torch.cat(norms, -1).norm(dim=-1, keepdim=True)
    if not bool((norm > bound).any()):
        return gradients  # mostly so, and then nothing is copied
    factor = (bound / norm).clamp(max=1.0)
    return [factor * gradient for gradient in gradients]


def directions(
    points: Sequence[Tensor],
    gradients: Sequence[Tensor],
    batch: Batch,
    buffers: Sequence[Tensor] | None = None,
    *,
    plus: Sequence[Tensor | None] | None = None,
    ascend: Sequence[bool] = (),
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    grad_clip: float | None = None,
) -> tuple[Sequence[Tensor], Sequence[Tensor] | None]:
    """Return what a client follows in one step, and its momentum buffers after it; as `torch.optim.SGD`.

    Clients whose batch is padding follow zero: their gradients are zero, and all else is masked here.

    Parameters
    ----------
    points, gradients : sequence of Tensor
        The variables and their gradients, rows ``(..., n)`` each.
    batch : Batch
        What the gradients are of.
    buffers : sequence of Tensor or None
        What the step before returned; None in the first one.
    plus : sequence of Tensor or None
        What is added to the gradients before clipping: a pull or a correction. None of a variable: nothing.
    ascend : sequence of bool
        Which variables are maximized over, and decay against their gradient; none: all are minimized over.
    momentum, weight_decay : float
        ``buffer = momentum * buffer + gradient + weight_decay * point``; the buffer is followed.
    grad_clip : float or None
        Bound on the joint L2 norm of the gradients with what is added to them.
    """
    if plus is None and not (momentum or weight_decay):
        return clip(gradients, grad_clip), None
    active = batch.active
    if plus is not None:
        gradients = [
            g if more is None else g + active * more for g, more in zip(gradients, plus, strict=True)
        ]
    gradients = clip(gradients, grad_clip)
    if weight_decay:
        signs = [-1.0 if up else 1.0 for up in ascend] or [1.0] * len(points)
        triples = zip(gradients, signs, points, strict=True)
        gradients = [g + active * (sign * weight_decay * x) for g, sign, x in triples]
    if not momentum:
        return gradients, None
    if buffers is not None:
        gradients = [momentum * b + g for b, g in zip(buffers, gradients, strict=True)]
    return [active * g for g in gradients], gradients


def reach(num_steps: int | Tensor, momentum: float) -> float | Tensor:
    """Return how far this many steps lead along a gradient that stays, in units of ``lr`` times the gradient.

    Without momentum that is the number of steps, which is returned as it is.
    """
    if not momentum:
        return num_steps
    if isinstance(num_steps, Tensor):
        exact = num_steps.double()
        last = (exact * math.log(momentum)).exp()
        return ((exact - momentum * (1 - last) / (1 - momentum)) / (1 - momentum)).to(num_steps)
    return (num_steps - momentum * (1 - momentum**num_steps) / (1 - momentum)) / (1 - momentum)


def server_start(x: Tensor, optimizer: ServerOptimizer, tau: float) -> list[Tensor]:
    """Return what a server optimizer remembers of a vector before the first step; nothing for sgd."""
    begin = {"m": 0.0, "v": tau**2}
    return [torch.full_like(x, begin[part]) for part in SERVER_MEMORY[optimizer]]


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
    """Move a server vector ``(..., n)`` along the clients' average increment; return it and the new memory.

    ``sgd`` adds ``lr * dx``. ``momentum``: Hsu, Qi, Brown, arXiv:1909.06335. ``adam``, ``yogi``, ``adagrad``:
    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295, Algorithm 2, which corrects no
    bias.
    """
    if optimizer == "sgd":
        return x + (dx if lr == 1 else lr * dx), ()
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
