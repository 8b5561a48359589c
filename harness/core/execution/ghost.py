"""Ghost clipping: sums of clipped gradients of samples, without a gradient for each sample.

The gradient of a layer's weights for one sample is a product of what enters the layer and of the derivative by
what leaves it, so its norm follows from these two (Goodfellow 2015, https://arxiv.org/abs/1510.01799; Li et al.
2022, https://arxiv.org/abs/2110.05679). One backward pass gives the derivatives of all samples, and a second one
the sum of their gradients with the factors of the clip. Nothing of size samples x parameters is made.

The loss must depend on the parameters of its networks through their layers alone, each applied once. Other
variables of a minimax or bilevel problem are short: every sample gets a copy of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.core.registry import Incompatible
from privacy import clip_factors

MOST_COPIED = 4096  # entries of a variable that every sample gets a copy of
LAYERS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.GroupNorm, nn.LayerNorm)  # that have a formula

_here = threading.local()


class Tape:
    """What enters the layers of a network; probes, zeros, are added to what leaves them, or it is cut off."""

    def __init__(self, probes: Sequence[Tensor] = (), *, cut: bool = False) -> None:
        self.cut = cut
        self.layers: list[nn.Module] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.held: list[int] = []  # numbers of parameters of the layers
        self.owner: list[int] = []  # numbers of the networks they are in
        self.biased: list[bool] = []
        self.sizes: list[int] = []  # numbers of parameters of the networks that were applied
        self.tied = False  # whether layers of one of them share parameters
        self._probes = probes

    def note(self, layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        """Keep what a layer was given, and return its output with the probe: a forward hook."""
        number = len(self.layers)
        self.layers.append(layer)
        self.inputs.append(given[0])
        self.outputs.append(output)
        own = [getattr(layer, name, None) for name in ("weight", "bias")]  # they are gone after the call
        self.held.append(sum(part.numel() for part in own if part is not None))
        self.biased.append(own[1] is not None)
        self.owner.append(len(self.sizes) - 1)
        if self.cut:
            return output.detach()
        return output + self._probes[number] if self._probes else output


@contextmanager
def _watching(tape: Tape) -> Iterator[Tape]:
    """Watch every network that this thread applies."""
    _here.tape = tape
    try:
        yield tape
    finally:
        _here.tape = None


@contextmanager
def watched(layers: Callable[[], Sequence[nn.Module]], size: int, *, tied: bool = False) -> Iterator[None]:
    """Write the layers of a network of so many parameters, which may be tied, on this thread's tape, if any."""
    tape: Tape | None = getattr(_here, "tape", None)
    if tape is None:
        yield
        return
    tape.sizes.append(size)
    tape.tied |= tied
    handles = [layer.register_forward_hook(tape.note) for layer in layers()]
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


def layout(
    loss: Callable[..., Tensor], points: Sequence[Tensor], sample: Any, places: Sequence[int]
) -> Layout | None:
    """Apply a loss to one client's points and a batch of one sample, and return the layers of its networks.

    None if the loss is not differentiated by parameters of a network.

    Raises
    ------
    Incompatible
        If the loss is of another kind than the module's description asks for.
    """
    with _watching(Tape()) as seen, torch.no_grad():
        loss(*points, sample)
    if len({id(layer) for layer in seen.layers}) != len(seen.layers):
        raise _refused("needs a loss that applies every network, and each of its layers, once")
    for layer in seen.layers:
        plain = isinstance(layer, LAYERS) and getattr(layer, "groups", 1) == 1 and not _unsupported(layer)
        if not plain:
            raise _refused(f"has no formula for a layer {type(layer).__name__} with these settings")
    if seen.tied:
        raise _refused("has no formula for parameters that layers share")
    if sum(seen.held) != sum(seen.sizes):
        raise _refused("needs networks whose parameters are all in layers that are used")
    if any(one.dtype not in (torch.float32, torch.float64) for one in seen.outputs):
        raise _refused("needs precision float32 or float64, as it adds up samples in the network's precision")
    lengths = [point.numel() for point in points]
    for size in seen.sizes:
        if lengths.count(size) != 1 or seen.sizes.count(size) != 1:
            raise _refused(f"needs a variable of the {size:,} parameters of a network alone")
    networks = [lengths.index(size) for size in seen.sizes]
    if _depends_otherwise(loss, points, sample, networks):
        raise _refused("needs a loss that depends on a network's parameters through its layers alone")
    if not set(networks) & set(places):
        return None
    if any(lengths[place] > MOST_COPIED for place in places if place not in networks):
        raise _refused(f"needs other variables of at most {MOST_COPIED:,} entries")
    owners = [networks[number] for number in seen.owner]
    layers = tuple(zip(seen.layers, seen.biased, owners, strict=True))
    outputs = tuple((one.shape, one.dtype) for one in seen.outputs)
    return Layout(layers, outputs, frozenset(networks))


def _depends_otherwise(
    loss: Callable[..., Tensor], points: Sequence[Tensor], sample: Any, networks: Sequence[int]
) -> bool:
    """Whether a loss has a gradient by parameters of networks if nothing that leaves their layers has one.

    It is tried at other parameters, as the gradient of a penalty may be zero where a network starts.
    """
    generator = torch.Generator().manual_seed(0)
    own = [point + torch.randn(point.shape, generator=generator).to(point) for point in points]
    own = [point.detach().requires_grad_() for point in own]
    with _watching(Tape(cut=True)):
        value = loss(*own, sample)
    if not value.requires_grad:
        return False
    found = torch.autograd.grad(value, [own[place] for place in networks], allow_unused=True)
    return any(one is not None and bool(one.any()) for one in found)


def clipped_sums(
    loss: Callable[..., Tensor], kind: Any, count: int, places: Sequence[int], plan: Layout, norm: float
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the clients' sums of clipped gradients as a function of points and fields of a batch.

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
    norm : float
        Bound on the joint L2 norm of one sample's gradients by these points.

    Returns
    -------
    Callable
        Of points ``(C, n)`` and fields ``(C, B, ...)``; samples of weight below 1/2 are padding. Returns sums
        ``(C, n)``.
    """
    copied = [place for place in places if place not in plan.networks]
    by_sample = tuple(0 if place in copied else None for place in range(count))

    def of_sample(at: tuple[Tensor, ...], sample: tuple[Tensor, ...], own: tuple[Tensor, ...]) -> Any:
        with _watching(Tape(own)) as seen:
            value = loss(*at, kind(*(part.unsqueeze(0) for part in sample)))
        return value, tuple(seen.inputs)

    of_client = torch.func.vmap(torch.func.vmap(of_sample, (by_sample, 0, 0)))

    def sums(*parts: Tensor) -> tuple[Tensor, ...]:
        points, batch = list(parts[:count]), kind(*parts[count:])
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
        for (layer, biased, owner), given, slope in watched:
            if owner in places:
                squares.append(_square(layer, biased, given.detach(), slope.to(losses.dtype)))
        norms = torch.stack(squares).sum(0).sqrt()
        factors = clip_factors(norms, norm) * (weight > 0.5)
        weighted = torch.where(factors > 0, losses, 0.0) * factors
        return torch.autograd.grad(weighted.sum(), leaves, materialize_grads=True)

    return sums


def _square(layer: nn.Module, biased: bool, given: Tensor, slope: Tensor) -> Tensor:
    """Return squared norms of gradients of a layer's parameters, given inputs and derivatives ``(C, B, ...)``."""
    lead = slope.shape[:2]
    if isinstance(layer, nn.Embedding):
        rows, symbols = slope.flatten(2, -2).double(), given.flatten(2)
        same = symbols.unsqueeze(-1) == symbols.unsqueeze(-2)
        return (same * (rows @ rows.mT)).sum((-2, -1)).clamp(min=0).to(slope.dtype)
    given = given.to(slope.dtype)
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
        if isinstance(layer, nn.GroupNorm):
            flat = functional.group_norm(given.flatten(0, 2), layer.num_groups, eps=layer.eps)
            slope, others = slope.flatten(0, 2).unflatten(0, (*lead, -1)), (2, *range(4, slope.ndim))
            normal = flat.view_as(slope)
        else:
            kept = len(layer.normalized_shape)
            normal = functional.layer_norm(given, layer.normalized_shape, eps=layer.eps)
            others = tuple(range(2, slope.ndim - kept))
        weights = (slope * normal).sum(others).flatten(2).square().sum(-1)
        return weights + slope.sum(others).flatten(2).square().sum(-1) if biased else weights
    if isinstance(layer, nn.Conv2d):
        settings = layer.kernel_size, layer.dilation, layer.padding, layer.stride
        patches = functional.unfold(given.flatten(0, 2), *settings)  # type: ignore[arg-type]
        entering, leaving = patches.mT, slope.flatten(0, 2).flatten(2).mT
        entering, leaving = entering.unflatten(0, (*lead, -1)), leaving.unflatten(0, (*lead, -1))
        entering, leaving = entering.flatten(2, 3), leaving.flatten(2, 3)
    else:
        entering, leaving = given.flatten(2, -2), slope.flatten(2, -2)
    places = entering.shape[-2]
    if places == 1:
        weights = entering.square().sum((-2, -1)) * leaving.square().sum((-2, -1))
    elif places * places <= entering.shape[-1] * leaving.shape[-1]:
        one, other = entering.double(), leaving.double()  # as large terms may cancel
        weights = ((one @ one.mT) * (other @ other.mT)).sum((-2, -1)).clamp(min=0).to(slope.dtype)
    else:
        weights = (leaving.mT @ entering).square().sum((-2, -1))
    return weights + leaving.sum(-2).square().sum(-1) if biased else weights


def _unsupported(layer: nn.Module) -> bool:
    """Whether a convolution pads with anything but so many zeros, or an embedding has further settings."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    further = isinstance(layer, nn.Embedding) and (
        layer.padding_idx is not None or layer.max_norm is not None
    )
    return further or (isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq)


def _refused(why: str) -> Incompatible:
    return Incompatible(f"privacy.ghost: ghost clipping {why}; remove ghost")
