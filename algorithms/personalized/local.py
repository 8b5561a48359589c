"""Local-only training: nobody talks to anybody.

No paper; the lower reference of every personalized method.

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
    """SGD at every client on its own data, from a common start.

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
        """Start everybody from the problem's model (known to all from the seed: nothing travels)."""
        return self.State(clients.rows(start["x"]))

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Train a little further at home."""
        x = clients.take(state.x)
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        return self.State(clients.put(state.x, x))
