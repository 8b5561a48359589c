"""What an algorithm is: hyper-parameters and two pure functions."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from torch import Tensor

from datasets.federation import Batch
from harness.core import steps
from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry, UserError
from harness.core.wire.message import plain

S = TypeVar("S")
SCHEDULE = ("lr_decay", "lr_schedule", "lr_period")  # what makes step sizes change, and is none


@dataclass(frozen=True)
class Meta:
    """Algorithm metadata used by the harness.

    Attributes
    ----------
    name : str
        Registry name.
    family : str
        Its folder: centralized, personalized, minimax, ...
    solves : tuple[Kind, ...]
        Kinds of problem it accepts.
    paper : str
        Short citation.
    url : str
        Where the paper is, mostly arXiv; empty if there is none.
    version : int
        Raised by hand when the algorithm computes something else than before; part of a run's identity.
    stackable : bool
        Whether runs may be stacked in front of the client axis, ``(R, C, P)``.
    parts : bool
        Whether the cohort may be processed in parts (`harness.core.execution.client_chunks`): the round
        sends one `mean`, as the last thing that concerns clients, and keeps nothing of theirs.
    gossip : bool
        Whether it needs a topology instead of a server.
    epochs : bool
        Whether local work may be measured in epochs; if not, every client takes as many local steps.
    pooled : bool
        Whether it trains on all clients' data in one place, as a reference that protects nothing.
    groups : bool
        Whether it compares sensitive groups.
    steps : int or None
        Local steps a round where the algorithm leaves no choice.
    """

    name: str
    family: str
    solves: tuple[Kind, ...]
    paper: str
    url: str = ""
    version: int = 1
    stackable: bool = True
    parts: bool = False
    gossip: bool = False
    epochs: bool = True
    pooled: bool = False
    groups: bool = False
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Hyper-parameters as fields; `init` and `round` are pure.

    The three fields here say how much local work a client does in a round and on which batches.

    Attributes
    ----------
    local_steps : int or None
        Local steps a round. Every client takes as many; batches walk through reshuffled passes over its data.
    local_epochs : int or None
        Passes over the local data a round, the last batch of a pass may be smaller. At most one of the two
        is given; neither means one epoch.
    batch_size : int or None
        Samples a batch; None, or more than a client has: all its data, every step.
    lr_schedule : {"exponential", "constant", "step", "cosine"}
        How all step sizes called ``lr`` or ``lr_...`` change from round to round; see `steps.rate`.
    lr_decay : float
        Their factor: after every round (exponential), or after every ``lr_period`` rounds (step).
    lr_period : int or None
        Rounds between two drops (step), or until half a cosine wave has come down (cosine).
    """

    meta: ClassVar[Meta]

    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = 32
    lr_decay: float = 1.0
    lr_schedule: steps.Schedule = "exponential"
    lr_period: int | None = None

    def __post_init__(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise UserError(
                f"algorithm {self.meta.name}: give local_steps or local_epochs, not both "
                f"(given {self.local_steps} and {self.local_epochs})"
            )
        if not self.meta.epochs and self.local_steps is None:
            raise UserError(
                f"algorithm {self.meta.name}: its rounds are measured in local_steps; give a number"
            )
        if self.meta.steps not in (None, self.local_steps):
            raise UserError(
                f"algorithm {self.meta.name}: local_steps is {self.meta.steps}, which is what a round of it is; "
                f"given {self.local_steps}"
            )
        for name in ("local_steps", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"algorithm {self.meta.name}: {name} must be at least 1, given {value}")
        if not 0 < self.lr_decay <= 1:
            raise UserError(
                f"algorithm {self.meta.name}: lr_decay must be above 0 and at most 1, given {self.lr_decay}"
            )
        periodic = self.lr_schedule in ("step", "cosine")
        if periodic != (self.lr_period is not None) or (self.lr_period is not None and self.lr_period < 1):
            raise UserError(
                f"algorithm {self.meta.name}: lr_period, at least 1, goes with lr_schedule step or cosine, "
                f"given {self.lr_period} with {self.lr_schedule}"
            )
        if self.lr_schedule in ("constant", "cosine") and self.lr_decay != 1:
            raise UserError(
                f"algorithm {self.meta.name}: lr_decay goes with lr_schedule exponential or step, "
                f"given {self.lr_decay} with {self.lr_schedule}"
            )

    def rate(self, round: int) -> float:
        """Return what the initial step sizes are multiplied by in a round."""
        return steps.rate(self.lr_schedule, round, self.lr_decay, self.lr_period)

    def change(self, round: int) -> float:
        """Return what the step sizes have been multiplied by since the round before."""
        if self.lr_schedule == "exponential":
            return self.lr_decay
        return self.rate(round) / self.rate(max(0, round - 1))

    def at(self, round: int) -> Self:
        """Return the algorithm with the step sizes of a round."""
        factor = self.rate(round)
        if factor == 1:
            return self
        rates = [field.name for field in fields(self) if f"{field.name}_".startswith("lr_")]
        return replace(self, **{name: factor * getattr(self, name) for name in rates if name not in SCHEDULE})

    def view(self, problem: Problem) -> Problem:
        """Return the problem as the algorithm sees it; one that treats parts of a model apart overrides this."""
        return problem

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Any:
        """Make the state before the first round.

        Parameters
        ----------
        start : dict[str, Tensor]
            The problem's start values, ``(..., P)`` each.
        clients : Clients
            All clients.
        channel : Channel
            For what has to be exchanged before the first round; counted and booked like everything else.

        Returns
        -------
        NamedTuple of tensors
            Server vectors ``(..., P)`` and client rows ``(..., total, P)``.
        """
        raise NotImplementedError

    def round(self, state: Any, clients: Clients, channel: Channel) -> Any:
        """Return the state after one more communication round with this cohort."""
        raise NotImplementedError

    def stage(self, round: int) -> int:
        """Return the number of the stage that a round belongs to: the rounds of one stage send alike."""
        return 0

    def model(self, state: Any) -> Any:
        """Return what is evaluated: one model ``(..., P)``, or one per client ``(..., total, P)``.

        Of a vertical problem: the pair of the server's vector and the parties' rows.
        """
        return state.x

    def personal(self, state: Any, clients: Clients) -> Any:
        """Return what is evaluated at the clients: `model`, or what they make of it at home first.

        Nothing of it leaves them, changes the state or is counted. ``clients`` is everybody.
        """
        return self.model(state)


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm):
    """An algorithm whose clients take steps of SGD, all with the same settings.

    Attributes
    ----------
    momentum : float
        How much of the momentum buffer is kept from one local step to the next. It is zero when a round begins.
    weight_decay : float
        What pulls the variables of a local step to zero, times the variable.
    grad_clip : float or None
        Bound on the L2 norm of what a local step follows; None: no bound. It steadies training and protects
        nothing.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    grad_clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "grad_clip")
        not_negative(self, "weight_decay")
        below_one(self, "momentum")
        if self.momentum and self.meta.steps == 1:
            raise UserError(
                f"algorithm {self.meta.name}: momentum begins with a round, which is one step of it"
            )

    def clip(self, *gradients: Tensor) -> Any:
        """Scale every row down to the bound; of several parts, which are returned as a tuple, their joint norm."""
        return plain(steps.clip(gradients, self.grad_clip))

    def direction(
        self,
        x: Any,
        gradient: Any,
        batch: Batch,
        m: Any = None,
        *,
        plus: Any = None,
        ascend: tuple[bool, ...] = (),
    ) -> tuple[Any, Any]:
        """Return what a local step follows, and its momentum buffers; as `step`, which goes there."""
        single = isinstance(x, Tensor)
        found, m = steps.directions(
            (x,) if single else x,
            (gradient,) if single else gradient,
            batch,
            m,
            plus=(plus,) if single and plus is not None else plus,
            ascend=ascend,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
        )
        return (found[0] if single else tuple(found)), m

    def step(
        self, x: Any, gradient: Any, batch: Batch, m: Any = None, *, lr: Any, plus: Any = None
    ) -> tuple[Any, Any]:
        """Take one local step of SGD. Clients that have run out of batches stand still.

        Parameters
        ----------
        x, gradient : Tensor or tuple of Tensor
            Rows ``(..., C, n)``; or several variables with their gradients, which are clipped jointly.
        batch : Batch
            What the gradient is of.
        m : optional
            The momentum buffers that the step before returned; None in the first one of a round.
        lr : float or tuple of float
            Step size, one a variable; a negative one ascends.
        plus : Tensor or tuple, optional
            What is added to the gradient (None of a variable: nothing) and is no gradient of the batch, like a
            proximal term. It is masked here where a client's batch is padding.

        Returns
        -------
        tuple
            The new ``x``, and the buffers for the next step.
        """
        if isinstance(x, Tensor):
            found, m = self.direction(x, gradient, batch, m, plus=plus)
            return x - lr * found, m
        up = tuple(size < 0 for size in lr)
        found, m = self.direction(x, gradient, batch, m, plus=plus, ascend=up)
        return tuple(part - size * way for part, size, way in zip(x, lr, found, strict=True)), m


@dataclass(frozen=True, kw_only=True)
class ServerUpdate(Algorithm):
    """An algorithm whose server moves its vectors along the clients' average increments.

    Attributes
    ----------
    server_optimizer : {"sgd", "momentum", "adam", "yogi", "adagrad"}
        How; see `steps.server_step`.
    server_lr : float
        Step size of the server; 1 with sgd takes the average as it is.
    server_momentum : float
        How much of the first moment is kept from round to round (beta_1); not of sgd.
    server_beta2 : float
        How much of the second moment is kept; of adam and yogi.
    server_tau : float
        What is added to the root of the second moment; its square is the first second moment.
    """

    server_optimizer: steps.ServerOptimizer = "sgd"
    server_lr: float = 1.0
    server_momentum: float = 0.9
    server_beta2: float = 0.99
    server_tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "server_lr", "server_tau")
        below_one(self, "server_momentum", "server_beta2")

    def server_init(self, state: S, *names: str) -> S:
        """Return the first state with what the server's optimizer remembers of these vectors; as it is for sgd."""
        kept, optimizer = steps.SERVER_MEMORY[self.server_optimizer], self.server_optimizer
        memory: dict[str, Tensor] = {}
        for name in names:
            begin = steps.server_start(getattr(state, name), optimizer, self.server_tau)
            memory |= {f"{name}_{part}": first for part, first in zip(kept, begin, strict=True)}
        if not memory:
            return state
        old: Any = state
        kind: Any = type(state)
        found: S = _extended(kind, tuple(memory))(*old, *memory.values())
        return found

    def server_step(self, state: S, **increments: Tensor) -> S:
        """Return the state after the server's step along the increments of some of its vectors, by name."""
        changed: dict[str, Tensor] = {}
        for name, dx in increments.items():
            kept = [f"{name}_{part}" for part in steps.SERVER_MEMORY[self.server_optimizer]]
            changed[name], memory = steps.server_step(
                getattr(state, name),
                dx,
                [getattr(state, part) for part in kept],
                optimizer=self.server_optimizer,
                lr=self.server_lr,
                beta1=self.server_momentum,
                beta2=self.server_beta2,
                tau=self.server_tau,
            )
            changed |= zip(kept, memory, strict=True)
        found: S = state._replace(**changed)  # type: ignore[attr-defined]
        return found


@lru_cache(maxsize=64)
def _extended(state: Any, names: tuple[str, ...]) -> Any:
    """Return a state class with more fields; one without them never has them, so old checkpoints stay readable."""
    return namedtuple(state.__name__, (*state._fields, *names))


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm")


def register(cls: type[Algorithm]) -> type[Algorithm]:
    """Make an algorithm known under its meta's name."""
    return ALGORITHMS.add(cls.meta.name, cls)


def positive(algorithm: Algorithm, *names: str) -> None:
    """Check in ``__post_init__`` that fields are finite numbers above zero, or None."""
    for name in names:
        value = getattr(algorithm, name)
        if value is not None and not (np.isfinite(value) and value > 0):
            raise UserError(f"algorithm {algorithm.meta.name}: {name} must be above 0, given {value}")


def not_negative(algorithm: Algorithm, *names: str) -> None:
    """Check in ``__post_init__`` that fields are finite numbers of at least zero."""
    for name in names:
        value = getattr(algorithm, name)
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise UserError(f"algorithm {algorithm.meta.name}: {name} must be at least 0, given {value}")


def below_one(algorithm: Algorithm, *names: str) -> None:
    """Check in ``__post_init__`` that fields are at least zero and below one."""
    for name in names:
        value = getattr(algorithm, name)
        if not 0 <= value < 1:
            raise UserError(
                f"algorithm {algorithm.meta.name}: {name} must be at least 0 and below 1, given {value}"
            )
