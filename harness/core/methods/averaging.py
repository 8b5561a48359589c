"""Base class of federated averaging: a state that is the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.wire.channel import Channel


class Model(NamedTuple):
    """The global model, ``(..., P)``."""

    x: Tensor


@dataclass(frozen=True, kw_only=True)
class Averaging(Descent, ServerUpdate):
    """An algorithm with local SGD and a server step, whose server keeps nothing but the model."""

    State: ClassVar[Any] = Model

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Model:
        """Start from the problem's model."""
        return self.server_init(Model(start["x"]), "x")
