"""Steps of the server along the clients' average increments."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from torch import Tensor

from harness.core import steps
from harness.core.algorithm import Algorithm
from harness.core.declarations import below_one, positive

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(Algorithm):
    """An algorithm whose server moves its vectors along the clients' average increments.

    Attributes
    ----------
    server_optimizer : {"sgd", "momentum", "adam", "yogi", "adagrad"}
        Update rule; see `steps.server_step`.
    server_lr : float
        Step size of the server; 1 with sgd adds the average increment.
    server_momentum : float
        Decay rate of the first moment (beta_1); not used by sgd.
    server_beta2 : float
        Decay rate of the second moment (beta_2); used by adam and yogi.
    server_tau : float
        Added to the root of the second moment, whose initial value is its square.
    """

    server_optimizer: steps.ServerOptimizer = "sgd"
    server_lr: float = positive(1.0)
    server_momentum: float = below_one(0.9)
    server_beta2: float = below_one(0.99)
    server_tau: float = positive(1e-3)

    def server_init(self, state: S, *names: str) -> S:
        """Return the initial state extended by the server optimizer's memory of the named vectors."""
        kept, optimizer = steps.SERVER_MEMORY[self.server_optimizer], self.server_optimizer
        memory: dict[str, Tensor] = {}
        for name in names:
            begin = steps.server_start(getattr(state, name), optimizer, self.server_tau)
            memory |= {f"{name}_{moment}": first for moment, first in zip(kept, begin, strict=True)}
        if not memory:
            return state
        old: Any = state
        kind: Any = type(state)
        extended: S = _extended(kind, tuple(memory))(*old, *memory.values())
        return extended

    def server_rate(self, name: str) -> float:
        """Return the server's step size for a vector: `server_lr`, unless an algorithm has another one for it."""
        return self.server_lr

    def server_step(self, state: S, **increments: Tensor) -> S:
        """Return the state after a server step along the increments of the named vectors.

        Change other fields by ``._replace(...)``: an adaptive optimizer's state has fields of its own.
        """
        changed: dict[str, Tensor] = {}
        for name, dx in increments.items():
            kept = [f"{name}_{moment}" for moment in steps.SERVER_MEMORY[self.server_optimizer]]
            changed[name], memory = steps.server_step(
                getattr(state, name),
                dx,
                [getattr(state, field) for field in kept],
                optimizer=self.server_optimizer,
                lr=self.server_rate(name),
                beta1=self.server_momentum,
                beta2=self.server_beta2,
                tau=self.server_tau,
            )
            changed |= zip(kept, memory, strict=True)
        moved: S = state._replace(**changed)  # type: ignore[attr-defined]
        return moved


@lru_cache(maxsize=64)
def _extended(state: Any, names: tuple[str, ...]) -> Any:
    """Return a state class with further fields; only optimizers that need them add them to checkpoints."""
    make: Any = namedtuple
    extended = make(state.__name__, (*state._fields, *names))
    extended.__annotations__ = state.__annotations__  # which tell fields about no variable
    return extended
