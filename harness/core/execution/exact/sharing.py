"""Arguments that stacked runs share, and arguments of one-client functions as rows of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Size, Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map

T = TypeVar("T")
Flags = tuple[bool, ...]  # which tensors stacked runs share; empty: none


@dataclass(frozen=True)
class Shared:
    """Tensors that all stacked runs of a seed share.

    Attributes
    ----------
    tensors : Tensor or tuple of tensors
        ``(S, C, ...)`` for S seeds.
    runs : int
        Number of stacked runs, as many consecutive ones for each seed.
    """

    tensors: Any
    runs: int

    def repeated(self) -> Any:
        """Return the tensors once for each run, ``(R, C, ...)``; of one seed as views."""
        return tree_map(lambda tensor: for_runs(tensor, self.runs), self.tensors)


def for_runs(tensor: Tensor, runs: int) -> Tensor:
    """Repeat what each seed has once, ``(S, ...)``, for its runs, ``(R, ...)``."""
    if len(tensor) == 1:
        return tensor.expand(runs, *tensor.shape[1:])
    return tensor.repeat_interleave(runs // len(tensor), 0)


def without_sharing(argument: Any) -> Any:
    """Return an argument with tensors of its own for each run."""
    return argument.repeated() if isinstance(argument, Shared) else argument


def once(argument: Any) -> Any:
    """Return an argument's tensors; those that runs share once for each seed."""
    return argument.tensors if isinstance(argument, Shared) else argument


def leaves_of(arguments: Sequence[Any]) -> tuple[list[Tensor], TreeSpec, Flags]:
    """Return the tensors of arguments, their structure, and which of them runs share."""
    leaves, structure = tree_flatten(tuple(map(once, arguments)))
    if not any(isinstance(argument, Shared) for argument in arguments):
        return leaves, structure, ()
    shared: list[bool] = []
    for argument in arguments:
        shared += [isinstance(argument, Shared)] * len(tree_flatten(once(argument))[0])
    return leaves, structure, tuple(shared)


class Arranged(NamedTuple):
    """Tensors with clients on one axis.

    Attributes
    ----------
    leaves : list of Tensor
        ``(C', ...)``; or, if runs share some of them, ``(R', C', ...)`` of each run and ``(C', ...)`` of all. Then
        the clients of all seeds are clients of one: C' is S C, and R' is R / S.
    shared : Flags
        Which of the leaves are shared.
    lead : Size
        Leading axes that the tensors had, and that results have, too.
    seeds : int
        S.
    """

    leaves: Sequence[Tensor]
    shared: Flags
    lead: Size
    seeds: int

    def restored(self, result: Tensor) -> Tensor:
        """Return a result with the leading axes."""
        if not self.shared:
            return result.unflatten(0, self.lead) if len(self.lead) > 1 else result
        if self.seeds == 1:
            return result
        by_run: Tensor = result.unflatten(1, (self.seeds, -1)).transpose(0, 1).flatten(0, 1)
        return by_run


def arranged(leaves: Sequence[Tensor], shared: Flags, axes: int) -> Arranged:
    """Put the clients of tensors with ``axes`` leading axes onto one axis; some may be ``shared``, but not all."""
    if not shared:
        flat = leaves if axes == 1 else [leaf.flatten(0, axes - 1) for leaf in leaves]
        return Arranged(flat, (), leaves[0].shape[:axes], 1)
    seeds = len(leaves[shared.index(True)])

    def side_by_side(leaf: Tensor, by_all: bool) -> Tensor:
        if by_all or seeds == 1:
            return leaf.flatten(0, 1) if by_all else leaf
        rows: Tensor = leaf.unflatten(0, (seeds, -1)).transpose(0, 1).flatten(1, 2)
        return rows

    moved = [side_by_side(leaf, by_all) for leaf, by_all in zip(leaves, shared, strict=True)]
    return Arranged(moved, shared, leaves[shared.index(False)].shape[:axes], seeds)


def over_rows(fn: Callable[..., T], shared: Flags) -> Callable[..., T]:
    """Vectorize a function of one client's tensors over arranged leaves.

    If runs share some, clients are the outer level, and what is shared is not batched at the inner one, so that
    `row_product` multiplies all runs' weights by it at once.
    """
    if not any(shared):
        return torch.func.vmap(fn, randomness="error")
    inner = torch.func.vmap(
        fn, in_dims=tuple(None if is_shared else 0 for is_shared in shared), randomness="error"
    )
    outer_dims = tuple(0 if is_shared else 1 for is_shared in shared)
    return torch.func.vmap(inner, in_dims=outer_dims, out_dims=1, randomness="error")
