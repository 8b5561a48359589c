"""The core: all that an algorithm may import, together with the derivatives of `harness.core.calculus`."""

from harness.core.algorithm import ALGORITHMS, Algorithm, Meta, not_negative, positive, register
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.problem import Problem
from harness.core.registry import UserError

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Channel",
    "Clients",
    "Meta",
    "Problem",
    "UserError",
    "not_negative",
    "positive",
    "register",
]
