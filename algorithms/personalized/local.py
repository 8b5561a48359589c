"""Local training without communication.

No paper; the lower reference for every personalized method.

Travels: nothing.

Deviations: none.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, positive, register


@register
@dataclass(frozen=True, kw_only=True)
class Local(Descent):
    """SGD at every client on its own data, from a common initial model.

    Attributes
    ----------
    lr : float
        Step size.
    """

    meta: ClassVar = Meta("local", "personalized", ("erm",), "-")

    lr: float = 0.1

    class State(NamedTuple):
        """The clients' models, ``(..., total, P)``."""

        x: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "lr")

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start every client from the problem's model, which follows from the seed."""
        return self.State(clients.rows(start["x"]))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train for the local steps or epochs of one round."""
        x, m = clients.take(state.x), None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        return self.State(clients.put(state.x, x))
