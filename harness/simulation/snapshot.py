"""What is seen of a run between two rounds: its state, its metrics and its claim of privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from harness.core.wire.settings import Privacy
from harness.metrics import Predictions
from privacy import Ledger

# What a claim about records covers whose features parties hold.
FEATURES = (
    "the features that one party holds of one person, against the server and the other parties, labels being "
    "public: replaced by any others (sensitivity twice the clip norm), without amplification by sampling, as all "
    "know who is in a batch; charged is every release about the person who appears most often: the embedding in "
    "each appearance, and the share in each gradient of the party's network"
)


class Diverged(ArithmeticError):
    """A run's state is no longer finite.

    Parameters
    ----------
    round : int
        In which it was noticed.
    runs : tuple of int
        Which of the runs of a stack.
    """

    def __init__(self, round: int, runs: tuple[int, ...] = (0,)) -> None:
        super().__init__(f"diverged: loss or state became NaN or infinite in round {round}")
        self.round = round
        self.runs = runs


class Evaluation(NamedTuple):
    """Metrics of a run, None where one does not apply, and the predictions behind them, if there are any."""

    metrics: dict[str, float | None]
    predictions: Predictions | None


class Snapshot(NamedTuple):
    """One run between two rounds.

    Attributes
    ----------
    round : int
        Rounds done.
    state : NamedTuple of tensors
        The algorithm's.
    cost : Mapping[str, int]
        Bytes, operations and oracle calls so far.
    privacy : dict or None
        What the run claims about privacy so far.
    errors : Mapping[str, Tensor]
        What compression has changed of each party's embeddings.
    diagnostics : Mapping[str, float]
        What the channel saw in the last diagnosed round.
    """

    round: int
    state: Any
    cost: Mapping[str, int]
    privacy: dict[str, Any] | None
    errors: Mapping[str, Tensor]
    diagnostics: Mapping[str, float]


def statement(privacy: Privacy, ledger: Ledger, *, parties: bool = False) -> dict[str, Any]:
    """Return what a run claims about privacy; ``parties``: of a vertical problem."""
    return {
        "unit": privacy.unit,
        **({"protects": FEATURES} if parties and privacy.unit == "record" else {}),
        "placement": privacy.placement,
        "clip": privacy.clip,
        "adjacency": privacy.adjacency,
        "sampling": privacy.sampling,
        "sampling_rate": privacy.rate,
        "strict": privacy.strict,
        "epsilon_nominal": privacy.spec.epsilon_nominal,
        **claims(privacy, ledger),
    }


def claims(privacy: Privacy, ledger: Ledger) -> dict[str, Any]:
    """Return what a ledger says under a mechanism, with infinity as text: JSON has none."""
    found = ledger.report(privacy.delta, privacy.accountant)
    return {name: "inf" if value == math.inf else value for name, value in found.items()}
