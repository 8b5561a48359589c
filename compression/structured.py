"""Structured model pruning: remove whole filters and neurons by their scores, and build the smaller model.

A *unit* is a filter or neuron. Where a group normalization follows, its channels are normalized together, and
a zeroed channel would still take part in its group's mean and variance; there the unit is a whole group,
since only then the masked and the smaller model are the same function.

Masks are boolean over the flat parameter vector (``named_parameters`` in order, each flattened). A pruned
unit loses its incoming weights, bias, normalization scale and shift, *and* the weights that read it: these
have no effect any more, so they need be neither trained nor sent, and ``x[mask]`` is the smaller model's flat
vector.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from compression.errors import CompressionError
from compression.select import kept_count

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Part:
    """The share of one parameter tensor that belongs to the units of a group.

    Attributes
    ----------
    name : str
        Name of the parameter.
    offset : int
        Where the tensor begins in the flat vector.
    shape : tuple of int
        Its shape.
    dim : int
        The axis that runs over the units.
    block : int
        Consecutive indices along that axis per unit.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    dim: int
    block: int

    def view(self, x: Tensor) -> Tensor:
        """Return this tensor, ``(..., *shape)``, as a view of flat vectors ``(..., P)``."""
        flat = x[..., self.offset : self.offset + math.prod(self.shape)]
        return flat.view(*x.shape[:-1], *self.shape)

    def along(self, units: Tensor) -> Tensor:
        """Return values per unit, ``(..., U)``, as values per index of the axis."""
        return units.repeat_interleave(self.block, dim=-1)


@dataclass(frozen=True)
class UnitGroup:
    """The units of one prunable layer.

    Attributes
    ----------
    name : str
        Name of the layer's module.
    size : int
        Number of units, ``U``.
    parts : tuple of Part
        Everything in the flat vector that goes when a unit goes; the incoming weights come first.
    norms : tuple of str
        Names of the group normalizations behind the layer.
    """

    name: str
    size: int
    parts: tuple[Part, ...]
    norms: tuple[str, ...] = ()

    def incoming(self, x: Tensor) -> Tensor:
        """Return the incoming weights of each unit, ``(..., U, weights)``, from flat vectors ``(..., P)``."""
        return self.parts[0].view(x).reshape(*x.shape[:-1], self.size, -1)


def scores(x: Tensor, group: UnitGroup) -> Tensor:
    """Return the L1 norm of each unit's incoming weights (Li et al. 2016), biases left out.

    Parameters
    ----------
    x : Tensor
        Flat parameter vectors, ``(..., P)``.
    group : UnitGroup
        One of `compression.units`.

    Returns
    -------
    Tensor
        ``(..., U)``.
    """
    return group.incoming(x).abs().sum(dim=-1)


def alive(mask: Tensor, group: UnitGroup) -> Tensor:
    """Return which units of a group a mask leaves.

    Parameters
    ----------
    mask : Tensor
        Boolean, ``(..., P)``, made by `prune`.
    group : UnitGroup
        One of `compression.units`.

    Returns
    -------
    Tensor
        Boolean, ``(..., U)``.
    """
    return group.incoming(mask).any(dim=-1)


def prune(x: Tensor, groups: Sequence[UnitGroup], ratio: float, previous: Tensor | None = None) -> Tensor:
    """Remove the lowest-scoring units of every prunable layer.

    The ratio is relative to the layer's original width and never falls: what was pruned stays pruned, and
    scores decide among the survivors only. Layers are scored independently of each other, as the parameters
    stand before the call; of equal scores the first units stay.

    Parameters
    ----------
    x : Tensor
        Flat parameter vector ``(P,)``, or several, ``(..., P)``, each pruned by itself.
    groups : sequence of UnitGroup
        What `compression.units` returned.
    ratio : float
        Share of units to remove from each layer, in [0, 1): ``n - floor(ratio * n + 1e-9)`` stay, at least
        one.
    previous : Tensor, optional
        The last round's mask, shaped like `x`.

    Returns
    -------
    Tensor
        Boolean, shaped like `x`: True where a coordinate is still part of the model.

    Raises
    ------
    CompressionError
        If the ratio is outside [0, 1).
    """
    kept_count(1, ratio)  # refuses a bad ratio even where there is nothing to prune
    before = torch.ones_like(x, dtype=torch.bool) if previous is None else previous
    mask = before.clone()
    for group in groups:
        living = alive(before, group)
        ranked = scores(torch.where(before, x, 0), group).masked_fill(~living, -1)
        best = ranked.argsort(dim=-1, descending=True, stable=True)[..., : kept_count(group.size, ratio)]
        _keep_only(mask, group, living & torch.zeros_like(living).scatter(-1, best, True))
    return mask


def shrink(module: Module, groups: Sequence[UnitGroup], mask: Tensor) -> tuple[Module, Tensor]:
    """Build the smaller model that a mask describes.

    Parameters
    ----------
    module : nn.Module
        The full model; it is not changed.
    groups : sequence of UnitGroup
        What `compression.units` returned for it.
    mask : Tensor
        Boolean ``(P,)``, made by `prune`.

    Returns
    -------
    smaller : nn.Module
        A copy without the pruned units, which shares the buffers: with parameters ``x[index]`` it computes what
        the full model does with ``x * mask``, up to rounding.
    index : Tensor
        Positions of its parameters in the full flat vector, ascending, int64.

    Raises
    ------
    CompressionError
        If the mask removes anything but whole units, or all units of a layer.
    """
    whole = torch.ones_like(mask)
    for group in groups:
        living = alive(mask, group)
        if not bool(living.any()):
            raise CompressionError(f"the mask leaves no unit in layer {group.name!r}; at least one must stay")
        _keep_only(whole, group, living)
    if not torch.equal(whole, mask):
        raise CompressionError("the mask removes parts of units; only masks made by prune can be shrunk to")
    smaller = copy.deepcopy(module, {id(buffer): buffer for buffer in module.buffers()})
    for group in groups:
        _cut(smaller, group, alive(mask, group))
    return smaller, mask.nonzero().squeeze(1)


def _keep_only(mask: Tensor, group: UnitGroup, living: Tensor) -> None:
    """Take the units that are not living, ``(..., U)``, out of a mask ``(..., P)``, in place."""
    for part in group.parts:
        tail = [None] * (len(part.shape) - part.dim - 1)
        spread = part.along(living)[(..., *[None] * part.dim, slice(None), *tail)]
        part.view(mask).logical_and_(spread)


def _cut(module: nn.Module, group: UnitGroup, living: Tensor) -> None:
    """Cut one group's dead units, ``(U,)``, out of a module, in place."""
    for part in group.parts:
        owner, _, leaf = part.name.rpartition(".")
        child = module.get_submodule(owner)
        full = child.get_parameter(leaf)
        rest = full.detach().index_select(part.dim, part.along(living).nonzero().squeeze(1).to(full.device))
        setattr(child, leaf, nn.Parameter(rest, requires_grad=full.requires_grad))
        if isinstance(child, nn.Linear):
            child.out_features, child.in_features = child.weight.shape
        elif isinstance(child, nn.Conv2d):
            child.out_channels, child.in_channels = child.weight.shape[:2]
    for name in group.norms:
        norm = module.get_submodule(name)
        assert isinstance(norm, nn.GroupNorm)
        remaining = int(living.sum())
        norm.num_channels = norm.num_channels * remaining // group.size
        norm.num_groups = norm.num_groups * remaining // group.size
