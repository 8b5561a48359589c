"""FedSGDA-M: local descent ascent with momentum-based variance reduction.

Wu, Sun, Hu, Zhang, Huang: "Solving a Class of Non-Convex Minimax Optimization in Federated Learning",
NeurIPS 2023, Algorithm 2.

=====================  ===========================================================
paper                  here
=====================  ===========================================================
x, y                   ``state.x``, ``state.y``
u, v                   ``state.u``, ``state.v``: estimates of the two gradients
x_{t-1}, y_{t-1}       ``state.xp``, ``state.yp``: the client's previous point
chat eta, c eta        ``lr_x``, ``lr_y``
alpha, beta            ``alpha``, ``beta``: weight of the fresh gradient
B                      ``first_batch``
Q                      ``local_steps``
=====================  ===========================================================

Travels: (x, y, u, v) down and up (their increments); 4 (d_x + d_y) scalars per client and round.
Under privacy, ``release: value`` protects what is private in these messages, not what follows from earlier ones
(docs/releases.md).

Deviations: the first estimate uses one batch unless ``first_batch`` is given (the paper leaves its size open), and
clients that join later start from the server's. The point before a synchronization
is the client's own, as printed. y is projected after every step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from harness.core import Channel, Clients, Increment, Meta, Release, at_most_one, positive, register
from harness.core.clients.local_batch import LocalBatch
from harness.core.methods.descent_ascent import TwoVariables


@register
@dataclass(frozen=True, kw_only=True)
class FedSGDAM(TwoVariables, Release):
    """Local descent in x and ascent in y along variance-reduced estimates; all four are averaged.

    Attributes
    ----------
    alpha, beta : float
        Weight of the fresh gradient in the estimates of x and y, in (0, 1]; 1 is Local SGDA.
    first_batch : int or None
        Samples of the first estimates, B. Their error lasts about 1 / alpha steps. None: ``batch_size``.
    average_prev : bool
        Also average the previous points, as FedBiOAcc does; d_x + d_y more each way.
    """

    meta: ClassVar = Meta(
        "fedsgda_m", "minimax", ("minimax",), "Wu et al. 2023",
        "https://github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-Optimization",
        version=2, epochs=False,
    )  # fmt: skip

    alpha: float = at_most_one(0.1)
    beta: float = at_most_one(0.1)
    first_batch: int | None = positive(None)
    average_prev: bool = False

    class State(NamedTuple):
        """Server vectors ``(..., P)`` and ``(..., Q)``, clients' previous points, whether these exist (0, 1)."""

        x: Tensor
        y: Tensor
        u: Tensor
        v: Tensor
        xp: Tensor
        yp: Tensor
        started: Tensor

    def stage(self, round: int) -> int:
        """Return 0 for a first round with a batch of its own, 1 for the others."""
        return int(self.first_batch is None or round > 0)

    def batches(self, clients: Clients) -> Iterator[LocalBatch]:
        """Return the batches of a round; the first of all may have a size of its own."""
        batches = iter(clients.batches(self))
        if not self.stage(clients.round):
            yield from clients.batches(self, steps=1, batch_size=self.first_batch, stream="first")
            next(batches)
        yield from batches

    def init(self, start: dict[str, Tensor], clients: Clients, channel: Channel) -> State:
        """Start from the problem's point; the first batch gives the estimates."""
        x, y = start["x"], start["y"]
        started = torch.zeros_like(x[..., :1])
        zeros = torch.zeros_like(x), torch.zeros_like(y)
        return self.State(x, y, *zeros, clients.rows(x), clients.rows(y), started)

    def round(self, state: State, clients: Clients, channel: Channel) -> State:
        """Take Q local steps with two gradients per batch, then average points and estimates."""
        x, y, u, v = x_t, y_t, u_t, v_t = channel.down(state.x, state.y, state.u, state.v)
        xp, yp = clients.take(state.xp), clients.take(state.yp)
        started = clients.rows(state.started)
        for batch in self.batches(clients):
            gx, gy = clients.grads(x, y, batch)
            gxp, gyp = clients.grads(xp, yp, batch)
            u = gx + (1 - self.alpha) * started * (u - gxp)
            v = gy + (1 - self.beta) * started * (v - gyp)
            xp, yp, started = x, y, torch.ones_like(started)
            x, y = x - self.lr_x * u, clients.project(y + self.lr_y * v)
        moved = channel.mean(
            *self.increments(clients, (x, y), (x_t, y_t)),
            Increment(u, of=u_t),
            Increment(v, of=v_t),
            weighting="uniform",
        )
        if self.average_prev:
            before = channel.mean(*self.increments(clients, (xp, yp), (x_t, y_t)), weighting="uniform")
            xp, yp = channel.down(state.x + before[0], clients.project(state.y + before[1]))
        x, y, u, v = (old + step for old, step in zip(state[:4], moved, strict=True))
        y = clients.project(y)  # noise and compression may leave the feasible set
        rows = clients.put(state.xp, xp), clients.put(state.yp, yp)
        return self.State(x, y, u, v, *rows, torch.ones_like(state.started))
