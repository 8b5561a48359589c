"""Server sides written for other frameworks, run through this channel.

Clients take local steps as in federated averaging; what they send is clipped, noised, compressed and counted like
the messages of any algorithm. Then the foreign function computes the next model. Call an adapter in a plugin file,
so that the run's identity includes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.core import Channel, Clients, Descent, Increment, Meta, step_size
from harness.core.algorithm import ALGORITHMS, Algorithm
from harness.core.registry import UserError

Array = NDArray[Any]
Aggregate = Callable[[int, Array, Array], Array]
TRIED = 4  # clients of the trial of a strategy


class State(NamedTuple):
    """The global model, ``(P,)``."""

    x: Tensor


@dataclass(frozen=True, kw_only=True)
class _Foreign(Descent):
    """Local SGD at the clients, and a server that somebody else wrote.

    Attributes
    ----------
    lr : float
        Local step size.
    """

    lr: float = step_size(0.1)
    server: ClassVar[Callable[..., Array]]

    def __reduce__(self) -> Any:
        """Pickle as a name and settings: the class is made anew where the plugin is loaded."""
        return _again, (self.meta.name, {one.name: getattr(self, one.name) for one in fields(self)})

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's model."""
        return State(start["x"])

    def _trained(self, x: Tensor, clients: Clients) -> Tensor:
        """Return the clients' models after their local steps."""
        m = None
        for batch in clients.batches(self):
            x, m = self.step(x, clients.grad(x, batch), batch, m, lr=self.lr)
        return x


class _Aggregated(_Foreign):
    """The server sees every message."""

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Local SGD, then the aggregate of the received models."""
        x_t = channel.down(state.x)
        received = state.x + channel.gather(Increment(self._trained(x_t, clients), of=x_t))
        made = type(self).server(clients.round, *(part.cpu().numpy() for part in (state.x, received)))
        return State(_checked(self.meta.name, made, state.x))


class _Postprocessed(_Foreign):
    """The server sees the mean of the messages."""

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Local SGD, then a function of the mean increment."""
        x_t = channel.down(state.x)
        mean = channel.mean(Increment(self._trained(x_t, clients), of=x_t))
        made = type(self).server(clients.round, state.x.cpu().numpy(), mean.cpu().numpy())
        return State(state.x + _checked(self.meta.name, made, state.x))


def aggregator(name: str, aggregate: Aggregate, *, version: int = 1) -> None:
    """Register an algorithm whose server computes the next model from all clients' models.

    Under privacy it needs local noise, as the server sees every message.

    Parameters
    ----------
    name : str
        Name of the algorithm.
    aggregate : Callable
        Maps the round, the model ``(P,)`` and the received models ``(C, P)`` to the next model ``(P,)``. A pure
        function: what it remembers would be lost when a run is resumed.
    version : int
        Raise it when results change.

    Raises
    ------
    UserError
        If there is an algorithm of that name.
    """
    _register(name, _Aggregated, aggregate, version)


def postprocessor(name: str, process: Aggregate, *, version: int = 1) -> None:
    """Register an algorithm whose server applies a function to the mean increment, as pfl's postprocessors do.

    Under privacy the function sees what has its noise already, so the guarantee stays.

    Parameters
    ----------
    name : str
        Name of the algorithm.
    process : Callable
        Maps the round, the model ``(P,)`` and the mean increment ``(P,)`` to what is added. A pure function.
    version : int
        Raise it when results change.

    Raises
    ------
    UserError
        If there is an algorithm of that name.
    """
    _register(name, _Postprocessed, process, version)


def flower_strategy(name: str, strategy: Any, *, version: int = 1) -> None:
    """Register an algorithm whose server is the method ``aggregate_fit`` of a strategy of Flower.

    The strategy gets one array of parameters for each client, with one example each: how many samples clients have
    is not told. A strategy that remembers something between rounds is refused, as it could not be resumed; for
    servers with momentum there are the settings ``server_optimizer`` and ``server_momentum`` of `fedavg`.

    Parameters
    ----------
    name : str
        Name of the algorithm.
    strategy : flwr.server.strategy.Strategy
        The strategy.
    version : int
        Raise it when results change.

    Raises
    ------
    UserError
        If Flower is not installed, the strategy keeps a state, or there is an algorithm of that name.
    """
    try:
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    except ImportError:
        raise UserError("Flower is not installed: pip install flwr") from None
    fine = Status(Code.OK, "")

    def aggregate(round: int, model: Array, received: Array) -> Array:
        results = [
            (None, FitRes(fine, ndarrays_to_parameters([row]), num_examples=1, metrics={}))
            for row in received
        ]
        made, _ = strategy.aggregate_fit(round + 1, results, [])
        if made is None:
            raise UserError(
                f"strategy {name}: aggregate_fit returned no parameters for {len(results)} clients"
            )
        (array,) = parameters_to_ndarrays(made)
        found: Array = array.astype(model.dtype)
        return found

    _check_pure(name, aggregate)
    aggregator(name, aggregate, version=version)


def _check_pure(name: str, aggregate: Aggregate) -> None:
    """Refuse an aggregate that gives something else when it is called again after another call."""
    draw = np.random.default_rng(0)
    model, first, second = (
        draw.normal(size=shape).astype(np.float32) for shape in ((3,), (TRIED, 3), (TRIED, 3))
    )
    before = aggregate(0, model, first)
    aggregate(0, model, second)
    if not np.array_equal(before, aggregate(0, model, first)):
        raise UserError(
            f"strategy {name}: it remembers earlier rounds or draws at random, so no run could be resumed"
        )


def _register(name: str, base: type[_Foreign], server: Callable[..., Array], version: int) -> None:
    """Make the class of an algorithm and register it."""
    if not name.isidentifier():
        raise UserError(f"an algorithm is named by letters, digits and underscores, given {name!r}")
    meta = Meta(name, "centralized", ("erm",), "a function of a plugin", version=version, stackable=False)
    content = {"meta": meta, "server": staticmethod(server), "__doc__": server.__doc__ or base.__doc__}
    made: type[Algorithm] = dataclass(frozen=True, kw_only=True)(type(name, (base,), content))
    ALGORITHMS.add(name, made, server)


def _again(name: str, settings: dict[str, Any]) -> Algorithm:
    """Return an algorithm that was pickled."""
    return ALGORITHMS[name](**settings)


def _checked(name: str, made: Any, like: Tensor) -> Tensor:
    """Return what a server has computed as a tensor."""
    array = np.asarray(made)
    if array.shape != tuple(like.shape):
        raise UserError(
            f"algorithm {name}: its server returned shape {array.shape}, needed is {tuple(like.shape)}"
        )
    return torch.from_numpy(np.array(array)).to(like)
