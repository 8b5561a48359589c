"""A run whose clients train a structurally pruned model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from compression import UnitGroup, prune, shrink, units
from harness.core.problem import Problem
from harness.core.registry import Incompatible


@dataclass(frozen=True)
class Thinned:
    """What is left of a model.

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

    def masked(self, vector: Tensor) -> Tensor:
        """Return a vector with the pruned coordinates set to zero; others as they are."""
        return vector * self.mask if self.inside(vector) else vector

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


def thin(problem: Problem, x: Tensor, ratio: float, previous: Tensor | None) -> Thinned:
    """Prune the units of least weight (L1 norm of what comes in; Li et al. 2017) of every layer.

    Parameters
    ----------
    problem : Problem
        With a model.
    x : Tensor
        A released model, ``(P,)``: what is pruned must not depend on anything private.
    ratio : float
        Share of units to remove, relative to the full model; what has been removed stays removed.
    previous : Tensor or None
        The last mask.

    Returns
    -------
    Thinned
        Coordinates of x behind the module's parameters belong to no unit and stay.
    """
    groups = prunable(problem)
    module, rebuild = problem.module, problem.rebuild
    assert isinstance(module, nn.Module) and rebuild is not None
    size = sum(parameter.numel() for parameter in module.parameters())
    mask = prune(x[:size].cpu(), groups, ratio, None if previous is None else previous[:size].cpu())
    smaller, _ = shrink(module, groups, mask)
    mask = torch.cat([mask, torch.ones(len(x) - size, dtype=torch.bool)]).to(x.device)
    return Thinned(mask, rebuild(smaller), mask.nonzero()[:, 0])
