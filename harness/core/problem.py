"""Optimization problems: losses written for one client, and their start values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from datasets.federation import Batch
from harness.core.errors import Incompatible
from harness.core.flat_model import NORMS, constants_digest

Kind = Literal["erm", "minimax", "bilevel", "vertical"]


class Span(NamedTuple):
    """Consecutive coordinates of a model: whether they are set apart, and how many there are."""

    apart: bool
    size: int


def identity(y: Tensor) -> Tensor:
    """Project onto the whole space: change nothing."""
    return y


@dataclass(frozen=True)
class Problem:
    """A problem of one of four kinds. Every function is written for one client.

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
        The objective, a scalar; padding has weight 0.
    inner : Callable[..., Tensor] or None
        The inner objective of a bilevel problem.
    embed : Callable[[Tensor, Batch], Tensor] or None
        A party's embedding ``(B, d)`` in a vertical problem.
    project, project_x : Callable[[Tensor], Tensor]
        Projections onto the feasible sets of y and of x, along the last axis.
    predict : Callable[..., Tensor] or None
        Class scores ``(B, K)`` from ``(x, inputs)``, or from ``(x, embeddings)`` in a vertical problem.
        Alternatively ``(B,)``: scores of the positive class that rank samples without a decision threshold.
    ordered : Callable[[Tensor], Tensor]
        Puts models ``(..., P)`` as `predict` takes them, x before y, into the order of the module's parameters.
    measure : Callable[..., dict[str, float]] or None
        Additional values at an evaluation, from the mean variables and all clients' training data
        ``(C, N, ...)``.
    module, rebuild : nn.Module and Callable[[nn.Module], Problem], or None
        The model whose parameters are x or its first coordinates, and the function that states the problem for
        a pruned one. In a vertical problem it is a party's model, with parameters y.
    shapes : tuple of tuples of torch.Size
        Shapes of the tensors that x and y begin with, in their order; empty: those of `module`.
    halves : Callable[..., Problem] or None
        For an erm problem whose model consists of an extractor and a head: returns the same problem in two
        variables, x the extractor ``u`` and y the head ``v``, with ``loss(x, y, batch)`` and the functions below.
        Where an adapter says which factors clients share, x are these and y is the rest, without the functions.
        `predict` still takes both, concatenated. With ``latent`` there is a Gaussian encoder between them, whose
        features are ``latent`` means and, before `softplus`, ``latent`` standard deviations.
    cut : int or None
        Length of u, which comes first in the model's vector.
    classes, width : int
        Number of classes, and number of features that the head reads.
    features : Callable[[Tensor, Tensor], Tensor] or None
        ``(B, d)`` of ``(u, inputs)``.
    scores : Callable[[Tensor, Tensor], Tensor] or None
        Class scores ``(B, K)`` of ``(v, features)``.
    head : Callable[[Tensor, Batch], Tensor] or None
        The loss of v on a batch whose inputs are features.
    dense : bool
        Whether the computation is dense algebra, which vectorizes over clients, or convolution, which does not
        on a CPU.
    per_sample : bool
        Whether the loss of one sample depends on that sample and on public numbers only. Record-level privacy
        requires it, since it clips the contribution of each sample.
    constants : tuple of float or None
        All numbers in the functions above that come from the clients' data or the run's seed. Runs of one spec
        share a problem if their constants are equal; None: unknown, problems are not shared.
    settings : str
        The settings that a run file gives it, as text: they tell problems apart that are otherwise alike.
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
    ordered: Callable[[Tensor], Tensor] = identity
    measure: Callable[..., dict[str, Any]] | None = None
    module: nn.Module | None = None
    rebuild: Callable[[nn.Module], Problem] | None = None
    shapes: tuple[tuple[torch.Size, ...], ...] = ()
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
    settings: str = ""

    @cached_property
    def frozen(self) -> str:
        """Digest of the frozen part of the model, which is public; empty if all of it is trained."""
        return constants_digest(self.module)


Objective = Callable[[Problem], Callable[..., Tensor]]  # problem -> one-client function to differentiate


@dataclass(frozen=True, slots=True)
class PerSample:
    """A one-client objective that is a mean of independent contributions of the samples.

    Record-level privacy clips these contributions and refuses other objectives.

    Attributes
    ----------
    loss : Callable[..., Tensor]
        The objective.
    """

    loss: Callable[..., Tensor]

    def __call__(self, *arguments: Any) -> Tensor:
        """Return the objective's value."""
        return self.loss(*arguments)


def problem_loss(problem: Problem) -> Callable[..., Tensor]:
    """Return the problem's loss, the default objective."""
    return problem.loss


def names_by_length(start: Mapping[str, Tensor], setting: str) -> dict[int, str]:
    """Return the name of each variable by its length: so parts of messages and of states are told.

    Raises
    ------
    Incompatible
        If two variables have one length, so that a setting of compression cannot tell them.
    """
    names = {len(value): name for name, value in start.items()}
    if len(names) < len(start):
        raise Incompatible(
            f"compression.{setting}: x and y must differ in size, as parts of a message are told by their length"
        )
    return names


@lru_cache(maxsize=4)
def split_model(problem: Problem, latent: int | None = None) -> Problem:
    """Split a problem's model into the extractor x and the head y; see `Problem.halves`.

    Raises
    ------
    Incompatible
        If the model has no extractor with parameters.
    """
    if problem.halves is None:
        that_is_trained = " of which both are trained" if problem.frozen else ""
        raise Incompatible(
            f"the algorithm splits a model into extractor and head, but the model of problem {problem.name} "
            f"has no hidden layer before a linear head{that_is_trained}; try model mlp or an image model"
        )
    return problem.halves(latent=latent)


@lru_cache(maxsize=4)
def set_apart(problem: Problem, part: Literal["extractor", "norms"]) -> Problem:
    """Return a problem in two variables: y is a part of the model, x the rest, each in the model's order.

    Unlike the halves of `split_model`, neither can be pruned.

    Parameters
    ----------
    problem : Problem
        An erm problem with a model.
    part : {"extractor", "norms"}
        All layers but the last; or the scales and shifts of all norm layers.

    Raises
    ------
    Incompatible
        If the model has no such part.
    """
    return _in_two(problem, _extractor_first(problem) if part == "extractor" else _norms(problem))


def share_parameters(problem: Problem, names: Collection[str]) -> Problem:
    """Return a problem in two variables: x are the model's parameters of these names, y the rest."""
    assert problem.module is not None
    spans = [Span(name not in names, p.numel()) for name, p in problem.module.named_parameters()]
    return _in_two(problem, _merged(spans))


def _in_two(problem: Problem, spans: list[Span]) -> Problem:
    """Return a problem in two variables: y is what is set apart, x the rest."""
    predict, loss = problem.predict, problem.loss
    assert predict is not None

    sizes = {apart: [span.size for span in spans if span.apart == apart] for apart in (False, True)}
    shared = sum(sizes[False])

    def whole(x: Tensor, y: Tensor) -> Tensor:
        pieces = {False: iter(x.split(sizes[False], -1)), True: iter(y.split(sizes[True], -1))}
        return torch.cat([next(pieces[span.apart]) for span in spans], -1)

    def ordered(model: Tensor) -> Tensor:
        return whole(model[..., :shared], model[..., shared:])

    def init(generator: torch.Generator) -> dict[str, Tensor]:
        start = problem.init(generator)["x"].split([span.size for span in spans])
        pieces = list(zip(spans, start, strict=True))
        x, y = (
            torch.cat([piece for span, piece in pieces if span.apart == apart]) for apart in (False, True)
        )
        return {"x": x, "y": y}

    return replace(
        problem,
        init=init,
        loss=lambda x, y, batch: loss(whole(x, y), batch),
        predict=lambda m, inputs: predict(ordered(m), inputs),
        ordered=ordered,
        rebuild=None,
        shapes=(_shapes(problem, spans, False), _shapes(problem, spans, True)),
        halves=None,
        cut=None,
    )


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans with neighbors on one side joined."""
    return [
        Span(apart, sum(span.size for span in some)) for apart, some in groupby(spans, attrgetter("apart"))
    ]


def _shapes(problem: Problem, spans: Iterable[Span], apart: bool) -> tuple[torch.Size, ...]:
    """Return the shapes of the model's tensors that are, or are not, set apart."""
    assert problem.module is not None
    owners = (span.apart for span in spans for _ in range(span.size))
    tensors = [(next(islice(owners, p.numel() - 1, None)), p.shape) for p in problem.module.parameters()]
    return tuple(shape for side, shape in tensors if side == apart)


def _extractor_first(problem: Problem) -> list[Span]:
    cut = split_model(problem).cut
    if cut is None:
        raise Incompatible(
            f"the algorithm divides a model into extractor and head, and the adapter of problem {problem.name}'s "
            "model into factors; use kind lora"
        )
    assert problem.module is not None
    return [Span(True, cut), Span(False, sum(p.numel() for p in problem.module.parameters()) - cut)]


def _norms(problem: Problem) -> list[Span]:
    layers = [] if problem.module is None else list(problem.module.modules())
    owners = {
        p: layer for layer in reversed(layers) for p in layer.parameters(recurse=False)
    }  # one if shared
    order = () if problem.module is None else problem.module.parameters()
    spans = [Span(isinstance(owners[p], NORMS), p.numel()) for p in order]
    if not any(span.apart for span in spans):
        raise Incompatible(
            f"the algorithm keeps norm layers at the clients, but the model of problem {problem.name} has none; "
            "try model resnet18, or vgg_small with norm: group"
        )
    return _merged(spans)


def join_model(u: Tensor, v: Tensor) -> Tensor:
    """Concatenate extractors and heads to models; an extractor without a client axis is shared by all."""
    if u.ndim < v.ndim:
        u = u.unsqueeze(-2).expand(*v.shape[:-1], u.shape[-1])
    return torch.cat([u, v], -1)
