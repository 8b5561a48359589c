"""Messages, and functions of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from harness.core.clients.local_batch import LocalBatch
from harness.core.clients.pruning import NoVariable
from harness.core.public import Public

Sender = Literal["client", "server", "neighbor"]
Weighting = Literal["size", "uniform"]


@dataclass(frozen=True)
class Part:
    """A part of a message: rows that clients send, of which the receiver learns the difference to a base.

    Attributes
    ----------
    row : Tensor
        Rows ``(..., C, P)``; ``(..., P)`` from the server.
    of : Tensor or None
        The base; None: zero.
    scale : Public or None
        Public magnitude by which the difference is divided before the joint clip; None: 1.
    """

    row: Tensor
    of: Tensor | None = None
    scale: Public | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the rows."""
        return self.row.shape

    def __post_init__(self) -> None:
        if not (self.scale is None or isinstance(self.scale, Public)):
            raise TypeError(
                f"scale: give a Public number, or None for 1, got {self.scale}; make it of settings (Public(0.1)) "
                "and of Clients.most_steps, since a number made of the cohort would release it"
            )

    @property
    def scaled(self) -> Tensor:
        """The difference to the base, divided by the scale."""
        change = self.row if self.of is None else self.row - self.of
        return change if self.scale is None else change / self.scale.of(change)

    def restored(self, scaled: Tensor) -> Tensor:
        """Return what has been received, times the scale."""
        return scaled if self.scale is None else scaled * self.scale.of(scaled)


class Increment(Part):
    """A part that is added to what the receiver has: ``Increment(x, of=x_t)``."""


class Value(Part):
    """A part that replaces what the client has sent before: ``Value(c_new, of=c)``.

    The difference travels; what is released is the value, so that noise of earlier releases goes. The client keeps
    what `Channel.mean_and_sent` returns for it.
    """


class Statistic(Part, NoVariable):
    """A part about no variable of the problem, such as class means: ``Statistic(c)``.

    Pruning and factors leave it as it is, even if it is as long as the model.
    """


class Known(NamedTuple):
    """Terms of a message that follow from earlier releases, so that they are neither clipped nor noised.

    Attributes
    ----------
    rows : list of Tensor
        Each client's terms, scaled, ``(..., C, P)`` for each part.
    mean : list of Tensor or None
        What the server takes as their mean where it learns averages only, and must not use the rows themselves,
        ``(..., P)``. None where it sees every message.
    """

    rows: list[Tensor]
    mean: list[Tensor] | None


@dataclass(frozen=True, slots=True)
class Message:
    """The messages of one slot, of all who send one; the stages make a row of each (`harness.core.wire.pipeline`).

    Attributes
    ----------
    slot : int
        Number of the message in its round; a key of its randomness and of its state between rounds.
    parts : sequence of Part
        The parts as the algorithm sends them.
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
    known : Known or None
        Terms that follow from earlier releases.
    replaced : sequence of bool
        Which parts replace what the receiver remembers, so that what a code leaves out of them is in the next
        change anyway; empty: none.
    samples, pass_on, weighting
        As in the methods of `Channel`; `samples` is the batch that rows describe.
    """

    slot: int
    parts: Sequence[Part]
    copies: Tensor
    mask: Tensor | None = None
    sender: Sender = "client"
    sparsify: bool = True
    together: bool = False
    mixing: Tensor | None = None
    known: Known | None = None
    replaced: Sequence[bool] = ()
    samples: LocalBatch | None = None
    pass_on: Literal["all", "others"] | None = None
    weighting: Weighting = "size"


class Code(NamedTuple):
    """A message on the wire.

    Attributes
    ----------
    row : Tensor
        The joint row as decoded, ``(..., C, n)``; ``(..., n)`` from the server.
    sizes : Tensor
        Bytes of each sender's code.
    answers : Tensor or None
        Bytes that the server sends each client while a message is coded, ``(...)``.
    """

    row: Tensor
    sizes: Tensor
    answers: Tensor | None = None


class Average(NamedTuple):
    """The average of the messages of a cohort.

    Attributes
    ----------
    row : Tensor
        The joint row, ``(..., n)``.
    held : Tensor or None
        Weight of the clients that hold each entry, if their models differ.
    """

    row: Tensor
    held: Tensor | None = None


class Arrived(NamedTuple):
    """The average of messages as it has arrived, and what clients have sent for it.

    Attributes
    ----------
    parts : list of Tensor
        The parts of the average.
    sent : Tensor
        Each client's joint row as it was sent.
    """

    parts: list[Tensor]
    sent: Tensor


def parts_of(rows: Sequence[Tensor | Part]) -> list[Part]:
    """Return the parts of a message; rows by themselves have no base."""
    return [row if isinstance(row, Part) else Part(row) for row in rows]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the parts to one row, which is clipped, noised and encoded jointly."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def masked(row: Tensor, mask: Tensor | None) -> Tensor:
    """Return a row with zeros in entries that are not sent."""
    return row if mask is None else row * mask


def split(joint: Tensor, like: Sequence[Tensor | Part]) -> list[Tensor]:
    """Split a row into parts of the same lengths as the given ones."""
    return list(joint.split([part.shape[-1] for part in like], -1))


def sent_entries(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return the rows of a message without the entries that nobody sends, ``(..., C, m)``."""
    if mask is None or mask.ndim == 1:
        return rows if mask is None else rows[..., mask]
    return rows[mask.expand(rows.shape)].view(*rows.shape[:-1], -1)  # equally many in every run


def placed(entries: Tensor, mask: Tensor | None, like: Tensor) -> Tensor:
    """Return rows ``(..., n)`` with the given entries where the mask is true, and zeros elsewhere."""
    if mask is None:
        return entries
    return torch.zeros_like(like).masked_scatter(mask.expand(like.shape), entries.to(like))


def of_server(shared: Tensor | None, joint: Tensor) -> Tensor | None:
    """Return a public mask for a vector of the server, which has no client axis."""
    return shared if shared is None or shared.ndim <= joint.ndim else shared.squeeze(-2)


def plain(values: Sequence[Tensor]) -> Any:
    """Return a single value by itself, several as a tuple."""
    return values[0] if len(values) == 1 else tuple(values)
