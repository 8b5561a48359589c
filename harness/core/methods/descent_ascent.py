"""Base classes of minimax methods: settings, increments, the server's step, and proximal stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from harness.core.algorithm import Algorithm
from harness.core.clients.clients import Clients
from harness.core.declarations import not_negative, positive, step_size
from harness.core.methods.descent import Descent
from harness.core.methods.server_update import ServerUpdate
from harness.core.wire.channel import Channel
from harness.core.wire.message import Increment

S = TypeVar("S")
Pair = tuple[Tensor, Tensor]
Rates = tuple[Any, Any]  # floats, or a value for each stacked run


class Point(NamedTuple):
    """Server vectors ``(..., P)`` and ``(..., Q)``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, kw_only=True)
class TwoVariables(Algorithm):
    """An algorithm whose clients descend in x and ascend in y.

    Attributes
    ----------
    lr_x, lr_y : float
        Step sizes.
    """

    local_steps: int | None = 10
    lr_x: float = step_size(0.01)
    lr_y: float = step_size(0.01)

    def increments(
        self, clients: Clients, after: Pair, before: Pair, rates: Rates | None = None
    ) -> list[Increment]:
        """Return a client's way from one point to another, scaled by how far its steps may lead.

        Parameters
        ----------
        clients : Clients
            The cohort.
        after, before : tuple of tensors
            The points.
        rates : tuple, optional
            The step sizes, if they are others than `lr_x` and `lr_y`.
        """
        steps = clients.most_steps(self)
        ways = zip(after, before, rates or (self.lr_x, self.lr_y), strict=True)
        return [Increment(new, of=old, scale=steps * lr) for new, old, lr in ways]


@dataclass(frozen=True, kw_only=True)
class DescentAscent(TwoVariables, Descent, ServerUpdate):
    """Local SGD steps of clients that descend in x and ascend in y, and a server step."""

    State: ClassVar[Any] = Point

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Any:
        """Start from the problem's point."""
        return self.server_init(Point(start["x"], start["y"]), "x", "y")

    def server_point(self, state: S, clients: Clients, **increments: Tensor) -> S:
        """Take the server's step, and project y again, as noise and compression may leave the feasible set."""
        new: Any = self.server_step(state, **increments)
        moved: S = new._replace(y=clients.project(new.y))
        return moved


class Snapshot(NamedTuple):
    """Server vectors ``(..., P)`` and ``(..., Q)``, and the snapshot of x, ``(..., P)``."""

    x: Tensor
    y: Tensor
    xs: Tensor


@dataclass(frozen=True, kw_only=True)
class SnapshotDescentAscent(DescentAscent):
    """Descent ascent whose gradients by y may be taken at a snapshot of x."""

    State: ClassVar[Any] = Snapshot

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> Snapshot:
        """Start from the problem's point, which is the first snapshot."""
        return self.server_init(Snapshot(start["x"], start["y"], start["x"]), "x", "y")


@dataclass(frozen=True, kw_only=True)
class StagedDescentAscent(DescentAscent):
    """Descent ascent in stages, each with a proximal term around the x at its beginning and smaller step sizes.

    Attributes
    ----------
    prox : float
        Weight of the proximal term.
    stage_rounds : int
        Rounds per stage.
    decay : float
        Factor by which step sizes fall from stage to stage.
    """

    prox: float = not_negative(0.002)
    stage_rounds: int = positive(200)
    decay: float = positive(3.0)

    def began(self, state: Any, round: int) -> Tensor:
        """Return the x at the beginning of the round's stage, of which the state has the last round's, ``xr``."""
        reference: Tensor = state.x if round % self.stage_rounds == 0 else state.xr
        return reference

    def rates(self, round: int) -> Rates:
        """Return the step sizes of x and y in a round."""
        factor = self.decay ** (round // self.stage_rounds)
        return self.lr_x / factor, self.lr_y / factor
