"""Views of a run between two rounds: snapshots, evaluations and divergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from harness.metrics import Predictions

#: Digits of diagnostics. The last bits of the norm of an average may differ between a stack and a run alone.
DIGITS = 6


class Failure(ArithmeticError):
    """A run computes nothing that is worth going on with.

    Parameters
    ----------
    round : int
        In which it was noticed.
    runs : tuple of int
        Which of the runs of a stack.
    """

    why = ""

    def __init__(self, round: int, runs: tuple[int, ...] = (0,)) -> None:
        super().__init__(f"{self.why} in round {round}")
        self.round = round
        self.runs = runs


class Diverged(Failure):
    """A run's state is no longer finite."""

    why = "diverged: loss or state became NaN or infinite"


class Unmoved(Failure):
    """The trained part of a model with a frozen part has not changed since before the first round."""

    why = "the trained part of the model did not move"


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
