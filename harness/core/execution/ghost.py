"""Ghost clipping: sums of clipped gradients of samples, without a gradient for each sample.

The gradient of a layer's weights for one sample is a product of what enters the layer and of the derivative by
what leaves it, so its norm follows from these two (Goodfellow 2015, https://arxiv.org/abs/1510.01799; Li et al.
2022, https://arxiv.org/abs/2110.05679). One backward pass gives the derivatives of all samples, and a second one
the sum of their gradients with the factors of the clip. Nothing of size samples x parameters is made.

The loss must depend on the parameters of its networks through their layers alone, each applied once;
`harness.core.execution.ghost_layout` checks that. Other variables of a minimax or bilevel problem are short: every
sample gets a copy of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from privacy.clipping import clip_factors

_here = threading.local()


class Tape:
    """The inputs of a network's layers; probes, which are zeros, are added to their outputs."""

    def __init__(self, probes: Sequence[Tensor] = ()) -> None:
        self.inputs: list[Tensor] = []
        self._probes = probes

    def enter(self, layers: Sequence[nn.Module], size: int, *, tied: bool) -> None:
        """Begin with a network: its layers with parameters, their number, and whether they are tied."""

    def note(
        self, layer: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Tensor
    ) -> Tensor:
        """Keep what a layer was given, and return its output with the probe: a forward hook."""
        self.inputs.append(inputs[0] if inputs else named["input"])
        return output + self._probes[len(self.inputs) - 1] if self._probes else output


@contextmanager
def watching(tape: Tape) -> Iterator[None]:
    """Watch every network that this thread applies."""
    _here.tape = tape
    try:
        yield
    finally:
        _here.tape = None


@contextmanager
def watched(layers: Callable[[], Sequence[nn.Module]], size: int, *, tied: bool = False) -> Iterator[None]:
    """Write the layers of a network, whose parameters may be tied, on this thread's tape, if there is one."""
    tape: Tape | None = getattr(_here, "tape", None)
    if tape is None:
        yield
        return
    watched_layers = layers()
    tape.enter(watched_layers, size, tied=tied)
    handles = [layer.register_forward_hook(tape.note, with_kwargs=True) for layer in watched_layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Layout(NamedTuple):
    """The layers of networks in the order of their use.

    Attributes
    ----------
    layers : tuple of (nn.Module, bool, int)
        Layers, of which only the settings are used, whether they add a bias, and the number of the variable that
        holds their parameters.
    outputs : tuple of (torch.Size, torch.dtype)
        What leaves them for a batch of one sample.
    networks : frozenset of int
        Numbers of the variables that hold parameters of networks.
    """

    layers: tuple[tuple[nn.Module, bool, int], ...]
    outputs: tuple[tuple[torch.Size, torch.dtype], ...]
    networks: frozenset[int]


class Norms(NamedTuple):
    """Norms of the samples' gradients ``(C, B)``, and the losses and points that they are gradients of."""

    norms: Tensor
    losses: Tensor
    leaves: list[Tensor]


def clipped_sums(
    loss: Callable[..., Tensor], kind: Any, count: int, places: Sequence[int], plan: Layout, norm: float
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the clients' sums of clipped gradients as a function of points and fields of a batch.

    Parameters
    ----------
    loss, kind, count, places, plan
        As of `sample_norms`.
    norm : float
        Bound on the joint L2 norm of one sample's gradients by these points.

    Returns
    -------
    Callable
        Of points ``(C, n)`` and fields ``(C, B, ...)``; samples of weight below 1/2 are padding. Returns sums
        ``(C, n)``.
    """
    measure = sample_norms(loss, kind, count, places, plan)

    def sums(*tensors: Tensor) -> tuple[Tensor, ...]:
        norms, losses, leaves = measure(*tensors)
        factors = clip_factors(norms, norm) * (kind(*tensors[count:]).weight > 0.5)
        weighted = torch.where(factors > 0, losses, 0.0) * factors
        return torch.autograd.grad(weighted.sum(), leaves, materialize_grads=True)

    return sums


def sample_norms(
    loss: Callable[..., Tensor], kind: Any, count: int, places: Sequence[int], plan: Layout
) -> Callable[..., Norms]:
    """Return the norms of gradients of single samples as a function of points and fields of a batch.

    Parameters
    ----------
    loss : Callable
        Mean loss of one client's samples, as a function of its points and its batch.
    kind : type
        Of the batch.
    count : int
        Number of points.
    places : sequence of int
        Numbers of the points to differentiate by.
    plan : Layout
        Of the loss.
    """
    copied = [place for place in places if place not in plan.networks]
    by_sample = tuple(0 if place in copied else None for place in range(count))

    def of_sample(at: tuple[Tensor, ...], sample: tuple[Tensor, ...], probe: tuple[Tensor, ...]) -> Any:
        with watching(tape := Tape(probe)):
            value = loss(*at, kind(*(column.unsqueeze(0) for column in sample)))
        return value, tuple(tape.inputs)

    of_client = torch.func.vmap(torch.func.vmap(of_sample, (by_sample, 0, 0)))

    def measure(*tensors: Tensor) -> Norms:
        points, batch = list(tensors[:count]), kind(*tensors[count:])
        weight: Tensor = batch.weight
        leaves = [points[place].detach().requires_grad_() for place in places]
        for place, leaf in zip(places, leaves, strict=True):
            points[place] = leaf.unsqueeze(1).expand(*weight.shape, -1) if place in copied else leaf
        probes = [
            torch.zeros((*weight.shape, *shape), dtype=dtype, device=weight.device).requires_grad_()
            for shape, dtype in plan.outputs
        ]
        # The leading axes of all that follows are clients and samples.
        losses, inputs = of_client(tuple(points), tuple(batch), tuple(probes))
        copies = [points[place] for place in copied]
        slopes = torch.autograd.grad(
            losses.sum(), [*copies, *probes], retain_graph=True, materialize_grads=True
        )
        squares = [slope.square().sum(-1) for slope in slopes[: len(copies)]]
        watched = zip(plan.layers, inputs, slopes[len(copies) :], strict=True)
        for (layer, biased, owner), entered, slope in watched:
            if owner in places:
                squares.append(_square(layer, biased, entered.detach(), slope.to(losses.dtype)))
        return Norms(torch.stack(squares).sum(0).sqrt(), losses, leaves)

    return measure


def _square(layer: nn.Module, biased: bool, inputs: Tensor, slope: Tensor) -> Tensor:
    """Return squared norms of gradients of a layer's parameters, given inputs and derivatives ``(C, B, ...)``.

    A layer may have been given a batch of one sample, or the sample itself, without an axis for it.
    """
    lead = slope.shape[:2]
    if isinstance(layer, nn.Embedding):
        rows, symbols = slope.reshape(*lead, -1, slope.shape[-1]).double(), inputs.reshape(*lead, -1)
        same = symbols.unsqueeze(-1) == symbols.unsqueeze(-2)
        return (same * (rows @ rows.mT)).sum((-2, -1)).clamp(min=0).to(slope.dtype)
    inputs = inputs.to(slope.dtype)
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
        if isinstance(layer, nn.GroupNorm):
            flat = functional.group_norm(inputs.flatten(0, 2), layer.num_groups, eps=layer.eps)
            slope, others = slope.flatten(0, 2).unflatten(0, (*lead, -1)), (2, *range(4, slope.ndim))
            normal = flat.view_as(slope)
        else:
            shape, others = tuple(layer.normalized_shape), (2,)
            normal = functional.layer_norm(inputs, shape, eps=layer.eps).reshape(*lead, -1, *shape)
            slope = slope.reshape(*lead, -1, *shape)
        weights = (slope * normal).sum(others).flatten(2).square().sum(-1)
        return weights + slope.sum(others).flatten(2).square().sum(-1) if biased else weights
    if isinstance(layer, nn.Conv2d):
        settings = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        patches = functional.unfold(inputs.reshape(-1, *inputs.shape[-3:]), *settings)  # type: ignore[arg-type]
        entering, leaving = patches.mT, slope.reshape(-1, *slope.shape[-3:]).flatten(2).mT
        entering, leaving = entering.unflatten(0, (*lead, -1)), leaving.unflatten(0, (*lead, -1))
        entering, leaving = entering.flatten(2, 3), leaving.flatten(2, 3)
    else:
        entering = inputs.reshape(*lead, -1, inputs.shape[-1])
        leaving = slope.reshape(*lead, -1, slope.shape[-1])
    places = entering.shape[-2]
    if places == 1:
        weights = entering.square().sum((-2, -1)) * leaving.square().sum((-2, -1))
    elif places * places <= entering.shape[-1] * leaving.shape[-1]:
        one, other = entering.double(), leaving.double()  # as large terms may cancel
        weights = ((one @ one.mT) * (other @ other.mT)).sum((-2, -1)).clamp(min=0).to(slope.dtype)
    else:
        weights = (leaving.mT @ entering).square().sum((-2, -1))
    return weights + leaving.sum(-2).square().sum(-1) if biased else weights
