"""What an algorithm is: hyper-parameters and two pure functions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from harness.core.channel import Channel
from harness.core.clients import Clients
from harness.core.problem import Kind, Problem
from harness.core.registry import Registry, UserError
from harness.core.wire.message import plain


@dataclass(frozen=True)
class Meta:
    """What the house must know about an algorithm.

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
    lr_decay : float
        What all step sizes called ``lr`` or ``lr_...`` are multiplied by after every round.
    """

    meta: ClassVar[Meta]

    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = 32
    lr_decay: float = 1.0

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

    def at(self, round: int) -> Self:
        """Return the algorithm with the step sizes of a round."""
        if self.lr_decay == 1:
            return self
        rates = [field.name for field in fields(self) if f"{field.name}_".startswith("lr_")]
        rates.remove("lr_decay")
        factor = self.lr_decay**round
        return replace(self, **{name: factor * getattr(self, name) for name in rates})

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
    """An algorithm whose clients take steps of SGD, whose gradients may be clipped.

    Attributes
    ----------
    grad_clip : float or None
        Bound on the L2 norm of what a local step follows; None: no bound. It steadies training and protects
        nothing.
    """

    grad_clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "grad_clip")

    def clip(self, *gradients: Tensor) -> Any:
        """Scale every row down to the bound; of several parts, which are returned as a tuple, their joint norm."""
        if self.grad_clip is None:
            return plain(gradients)
        norms = [torch.linalg.vector_norm(gradient, dim=-1, keepdim=True) for gradient in gradients]
        norm = norms[0] if len(norms) == 1 else torch.cat(norms, -1).norm(dim=-1, keepdim=True)
        if not bool((norm > self.grad_clip).any()):
            return plain(gradients)  # mostly so, and then nothing is copied
        factor = (self.grad_clip / norm).clamp(max=1.0)
        return plain([factor * gradient for gradient in gradients])


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
        if not (np.isfinite(value) and value >= 0):
            raise UserError(f"algorithm {algorithm.meta.name}: {name} must be at least 0, given {value}")
