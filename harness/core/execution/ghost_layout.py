"""The layers that ghost clipping watches, and whether its norms are right for a loss.

A formula belongs to the computation of one class of layers, so layers are of exactly these classes and nothing
about them has been changed. What their description does not show is tried: norms and clipped sums are compared with
the gradients of single samples. Samples and points of these trials are random, so whether a run is refused tells
nothing about anybody's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from harness.core.errors import Incompatible
from harness.core.execution.exact.row_product import Linear
from harness.core.execution.ghost import Layout, Tape, clipped_sums, sample_norms, watching
from privacy.clipping import clip_factors

MOST_COPIED = 4096  # entries of a variable that every sample gets a copy of
FORMULAS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.GroupNorm, nn.LayerNorm)
LAYERS = (*FORMULAS, Linear)  # exactly: a subclass may compute something else
PARAMETERS = ("weight", "bias")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SAMPLES = 3  # of each trial
SPREADS = (0.1, 1.0)  # of the points of the trials around the given ones
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of a norm and a clipped sum, relative


def layout(
    loss: Callable[..., Tensor], points: Sequence[Tensor], sample: Any, places: Sequence[int]
) -> Layout | None:
    """Apply a loss to one client's points and a random sample, and return the layers of its networks.

    None if the loss is not differentiated by parameters of a network.

    Parameters
    ----------
    loss : Callable
        Mean loss of one client's samples, as a function of its points and its batch.
    points : sequence of Tensor
        A client's.
    sample : NamedTuple of tensors
        A batch of one sample, of which shapes and types are used, and what is true or false.
    places : sequence of int
        Numbers of the points to differentiate by.

    Raises
    ------
    Incompatible
        If there is no formula for the loss, or it gives other norms than the gradients of single samples have.
    """
    generator = torch.Generator().manual_seed(0)
    batch = _drawn(sample, len(SPREADS), generator)
    first = type(sample)(*(column[0, :1] for column in batch))
    with watching(seen := _Examined()), torch.no_grad():
        loss(*points, first)
    if len(set(seen.layers)) != len(seen.layers):
        raise _refused("needs a loss that applies every network, and each of its layers, once")
    if seen.tied:
        raise _refused("has no formula for parameters that layers share")
    if sum(seen.held) != sum(seen.sizes):
        raise _refused("needs networks whose parameters are all in layers that are used")
    if any(dtype not in TOLERANCE for _, dtype in seen.outputs):
        raise _refused("needs precision float32 or float64, as it adds up samples in the network's precision")
    lengths = [point.numel() for point in points]
    for size in seen.sizes:
        if lengths.count(size) != 1 or seen.sizes.count(size) != 1:
            raise _refused(f"needs a variable of the {size:,} parameters of a network alone")
    networks = [lengths.index(size) for size in seen.sizes]
    near = [
        torch.stack([point + spread * _normal(point.shape, generator).to(point) for spread in SPREADS])
        for point in points
    ]
    if _depends_otherwise(loss, [each[-1] for each in near], first, networks):
        raise _refused("needs a loss that depends on a network's parameters through its layers alone")
    if not set(networks) & set(places):
        return None
    if any(lengths[place] > MOST_COPIED for place in places if place not in networks):
        raise _refused(f"needs other variables of at most {MOST_COPIED:,} entries")
    owners = [networks[number] for number in seen.owner]
    layers = tuple(zip(seen.layers, seen.biased, owners, strict=True))
    plan = Layout(layers, tuple(seen.outputs), frozenset(networks))
    _compare(loss, near, batch, places, plan)
    return plan


class _Examined(Tape):
    """A tape that refuses layers without a formula, and keeps what a layout says of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[nn.Module] = []
        self.outputs: list[tuple[torch.Size, torch.dtype]] = []
        self.held: list[int] = []  # numbers of parameters of the layers
        self.owner: list[int] = []  # numbers of the networks they are in
        self.biased: list[bool] = []
        self.sizes: list[int] = []  # numbers of parameters of the networks that were applied
        self.tied = False  # whether layers of one of them share parameters
        self._lent: dict[nn.Module, list[Tensor | None]] = {}  # parameters of layers as the network got them

    def enter(self, layers: Sequence[nn.Module], size: int, *, tied: bool) -> None:
        """Refuse layers without a formula."""
        for layer in layers:
            if why := _obstacle(layer):
                raise _refused(why)
            self._lent[layer] = _own(layer)
        self.sizes.append(size)
        self.tied |= tied

    def note(
        self, layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], output: Tensor
    ) -> Tensor:
        """Keep a layer with its inputs and outputs."""
        own = _own(layer)
        if any(one is not other for one, other in zip(own, self._lent[layer], strict=True)):
            raise _refused(f"has no formula for a layer {type(layer).__name__} whose parameters are replaced")
        self.layers.append(layer)
        self.outputs.append((output.shape, output.dtype))
        self.held.append(sum(parameter.numel() for parameter in own if parameter is not None))
        self.biased.append(own[1] is not None)
        self.owner.append(len(self.sizes) - 1)
        return super().note(layer, given, named, output)


class _Cut(Tape):
    """A tape that cuts off what layers do with their parameters; what enters them keeps its derivatives."""

    def note(
        self, layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], output: Tensor
    ) -> Tensor:
        """Return the output without its derivatives by the layer's parameters."""
        own = {name: each for name, each in zip(PARAMETERS, _own(layer), strict=True) if each is not None}
        for name, each in own.items():
            setattr(layer, name, each.detach())
        found: Tensor = layer.forward(*given, **named)
        for name, each in own.items():
            setattr(layer, name, each)
        return found


def _own(layer: nn.Module) -> list[Tensor | None]:
    """Return a layer's parameters, which it has only while its network is applied."""
    return [getattr(layer, name, None) for name in PARAMETERS]


def _obstacle(layer: nn.Module) -> str | None:
    """Return why a layer with parameters has no formula, as far as its description tells."""
    name = type(layer).__name__
    if type(layer) not in LAYERS:
        layers = " and".join(", ".join(layer_type.__name__ for layer_type in FORMULAS).rsplit(",", 1))
        return f"has no formula for a layer {name}, only for {layers} themselves, not for classes derived from them"
    if any(vars(layer)[hooks] for hooks in HOOKS):
        return f"has no formula for a layer {name} with hooks"
    if any(hasattr(type(layer), attribute) for attribute in vars(layer)):
        return f"has no formula for a layer {name} of which a method was replaced"
    if any(True for _ in layer.buffers(recurse=False)):
        return f"has no formula for a layer {name} of which a part is frozen; freeze or train all of it"
    if getattr(layer, "groups", 1) != 1 or _unsupported(layer):
        return f"has no formula for a layer {name} with these settings"
    return None


def _unsupported(layer: nn.Module) -> bool:
    """Whether a convolution pads with anything but a number of zeros, or an embedding has further settings."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    further = isinstance(layer, nn.Embedding) and (
        layer.padding_idx is not None or layer.max_norm is not None
    )
    return further or (isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq)


def _drawn(sample: Any, clients: int, generator: torch.Generator) -> Any:
    """Return random samples of clients, ``(clients, SAMPLES, ...)``, of the shapes and types of one sample.

    Inputs of rank two are numbers of symbols; those, labels and groups are 0 or 1, as there are at least two.
    """

    def field(name: str, like: Tensor) -> Tensor:
        shape = (clients, SAMPLES, *like.shape[1:])
        if name == "weight":
            return torch.ones_like(like[0]).expand(shape)
        if like.dtype == torch.bool:
            return like.unsqueeze(0).expand(shape)
        if not like.is_floating_point() or (name == "x" and like.ndim == 3):
            return torch.randint(2, shape, generator=generator).to(like)
        return _normal(shape, generator).to(like)

    return type(sample)(*(field(name, like) for name, like in sample._asdict().items()))


def _normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator)


def _depends_otherwise(
    loss: Callable[..., Tensor], points: Sequence[Tensor], sample: Any, networks: Sequence[int]
) -> bool:
    """Whether a loss has a gradient by parameters of networks if their layers have none by their own.

    Also one that is zero for this sample, as where a network uses parameters for large features only. It is tried
    at other parameters, as the gradient of a penalty may be zero where a network starts.
    """
    leaves = [point.detach().requires_grad_() for point in points]
    with watching(_Cut()):
        value = loss(*leaves, sample)
    if not value.requires_grad:
        return False
    gradients = torch.autograd.grad(value, [leaves[place] for place in networks], allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def _compare(
    loss: Callable[..., Tensor], points: Sequence[Tensor], batch: Any, places: Sequence[int], plan: Layout
) -> None:
    """Raise Incompatible unless norms and clipped sums are those of the gradients of single samples."""
    settings, tensors = (loss, type(batch), len(points), tuple(places), plan), (*points, *batch)
    try:
        norms = sample_norms(*settings)(*tensors).norms.detach()
        usable = norms[norms.isfinite() & (norms > 0)]
        norm = float(usable.median()) if len(usable) else 1.0
        sums = torch.cat(clipped_sums(*settings, norm)(*tensors), -1)
    except Exception as error:  # a user's module may raise anything
        what = str(error).split(". ")[0].splitlines()[:1]
        raise _refused(
            f"cannot be computed for the model ({type(error).__name__}: {''.join(what)})"
        ) from error
    compared = 0
    for client, tolerance in enumerate([TOLERANCE[norms.dtype]] * len(norms)):
        total, exact = torch.zeros_like(sums[client]), []
        for gradient in _gradients(loss, [point[client] for point in points], _of(batch, client), places):
            exact.append(gradient.norm())
            total += clip_factors(exact[-1], norm) * gradient.nan_to_num(0.0, 0.0, 0.0)
        wanted = torch.stack(exact)
        if not bool(wanted.isfinite().all()) or not bool((wanted > 0).any()):
            continue
        compared += 1
        same = torch.allclose(norms[client], wanted, rtol=tolerance, atol=tolerance * float(wanted.max()))
        if not same or float((sums[client] - total).norm()) > tolerance * norm * SAMPLES:
            raise _refused("gives other norms than the gradients of single samples have in this model")
    if not compared:
        raise _refused(
            "cannot be compared with gradients of single samples, which are zero or not finite in this model"
        )


def _of(batch: Any, client: int) -> Any:
    return type(batch)(*(column[client] for column in batch))


def _gradients(
    loss: Callable[..., Tensor], points: Sequence[Tensor], batch: Any, places: Sequence[int]
) -> Iterator[Tensor]:
    """Return the gradients of a client's samples one by one, by all of these points together."""
    leaves = [point.detach().requires_grad_(place in places) for place, point in enumerate(points)]
    for number in range(SAMPLES):
        value = loss(*leaves, type(batch)(*(column[number : number + 1] for column in batch)))
        gradients = torch.autograd.grad(value, [leaves[place] for place in places], materialize_grads=True)
        yield torch.cat(gradients)


def _refused(why: str) -> Incompatible:
    return Incompatible(f"privacy.ghost: ghost clipping {why}; remove ghost")
