"""Base classes of personalized methods: clipped gradients, and models of an extractor u and a head v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.core.algorithm import Algorithm
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.problem import Problem, join_model, split_model


@dataclass(frozen=True, kw_only=True)
class Personalized(Descent, ServerUpdate):
    """An algorithm with local SGD and a server step, whose gradients are clipped unless a run says otherwise."""

    grad_clip: float | None = 10.0


@dataclass(frozen=True, kw_only=True)
class Divided(Algorithm):
    """An algorithm that sees a model as an extractor, which is shared, and heads."""

    def view(self, problem: Problem) -> Problem:
        """Split the model into extractor and head."""
        return split_model(problem)


@dataclass(frozen=True, kw_only=True)
class Split(Divided):
    """An algorithm whose clients keep their heads: none is sent, and all are trained."""

    def model(self, state: Any) -> Tensor:
        """Return the common extractor with every client's head."""
        return join_model(state.u, state.vi)
