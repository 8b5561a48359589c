"""Algorithms: hyper-parameters and two pure functions, `init` and `round`."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from harness.core import steps
from harness.core.clients.clients import Clients
from harness.core.declarations import declarations
from harness.core.errors import UserError
from harness.core.per_run import is_one
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry
from harness.core.wire.channel import Channel

MOST_SAMPLES = 1_000_000  # in a batch, and steps in a round: their indices are drawn at once
_SCHEDULE = ("lr_decay", "lr_schedule", "lr_period")  # the only fields so named that are no step sizes


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
    chunks : bool
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
    chunks: bool = False
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
        for name, declared in declarations(type(self)).items():
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if not all(map(declared.holds, numbers)):
                raise UserError(f"algorithm {self.meta.name}: {name} must be {declared.words}, given {value}")

    @classmethod
    def step_sizes(cls) -> tuple[str, ...]:
        """Return the names of the fields that are step sizes, which the schedule changes."""
        return tuple(name for name, declared in declarations(cls).items() if declared.step_size)

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
        one by one (`Meta.chunks`), and to find what a message holds without gradients (`Release`). Whatever follows
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
