"""Who takes part in a round: membership, rows that clients keep, and keyed draws."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.core import rng
from harness.core.wire.cost import Cost
from harness.core.wire.model_pruning import PrunedModels
from harness.core.wire.settings import PrivacyLog


class Cohort:
    """The members of a round. Nothing here depends on features or labels.

    Leading axes are free: ``...`` below is nothing for one run and ``R`` for R stacked ones.

    Parameters
    ----------
    federation : Federation
        Whose clients.
    seeds : tuple[int, ...]
        One per run.
    round : int
        Number of the round, from 0; -1 for what happens before the first.
    ids : Tensor
        Client numbers of the cohort, ``(..., C)``, ascending.
    cost : Cost
        Where the work done is counted.
    participation_mask : Tensor, optional
        1 for a cohort member, 0 for a row of padding, ``(..., C)``: Poisson cohorts differ in size
        from round to round and between stacked runs.
    expected : int, optional
        Expected size of such a cohort.
    privacy_log : PrivacyLog, optional
        Where releases are booked.
    pruned : PrunedModels, optional
        The pruned model: gradients are computed on the smaller one and are zero elsewhere.
    strict : bool
        Whether numbers of samples are private.

    Attributes
    ----------
    n, total : int
        Clients in the cohort (expected number) and in the federation.
    sizes : Tensor
        Training samples of each cohort member, ``(..., C)``.
    """

    def __init__(
        self,
        federation: Federation,
        seeds: tuple[int, ...],
        round: int,
        ids: Tensor,
        cost: Cost,
        participation_mask: Tensor | None,
        expected: int | None,
        privacy_log: PrivacyLog | None,
        pruned: PrunedModels | None,
        strict: bool,
    ) -> None:
        self.federation = federation
        self.seeds = seeds
        self.round = round
        self.ids = ids
        self.n = expected or ids.shape[-1]
        self.participation_mask = (
            torch.ones_like(ids) if participation_mask is None else participation_mask.to(ids)
        )
        self.total = federation.clients
        self.axes = ids.ndim
        self.cost = cost
        self.privacy_log = privacy_log or PrivacyLog()
        self.pruned = pruned
        self._strict = strict
        self.sizes = self._samples("train")

    def part(self, number: int) -> Self:
        """Return one client of the cohort alone, still as a cohort of (..., 1)."""
        one = object.__new__(type(self))
        one.__dict__.update(self.__dict__)
        one.ids = self.ids[..., number : number + 1]
        one.sizes = self.sizes[..., number : number + 1]
        one.privacy_log = PrivacyLog(self.privacy_log.ledger)
        one.participation_mask = self.participation_mask[..., number : number + 1]
        return one

    @property
    def everybody(self) -> bool:
        """Whether the cohort is the whole federation."""
        return self.ids.shape[-1] == self.total

    @property
    def groups(self) -> int:
        """How many sensitive groups there are, which everybody knows."""
        return len(self.federation.groups)

    @property
    def shares(self) -> Tensor:
        """What part of the cohort's samples each member has, ``(..., C, 1)``; equal ones under strict privacy.

        A share depends on the others' numbers of samples, which are not public then.
        """
        sizes = (torch.ones_like(self.sizes) if self._strict else self.sizes).double()
        return (
            (sizes / sizes.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(-1).to(self.federation.pool.x.device)
        )

    def rows(self, x: Tensor) -> Tensor:
        """Start every client of the cohort from the same vector: ``(..., P)`` to ``(..., C, P)``."""
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.ids.shape[-1], x.shape[-1])

    def take(self, full: Tensor) -> Tensor:
        """Return the cohort's rows of what every client keeps: ``(..., total, P)`` to ``(..., C, P)``."""
        if self.everybody:
            return full
        rows: Tensor = full.flatten(0, -2)[self._flat(full)].unflatten(0, self.ids.shape)
        return rows

    def put(self, full: Tensor, rows: Tensor) -> Tensor:
        """Return ``full`` with the cohort's rows replaced; the others keep theirs."""
        if self.everybody and bool(self.participation_mask.all()):
            return rows
        flat, here = full.flatten(0, -2).clone(), self.participation_mask.flatten().bool().to(full.device)
        flat[self._flat(full)[here]] = rows.flatten(0, -2)[here]
        changed: Tensor = flat.unflatten(0, full.shape[:-1])
        return changed

    def _samples(self, split: str) -> Tensor:
        """Return how many samples each member of the cohort has, ``(..., C)``."""
        return self.take(self.federation.counts(split).unsqueeze(-1)).squeeze(-1)

    def _flat(self, full: Tensor) -> Tensor:
        """Return positions of the cohort in rows of all runs laid end to end."""
        ids = self.ids.to(full.device)
        if self.axes > 1:
            ids = ids + torch.arange(len(ids), device=full.device)[:, None] * full.shape[-2]
        return ids.flatten()

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a coin that shows 1 with probability ``p`` and else 0, ``(..., 1)``.

        The result is public: a function of seed, round, name and client, and of no data.

        Parameters
        ----------
        p : float
            Probability of 1.
        name : str
            Two tosses of one name in a round have the same result.
        each : bool
            One coin for every client, ``(..., C, 1)``, whoever else is in the cohort.
        """
        kind = "each" if each else "common"
        keys = torch.tensor([rng.key(seed, "coin", kind, name, self.round) for seed in self.seeds])
        drawn = rng.uniform(keys[:, None], *([self.ids.view(len(keys), -1)] if each else []))
        shape = (*self.ids.shape, 1) if each else (*self.ids.shape[:-1], 1)
        return (drawn < p).view(shape).to(self.federation.pool.x)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Draw standard normal numbers for every client's own use, ``(..., C, *shape)``.

        Parameters
        ----------
        name, step : str, int
            Two draws of one name and step in a round are the same.
        *shape : int
            Of what each client gets.
        """
        keys = torch.tensor([rng.key(seed, "normal", name, self.round, step) for seed in self.seeds])
        drawn = rng.normal(keys[:, None], self.ids.view(len(keys), -1), shape)
        return drawn.view(*self.ids.shape, *shape).to(self.federation.pool.x)
