"""Local training without communication.

No paper; the lower reference for every personalized method.

Travels: nothing.

Deviations: none.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from harness.core import Channel, Clients, Descent, Meta, register, step_size
from harness.core.problem import Problem, join_model, split_model


@register
@dataclass(frozen=True, kw_only=True)
class Local(Descent):
    """SGD at every client on its own data, from a common initial model.

    Attributes
    ----------
    lr : float
        Step size.
    alternate : bool
        Train the head, then the extractor with the new head, with the local steps or epochs for each: the steps of
        FedRep and FedReCo without what they share.
    """

    meta: ClassVar = Meta("local", "personalized", ("erm",), "-")

    lr: float = step_size(0.1)
    alternate: bool = False

    class State(NamedTuple):
        """The clients' models, ``(..., total, P)``."""

        x: Tensor

    class Halves(NamedTuple):
        """The clients' extractors ``(..., total, P)`` and heads ``(..., total, Q)``, if they alternate."""

        ui: Tensor
        vi: Tensor

    def view(self, problem: Problem) -> Problem:
        """Split the model into extractor and head if they alternate."""
        return split_model(problem) if self.alternate else problem

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State | Halves:
        """Start every client from the problem's model, which follows from the seed."""
        rows = map(clients.rows, start.values())
        return self.Halves(*rows) if self.alternate else self.State(*rows)

    def round(self, state: Any, clients: Clients, channel: Channel) -> State | Halves:
        """Train for the local steps or epochs of one round."""
        if not self.alternate:
            x = self.descend(clients.take(state.x), clients.batches(self), clients.grad, lr=self.lr)
            return self.State(clients.put(state.x, x))
        u, v = clients.take(state.ui), clients.take(state.vi)
        v = self.descend(v, clients.batches(self, stream="head"), partial(clients.grad_y, u), lr=self.lr)
        u = self.descend(u, clients.batches(self), lambda u, batch: clients.grad_x(u, v, batch), lr=self.lr)
        return self.Halves(clients.put(state.ui, u), clients.put(state.vi, v))

    def model(self, state: Any) -> Tensor:
        """Return the clients' models."""
        return join_model(*state) if self.alternate else state.x
