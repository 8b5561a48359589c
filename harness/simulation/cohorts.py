"""Draws of cohorts, and the number of rounds in which each client takes part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.core import rng
from harness.core.clients import sampling
from harness.core.errors import Incompatible
from harness.core.settings.privacy import Privacy


@dataclass(frozen=True)
class Cohorts:
    """The draws of cohorts of one run, or of stacked runs.

    Attributes
    ----------
    total : int
        Number of clients.
    size : float or None
        Expected number of clients per round; None: all.
    balanced : bool
        Whether cohorts take turns instead of being drawn.
    privacy : Privacy or None
        The mechanism, which decides how cohorts are drawn.
    rate : float or None
        Public probability of each client to take part; None: ``size / total``. Then ``size`` is the public number
        that stands for the expected one.
    seeds, noise_keys : tuple
        Seed and noise key of each run. Secret cohorts follow from the key, so that those of two runs are
        independent, unless the runs of a seed share them (``privacy.draws``).

    Raises
    ------
    Incompatible
        If cohorts are secret and balanced, their rate is not that of the mechanism, or a client takes part twice
        within the rounds over which noise is correlated.
    """

    total: int
    size: float | None
    balanced: bool
    privacy: Privacy | None
    seeds: tuple[int, ...]
    noise_keys: tuple[str, ...]
    rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse secret cohorts that are not drawn as the mechanism claims."""
        if self.privacy is not None and self.privacy.spec.mechanism == "banded":
            apart = self.total // int(self.size) if self.balanced and self.size else 1
            if apart < self.privacy.bands:
                raise Incompatible(
                    f"privacy.bands: noise is correlated over {self.privacy.bands} rounds, but clients may take "
                    f"part again after {apart}; give balanced cohorts"
                )
        if self.privacy is None or not self.secret:
            return
        if self.balanced:
            raise Incompatible(
                "privacy.sampling: balanced cohorts are public and not drawn, given "
                f"{self.privacy.sampling}; use fixed"
            )
        if self.privacy.adjacency == "add-remove" and self.rate is None:
            raise Incompatible(
                "privacy.adjacency: add-remove needs a public rate of the cohorts, as one of size / clients "
                "changes "
                "when a client leaves; give rate, or adjacency zero-out"
            )
        rate = self.share
        if not math.isclose(self.privacy.rate, rate, rel_tol=1e-9):
            drawn = "everybody" if rate == 1 else f"cohorts of {self.size:g} of {self.total} clients"
            raise Incompatible(
                f"Privacy.rate: the claim would be amplified by {self.privacy.rate:g}, but the run draws {drawn}; "
                f"give rate {rate:g}"
            )

    @property
    def everybody(self) -> bool:
        """Whether all clients take part in every round."""
        return self.rate is None and (self.size is None or self.size >= self.total)

    @property
    def share(self) -> float:
        """Share of the clients that take part in a round, on average."""
        if self.size is None or self.everybody:
            return 1.0
        return self.size / self.total if self.rate is None else self.rate

    @property
    def secret(self) -> bool:
        """Whether nobody may learn who takes part."""
        return self.privacy is not None and self.privacy.secret_cohorts

    @property
    def expected_share(self) -> float:
        """Clients that a round counts, over all; with a public rate, the public number that stands for them."""
        return 1.0 if self.everybody or self.size is None else self.size / self.total

    @property
    def expected(self) -> float | None:
        """Expected number of clients per round, or the public number that stands for it; None: all."""
        return None if self.everybody else self.size

    @property
    def everybody_counts(self) -> float | None:
        """As how many all clients count, where their number is private; None elsewhere."""
        return self.size / self.rate if self.size is not None and self.rate is not None else None

    def public_share(self, round: int) -> float | None:
        """Return the share of clients in a round, where their number is private; None elsewhere."""
        if self.privacy is None or not self.privacy.clients_private:
            return None
        return 1.0 if round < 0 else self.share

    def draw(self, round: int) -> tuple[Tensor, Tensor | None]:
        """Return the clients of a round, ``(R, C)``, and 1 for members and 0 for padding; None: all are members."""
        if self.size is None or self.everybody:
            return torch.arange(self.total).expand(len(self.seeds), -1), None
        if self.secret and self.privacy is not None and self.privacy.sampling == "poisson":
            return sampling.draw_poisson_cohort(self._keys(round), self.total, self.share)
        if self.balanced:
            return sampling.balanced_cohort(self._order, int(self.size), round), None
        return sampling.draw_fixed_cohort(self._keys(round), self.total, int(self.size)), None

    def charged(self, first: int, rounds: int) -> Tensor:
        """Return for how many of some rounds each client is charged, ``(R, total)``; ``(R, 1)`` if all the same.

        Where cohorts are secret, every client is charged for every round, at the rate of the cohorts.
        """
        if self.everybody or self.secret:
            return torch.full((len(self.seeds), 1), rounds)
        times = torch.zeros(len(self.seeds), self.total, dtype=torch.int64)
        for round in range(first, first + rounds):
            ids, _ = self.draw(round)
            times.scatter_add_(-1, ids, torch.ones_like(ids))
        return times

    @cached_property
    def _order(self) -> Tensor:
        """The order of balanced cohorts, ``(R, total)``, the same in all rounds."""
        keys = torch.tensor([rng.key(seed, "cohort order") for seed in self.seeds])
        return sampling.random_order(keys, self.total)

    def _keys(self, round: int) -> Tensor:
        own_draws = self.secret and self.privacy is not None and self.privacy.own_draws
        return torch.tensor(
            [rng.key(source, "cohort", round) for source in (self.noise_keys if own_draws else self.seeds)]
        )
