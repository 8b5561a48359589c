"""Algorithms: hyper-parameters and two pure functions, `init` and `round`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from torch import Tensor

from harness.core import steps
from harness.core.clients.batches import Batches
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.errors import UserError
from harness.core.per_run import is_one
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry
from harness.core.wire.channel import Channel
from harness.core.wire.message import plain
from privacy.clipping import scale_to_norm

S = TypeVar("S")
Variables = TypeVar("Variables", Tensor, tuple[Tensor, ...])  # one, or several that are clipped jointly
MOST_SAMPLES = 1_000_000  # in a batch, and steps in a round: their indices are drawn at once
_SCHEDULE = ("lr_decay", "lr_schedule", "lr_period")  # the only fields so named that are no step sizes
_STEP_SIZE, _BOUND = "step size", "bound"  # keys in the metadata of fields


class Bound(NamedTuple):
    """A condition on a setting, and its words.

    Attributes
    ----------
    holds : Callable
        Whether a number is allowed.
    words : str
        What it must be.
    """

    holds: Callable[[float], bool]
    words: str


POSITIVE = Bound(lambda value: bool(np.isfinite(value)) and value > 0, "above 0")
NOT_NEGATIVE = Bound(lambda value: bool(np.isfinite(value)) and value >= 0, "at least 0")
BELOW_ONE = Bound(lambda value: 0 <= value < 1, "at least 0 and below 1")
AT_MOST_ONE = Bound(lambda value: 0 < value <= 1, "above 0 and at most 1")
PROBABILITY = Bound(lambda value: 0 <= value <= 1, "from 0 to 1")


def positive(default: float | tuple[float, ...] | None) -> Any:
    """Declare a field that is a finite number above 0, some of them, or None: ``mu: float = positive(0.1)``."""
    return field(default=default, metadata={_BOUND: POSITIVE})


def not_negative(default: float | None) -> Any:
    """Declare a field that is a finite number of at least 0, or None."""
    return field(default=default, metadata={_BOUND: NOT_NEGATIVE})


def below_one(default: float) -> Any:
    """Declare a field that is at least 0 and below 1."""
    return field(default=default, metadata={_BOUND: BELOW_ONE})


def at_most_one(default: float) -> Any:
    """Declare a field that is above 0 and at most 1."""
    return field(default=default, metadata={_BOUND: AT_MOST_ONE})


def probability(default: float) -> Any:
    """Declare a field that is from 0 to 1."""
    return field(default=default, metadata={_BOUND: PROBABILITY})


def step_size(default: float, *, zero: bool = False) -> Any:
    """Declare a field as a step size, which `Algorithm.lr_schedule` changes from round to round.

    It is above 0, or at least 0 with ``zero``.
    """
    return field(default=default, metadata={_BOUND: NOT_NEGATIVE if zero else POSITIVE, _STEP_SIZE: True})


def _declarations(cls: type) -> dict[str, Mapping[str, Any]]:
    """Return what fields are declared to be; a subclass that changes a default only keeps the declaration."""
    metadata: dict[str, Mapping[str, Any]] = {}
    for base in reversed(cls.__mro__):
        declared = base.__dict__.get("__dataclass_fields__", {}).values()
        metadata |= {
            declaration.name: declaration.metadata
            for declaration in declared
            if _BOUND in declaration.metadata
        }
    return metadata


def _several(variables: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (variables,) if isinstance(variables, Tensor) else variables


@dataclass(frozen=True)
class Meta:
    """Algorithm metadata used by the harness.

    Attributes
    ----------
    name : str
        Registry name.
    family : str
        Folder of the algorithm: centralized, personalized, minimax, ...
    solves : tuple[Kind, ...]
        Accepted kinds of problem.
    paper : str
        Short citation.
    url : str
        Link to the paper, or to its authors' code; empty if there is none.
    version : int
        Part of a run's identity; increase it when the algorithm's results change.
    stackable : bool
        Whether runs may be stacked in front of the client axis, ``(R, C, P)``. If not, each runs alone;
        `harness.simulation.stacking` lists what else keeps runs apart.
    parts : bool
        Whether the cohort may be processed client by client (`harness.core.wire.client_chunks`): a round
        sends one `mean`, after all client computations, and keeps no client state.
    gossip : bool
        Whether it needs a topology instead of a server; without it a run gets none.
    epochs : bool
        Whether local work may be measured in epochs; if not, all clients take the same number of local steps.
    pooled : bool
        Whether it trains on the pooled data of all clients, as a reference without privacy.
    groups : bool
        Whether it depends on sensitive groups; data without them are then refused.
    classes : bool
        Whether it distinguishes the classes of samples.
    steps : int or None
        The only allowed number of local steps; None: any.
    apart : tuple of str
        Numbers that stacked runs must share, because they decide something else than arithmetic on rows.
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
    classes: bool = False
    steps: int | None = None
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Base class of algorithms: hyper-parameters as fields, `init` and `round` as pure functions.

    Attributes
    ----------
    local_steps : int or None
        Local steps per round, the same for every client. Batches come from reshuffled passes over its data.
    local_epochs : int or None
        Passes over the local data per round; the last batch of a pass may be smaller. Give at most one of the
        two; neither means one epoch.
    batch_size : int or None
        Samples per batch; None, or more than a client has: all its data in every step.
    lr_schedule : {"exponential", "constant", "step", "cosine"}
        Schedule of all step sizes (`step_size`); see `steps.rate`.
    lr_decay : float
        Factor per round (exponential) or per ``lr_period`` rounds (step).
    lr_period : int or None
        Rounds between two drops (step), or length of the half cosine wave (cosine).
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
                f"algorithm {self.meta.name}: give local_steps or local_epochs, not both; "
                f"given {self.local_steps} and {self.local_epochs}"
            )
        if not self.meta.epochs and self.local_steps is None:
            raise UserError(f"algorithm {self.meta.name}: needs local_steps; local_epochs is not supported")
        if self.meta.steps not in (None, self.local_steps):
            raise UserError(
                f"algorithm {self.meta.name}: local_steps must be {self.meta.steps}, given {self.local_steps}"
            )
        for name in ("local_steps", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_SAMPLES:
                bound = "at least 1" if value < 1 else f"at most {MOST_SAMPLES:,}"
                raise UserError(f"algorithm {self.meta.name}: {name} must be {bound}, given {value}")
        if not 0 < self.lr_decay <= 1:
            raise UserError(
                f"algorithm {self.meta.name}: lr_decay must be above 0 and at most 1, given {self.lr_decay}"
            )
        periodic = self.lr_schedule in ("step", "cosine")
        if periodic != (self.lr_period is not None) or (self.lr_period is not None and self.lr_period < 1):
            raise UserError(
                f"algorithm {self.meta.name}: lr_schedule step and cosine need an lr_period of at least 1, the "
                f"others none; given {self.lr_period} with {self.lr_schedule}"
            )
        if self.lr_schedule in ("constant", "cosine") and self.lr_decay != 1:
            raise UserError(
                f"algorithm {self.meta.name}: lr_decay needs lr_schedule exponential or step, "
                f"given {self.lr_decay} with {self.lr_schedule}"
            )
        for name, declared in _declarations(type(self)).items():
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(map(declared[_BOUND].holds, numbers)):
                raise UserError(
                    f"algorithm {self.meta.name}: {name} must be {declared[_BOUND].words}, given {value}"
                )

    @classmethod
    def step_sizes(cls) -> tuple[str, ...]:
        """Return the names of the fields that are step sizes, which the schedule changes."""
        return tuple(name for name, declared in _declarations(cls).items() if _STEP_SIZE in declared)

    def rate(self, round: int) -> float:
        """Return the factor of the initial step sizes in a round."""
        return steps.rate(self.lr_schedule, round, self.lr_decay, self.lr_period)

    def change(self, round: int) -> float:
        """Return the ratio of this round's step sizes to those of the previous round."""
        if self.lr_schedule == "exponential":
            return self.lr_decay
        return self.rate(round) / self.rate(max(0, round - 1))

    def at(self, round: int) -> Self:
        """Return the algorithm with the step sizes of a round."""
        factor = self.rate(round)
        if is_one(factor):
            return self
        changed = copy(self)  # without the checks, which the settings of stacked runs would not pass
        for name in self.step_sizes():
            object.__setattr__(changed, name, factor * getattr(self, name))
        return changed

    def view(self, problem: Problem) -> Problem:
        """Return the problem as the algorithm sees it, for instance with a split model."""
        return problem

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Any:
        """Return the state before the first round.

        Parameters
        ----------
        start : dict[str, Tensor]
            The problem's start values, ``(..., P)`` each.
        clients : Clients
            All clients.
        channel : Channel
            For messages before the first round, which are counted and booked like all others.

        Returns
        -------
        NamedTuple of tensors
            Server vectors ``(..., P)`` and client rows ``(..., total, P)``, such as ``clients.rows(start["x"])``. A
            number per client is a row of length 1.
        """
        raise NotImplementedError

    def round(self, state: Any, clients: Clients, channel: Channel) -> Any:
        """Return the state after a communication round with this cohort.

        ``clients`` computes and ``channel`` sends. Rows that clients keep come from ``clients.take(state.c)``,
        ``(..., C, P)``, and go back by ``clients.put(state.c, rows)``.

        A round may be called several times with one state, and may be left at a message: where clients are computed
        one by one (`Meta.parts`), and to find what a message holds without gradients (`Release`). Whatever follows
        the message, ``finally`` and ``except BaseException`` aside, then does not happen.
        """
        raise NotImplementedError

    def stage(self, round: int) -> int:
        """Return the number of a round's stage; rounds of one stage send the same kinds of messages.

        A plan counts one round of every stage. A later stage must not release more than the first.
        """
        return 0

    def model(self, state: Any) -> Any:
        """Return the model to evaluate, ``(..., P)``, or one per client, ``(..., total, P)``.

        By default the server's x; in gossip the average of the nodes.
        For a vertical problem: the pair of the server's vector and the parties' rows.
        """
        return state.x.mean(-2) if self.meta.gossip else state.x

    def personal(self, state: Any, clients: Clients) -> Any:
        """Return the models to evaluate at the clients: `model`, possibly adapted locally.

        Nothing is sent or counted, and the state does not change. ``clients`` holds all clients. Batches for
        adapting come from a stream of their own.
        """
        return self.model(state)


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm):
    """An algorithm whose clients take SGD steps, all with the same settings.

    A step by a rule of the paper's own (an estimator, a closed form) is none of these and has no such settings.

    Attributes
    ----------
    momentum : float
        Momentum of the local steps. The buffers are zero at the start of a round.
    weight_decay : float
        L2 regularization of the local steps.
    grad_clip : float or None
        Bound on the L2 norm of a local step's gradient; None: no bound. It stabilizes training and gives no
        privacy guarantee.
    """

    momentum: float = below_one(0.0)
    weight_decay: float = not_negative(0.0)
    grad_clip: float | None = positive(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.meta.steps == 1:
            raise UserError(
                f"algorithm {self.meta.name}: momentum must be 0, given {self.momentum}: it restarts every round, "
                "and a round is a single step"
            )

    def reach(self, batches: Batches) -> Tensor:
        """Return how far a round's steps lead each client along a constant direction, ``(..., C, 1)``.

        In units of the step size: the number of steps, more with momentum. A client without a batch counts as one
        with one.
        """
        return steps.reach(batches.num_steps.clamp(min=1), self.momentum)

    @property
    def _changes_gradients(self) -> bool:
        """Whether steps go elsewhere than along the gradients."""
        return self.grad_clip is not None or bool(self.momentum or self.weight_decay)

    def clip(self, *gradients: Tensor) -> Any:
        """Scale every row down to `grad_clip`; several parts are clipped jointly and returned as a tuple."""
        return plain(gradients if self.grad_clip is None else scale_to_norm(gradients, self.grad_clip))

    def direction(
        self,
        x: Variables,
        gradient: Variables,
        batch: steps.Taken,
        m: Sequence[Tensor] | None = None,
        *,
        plus: Variables | None = None,
        correction: Variables | None = None,
        ascend: tuple[bool, ...] = (),
    ) -> tuple[Variables, Sequence[Tensor] | None]:
        """Return the direction of a local step and its momentum buffers; arguments as in `step`."""
        if plus is None and correction is None and not self._changes_gradients:
            return gradient, None
        directions, buffers = steps.directions(
            _several(x),
            _several(gradient),
            batch,
            m,
            plus=None if plus is None else _several(plus),
            correction=None if correction is None else _several(correction),
            ascend=ascend,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
        )
        return (directions[0] if isinstance(x, Tensor) else tuple(directions)), buffers

    def step(
        self,
        x: Variables,
        gradient: Variables,
        batch: steps.Taken,
        m: Sequence[Tensor] | None = None,
        *,
        lr: Any,
        plus: Variables | None = None,
        correction: Variables | None = None,
    ) -> tuple[Variables, Sequence[Tensor] | None]:
        """Take one local SGD step. Clients without a batch left do not move.

        Parameters
        ----------
        x, gradient : Tensor or tuple of Tensor
            Rows ``(..., C, n)``; or several variables with their gradients, which are clipped jointly.
        batch : LocalBatch or Batch
            The batch of the gradient.
        m : optional
            Momentum buffers returned by the previous step; None in the first step of a round.
        lr : float or tuple of float
            Step size of each variable; a negative one ascends.
        plus : Tensor or tuple, optional
            Terms added to the gradients before clipping, like a proximal term; None for no term. They are masked
            where a client's batch is padding.
        correction : Tensor or tuple, optional
            Terms added after clipping: corrections that follow from earlier messages, which would otherwise take
            the place of gradients within `grad_clip`. Masked likewise.

        Returns
        -------
        tuple
            The new ``x``, and the buffers for the next step.
        """
        if isinstance(x, Tensor):
            direction, m = self.direction(x, gradient, batch, m, plus=plus, correction=correction)
            return steps.moved(x, lr * direction), m
        up = tuple(size < 0 for size in lr)
        directions, m = self.direction(x, gradient, batch, m, plus=plus, correction=correction, ascend=up)
        return tuple(
            steps.moved(part, size * way) for part, size, way in zip(x, lr, directions, strict=True)
        ), m

    def descend(
        self,
        x: Tensor,
        batches: Iterable[LocalBatch],
        gradient: Callable[[Tensor, LocalBatch], Tensor],
        *,
        lr: Any,
        correction: Tensor | None = None,
    ) -> Tensor:
        """Take local SGD steps along ``gradient(x, batch)``, one for each batch; other arguments as in `step`."""
        m = None
        for batch in batches:
            x, m = self.step(x, gradient(x, batch), batch, m, lr=lr, correction=correction)
        return x


@dataclass(frozen=True, kw_only=True)
class Release(Algorithm):
    """An algorithm whose messages contain terms that follow from earlier releases.

    What a client would send if all its gradients were zero is such a term; the channel finds it by going through
    `round` without gradients (`harness.core.wire.known_terms`).

    Attributes
    ----------
    release : {"value", "change"}
        What passes the privacy mechanism: only the private values behind a message, so that noise does not add up
        where the server accumulates, or the message as it travels. Without privacy both are the same method
        (docs/releases.md).
    """

    release: Literal["value", "change"] = "value"


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
            memory |= {f"{name}_{part}": first for part, first in zip(kept, begin, strict=True)}
        if not memory:
            return state
        old: Any = state
        kind: Any = type(state)
        extended: S = _extended(kind, tuple(memory))(*old, *memory.values())
        return extended

    def server_step(self, state: S, **increments: Tensor) -> S:
        """Return the state after a server step along the increments of the named vectors.

        Change other fields by ``._replace(...)``: an adaptive optimizer's state has fields of its own.
        A field ``server_lr_<name>`` that is not None replaces `server_lr` for that vector.
        """
        changed: dict[str, Tensor] = {}
        for name, dx in increments.items():
            of_variable = getattr(self, f"server_lr_{name}", None)
            kept = [f"{name}_{part}" for part in steps.SERVER_MEMORY[self.server_optimizer]]
            changed[name], memory = steps.server_step(
                getattr(state, name),
                dx,
                [getattr(state, part) for part in kept],
                optimizer=self.server_optimizer,
                lr=self.server_lr if of_variable is None else of_variable,
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


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm")


def register(cls: type[Algorithm]) -> type[Algorithm]:
    """Register an algorithm under the name of its metadata.

    Raises
    ------
    TypeError
        If a field is named like a step size and not declared as one, so that no schedule would change it.
    """
    for setting in fields(cls):
        named = setting.name == "lr" or setting.name.startswith("lr_")
        if named and setting.name not in (*_SCHEDULE, *cls.step_sizes()):
            raise TypeError(
                f"algorithm {cls.meta.name}: declare {setting.name} as a step size, "
                f"{setting.name}: float = step_size({setting.default}), or give it another name"
            )
    return ALGORITHMS.add(cls.meta.name, cls)
