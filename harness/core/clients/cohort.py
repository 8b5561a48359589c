"""The cohort of a round: its members, the rows they keep, and keyed random draws."""

from __future__ import annotations

from copy import copy
from typing import Required, Self, TypedDict

import torch
from torch import Tensor

from datasets.federation import Federation
from harness.core import rng
from harness.core.clients.pruning import PrunedModels
from harness.core.clients.row_table import RowTable
from harness.core.cost import Cost
from harness.core.errors import Incompatible
from privacy.ledger import Ledger


class Membership(TypedDict, total=False):
    """Arguments of `Cohort` that say who takes part in which round of which runs."""

    seeds: Required[tuple[int, ...]]
    round: Required[int]
    ids: Required[Tensor]
    cost: Required[Cost]
    participation_mask: Tensor | None
    expected: float | None
    ledger: Ledger | None
    noise_keys: tuple[str, ...] | None
    pruned: PrunedModels | None
    share: float | None
    chosen: bool


class Cohort:
    """The members of a round. Nothing here depends on features or labels.

    In the shapes below ``...`` is empty for one run and ``R`` for R stacked runs.

    Parameters
    ----------
    federation : Federation
        All clients.
    seeds : tuple[int, ...]
        One per run.
    round : int
        Number of the round, from 0; -1 for the initialization.
    ids : Tensor
        Client numbers of the cohort, ``(..., C)``, ascending.
    cost : Cost
        Counters of the work done.
    participation_mask : Tensor, optional
        1 for a cohort member, 0 for a row of padding, ``(..., C)``. Poisson cohorts need padding, as their
        sizes vary between rounds and stacked runs.
    expected : float, optional
        Expected size of a Poisson cohort, or the public number that stands for it.
    ledger : Ledger, optional
        Record of the run's releases.
    noise_keys : tuple[str, ...], optional
        One per run: the key of its noise, and of secret draws of its own.
    pruned : PrunedModels, optional
        The pruned models: gradients are computed on them and are zero elsewhere.
    counts_private : bool
        Whether sample counts are private.
    coins : bool
        Whether algorithms may decide by public coins.
    share : float, optional
        Share of all clients that the cohort has, on average; given where the number of clients is private.
    chosen : bool
        Whether the caller chose the cohort, which is then public.

    Attributes
    ----------
    n : float
        Clients in the cohort: the expected number, or the public one that stands for it.
    share : float
        Share of all clients that the cohort has, on average: ``n / total``, or the public rate.
    sizes : Tensor
        Training samples of each cohort member, ``(..., C)``.
    """

    def __init__(
        self,
        federation: Federation,
        *,
        seeds: tuple[int, ...],
        round: int,
        ids: Tensor,
        cost: Cost,
        participation_mask: Tensor | None = None,
        expected: float | None = None,
        ledger: Ledger | None = None,
        noise_keys: tuple[str, ...] | None = None,
        pruned: PrunedModels | None = None,
        counts_private: bool = False,
        coins: bool = True,
        share: float | None = None,
        chosen: bool = False,
    ) -> None:
        self.federation = federation
        self.seeds = seeds
        self.round = round
        self.ids = ids
        self.n = expected or ids.shape[-1]
        self.participation_mask = (
            torch.ones_like(ids) if participation_mask is None else participation_mask.to(ids)
        )
        self._share = share
        self.share = self.n / federation.clients if share is None else share
        self.axes = ids.ndim
        self.cost = cost
        self.ledger = ledger or Ledger(federation.clients)
        self.noise_keys = noise_keys or tuple(map(str, seeds))
        self.pruned = pruned
        self.counts_private = counts_private
        self.chosen = chosen
        self._coins = coins
        self.sizes = self.samples("train")

    def alone(self, number: int, *, books: bool) -> Self:
        """Return one client of the cohort as a cohort of size 1, which books its releases or forgets them."""
        client = copy(self)
        client.ids = self.ids[..., number : number + 1]
        client.sizes = self.sizes[..., number : number + 1]
        if not books:
            client.ledger = Ledger()
        client.participation_mask = self.participation_mask[..., number : number + 1]
        return client

    @property
    def everybody(self) -> bool:
        """Whether the cohort is the whole federation."""
        return self.ids.shape[-1] == self.federation.clients

    @property
    def total(self) -> int:
        """Number of clients in the federation.

        Raises
        ------
        Incompatible
            If it is private. What depends on the share of clients that take part uses ``share``.
        """
        if self._share is not None:
            raise Incompatible(
                "privacy.adjacency: the algorithm uses the number of clients, which add-remove hides; use zero-out"
            )
        return self.federation.clients

    @property
    def groups(self) -> int:
        """Number of sensitive groups; public."""
        return len(self.federation.groups)

    @property
    def sample_shares(self) -> Tensor:
        """Each member's share of the cohort's samples, ``(..., C, 1)``; equal shares if counts are private."""
        sizes = (torch.ones_like(self.sizes) if self.counts_private else self.sizes).double()
        return (
            (sizes / sizes.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(-1).to(self.federation.pool.x.device)
        )

    def rows(self, x: Tensor) -> Tensor:
        """Start every client of the cohort from the same vector: ``(..., P)`` to ``(..., C, P)``.

        The rows are views of the vector: write ``x = x - g``, not ``x -= g``.
        """
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.ids.shape[-1], x.shape[-1])

    def take(self, full: Tensor, mean: Tensor | None = None) -> Tensor:
        """Select the cohort's rows: ``(..., total, P)`` to ``(..., C, P)``.

        Parameters
        ----------
        full : Tensor
            Rows of all clients.
        mean : Tensor, optional
            The server's value for the mean of the rows, ``(..., P)``. Give it where each row follows from what its
            client has sent; only such rows may enter terms of a message that are not protected
            (docs/releases.md).

        Raises
        ------
        ValueError
            If it is not a table with a row for each client, such as one that `put` has returned.
        """
        self._check_table(full)
        return self.members(full, self.ids)

    def members(self, full: Tensor, ids: Tensor) -> Tensor:
        """Select the rows of some cohorts, ``(..., C)``."""
        if isinstance(full, RowTable):
            rows = full.rows(_flat(full, ids))
        elif self.everybody:
            return full
        else:
            rows = full.flatten(0, -2)[_flat(full, ids)]
        taken: Tensor = rows.unflatten(0, ids.shape)
        return taken

    def put(self, full: Tensor, rows: Tensor) -> Tensor:
        """Return ``full`` with the cohort's rows replaced.

        The result is a `RowTable`: `take` and `put` cost as much as the cohort has rows, other operations as much
        as all clients have. Rows of clients that never took part need no memory if the first table is made by
        ``clients.rows(torch.zeros_like(x))``.

        Raises
        ------
        ValueError
            As `take`.
        """
        self._check_table(full)
        if self.everybody and bool(self.participation_mask.all()):
            return rows
        members = self.participation_mask.flatten().bool().to(full.device)
        places, rows = _flat(full, self.ids)[members], rows.flatten(0, -2)[members]
        return RowTable.of(full).with_rows(places, rows)

    def _check_table(self, full: Tensor) -> None:
        if full.ndim != self.axes + 1 or full.shape[-2] != self.federation.clients:
            shape = ("runs", self.federation.clients, "P")[-self.axes - 1 :]
            raise ValueError(
                f"rows of all clients have shape ({', '.join(map(str, shape))}), given {tuple(full.shape)}: "
                "clients.put returns them, and a number per client is a row of length 1"
            )

    def samples(self, split: str) -> Tensor:
        """Return the number of samples of each member, ``(..., C)``."""
        return self.members(self.federation.counts(split).unsqueeze(-1), self.ids).squeeze(-1)

    def coin(self, p: float, name: str, *, each: bool = False) -> Tensor:
        """Toss a public coin: 1 with probability ``p``, else 0, ``(..., 1)``.

        The result depends on seed, round, name and client, and on no data.

        Parameters
        ----------
        p : float
            Probability of 1.
        name : str
            Tosses with equal names in a round have equal results.
        each : bool
            Whether every client gets a coin of its own, ``(..., C, 1)``, independent of the cohort.

        Raises
        ------
        Incompatible
            Under record-level privacy.
        """
        if not self._coins:
            raise Incompatible(
                "record-level privacy does not support algorithms that decide by a public coin"
            )
        kind = "each" if each else "common"
        keys = torch.tensor([rng.key(seed, "coin", kind, name, self.round) for seed in self.seeds])
        drawn = rng.uniform(keys[:, None], *([self.ids.view(len(keys), -1)] if each else []))
        shape = (*self.ids.shape, 1) if each else (*self.ids.shape[:-1], 1)
        return (drawn < p).view(shape).to(self.federation.pool.x)

    def normal(self, name: str, step: int, *shape: int) -> Tensor:
        """Draw standard normal numbers for every client, ``(..., C, *shape)``.

        Parameters
        ----------
        name, step : str, int
            Draws with equal names and steps in a round are equal.
        *shape : int
            Shape of each client's numbers.
        """
        keys = torch.tensor([rng.key(seed, "normal", name, self.round, step) for seed in self.seeds])
        drawn = rng.normal(keys[:, None], self.ids.view(len(keys), -1), shape)
        return drawn.view(*self.ids.shape, *shape).to(self.federation.pool.x)


def _flat(full: Tensor, ids: Tensor) -> Tensor:
    """Return the positions of cohorts ``(..., C)`` in the flattened rows of all runs."""
    ids = ids.to(full.device)
    if ids.ndim > 1:
        ids = ids + torch.arange(len(ids), device=full.device)[:, None] * full.shape[-2]
    return ids.flatten()
