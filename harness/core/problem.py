"""What is optimized: losses written for one client, and where they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from datasets.federation import Batch
from harness.core.registry import Incompatible

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
    project, project_x : Callable[[Tensor], Tensor]
        Onto the feasible sets of y and of x; act on the last axis.
    predict : Callable[..., Tensor] or None
        Class scores: ``(B, K)`` of ``(x, inputs)``; vertical: of ``(x, embeddings)``. Or ``(B,)``: scores of
        the positive class that rank samples and decide nothing.
    measure : Callable[..., dict[str, float]] or None
        Further figures at an evaluation, from the mean variables and all clients' training data
        ``(C, N, ...)``; for problems about more than predictions.
    module, rebuild : nn.Module and Callable[[nn.Module], Problem], or None
        The model whose parameters are x or its first coordinates, and how to state the problem for another
        one; for pruning. In a vertical problem it is a party's, and its parameters are y.
    halves : Callable[..., Problem] or None
        Of an erm problem whose model is an extractor and a head: the same problem in two variables, x the
        extractor ``u`` and y the head ``v``, with ``loss(x, y, batch)`` and the functions below. `predict` still
        takes both end to end. ``latent``: with a Gaussian encoder between them, whose features are the means
        of so many coordinates and what `softplus` makes standard deviations of.
    cut : int or None
        Length of u, which comes first in the model's vector.
    classes, width : int
        How many classes there are, and the length of what the head reads.
    features : Callable[[Tensor, Tensor], Tensor] or None
        ``(B, d)`` of ``(u, inputs)``.
    scores : Callable[[Tensor, Tensor], Tensor] or None
        Class scores ``(B, K)`` of ``(v, features)``.
    head : Callable[[Tensor, Batch], Tensor] or None
        The loss of v on a batch whose inputs are features.
    dense : bool
        Whether the computation is dense algebra (vectorizes over clients) or convolution (does not, on a
        CPU).
    per_sample : bool
        Whether the loss of one sample is a function of that sample and of public numbers only. Privacy with
        unit "record" rests on it: it clips what each sample contributes.
    constants : tuple of float or None
        All that the functions above hold of the clients' data or of the run's seed. Runs of one spec whose
        problems agree in them have one problem; None: nobody has said, and they are not taken for one.
    """

    name: str
    kind: Kind
    init: Callable[[torch.Generator], dict[str, Tensor]]
    loss: Callable[..., Tensor]
    inner: Callable[..., Tensor] | None = None
    embed: Callable[[Tensor, Batch], Tensor] | None = None
    project: Callable[[Tensor], Tensor] = identity
    project_x: Callable[[Tensor], Tensor] = identity
    predict: Callable[..., Tensor] | None = None
    measure: Callable[..., dict[str, Any]] | None = None
    module: nn.Module | None = None
    rebuild: Callable[[nn.Module], Problem] | None = None
    halves: Callable[..., Problem] | None = None
    cut: int | None = None
    classes: int = 0
    width: int = 0
    features: Callable[[Tensor, Tensor], Tensor] | None = None
    scores: Callable[[Tensor, Tensor], Tensor] | None = None
    head: Callable[[Tensor, Batch], Tensor] | None = None
    dense: bool = True
    per_sample: bool = True
    constants: tuple[float, ...] | None = None


Objective = Callable[[Problem], Callable[..., Tensor]]  # what is differentiated, as a function of a problem
F = TypeVar("F", bound=Callable[..., Tensor])


def per_sample(loss: F) -> F:
    """Mark a one-client objective as a mean over samples, to which each contributes by itself.

    Record-level privacy clips these contributions, and refuses an objective without the mark.
    """
    loss.per_sample = True  # type: ignore[attr-defined]
    return loss


def its_loss(problem: Problem) -> Callable[..., Tensor]:
    """Return the problem's own loss, the usual objective."""
    return problem.loss


@lru_cache(maxsize=4)
def split_model(problem: Problem, latent: int | None = None) -> Problem:
    """Return a problem with its model in two, the extractor x and the head y; see `Problem.halves`.

    Raises
    ------
    Incompatible
        If its model has no extractor with parameters of its own.
    """
    if problem.halves is None:
        raise Incompatible(
            f"the algorithm treats extractor and head of a model apart, and the model of problem {problem.name} "
            "has no hidden layer; try model mlp, or one for images"
        )
    return problem.halves(latent=latent)


def join_model(u: Tensor, v: Tensor) -> Tensor:
    """Join extractors and heads to models; an extractor without the axis of clients is everybody's."""
    if u.ndim < v.ndim:
        u = u.unsqueeze(-2).expand(*v.shape[:-1], u.shape[-1])
    return torch.cat([u, v], -1)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of every sample, ``(B,)``, of class scores ``(B, K)`` and ``(B,)``.

    The same numbers as `torch.nn.functional.cross_entropy`, which vectorizes over clients badly.
    """
    return -scores.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


# What torch's own sigmoid, softplus, or power with a fraction gives for an entry depends, in its last bit, on the
# entry's place in the tensor, and so on who else is in a stack. The following are made of functions that do not.


def sigmoid(z: Tensor) -> Tensor:
    """Return the logistic function, entry by entry."""
    return torch.stack([torch.zeros_like(z), z], -1).softmax(-1)[..., 1]


def softplus(z: Tensor) -> Tensor:
    """Return ``log(1 + exp(z))``, entry by entry."""
    small, large = z.clamp(max=0).exp().log1p(), z + (-z.clamp(min=0)).exp().log1p()
    return torch.where(z > 0, large, small)


def power(z: Tensor, exponent: float) -> Tensor:
    """Return ``z ** exponent`` of positive numbers."""
    return z**exponent if exponent in (0, 1) else (exponent * z.log()).exp()


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Average per-sample values ``(B,)`` over the samples that are not padding; 0 if all are."""
    return (values * weight).sum() / weight.sum().clamp(min=1.0)
