"""What is optimized: losses written for one client, and where they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from datasets.federation import Batch

Kind = Literal["erm", "minimax", "bilevel", "vertical"]


def identity(y: Tensor) -> Tensor:
    """Project onto the whole space."""
    return y


@dataclass(frozen=True)
class Problem:
    """A problem of one of the four kinds. Every function is written for ONE client.

    Attributes
    ----------
    name : str
        Registry name.
    kind : {"erm", "minimax", "bilevel", "vertical"}
        ``erm``: minimize the mean of ``loss(x, batch)``; ``minimax``: min over x, max over y of
        ``loss(x, y, batch)``; ``bilevel``: minimize ``loss(x, y, batch)`` where y minimizes
        ``inner(x, y, batch)``; ``vertical``: ``loss(x, embeddings, batch)`` with embeddings ``(K, B, d)``
        made by ``embed(y, batch)`` of each of the K parties.
    init : Callable[[Generator], dict[str, Tensor]]
        Start values, ``{"x": (P,)}`` or ``{"x": (P,), "y": (Q,)}``, float32 or float64.
    loss : Callable[..., Tensor]
        The objective, a scalar; padding (weight 0) does not count.
    inner : Callable[..., Tensor] or None
        The inner objective of a bilevel problem.
    embed : Callable[[Tensor, Batch], Tensor] or None
        A party's embedding ``(B, d)`` in a vertical problem.
    project : Callable[[Tensor], Tensor]
        Onto the feasible set of y; acts on the last axis.
    predict : Callable[..., Tensor] or None
        Class scores: ``(B, K)`` of ``(x, inputs)``; vertical: of ``(x, embeddings)``. Or ``(B,)``: scores of
        the positive class that rank samples and decide nothing.
    measure : Callable[..., dict[str, float]] or None
        Further figures at an evaluation, from the mean variables and all clients' training data
        ``(C, N, ...)``; for problems about more than predictions.
    module, rebuild : nn.Module and Callable[[nn.Module], Problem], or None
        The model whose parameters are x or its first coordinates, and how to state the problem for another
        one; for pruning.
    dense : bool
        Whether the computation is dense algebra (vectorizes over clients) or convolution (does not, on a
        CPU).
    alone : bool
        Whether the loss of one sample is a function of that sample and of public numbers only. Privacy with
        unit "record" rests on it: it clips what each sample contributes.
    """

    name: str
    kind: Kind
    init: Callable[[torch.Generator], dict[str, Tensor]]
    loss: Callable[..., Tensor]
    inner: Callable[..., Tensor] | None = None
    embed: Callable[[Tensor, Batch], Tensor] | None = None
    project: Callable[[Tensor], Tensor] = identity
    predict: Callable[..., Tensor] | None = None
    measure: Callable[..., dict[str, Any]] | None = None
    module: nn.Module | None = None
    rebuild: Callable[[nn.Module], Problem] | None = None
    dense: bool = True
    alone: bool = True


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of every sample, ``(B,)``, of class scores ``(B, K)`` and ``(B,)``.

    The same numbers as `torch.nn.functional.cross_entropy`, which vectorizes over clients badly.
    """
    return -scores.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Average per-sample values ``(B,)`` over the samples that are not padding; 0 if all are."""
    return (values * weight).sum() / weight.sum().clamp(min=1.0)
