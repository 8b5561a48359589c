"""The centralized reference: SGD on all data in one place.

No paper; the upper reference for every federated method. It shows the cost of not sharing data and protects
nothing: `Meta.pooled` gives it one client that holds all training samples.

Travels: nothing (collecting the data is not counted).

Deviations: none.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, register, step_size


@register
@dataclass(frozen=True, kw_only=True)
class Centralized(Descent):
    """SGD on the pooled training data; a round is the local work of one client.

    Attributes
    ----------
    lr : float
        Step size.
    """

    meta: ClassVar = Meta("centralized", "centralized", ("erm",), "-", pooled=True)

    lr: float = step_size(0.1)

    class State(NamedTuple):
        """The model, ``(..., P)``."""

        x: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model."""
        return self.State(start["x"])

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train for the local steps or epochs of one round."""
        x = self.descend(clients.rows(state.x), clients.batches(self), clients.grad, lr=self.lr)
        return self.State(x.squeeze(-2))
