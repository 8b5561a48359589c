"""Structured pruning of the models that clients train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compression import UnitGroup, prune, shrink, units
from harness.core.problem import Problem
from harness.core.registry import Incompatible


@dataclass(frozen=True)
class SubModel:
    """A model without some of its hidden units.

    Attributes
    ----------
    mask : Tensor
        ``(P,)``, True where a coordinate is still part of the model.
    problem : Problem
        The same problem for the really smaller model.
    index : Tensor
        Positions of its parameters in the full vector.
    """

    mask: Tensor
    problem: Problem
    index: Tensor

    def inside(self, vector: Tensor) -> bool:
        """Whether a vector lives in the pruned space, which its length tells."""
        return vector.shape[-1] == len(self.mask)

    def take(self, vector: Tensor) -> Tensor:
        """Return a vector of the full model as one of the smaller."""
        return vector[..., self.index] if self.inside(vector) else vector

    def put(self, small: Tensor, like: Tensor) -> Tensor:
        """Return a vector of the smaller model as one of the full, zero elsewhere."""
        if not self.inside(like):
            return small
        full = torch.zeros_like(like, memory_format=torch.contiguous_format)
        full[..., self.index] = small
        return full


@dataclass(frozen=True)
class PrunedModels:
    """The pruned models of a run: one for all clients, or several of which each client trains one.

    Attributes
    ----------
    models : tuple of SubModel
        The largest first, which contains the others: the server's.
    which : Tensor or None
        ``(total,)``, the model of each client; None: all train the first.
    own : bool
        Whether the models are the clients' own, each pruned by its own weights (vertical problems). None
        contains another then, no message is made of them, and the server has no such model.
    """

    models: tuple[SubModel, ...]
    which: Tensor | None = None
    own: bool = False

    @property
    def mask(self) -> Tensor:
        """The server's mask, ``(P,)``: what any client trains."""
        return self.models[0].mask

    def inside(self, vector: Tensor) -> bool:
        """Whether a vector lives in the pruned space."""
        return self.models[0].inside(vector)

    def mask_of(self, parts: Sequence[Tensor], ids: Tensor) -> Tensor:
        """Return which entries of the joined parts, ``(n,)``, belong to the models of clients ``(...)``.

        One mask if all clients train the same model, else ``(..., n)``.
        """
        masks = self.mask
        if self.which is not None:
            every = torch.stack([model.mask for model in self.models])
            masks = every[self.which[ids.cpu()].to(every.device)]
        rest = masks.new_ones(*masks.shape[:-1], 1)
        return torch.cat(
            [masks if self.inside(part) else rest.expand(*rest.shape[:-1], part.shape[-1]) for part in parts],
            -1,
        )

    def masked(self, part: Tensor) -> Tensor:
        """Return a part of a state with the pruned coordinates set to zero; of other spaces as it is.

        Rows, ``(total, P)``, are the clients'.
        """
        if not self.inside(part) or (self.own and part.ndim == 1):
            return part
        if part.ndim == 1:
            return part * self.mask
        return part * self.mask_of([part], torch.arange(part.shape[-2]))

    def groups(self, ids: Tensor) -> list[tuple[SubModel, Tensor | slice]]:
        """Return the models that clients ``(...)`` train, each with the flat positions of those who do."""
        if self.which is None:
            return [(self.models[0], slice(None))]
        held = self.which[ids.flatten().cpu()]
        found = [(model, (held == number).nonzero()[:, 0]) for number, model in enumerate(self.models)]
        return [(model, where) for model, where in found if len(where)]


def prunable(problem: Problem) -> list[UnitGroup]:
    """Return the units that may be pruned from a problem's model.

    Raises
    ------
    Incompatible
        If it has none.
    """
    found = units(problem.module) if problem.module is not None else []
    if not found:
        raise Incompatible(
            f"compression.alpha: the model of problem {problem.name} has no hidden units to prune"
        )
    return found


def prune_models(
    problem: Problem, x: Tensor, ratio: float | Tensor, previous: PrunedModels | None
) -> PrunedModels:
    """Prune the units of least weight (L1 norm of what comes in; Li et al. 2017) of every layer.

    Parameters
    ----------
    problem : Problem
        With a model.
    x : Tensor
        A released model, ``(P,)``: what is pruned must not depend on anything private.
    ratio : float or Tensor
        Share of units to remove, relative to the full model; one for all clients, or one for each, ``(total,)``,
        whose models are then contained in each other. What has been removed stays removed.
    previous : PrunedModels or None
        What was left so far, made with the same or a smaller ratio.

    Returns
    -------
    PrunedModels
        Coordinates of x behind the module's parameters belong to no unit and stay.
    """
    groups = prunable(problem)
    ratios = sorted(set(ratio.tolist())) if isinstance(ratio, Tensor) else [ratio]
    before = [None] * len(ratios) if previous is None else [model.mask.cpu() for model in previous.models]
    size, masks = _size(problem), []
    for one, mask in zip(ratios, before, strict=True):
        left = prune(x[:size].cpu(), groups, one, None if mask is None else mask[:size])
        masks.append(torch.cat([left, torch.ones(len(x) - size, dtype=torch.bool)]))
    which = torch.tensor([ratios.index(one) for one in ratio.tolist()]) if isinstance(ratio, Tensor) else None
    return pruned_models(problem, torch.stack(masks).to(x.device), which)


def prune_own_models(
    problem: Problem, rows: Tensor, ratio: float | Tensor, previous: PrunedModels | None
) -> PrunedModels | None:
    """Prune every client's own model by its own weights, as `prune_models` does with the one they share.

    Parameters
    ----------
    problem : Problem
        A vertical one; the model is y.
    rows : Tensor
        The models, ``(total, Q)``.
    ratio : float or Tensor
        Share of units to remove, relative to the full model, one for all or ``(total,)``. It may fall: what has
        been removed stays removed, and nothing else is.
    previous : PrunedModels or None
        What was left so far.

    Returns
    -------
    PrunedModels or None
        ``previous`` itself if nothing more is to be removed.
    """
    groups = prunable(problem)
    ratios = torch.as_tensor(ratio, dtype=torch.float64).expand(len(rows)).tolist()
    whole = torch.ones_like(rows, dtype=torch.bool).cpu()
    before = whole if previous is None else torch.stack([model.mask for model in previous.models]).cpu()
    pairs = zip(rows.detach().cpu(), ratios, before, strict=True)
    masks = torch.stack([prune(row, groups, one, mask) for row, one, mask in pairs])
    if torch.equal(masks, before):
        return previous
    return pruned_models(problem, masks.to(rows.device), torch.arange(len(rows)))


def pruned_models(problem: Problem, masks: Tensor, which: Tensor | None) -> PrunedModels:
    """Return the models that masks ``(S, P)`` describe: the largest first, or the clients' own in their order."""
    groups, module, rebuild = prunable(problem), problem.module, problem.rebuild
    assert isinstance(module, nn.Module) and rebuild is not None
    models: list[SubModel] = []
    of_shape: dict[object, Problem] = {}  # models of one size are the same functions of their parameters
    for mask in masks:
        smaller, _ = shrink(module, groups, mask[: _size(problem)].cpu())
        shapes = tuple(parameter.shape for parameter in smaller.parameters())
        if shapes not in of_shape:
            of_shape[shapes] = rebuild(smaller)
        models.append(SubModel(mask, of_shape[shapes], mask.nonzero()[:, 0]))
    return PrunedModels(tuple(models), which, own=problem.kind == "vertical")


def _size(problem: Problem) -> int:
    """Return how many of the coordinates of x are the module's parameters, which come first."""
    assert problem.module is not None
    return sum(parameter.numel() for parameter in problem.module.parameters())
