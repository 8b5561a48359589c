"""Functions of entries with the same bits in any tensor.

That of torch's sigmoid, softplus and fractional power depends on an entry's position in the tensor, and so on the
other runs of a stack. These are built from operations without this dependence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SATURATED = 80.0  # argument at which the logistic function is 1 in every type


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


def quotient(numbers: Tensor, divisor: Tensor) -> Tensor:
    """Return ``numbers / divisor`` with the bits of a Python number over a tensor, which torch computes so."""
    return divisor.reciprocal() * numbers
