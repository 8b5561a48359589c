"""Losses of samples, written so that they vectorize over clients and round alike in any company."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

FEW = 8  # classes up to which operations on whole columns of scores are faster than on rows
SATURATED = 80.0  # argument at which the logistic function is 1 in every type


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return every sample's negative log-likelihood, ``(B,)``, from scores ``(B, K)`` and labels ``(B,)``.

    Equal to `torch.nn.functional.cross_entropy`, which vectorizes over clients badly.
    """
    columns = scores.unbind(-1)
    if len(columns) == 2:
        return softplus((columns[1] - columns[0]) * torch.rsub(labels, 1, alpha=2))
    if len(columns) > FEW:
        return -scores.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    largest = reduce(torch.maximum, columns).detach()
    total = reduce(torch.add, [(column - largest).exp() for column in columns])
    return largest + total.log() - scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


# The last bit of torch's sigmoid, softplus and fractional power depends on an entry's position in the tensor, and
# so on the other runs of a stack. The following functions are built from operations without this dependence.


class _Sigmoid(torch.autograd.Function):
    """The logistic function; its derivatives are written in its value, which never overflows."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        # Below the limit a sum with 1 is 1. Where exponentials underflow, they take fifty times as long.
        return (-z.clamp(max=SATURATED)).exp().add(1).reciprocal()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (value,) = ctx.saved_tensors
        return gradients[0] * (value * (1 - value))

    @staticmethod
    def vmap(info: Any, in_dims: Any, z: Tensor) -> tuple[Tensor, int]:
        return sigmoid(z), in_dims[0]


class _Softplus(torch.autograd.Function):
    """``log(1 + exp(z))``."""

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.clamp(min=0) + (-z.abs()).exp().log1p()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return gradients[0] * sigmoid(z)

    @staticmethod
    def vmap(info: Any, in_dims: Any, z: Tensor) -> tuple[Tensor, int]:
        return softplus(z), in_dims[0]


def sigmoid(z: Tensor) -> Tensor:
    """Return the logistic function of each entry."""
    value: Tensor = _Sigmoid.apply(z)  # type: ignore[no-untyped-call]
    return value


def softplus(z: Tensor) -> Tensor:
    """Return ``log(1 + exp(z))`` of each entry."""
    value: Tensor = _Softplus.apply(z)  # type: ignore[no-untyped-call]
    return value


def power(z: Tensor, exponent: float) -> Tensor:
    """Return ``z ** exponent`` for positive entries."""
    return z**exponent if exponent in (0, 1) else (exponent * z.log()).exp()


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Average per-sample values ``(B,)`` over the samples that are not padding; 0 if there are none."""
    return (values * weight).sum() / weight.sum().clamp(min=1.0)
