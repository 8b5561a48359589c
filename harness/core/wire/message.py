"""Messages, and functions of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core.clients.local_batch import LocalBatch
from harness.core.public import Public, Scale

Sender = Literal["client", "server", "neighbor"]
Weighting = Literal["size", "uniform"]


class Known(NamedTuple):
    """A term of a message that follows from earlier releases, so that it is neither clipped nor noised.

    Attributes
    ----------
    rows : Tensor
        Each client's term, ``(..., C, P)``. Make it only of settings, of what the server has sent, and of what
        this client has sent as `Channel.mean_and_sent` returned it.
    mean : Tensor
        What the server takes as their mean where it learns averages only, and must not use the rows themselves:
        ``(..., P)``, of earlier results only. Gossip needs none.
    remembered : bool
        Whether it is minus what the receiver remembers of the client. What a code leaves out of such a part is in
        the next change, so it needs no error feedback.
    """

    rows: Tensor
    mean: Tensor | None = None
    remembered: bool = False


@dataclass(slots=True)
class Message:
    """The state of a message between stages.

    Attributes
    ----------
    slot : int
        Number of the message in its round; a key of its randomness and of its state between rounds.
    parts : sequence of Tensor
        The parts as the algorithm sends them, ``(..., C, P)`` each; ``(..., P)`` from the server.
    copies : Tensor
        Number of copies of each sender's code that are counted, ``(..., C)``.
    mask : Tensor or None
        Public mask of the joint row; None: all entries are sent.
    sender : {"client", "server", "neighbor"}
        Who encodes it.
    sparsify : bool
        Whether the sender selects entries, or sends factors of matrices.
    together : bool
        Whether only the average of the messages is used, so that the clients may find common factors.
    mixing : Tensor or None
        The mixing matrix, if nodes learn the differences to their neighbors.
    base, scale, known, samples, pass_on, weighting
        As in the methods of `Channel`; `samples` is the batch that rows describe.
    joint : Tensor
        The parts as one row, after the stages so far: ``(..., C, n)``, or their average ``(..., n)``.
    sizes : Tensor
        Bytes of each code.
    answers : Tensor or None
        Bytes that the server sends each client while a message is coded, ``(...)``.
    entered : Tensor or None
        Input of the encoder, if clients remember what it loses.
    integers : Tensor
        Codes of a secure sum, ``(..., C, N)``.
    sent : Tensor
        The joint rows as the receiver has decoded them.
    held : Tensor or None
        Weight of the clients that hold each entry, if their models differ.
    arrived : list of Tensor
        The parts as received.
    """

    slot: int
    parts: Sequence[Tensor]
    copies: Tensor
    mask: Tensor | None = None
    sender: Sender = "client"
    sparsify: bool = True
    together: bool = False
    mixing: Tensor | None = None
    base: Any = None
    scale: Scale | None = None
    known: Sequence[Known | None] | None = None
    samples: LocalBatch | None = None
    pass_on: Literal["all", "others"] | None = None
    weighting: Weighting = "size"
    joint: Tensor = field(init=False)
    sizes: Tensor = field(init=False)
    answers: Tensor | None = None
    entered: Tensor | None = None
    integers: Tensor = field(init=False)
    sent: Tensor = field(init=False)
    held: Tensor | None = None
    arrived: list[Tensor] = field(init=False)


def increments(rows: Sequence[Tensor], base: Any, scale: Scale | None) -> list[Tensor]:
    """Return the parts of a message against their base, divided by their public scales."""
    if scale is not None and not all(s is None or isinstance(s, Public) for s in scale):
        raise TypeError(
            f"scale: give a Public number for each part, or None for 1, got {tuple(scale)}; make it of settings "
            "(Public(0.1)) and of Clients.most_steps, since a number made of the cohort would release it"
        )
    bases = base if isinstance(base, tuple) else (base,) * len(rows)
    parts = [row if b is None else row - b for row, b in zip(rows, bases, strict=True)]
    if scale is None:
        return parts
    return [part if s is None else part / s.of(part) for part, s in zip(parts, scale, strict=True)]


def restored(parts: Sequence[Tensor], scale: Scale | None) -> list[Tensor]:
    """Return the parts multiplied by their scales."""
    if scale is None:
        return list(parts)
    return [part if s is None else part * s.of(part) for part, s in zip(parts, scale, strict=True)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the parts to one row, which is clipped, noised and encoded jointly."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def split(joint: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a row into parts of the same lengths as the given ones."""
    return list(joint.split([part.shape[-1] for part in like], -1))


def of_server(shared: Tensor | None, joint: Tensor) -> Tensor | None:
    """Return a public mask for a vector of the server, which has no client axis."""
    return shared if shared is None or shared.ndim <= joint.ndim else shared.squeeze(-2)


def plain(values: Sequence[Tensor]) -> Any:
    """Return a single value by itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)
