"""Base classes of personalized methods: clipped gradients, personal models, models of an extractor and a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from harness.core.algorithm import Algorithm
from harness.core.clients.clients import Clients
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.problem import Problem, join_model, split_model
from harness.core.wire.channel import Channel


class OwnModels(NamedTuple):
    """The global model ``(..., P)`` and the personal models ``(..., total, P)``."""

    x: Tensor
    pi: Tensor


class OwnHeads(NamedTuple):
    """The extractor, ``(..., P)``, which clients share, and the heads that they keep, ``(..., total, Q)``."""

    u: Tensor
    vi: Tensor


@dataclass(frozen=True, kw_only=True)
class Personalized(Descent, ServerUpdate):
    """An algorithm with local SGD and a server step, whose gradients are clipped unless a run says otherwise."""

    grad_clip: float | None = 10.0


@dataclass(frozen=True, kw_only=True)
class PersonalModels(Personalized):
    """An algorithm whose clients keep a personal model each, beside the global one."""

    State: ClassVar[Any] = OwnModels

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> OwnModels:
        """Start all models from the problem's model."""
        return self.server_init(OwnModels(start["x"], clients.rows(start["x"])), "x")

    def model(self, state: OwnModels) -> Tensor:
        """Return the personal models."""
        return state.pi


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


@dataclass(frozen=True, kw_only=True)
class PersonalHeads(Personalized, Split):
    """An algorithm that keeps nothing but the extractor and the clients' heads."""

    State: ClassVar[Any] = OwnHeads

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> OwnHeads:
        """Start every client from the same model."""
        return self.server_init(OwnHeads(start["x"], clients.rows(start["y"])), "u")
