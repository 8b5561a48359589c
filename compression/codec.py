"""Codecs: a message as a byte string, and the fast path that knows its exact length without building it.

A message is one flat vector ``(n,)`` per sender. Three things decide its code:

* the *value format* (`compression.quantize`), named by the codec;
* ``shared``, a public mask: entries outside it are known by both sides not to travel, so they cost nothing
  (random choice from a common seed, coordinates removed from a public model);
* ``kept``, the sender's own choice among the shared entries (largest magnitudes): the receiver cannot know
  it, so a header and positions go ahead of the values.

Layout without ``kept``: the values, nothing else (the length is public). With ``kept``: the positions
(`compression.sparse_index`), then the values. A kept entry that happens to be zero travels like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from compression.errors import CompressionError, unknown
from compression.quantize import Cast, Sign, Stochastic, ValueFormat
from compression.select import row_counts
from compression.sparse_index import (
    expected_bytes,
    position_bytes,
    read_positions,
    write_positions,
)

Count = TypeVar("Count", int, Tensor)


class Coded(NamedTuple):
    """A stack of messages after encoding and decoding.

    Attributes
    ----------
    decoded : Tensor
        What the receivers read, ``(..., n)``; zero where nothing was sent.
    sizes : Tensor
        Length of each byte string, ``(...)``, int64.
    """

    decoded: Tensor
    sizes: Tensor


@dataclass(frozen=True)
class Codec:
    """A way to write messages, see the module's docstring.

    Attributes
    ----------
    name : str
        Name in the registry.
    values : ValueFormat
        How the numbers are written.
    """

    name: str
    values: ValueFormat

    @property
    def stochastic(self) -> bool:
        """Whether the codec draws from generators."""
        return self.values.stochastic

    @property
    def fixed(self) -> bool:
        """Whether the length of the values follows from their number."""
        return True

    @property
    def entrywise(self) -> bool:
        """Whether the decoded value of an entry is independent of the other entries of its dense message."""
        return isinstance(self.values, Cast)

    def encode(
        self,
        vector: Tensor,
        kept: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        shared: Tensor | None = None,
    ) -> bytes:
        """Write one message.

        Parameters
        ----------
        vector : Tensor
            The message, ``(n,)``, floating point.
        kept : Tensor, optional
            Boolean ``(n,)``: the sender's own choice; whatever lies outside ``shared`` is ignored.
        generator : torch.Generator, optional
            Needed by stochastic formats.
        shared : Tensor, optional
            Public boolean mask ``(n,)``.

        Returns
        -------
        bytes
            The code.

        Raises
        ------
        CompressionError
            If a stochastic format gets no generator, or more than 2^32 - 1 entries are kept.
        """
        if shared is not None:
            vector, kept = vector[shared], None if kept is None else kept[shared]
        if kept is None:
            return self.values.pack(vector, generator)
        return write_positions(kept) + self.values.pack(vector[kept], generator)

    def decode(
        self,
        data: bytes,
        n: int,
        *,
        sparse: bool = False,
        shared: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Read one message.

        Parameters
        ----------
        data : bytes
            What `encode` returned.
        n : int
            Length of the vector.
        sparse : bool
            Whether the sender chose entries (``kept`` was given): a public setting of the run.
        shared : Tensor, optional
            The public mask the sender used, ``(n,)``.
        dtype : torch.dtype
            Floating-point type of the result.

        Returns
        -------
        Tensor
            ``(n,)``; zero where nothing was sent.

        Raises
        ------
        CompressionError
            If the length or the header does not fit.
        """
        width = n if shared is None else int(shared.sum())
        if not sparse:
            entries = self._read_values(data, width, dtype)
        else:
            places, payload = self._parted(data, width)
            entries = torch.zeros(width, dtype=dtype)
            entries[places] = self._read_values(payload, len(places), dtype)
        if shared is None:
            return entries
        vector = torch.zeros(n, dtype=dtype)
        vector[shared.cpu()] = entries
        return vector

    def apply(
        self,
        rows: Tensor,
        kept: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
        *,
        shared: Tensor | None = None,
    ) -> Coded:
        """Encode and decode a stack of messages without building the byte strings.

        Equal, row by row and bit by bit, to `decode` of `encode`, and to the length of the latter.

        Parameters
        ----------
        rows : Tensor
            Messages, ``(..., n)``.
        kept : Tensor, optional
            Boolean ``(n,)`` or ``(..., n)``: the senders' own choices.
        generators : sequence of torch.Generator, optional
            One per row, in row-major order, so that no row depends on another; needed by stochastic formats.
        shared : Tensor, optional
            Public boolean mask, ``(n,)`` or ``(..., n)``.

        Returns
        -------
        Coded
            Decoded rows and byte counts; where nothing is lost or dropped, the rows are the very input.

        Raises
        ------
        CompressionError
            If a stochastic format gets no generators.
        """
        lead, n = rows.shape[:-1], rows.shape[-1]
        messages = lead.numel()
        flat = rows.reshape(messages, n)
        if kept is None and shared is None:
            decoded = self.values.round_trip(flat, generators)
            return Coded(decoded.reshape(rows.shape), self._sizes(n, flat).reshape(lead))
        selected = None if kept is None else kept.expand(rows.shape).reshape(messages, n)
        public = None if shared is None else shared.expand(rows.shape).reshape(messages, n)
        sent = _intersection(selected, public)
        counts = row_counts(sent)
        sizes = self._value_bytes(counts)
        if selected is not None:
            sizes = sizes + position_bytes(sent, public, counts)
        decoded = self._round_trip_sent(flat, sent, counts, generators)
        return Coded(decoded.reshape(rows.shape), sizes.reshape(lead))

    def expected_size(self, n: int, kept: int | None = None) -> float:
        """Return the expected number of bytes if the kept entries lie anywhere with equal probability.

        With values of `fixed` length it is exact without a choice of the sender, and with one if so many entries
        are kept that gaps cannot beat the bitmap; otherwise see `compression.sparse_index.expected_bytes`.

        Parameters
        ----------
        n : int
            Number of entries in play (the shared ones).
        kept : int, optional
            How many of them the sender chooses; None for all, without a header.

        Returns
        -------
        float
            Bytes.
        """
        if kept is None:
            return float(self._value_bytes(n))
        return expected_bytes(n, kept) + self._value_bytes(kept)

    def _value_bytes(self, count: Count) -> Count:
        return (self.values.bits * count + 7) // 8 + self.values.overhead

    def _sizes(self, n: int, flat: Tensor) -> Tensor:
        return torch.full((flat.shape[0],), self._value_bytes(n), dtype=torch.int64, device=flat.device)

    def _round_trip_sent(
        self, flat: Tensor, sent: Tensor, counts: Tensor, generators: Sequence[torch.Generator] | None
    ) -> Tensor:
        """Return what arrives of the marked entries of ``(R, n)``."""
        if self.values.pointwise:
            return torch.where(sent, self.values.round_trip(flat, generators), 0)
        distinct = sorted(set(counts.tolist()))
        if len(distinct) == 1:
            arrived = self.values.round_trip(flat[sent].reshape(len(flat), distinct[0]), generators)
            return torch.zeros_like(flat).masked_scatter(sent, arrived)
        decoded = torch.zeros_like(flat)
        for count in distinct:
            members = (counts == count).nonzero().squeeze(1)
            own_generators = None if generators is None else [generators[i] for i in members.tolist()]
            decoded[members] = self._round_trip_sent(
                flat[members], sent[members], counts[members], own_generators
            )
        return decoded

    def _parted(self, data: bytes, n: int) -> tuple[Tensor, bytes]:
        """Return the positions among ``n`` entries, and the code of the values."""
        return read_positions(data, n, self._value_bytes)

    def _read_values(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        if len(data) != self._value_bytes(count):
            expected = self._value_bytes(count)
            raise CompressionError(
                f"{count} values of codec {self.name!r} take {expected} bytes; got {len(data)}"
            )
        return self.values.unpack(data, count, dtype)


def _intersection(kept: Tensor | None, public: Tensor | None) -> Tensor:
    if kept is not None and public is not None:
        return kept & public
    chosen = public if kept is None else kept
    assert chosen is not None
    return chosen


CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("float64", Cast(torch.float64)),
        Codec("float32", Cast(torch.float32)),
        Codec("float16", Cast(torch.float16)),
        Codec("bfloat16", Cast(torch.bfloat16)),
        *(Codec(f"q{bits}", Stochastic(bits)) for bits in range(1, 9)),
        Codec("sign", Sign()),
    )
}
"""All codecs by name; a new one of ours is a value format and a line here, others are `compression.own_codec`."""


def find_codec(name: str) -> Codec:
    """Return the codec of that name.

    Parameters
    ----------
    name : str
        A key of `CODECS`.

    Returns
    -------
    Codec
        The codec.

    Raises
    ------
    CompressionError
        If there is none; the message names the nearest.
    """
    if name not in CODECS:
        raise unknown("codec", name, CODECS)
    return CODECS[name]
