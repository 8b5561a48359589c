"""Base class of vertical methods: a network of the server and one of each party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.declarations import step_size
from harness.core.methods.descent import Descent
from harness.core.wire.channel import Channel


class Networks(NamedTuple):
    """The server's network ``(P,)`` and the parties' ``(K, Q)``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, kw_only=True)
class Vertical(Descent):
    """SGD of the server and of the parties, each on its own network.

    Attributes
    ----------
    lr : float
        Step size of parties and server.
    """

    State: ClassVar[Any] = Networks

    lr: float = step_size(0.01)

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Networks:
        """Start from the problem's networks; all parties start equal."""
        return Networks(start["x"], clients.rows(start["y"]))

    def model(self, state: Networks) -> tuple[Tensor, Tensor]:
        """Return the server's and the parties' networks."""
        return state.x, state.y
