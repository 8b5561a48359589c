"""Structured pruning of the models that clients train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, get_type_hints

import torch
from torch import Tensor, nn

from compression.errors import CompressionError
from compression.graph import units
from compression.structured import UnitGroup, prune, shrink
from harness.core.errors import Incompatible
from harness.core.problem import Problem


class Shaped(Protocol):
    """Something with a shape: a tensor, or a part of a message."""

    @property
    def shape(self) -> torch.Size:
        """The shape."""


class NoVariable:
    """A mark of parts of messages, and of fields of states, that are about no variable of the problem.

    Others are told by their length.
    """


@dataclass(frozen=True)
class SubModel:
    """A model without some of its hidden units.

    Attributes
    ----------
    mask : Tensor
        ``(P,)``, True for the remaining coordinates.
    problem : Problem
        The problem for the smaller model.
    index : Tensor
        Positions of its parameters in the full vector.
    """

    mask: Tensor
    problem: Problem
    index: Tensor

    def inside(self, vector: Shaped) -> bool:
        """Whether a vector belongs to the full model's parameter space, judged by its length unless it says no."""
        return not isinstance(vector, NoVariable) and vector.shape[-1] == len(self.mask)

    def take(self, vector: Tensor) -> Tensor:
        """Map a vector of the full model to the smaller one."""
        return vector[..., self.index] if self.inside(vector) else vector

    def put(self, small: Tensor, like: Tensor) -> Tensor:
        """Map a vector of the smaller model to the full one, with zeros elsewhere."""
        if not self.inside(like):
            return small
        full = torch.zeros_like(like, memory_format=torch.contiguous_format)
        full[..., self.index] = small
        return full


@dataclass(frozen=True)
class SparseModel(SubModel):
    """A model of which single parameters are zero: unstructured pruning.

    Its vectors are followed by the mask, so that one loss, traced and measured once, serves all masks. The mask is
    no variable: gradients, and the clips of gradients of single samples, are those of the remaining parameters.
    """

    def take(self, vector: Tensor) -> Tensor:
        """Append the mask to a vector of the model."""
        return (
            torch.cat([vector, self.mask.expand_as(vector).to(vector)], -1) if self.inside(vector) else vector
        )

    def put(self, small: Tensor, like: Tensor) -> Tensor:
        """Remove the mask's share of a gradient, which is zero."""
        return small[..., : len(self.mask)] if self.inside(like) else small


@dataclass(frozen=True)
class PrunedModels:
    """The pruned models of a run: one for all clients, or several of which each client trains one.

    Attributes
    ----------
    models : tuple of SubModel
        Nested models, the largest first: the server's.
    which : Tensor or None
        ``(total,)``, the model of each client; None: all train the first.
    own : bool
        Whether each client's model is pruned by its own weights (vertical problems). The models are then not
        nested, never sent, and the server has none.
    of_round : bool
        Whether the algorithm chose them for this round. Its state is then its own matter.
    recovered : bool
        Whether an average takes what a client's model lacks as unchanged, instead of leaving the client out of it
        in these entries.
    ratio : float
        Largest share of units that a client lacks by `prune_models`.
    """

    models: tuple[SubModel, ...]
    which: Tensor | None = None
    own: bool = False
    of_round: bool = False
    recovered: bool = False
    ratio: float = 0.0

    @property
    def mask(self) -> Tensor:
        """The server's mask, ``(P,)``: the coordinates that any client trains."""
        return self.models[0].mask

    def inside(self, vector: Shaped) -> bool:
        """Whether a vector belongs to the full model's parameter space."""
        return self.models[0].inside(vector)

    def mask_of(self, parts: Sequence[Shaped], ids: Tensor) -> Tensor:
        """Return the mask of joined parts for clients ``ids (...)``.

        ``(n,)`` if all clients train the same model, else ``(..., n)``.
        """
        if self.which is None:
            return self._joined(self.mask, parts)
        every = torch.stack([model.mask for model in self.models])
        return self._joined(every[self.which[ids.cpu()].to(every.device)], parts)

    def holders(self, parts: Sequence[Shaped]) -> Tensor:
        """Return how many clients train each coordinate of joined parts, ``(n,)`` float64, if models differ."""
        assert self.which is not None
        every = self._joined(torch.stack([model.mask for model in self.models]), parts)
        clients = torch.bincount(self.which, minlength=len(every)).to(every.device)
        return (clients.double().unsqueeze(-1) * every).sum(0)

    def _joined(self, masks: Tensor, parts: Sequence[Shaped]) -> Tensor:
        """Return the masks ``(..., P)`` of joined parts, ``(..., n)``: of parts that are no model, everything."""
        rest = masks.new_ones(*masks.shape[:-1], 1)
        return torch.cat(
            [masks if self.inside(part) else rest.expand(*rest.shape[:-1], part.shape[-1]) for part in parts],
            -1,
        )

    def masked(self, field: Tensor) -> Tensor:
        """Set the pruned coordinates of a state's field to zero; other fields are returned unchanged.

        Rows, ``(total, P)``, belong to the clients.
        """
        if not self.inside(field) or (self.own and field.ndim == 1):
            return field
        if field.ndim == 1:
            return field * self.mask
        return field * self.mask_of([field], torch.arange(field.shape[-2]))

    def shares(self, ids: Tensor) -> Tensor:
        """Return the share of the parameters that the models of clients ``ids (...)`` have, float64."""
        shares = torch.stack([model.mask.double().mean() for model in self.models])
        return (
            shares[0].expand(ids.shape)
            if self.which is None
            else shares[self.which[ids.cpu()].to(shares.device)]
        )

    def groups(self, ids: Tensor) -> list[tuple[SubModel, Tensor | slice]]:
        """Return the models of clients ``ids (...)``, each with the flat positions of its clients."""
        if self.which is None:
            return [(self.models[0], slice(None))]
        held = self.which[ids.flatten().cpu()]
        members = [(model, (held == number).nonzero()[:, 0]) for number, model in enumerate(self.models)]
        return [(model, where) for model, where in members if len(where)]


def masked_state(pruned: PrunedModels, state: Any) -> Any:
    """Set the pruned coordinates of a state, a named tuple, to zero.

    A field that is about no variable says so: ``c: Annotated[Tensor, Statistic]``.
    """
    kind: Any = type(state)
    apart = _fields_without_variable(kind)
    fields = zip(state._fields, state, strict=True)
    return kind(*(field if name in apart else pruned.masked(field) for name, field in fields))


@lru_cache(maxsize=64)
def _fields_without_variable(state: Any) -> frozenset[str]:
    """Return the fields of a state that are marked as being about no variable."""
    try:
        hints = get_type_hints(state, include_extras=True)
    except NameError:  # a module that is not imported by its name, as of a notebook
        hints = {}
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return frozenset(name for name, each in marks.items() if any(map(_marks_none, each)))


def _marks_none(mark: object) -> bool:
    return isinstance(mark, type) and issubclass(mark, NoVariable)


def prunable(problem: Problem) -> list[UnitGroup]:
    """Return the prunable units of a problem's model.

    Raises
    ------
    Incompatible
        If the model has no hidden units, or units that cannot be found, or the algorithm trains parts of units.
    """
    if problem.module is not None and problem.rebuild is None:
        raise Incompatible(
            "compression.alpha: the algorithm shares parts of the model only, and the units of a part cannot be "
            "removed; use beta, or an algorithm that shares the extractor"
        )
    try:
        groups = units(problem.module) if problem.module is not None else []
    except CompressionError as error:
        raise Incompatible(f"compression.alpha: {error}") from error
    if not groups:
        raise Incompatible(
            f"compression.alpha: the model of problem {problem.name} has no hidden units to prune"
        )
    return groups


def weight_places(problem: Problem) -> list[tuple[int, int]]:
    """Return where the weights of each layer are in the model's vector, without biases and norm layers.

    A problem without a network is one layer.
    """
    if problem.module is None:
        return [(0, problem.init(torch.Generator())["x"].shape[-1])]
    places, stop = [], 0
    for parameter in problem.module.parameters():
        start, stop = stop, stop + parameter.numel()
        if parameter.ndim > 1:
            places.append((start, stop))
    return places


def sparse_model(problem: Problem, kept: Tensor) -> PrunedModels:
    """Return the models of a round in which all clients train the parameters of a mask ``(P,)``."""
    return PrunedModels((SparseModel(kept, _sparse_problem(problem), kept.nonzero()[:, 0]),), of_round=True)


@lru_cache(maxsize=16)
def _sparse_problem(problem: Problem) -> Problem:
    """Return the problem of models with a mask behind their parameters; only its loss can be used."""

    def loss(x: Tensor, *others: Any) -> Tensor:
        parameters, mask = x.chunk(2, -1)
        return problem.loss(parameters * mask.detach(), *others)

    return replace(problem, loss=loss, module=None, rebuild=None, halves=None, predict=None, measure=None)


def prune_models(
    problem: Problem, x: Tensor, ratio: float | Tensor, previous: PrunedModels | None
) -> PrunedModels:
    """Prune the units with the smallest incoming weights (L1 norm; Li et al. 2017) of every layer.

    Parameters
    ----------
    problem : Problem
        With a model.
    x : Tensor
        A released model, ``(P,)``, because the choice of units is public.
    ratio : float or Tensor
        Share of units to remove, relative to the full model: one for all clients, or one for each, ``(total,)``,
        for nested models. Removed units stay removed.
    previous : PrunedModels or None
        The models so far, made with the same or a smaller ratio.

    Returns
    -------
    PrunedModels
        The models; coordinates of x beyond the module's parameters stay.
    """
    groups = prunable(problem)
    ratios = sorted(set(ratio.tolist())) if isinstance(ratio, Tensor) else [ratio]
    before = [None] * len(ratios) if previous is None else [model.mask.cpu() for model in previous.models]
    size, masks = _size(problem), []
    for share, mask in zip(ratios, before, strict=True):
        left = prune(x[:size].cpu(), groups, share, None if mask is None else mask[:size])
        masks.append(torch.cat([left, torch.ones(len(x) - size, dtype=torch.bool)]))
    which = (
        torch.tensor([ratios.index(share) for share in ratio.tolist()]) if isinstance(ratio, Tensor) else None
    )
    return pruned_models(problem, torch.stack(masks).to(x.device), which, ratios[-1])


def prune_own_models(
    problem: Problem, rows: Tensor, ratio: float | Tensor, previous: PrunedModels | None
) -> PrunedModels | None:
    """Prune every client's model by its own weights, as `prune_models` prunes a shared one.

    Parameters
    ----------
    problem : Problem
        A vertical problem; the model is y.
    rows : Tensor
        The models, ``(total, Q)``.
    ratio : float or Tensor
        Share of units to remove, relative to the full model, one for all or ``(total,)``. Removed units stay
        removed, also if the ratio falls.
    previous : PrunedModels or None
        The models so far.

    Returns
    -------
    PrunedModels or None
        ``previous`` itself if no unit is removed.
    """
    groups = prunable(problem)
    ratios = torch.as_tensor(ratio, dtype=torch.float64).expand(len(rows)).tolist()
    whole = torch.ones_like(rows, dtype=torch.bool).cpu()
    before = whole if previous is None else torch.stack([model.mask for model in previous.models]).cpu()
    pairs = zip(rows.detach().cpu(), ratios, before, strict=True)
    masks = torch.stack([prune(row, groups, share, mask) for row, share, mask in pairs])
    if torch.equal(masks, before):
        return previous
    return pruned_models(problem, masks.to(rows.device), torch.arange(len(rows)))


def pruned_models(problem: Problem, masks: Tensor, which: Tensor | None, ratio: float = 0.0) -> PrunedModels:
    """Return the models of masks ``(S, P)``: the largest first, or the clients' own in their order."""
    groups, module, rebuild = prunable(problem), problem.module, problem.rebuild
    assert isinstance(module, nn.Module) and rebuild is not None
    models: list[SubModel] = []
    of_shape = _of_shape(problem)
    for mask in masks:
        smaller, _ = shrink(module, groups, mask[: _size(problem)].cpu())
        shapes = tuple(parameter.shape for parameter in smaller.parameters())
        if shapes not in of_shape:
            of_shape[shapes] = rebuild(smaller)
        models.append(SubModel(mask, of_shape[shapes], mask.nonzero()[:, 0]))
    return PrunedModels(tuple(models), which, own=problem.kind == "vertical", ratio=ratio)


@lru_cache(maxsize=16)
def _of_shape(problem: Problem) -> dict[object, Problem]:
    """Return the smaller problems made so far: models of equal shapes are equal functions of their parameters."""
    return {}


def _size(problem: Problem) -> int:
    """Return the number of the module's parameters, which come first in x."""
    assert problem.module is not None
    return sum(parameter.numel() for parameter in problem.module.parameters())
