"""Gradient tracking on a graph, for minimax problems: what methods share that differ in their estimates."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.wire.channel import Channel


class Trackers(NamedTuple):
    """One row per node, ``(..., total, P)`` or ``(..., total, Q)``.

    Attributes
    ----------
    x, y : Tensor
        The points.
    u, v : Tensor
        The estimates of the gradients there.
    ru, rv : Tensor
        The estimates as the neighbors have received them.
    sx, sy : Tensor
        The trackers, which follow the mean of the estimates.
    """

    x: Tensor
    y: Tensor
    u: Tensor
    v: Tensor
    ru: Tensor
    rv: Tensor
    sx: Tensor
    sy: Tensor


def begin(
    start: dict[str, Tensor], batch: LocalBatch, clients: Clients, channel: Channel, hops: int = 1
) -> Trackers:
    """Start all nodes from one point with the mixed gradients of a batch."""
    x, y = clients.rows(start["x"]), clients.rows(start["y"])
    u, v = clients.grads(x, y, batch)
    zeros = torch.zeros_like(u), torch.zeros_like(v)
    (ru, rv), (sx, sy), *_ = channel.mix(u, v, onto=zeros, hops=hops)
    return Trackers(x, y, u, v, ru, rv, sx, sy)


def step(
    state: Trackers, rates: tuple[Any, Any], clients: Clients, channel: Channel, hops: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the mixed points after a step along the trackers with the step sizes of x and y."""
    moved = state.x - rates[0] * state.sx, state.y + rates[1] * state.sy
    x, y = channel.mix(rebroadcast=moved, hops=hops).rebroadcast
    return x, clients.project(y)


def track(
    state: Trackers, points: tuple[Tensor, Tensor], u: Tensor, v: Tensor, channel: Channel, hops: int = 1
) -> Trackers:
    """Return the state at new points with new estimates; trackers follow the change of these."""
    (ru, rv), (sx, sy), *_ = channel.mix(u, v, onto=(state.sx - state.ru, state.sy - state.rv), hops=hops)
    return Trackers(*points, u, v, ru, rv, sx, sy)
