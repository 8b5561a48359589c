"""Probabilities, decisions and losses of samples from class scores, in the bits of torch's own functions.

Torch is slow along a last axis of length two. So two classes are computed with one row a class.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def in_double(outputs: Tensor) -> Tensor:
    """Return outputs ``(n,)`` or ``(n, K)`` in float64; those of two classes lie in memory class by class."""
    if outputs.ndim == 1 or outputs.shape[-1] != 2:
        return outputs.double()
    return outputs.mT.contiguous().double().mT


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of every sample, ``(n, K)``.

    Of two classes a fifth of the time. Along the last axis torch multiplies `exponentials` by the inverse of their
    sum.
    """
    fast = logits.shape[-1] == 2 and logits.device.type == "cpu" and math.isfinite(float(logits.sum()))
    return _of_two(logits) if fast and _as_softmax() else logits.softmax(-1)


def decisions(scores: Tensor) -> Tensor:
    """Return the class with the largest score of every sample, the first of equals, ``(n,)``."""
    if scores.shape[-1] != 2:
        return torch.from_numpy(np.argmax(scores.cpu().numpy(), axis=-1))
    return (scores[:, 1] > scores[:, 0]).long()


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of every sample.

    Of two classes with one row a class: a third of the time, and the same bits, as two numbers have one sum.
    """
    if logits.shape[-1] != 2:
        return functional.cross_entropy(logits, labels, reduction="none")
    shares = logits.mT.contiguous().log_softmax(0)
    return -shares.gather(0, labels.unsqueeze(0)).squeeze(0)


def _of_two(logits: Tensor) -> Tensor:
    first, second = logits.unbind(-1)
    largest = torch.maximum(first, second)
    raised = exponentials(torch.cat([first - largest, second - largest])).view(2, -1)
    return (raised * (raised[0] + raised[1]).reciprocal()).mT


def exponentials(values: Tensor) -> Tensor:
    """Return the exponentials ``(n,)`` that softmax takes, which `exp` rounds otherwise.

    They are in the derivative of the logarithm of softmax, ``g - exp(x) sum(g)``, here with g = (0, .., 0, -1).
    """
    row = torch.cat([values, values.new_zeros(1)]).unsqueeze(0)
    g = torch.zeros_like(row)
    g[0, -1] = -1.0
    powers: Tensor = torch.ops.aten._log_softmax_backward_data(g, row, 1, row.dtype)
    return powers[0, :-1]


@lru_cache(maxsize=1)
def _as_softmax() -> bool:
    """Whether two classes have the bits of softmax on this processor; tried once."""
    drawn = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    return torch.equal(_of_two(drawn), drawn.softmax(-1))
