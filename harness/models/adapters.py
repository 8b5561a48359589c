"""Adapters: two trained factors of low rank beside the frozen weights of a layer.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
equation 3 and section 4.1. https://doi.org/10.48550/arXiv.2106.09685

Sun, Li, Li, Ding: "Improving LoRA in Privacy-preserving Federated Learning" (FFA-LoRA), ICLR 2024, section 4.
https://doi.org/10.48550/arXiv.2403.12313

Guo, Zeng, Wang, Fan, Wang, Qu: "Selective Aggregation for Low-Rank Adaptation in Federated Learning" (FedSA-LoRA),
ICLR 2025, figure 1. https://doi.org/10.48550/arXiv.2410.01463

=======================  =========================================================
papers                   here
=======================  =========================================================
h = W0 x + a/r B A x     `Adapted.forward`
W0                       ``layer.base.weight``, a constant
A, B                     ``layer.down.weight``, ``layer.up.weight``
r, alpha                 ``rank``, ``alpha``
=======================  =========================================================

B starts at zero, so the network starts as it was. Under DP the mean of noisy factors has the product of two noises
in B A; FFA-LoRA, whose A stays at its random start, has none (its section 3).

Deviations: A starts uniform in +-1/sqrt(inputs), as in the authors' code and in peft, not Gaussian; no dropout, as
computations are repeated. A convolution has a convolution of `rank` channels for A and one of size 1 x 1 for B, as
in peft. All seeds of an experiment share the frozen weights, but not the A of FFA-LoRA, which the run's seed draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args, get_type_hints

import torch
from torch import Tensor, nn

from harness.core import rng
from harness.core.errors import UserError, unknown
from harness.core.execution.exact.row_product import Linear
from harness.core.flat_model import Ravel, seed_constants, set_start, start_of
from harness.models.values import checked

Kind = Literal["lora", "ffa_lora", "fedsa_lora"]
LAYERS = (nn.Linear, Linear, nn.Conv2d)  # exactly: a subclass may compute something else
TYPES = {"Linear": (nn.Linear, Linear), "Conv2d": (nn.Conv2d,)}
NEEDED = ("kind", "rank", "on")


@dataclass(frozen=True)
class Adapter:
    """Settings of an adapter.

    Attributes
    ----------
    kind : {"lora", "ffa_lora", "fedsa_lora"}
        ``ffa_lora`` trains B alone. ``fedsa_lora`` trains both; methods that share a part of the model share A, and
        B stays at the clients with whatever else is trained.
    rank : int
        Rank r of the product B A.
    on : tuple of str
        Layers to adapt: names, patterns such as ``blocks.3.*``, or the types ``Linear`` and ``Conv2d``, which leave
        out the head.
    alpha : float or None
        B A is multiplied by alpha / rank; None: by 1.
    train : tuple of str or None
        Layers that are trained whole, by names or patterns. None: the head, unless it is adapted or the network has
        frozen it, as peft does for classifiers.
    """

    kind: Kind
    rank: int
    on: tuple[str, ...]
    alpha: float | None = None
    train: tuple[str, ...] | None = None

    @classmethod
    def read(cls, where: str, given: object) -> Adapter:
        """Return the adapter of a model's setting ``adapter``.

        Raises
        ------
        UserError
            If a field is missing, unknown, or of another type.
        """
        if isinstance(given, cls):
            return given
        where, names = f"{where} adapter", list(get_type_hints(cls))
        if not isinstance(given, Mapping):
            raise UserError(
                f"{where} needs fields such as {{kind: lora, rank: 4, on: [Linear]}}, not {given!r}"
            )
        for name in given:
            if name not in names:
                raise unknown(f"field of {where}", name, names)
        for name in NEEDED:
            if given.get(name) is None:
                raise UserError(f"{where}.{name}: missing; an adapter needs kind, rank and on")
        alpha, train = given.get("alpha"), given.get("train")
        if (kind := given["kind"]) not in get_args(Kind):
            raise unknown(f"{where}.kind", kind, get_args(Kind))
        return cls(
            kind=kind,
            rank=checked(f"{where}.rank", given["rank"], int),
            on=_texts(f"{where}.on", given["on"], least=1),
            alpha=None if alpha is None else checked(f"{where}.alpha", alpha, float),
            train=None if train is None else _texts(f"{where}.train", train),
        )

    def recorded(self) -> dict[str, Any]:
        """Return the fields as a run file has them, without those at their defaults."""
        optional = {"alpha": self.alpha, "train": None if self.train is None else list(self.train)}
        needed = {"kind": self.kind, "rank": self.rank, "on": list(self.on)}
        return needed | {name: value for name, value in optional.items() if value is not None}

    def __str__(self) -> str:
        """Return the fields as a run file has them, on one line."""
        values = (
            f"{name}: [{', '.join(value)}]" if isinstance(value, list) else f"{name}: {value}"
            for name, value in self.recorded().items()
        )
        return f"{{{', '.join(values)}}}"


class Adapted(nn.Module):
    """A frozen layer with two factors: ``base(x) + alpha / rank * up(down(x))``.

    Its output is that of the layer with the weights `weight`.

    Parameters
    ----------
    base : nn.Linear or nn.Conv2d
        The layer, whose parameters become frozen.
    adapter : Adapter
        Kind, rank and alpha.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, adapter: Adapter) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.adapter = adapter
        self.scale = 1.0 if adapter.alpha is None else adapter.alpha / adapter.rank
        rank = adapter.rank
        self.down: nn.Linear | nn.Conv2d
        self.up: nn.Linear | nn.Conv2d
        if isinstance(base, nn.Conv2d):
            shape: dict[str, Any] = {
                name: getattr(base, name)
                for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
            }
            self.down = nn.Conv2d(base.in_channels, rank, bias=False, **shape)
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        else:
            self.down = type(base)(base.in_features, rank, bias=False)
            self.up = type(base)(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if adapter.kind == "ffa_lora":
            self.down.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with what the factors add."""
        added: Tensor = self.up(self.down(x))
        out: Tensor = self.base(x) + (added if self.scale == 1.0 else self.scale * added)
        return out

    @property
    def weight(self) -> Tensor:
        """Weights of the layer that computes the same, of the shape of the base's."""
        product = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
        return self.base.weight + self.scale * product.view_as(self.base.weight)

    @property
    def bias(self) -> Tensor | None:
        """Shift of the base."""
        return self.base.bias


def adapted(where: str, network: nn.Module, adapter: Adapter, head: str | None) -> nn.Module:
    """Return a network with adapters, in which the rest is frozen but for the layers to be trained whole.

    Parameters
    ----------
    where : str
        Beginning of messages.
    network : nn.Module
        The network, which is changed in place.
    adapter : Adapter
        The setting.
    head : str or None
        Name of the network's head, if it has one.

    Raises
    ------
    UserError
        If names match no layer, a layer is both adapted and trained whole, or the rank is larger than a layer's.
    """
    layers = _layers(network)
    if not layers:
        raise UserError(f"{where} adapter: the network has no layer Linear or Conv2d below its top")
    whole = _trained_whole(where, network, adapter, head)
    inside = {name for top in whole for name in layers if name == top or name.startswith(f"{top}.")}
    names = _matching(where, layers, adapter.on, inside, head)
    for name in names:
        _check_layer(where, name, layers[name], adapter.rank)
    network.requires_grad_(False)
    for name in whole:
        network.get_submodule(name).requires_grad_(True)
    replacements = {layers[name]: Adapted(cast(nn.Linear, layers[name]), adapter) for name in names}
    places = [name for name, one in network.named_modules(remove_duplicate=False) if one in replacements]
    for place in places:
        owner, _, leaf = place.rpartition(".")
        holder = network.get_submodule(owner)
        setattr(holder, leaf, replacements[getattr(holder, leaf)])
    return network


def adaptable(network: nn.Module) -> list[str]:
    """Return the names of the layers of a network that adapters can be on, if their rank is small enough."""
    return [name for name, layer in _layers(network).items() if getattr(layer, "groups", 1) == 1]


def start_adapters(module: nn.Module) -> None:
    """Start the factors of a module by their own rule, A uniform and B zero, and the rest as before."""
    before, ravel = start_of(module), Ravel(module)
    draws = ravel.init if before is None else before
    names = [name for name, layer in module.named_modules() if isinstance(layer, Adapted)]

    def start(generator: torch.Generator) -> Tensor:
        x = draws(generator)
        values = ravel.parameters(x)
        for name in names:
            values[f"{name}.up.weight"].zero_()
            if (down := values.get(f"{name}.down.weight")) is not None:
                _draw(down, generator)
        return x

    set_start(module, start)


def seed_adapters(module: nn.Module, seed: int) -> None:
    """Draw the factors A that stay as they are, by the public seed of a run."""
    generator, drawn = rng.stream(seed, "adapter"), {}
    for name, layer in module.named_modules():
        if isinstance(layer, Adapted) and layer.adapter.kind == "ffa_lora":
            drawn[f"{name}.down.weight"] = _draw(torch.empty_like(layer.down.weight), generator)
    if drawn:
        seed_constants(module, drawn)


def factors_to_share(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that clients share under FedSA-LoRA: the factors A; empty otherwise."""
    return tuple(
        f"{name}.down.weight"
        for name, layer in module.named_modules()
        if isinstance(layer, Adapted) and layer.adapter.kind == "fedsa_lora"
    )


def _draw(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Fill a factor A ``(rank, ...)`` with numbers that are uniform in +-1/sqrt(inputs)."""
    bound = 1 / math.sqrt(weight[0].numel())
    return weight.uniform_(-bound, bound, generator=generator)


def _layers(network: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in network.named_modules() if name and type(layer) in LAYERS}


def _trained_whole(where: str, network: nn.Module, adapter: Adapter, head: str | None) -> list[str]:
    """Return the names of the layers that are trained whole."""
    if adapter.train is None:
        wanted = head is not None and any(p.requires_grad for p in network.get_submodule(head).parameters())
        return [head] if wanted and head is not None and head not in adapter.on else []
    parts = {
        name: part for name, part in network.named_modules() if name and any(True for _ in part.parameters())
    }
    holding = [name for name, part in parts.items() if any(True for _ in part.parameters(recurse=False))]
    found: dict[str, None] = {}
    for wish in adapter.train:
        names = [wish] if wish in parts else [name for name in holding if fnmatchcase(name, wish)]
        if not names:
            raise unknown(f"layer in {where} adapter.train", wish, holding)
        found.update(dict.fromkeys(names))
    return list(found)


def _matching(
    where: str, layers: Mapping[str, nn.Module], wishes: tuple[str, ...], inside: set[str], head: str | None
) -> list[str]:
    """Return the names of the layers that ``on`` names, in the network's order.

    Types and patterns leave out the layers ``inside`` of what is trained whole, and types the head as well.
    """
    found: set[str] = set()
    for wish in wishes:
        kinds = TYPES.get(wish)
        if wish in layers:
            matches = {wish}
        elif kinds:
            matches = {name for name, layer in layers.items() if type(layer) in kinds and name != head}
        else:
            matches = {name for name in layers if fnmatchcase(name, wish)}
        if not matches:
            types = (
                name for name, kinds in TYPES.items() if any(type(one) in kinds for one in layers.values())
            )
            raise unknown(f"layer in {where} adapter.on", wish, [*layers, *types])
        if matches <= inside:
            raise UserError(
                f"{where} adapter: {wish!r} is adapted (on) and trained whole (train); choose one"
            )
        found |= matches - inside
    return [name for name in layers if name in found]


def _check_layer(where: str, name: str, layer: nn.Module, rank: int) -> None:
    weight = cast(Tensor, layer.weight)
    largest = min(len(weight), weight[0].numel())
    if isinstance(layer, nn.Conv2d) and layer.groups > 1:
        raise UserError(
            f"{where} adapter.on: {name!r} is a convolution in {layer.groups} groups, whose update is no "
            "product of two factors; name others"
        )
    if rank > largest:
        raise UserError(
            f"{where} adapter.rank: at most {largest} in layer {name!r}, whose weights are {tuple(weight.shape)}, "
            f"given {rank}"
        )


def _texts(where: str, given: object, least: int = 0) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) and one for one in texts):
        raise UserError(f"{where} must be a list of names, not {given!r}")
    if len(texts) < least:
        raise UserError(f"{where}: at least one name is needed")
    return tuple(texts)


def adapters_of(module: nn.Module | None) -> Iterator[Adapted]:
    """Return the adapted layers of a module."""
    return (layer for layer in (() if module is None else module.modules()) if isinstance(layer, Adapted))
