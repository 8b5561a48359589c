"""A message and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from datasets.federation import Batch

Sender = Literal["client", "server", "neighbor"]
Weighting = Literal["size", "uniform"]


@dataclass(slots=True)
class Message:
    """A message on its way through the stages; each rewrites `joint` or notes what a later one needs.

    Attributes
    ----------
    slot : int
        Its number in the round; a key of its randomness and of what is remembered of it.
    parts : sequence of Tensor
        What the algorithm sends, ``(..., C, P)`` each; ``(..., P)`` from the server.
    copies : Tensor
        How often each sender's code travels, ``(..., C)``.
    mask : Tensor or None
        Public mask of the joint row; None: everything travels.
    sender : {"client", "server", "neighbor"}
        Who encodes it.
    sparsify : bool
        Whether the sender chooses entries.
    base, scale, samples, pass_on, weighting
        As in the verbs of `Channel`; `samples` is the batch that rows are about.
    joint : Tensor
        The parts as one row, as far as they have come: ``(..., C, n)``, the average ``(..., n)``.
    sizes : Tensor
        Bytes of each code.
    entered : Tensor or None
        What entered the encoder, under error feedback.
    held : Tensor or None
        Weight of the clients that hold each entry, where their models differ.
    arrived : list of Tensor
        The parts as the receiver reads them.
    """

    slot: int
    parts: Sequence[Tensor]
    copies: Tensor
    mask: Tensor | None = None
    sender: Sender = "client"
    sparsify: bool = True
    base: Any = None
    scale: Sequence[float] | None = None
    samples: Batch | None = None
    pass_on: Literal["all", "others"] | None = None
    weighting: Weighting = "size"
    joint: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    entered: Tensor | None = None
    held: Tensor | None = None
    arrived: list[Tensor] = field(init=False)


def increments(rows: Sequence[Tensor], base: Any, scale: Sequence[float] | None) -> list[Tensor]:
    """Return the parts of a message against their base, divided by their public scales."""
    if scale is not None and not all(isinstance(s, float | int) for s in scale):
        raise TypeError("scales are public numbers made of hyper-parameters; a tensor might come from data")
    bases = base if isinstance(base, tuple) else (base,) * len(rows)
    parts = [row if b is None else row - b for row, b in zip(rows, bases, strict=True)]
    return parts if scale is None else [part / s for part, s in zip(parts, scale, strict=True)]


def restored(parts: Sequence[Tensor], scale: Sequence[float] | None) -> list[Tensor]:
    """Return the parts with their scales multiplied back."""
    return list(parts) if scale is None else [part * s for part, s in zip(parts, scale, strict=True)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the parts as one row, which is clipped, noised, encoded and counted as such."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def split(joint: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the row's parts, as long as those it was made of."""
    return list(joint.split([part.shape[-1] for part in like], -1))


def of_server(shared: Tensor | None, joint: Tensor) -> Tensor | None:
    """Return a public mask for a vector of the server's, which has no axis of clients."""
    return shared if shared is None or shared.ndim <= joint.ndim else shared.squeeze(-2)


def plain(values: Sequence[Tensor]) -> Any:
    """Return a single value as itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def combined(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``weights @ rows``, ``(..., A, C)`` by ``(..., C, P)``; the same bits for a run alone and in a stack.

    Torch multiplies one small matrix by another routine than several, which rounds differently.
    """
    return torch.bmm(weights[None], rows[None])[0] if weights.ndim == rows.ndim == 2 else weights @ rows
