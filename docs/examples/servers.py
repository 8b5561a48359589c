"""A plugin: servers that somebody else wrote, behind this channel.

::

    python -m harness run --plugin docs/examples/servers.py --algorithm coordinate_median --data breast-cancer

Clients take local steps as in federated averaging. What they send is clipped, noised, compressed and counted like
the messages of any algorithm; then a method computes the next model. It must be pure: what it remembers between
rounds would be lost when a run is resumed, so a server with momentum needs a state of its own (see `fedavg`).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, register, step_size


@dataclass(frozen=True, kw_only=True)
class ForeignServer(Descent):
    """Local SGD at the clients, and a server that somebody else wrote.

    Attributes
    ----------
    lr : float
        Local step size.
    """

    lr: float = step_size(0.1)

    class State(NamedTuple):
        """The global model, ``(P,)``."""

        x: Tensor

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model."""
        return self.State(start["x"])

    def trained(self, x: Tensor, clients: Clients) -> Tensor:
        """Return the clients' models after their local steps."""
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        return x


class Aggregator(ForeignServer):
    """A server that sees every client's model; under privacy the clients add the noise."""

    def aggregate(self, round: int, model: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Return the next model ``(P,)``, of the last one ``(P,)`` and the received ones ``(C, P)``."""
        raise NotImplementedError

    def round(self, state, clients, channel):
        """Local SGD, then the aggregate of the received models."""
        x = channel.down(state.x)
        received = state.x + channel.gather(Increment(self.trained(x, clients), of=x))
        made = self.aggregate(clients.round, state.x.cpu().numpy(), received.cpu().numpy())
        return self.State(torch.from_numpy(np.array(made)).to(state.x))


class Postprocessor(ForeignServer):
    """A server that changes the mean increment, as pfl's postprocessors do; it sees what has its noise already."""

    def process(self, round: int, model: np.ndarray, increment: np.ndarray) -> np.ndarray:
        """Return what is added to the model, of the model and the mean increment, all ``(P,)``."""
        raise NotImplementedError

    def round(self, state, clients, channel):
        """Local SGD, then a function of the mean increment."""
        x = channel.down(state.x)
        mean = channel.mean(Increment(self.trained(x, clients), of=x))
        made = self.process(clients.round, state.x.cpu().numpy(), mean.cpu().numpy())
        return self.State(state.x + torch.from_numpy(np.array(made)).to(state.x))


class FlowerStrategy(Aggregator):
    """A server that is ``aggregate_fit`` of a strategy of Flower, which gets one example of each client.

    Not carried over: what the strategy does on clients, its sampling and its evaluation.
    """

    strategy: ClassVar

    def aggregate(self, round, model, received):
        """Hand the models to Flower and take its answer."""
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

        fine = Status(Code.OK, "")
        results = [
            (None, FitRes(fine, ndarrays_to_parameters([row]), num_examples=1, metrics={}))
            for row in received
        ]
        made, _ = self.strategy.aggregate_fit(round + 1, results, [])
        return parameters_to_ndarrays(made)[0].astype(model.dtype)


@register
@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Aggregator):
    """The median of the clients' models, by coordinate."""

    meta: ClassVar = Meta("coordinate_median", "centralized", ("erm",), "an example", stackable=False)

    def aggregate(self, round, model, received):
        """Return the median."""
        return np.median(received, axis=0)


@register
@dataclass(frozen=True, kw_only=True)
class HalfIncrement(Postprocessor):
    """Half of the mean increment."""

    meta: ClassVar = Meta("half_increment", "centralized", ("erm",), "an example", stackable=False)

    def process(self, round, model, increment):
        """Return half of it."""
        return increment / 2


try:
    from flwr.server.strategy import FedMedian
except ImportError:  # Flower is not installed
    pass
else:

    @register
    @dataclass(frozen=True, kw_only=True)
    class FlowerMedian(FlowerStrategy):
        """Flower's own median."""

        meta: ClassVar = Meta("flower_median", "centralized", ("erm",), "an example", stackable=False)
        strategy: ClassVar = FedMedian(fraction_fit=1.0, min_fit_clients=1, min_available_clients=1)
