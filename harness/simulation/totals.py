"""Totals of a run that a dry run has counted."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from privacy.ledger import Ledger


class DryRun(NamedTuple):
    """Totals of a run.

    Attributes
    ----------
    ledger : Ledger
        All releases.
    releases : int
        Largest number of releases in one round.
    begun : dict[str, Tensor]
        Bytes, operations and oracle calls before the first round, as `harness.core.cost.Cost.state`
        returns them.
    stretches : list of (int, dict)
        Lengths of stretches of rounds, and the cost of one round of each.
    tossed : bool
        Whether public coins were tossed, so that the run with another seed may send something else.
    everybody : bool
        Whether the rounds were made with all clients.
    """

    ledger: Ledger
    releases: int
    begun: dict[str, Tensor]
    stretches: list[tuple[int, dict[str, Tensor]]]
    tossed: bool
    everybody: bool

    @property
    def cost(self) -> dict[str, Tensor]:
        """Cost of the whole run."""
        return self.cost_after(sum(length for length, _ in self.stretches))

    def cost_after(self, rounds: int) -> dict[str, Tensor]:
        """Return the cost of the first rounds, whole numbers."""
        total = {name: count.double() for name, count in self.begun.items()}
        for length, each in self.stretches:
            total = {name: count + min(length, rounds) * each[name] for name, count in total.items()}
            rounds -= min(length, rounds)
        return {name: count.round().long() for name, count in total.items()}
