"""The names that an algorithm imports, beside the functions of `harness.core.methods`.

They are imported on first use: a module without tensors, such as `harness.core.errors`, does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.core.algorithm import ALGORITHMS, Algorithm, Meta, Release, register
    from harness.core.clients.clients import Clients
    from harness.core.declarations import (
        at_most_one,
        below_one,
        not_negative,
        positive,
        probability,
        step_size,
    )
    from harness.core.errors import UserError
    from harness.core.losses import cross_entropy, weighted_mean
    from harness.core.methods.descent import Descent
    from harness.core.methods.server_update import ServerUpdate
    from harness.core.problem import Problem, join_model, split_model
    from harness.core.public import Public
    from harness.core.wire.channel import Channel
    from harness.core.wire.message import Increment, Statistic, Value

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Channel",
    "Clients",
    "Descent",
    "Increment",
    "Meta",
    "Problem",
    "Public",
    "Release",
    "ServerUpdate",
    "Statistic",
    "UserError",
    "Value",
    "at_most_one",
    "below_one",
    "cross_entropy",
    "join_model",
    "not_negative",
    "positive",
    "probability",
    "register",
    "split_model",
    "step_size",
    "weighted_mean",
]

#: The module of every name that is not in `harness.core.algorithm`.
_ELSEWHERE = {
    "Channel": "wire.channel",
    "Clients": "clients.clients",
    "Descent": "methods.descent",
    "Increment": "wire.message",
    "Problem": "problem",
    "Public": "public",
    "ServerUpdate": "methods.server_update",
    "Statistic": "wire.message",
    "UserError": "errors",
    "Value": "wire.message",
    "at_most_one": "declarations",
    "below_one": "declarations",
    "cross_entropy": "losses",
    "join_model": "problem",
    "not_negative": "declarations",
    "positive": "declarations",
    "probability": "declarations",
    "split_model": "problem",
    "step_size": "declarations",
    "weighted_mean": "losses",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'algorithm')}"), name)
