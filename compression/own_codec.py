"""Codecs of users: a class that writes the numbers of a message as bytes, and reads them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from compression.codec import CODECS, Codec, Coded
from compression.errors import CompressionError
from compression.sparse_index import positions_end, read_positions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
COUNTS = (0, 1, 2, 7, 64, 1000)  # lengths of messages on which a codec is tried


class OwnCodec(ABC):
    """Base class of a user's codec; subclasses take no arguments and are registered by `codec`.

    Attributes
    ----------
    name : str
        Name in run files.
    stochastic : bool
        Whether `encode` draws from its generator.
    fixed : bool
        Whether the length of a message follows from the number of its entries alone.
    """

    name: ClassVar[str]
    stochastic: ClassVar[bool] = False
    fixed: ClassVar[bool] = True

    @abstractmethod
    def encode(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Write a message.

        Parameters
        ----------
        values : Tensor
            Entries that travel, ``(m,)``, float32 or float64 on the CPU; m may be 0.
        generator : torch.Generator or None
            Source of all draws, of its own for each message; None unless `stochastic`.
        """

    @abstractmethod
    def decode(self, data: bytes, count: int) -> Tensor:
        """Return the ``count`` entries of a message, ``(m,)`` floating point."""

    @abstractmethod
    def size(self, count: int) -> int:
        """Return the bytes of a message with a number of entries: exactly if `fixed`, otherwise at most."""


Own = TypeVar("Own", bound=type[OwnCodec])


def codec(cls: Own) -> Own:
    """Register a subclass of `OwnCodec` under its name, after trying it.

    Raises
    ------
    CompressionError
        If the name is taken or not valid, or the codec breaks its contract: what is counted are the bytes that it
        writes, and what arrives is read from these bytes alone.
    """
    if not (isinstance(cls, type) and issubclass(cls, OwnCodec)):
        raise CompressionError(f"a codec is a subclass of compression.own_codec.OwnCodec, given {cls!r}")
    name = getattr(cls, "name", "")
    if not NAME.fullmatch(name):
        raise CompressionError(f"invalid codec name {name!r}; use letters, digits, '-', '_' and '.'")
    registered = CODECS.get(name)
    if registered is not None and not (
        isinstance(registered, WrittenCodec) and registered.defined.__module__ == "__main__"
    ):
        raise CompressionError(f"two codecs are called {name!r}")
    _check(cls)
    CODECS[name] = WrittenCodec(name, _Values(cls()))
    return cls


@dataclass(frozen=True)
class _Values:
    """A user's codec as a value format."""

    own: OwnCodec
    bits: int = 0  # not of a fixed width
    overhead: int = 0
    pointwise: bool = False

    @property
    def stochastic(self) -> bool:
        """Whether a generator is drawn from."""
        return self.own.stochastic

    def size(self, count: int) -> int:
        """Return the largest number of bytes that this number of entries takes."""
        return self.own.size(count)

    def round_trip(self, values: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Return what the receiver reads, for rows ``(R, m)``."""
        chances = [None] * len(values) if generators is None else generators
        pairs = zip(values, chances, strict=True)
        rows = [self.unpack(self.pack(row, generator), len(row), values.dtype) for row, generator in pairs]
        return torch.stack(rows).to(values.device) if rows else values

    def pack(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Encode one message's entries ``(m,)``, and hold the codec to its size."""
        values = values.detach().cpu().clone()  # it may be changed, and begins at an aligned address
        data = self.own.encode(values, generator if self.stochastic else None)
        if not isinstance(data, bytes):
            raise CompressionError(f"encode returned {type(data).__name__}; return bytes")
        most = self.size(len(values))
        if len(data) > most or (self.own.fixed and len(data) != most):
            how = "takes" if self.own.fixed else "takes at most"
            raise CompressionError(
                f"{len(values)} entries became {len(data)} bytes; size says it {how} {most}"
            )
        return data

    def unpack(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        """Decode ``count`` entries into ``(m,)`` of the given type."""
        values = self.own.decode(data, count)
        if not isinstance(values, Tensor) or values.shape != (count,) or not values.is_floating_point():
            description = (
                (values.dtype, tuple(values.shape)) if isinstance(values, Tensor) else type(values).__name__
            )
            raise CompressionError(f"decode must return {count} floating-point entries, given {description}")
        return values.to(dtype)


@dataclass(frozen=True)
class WrittenCodec(Codec):
    """A codec that writes and reads every message, as the length of the code is known in no other way."""

    values: _Values

    @property
    def defined(self) -> type:
        """The class that somebody wrote."""
        return type(self.values.own)

    @property
    def fixed(self) -> bool:
        """Whether the values' length follows from their number."""
        return self.values.own.fixed

    def apply(
        self,
        rows: Tensor,
        kept: Tensor | None = None,
        generators: Sequence[torch.Generator] | None = None,
        *,
        shared: Tensor | None = None,
    ) -> Coded:
        """Encode and decode a stack of messages, one after the other; see `Codec.apply`."""
        lead, n = rows.shape[:-1], rows.shape[-1]
        flat = rows.reshape(-1, n)
        selected = None if kept is None else kept.expand(rows.shape).reshape(-1, n)
        public = None if shared is None else shared.expand(rows.shape).reshape(-1, n)
        decoded, sizes = torch.empty_like(flat), torch.zeros(len(flat), dtype=torch.int64)
        for place, row in enumerate(flat):
            generator = None if generators is None else generators[place]
            selection, shared_entries = (None if mask is None else mask[place] for mask in (selected, public))
            data = self.encode(row, selection, generator, shared=shared_entries)
            sizes[place] = len(data)
            decoded[place] = self.decode(
                data, n, sparse=selection is not None, shared=shared_entries, dtype=rows.dtype
            )
        return Coded(decoded.reshape(rows.shape), sizes.to(rows.device).reshape(lead))

    def _value_bytes(self, count: Any) -> Any:
        return self.values.size(count)

    def _parted(self, data: bytes, n: int) -> tuple[Tensor, bytes]:
        end = positions_end(data, n)
        return read_positions(data, n, lambda _: len(data) - end)

    def _read_values(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        return self.values.unpack(data, count, dtype)


def _check(cls: type[OwnCodec]) -> None:
    """Raise CompressionError if a codec breaks its contract on some messages."""
    draws = torch.Generator().manual_seed(0)
    messages = [torch.randn(count, generator=draws) * scale for count in COUNTS for scale in (0.0, 1.0, 1e3)]
    messages += [message.double() for message in messages]
    first = _Values(cls())
    with torch.random.fork_rng(devices=[]):
        for number, values in enumerate(messages):
            where = f"codec {cls.name!r}, {len(values)} entries: "
            try:
                data, again, other = (
                    _encode_seeded(writer, values, number) for writer in (first, first, _Values(cls()))
                )
                # Read by an object that has not written.
                arrived = _Values(cls()).unpack(data, len(values), values.dtype)
                repeated = _Values(cls()).unpack(data, len(values), values.dtype)
            except CompressionError as error:
                raise CompressionError(f"{where}{error}") from error
            except Exception as error:  # a user's codec may raise anything
                raise CompressionError(f"{where}{type(error).__name__}: {error}") from error
            if not data == again == other:
                raise CompressionError(
                    f"{where}equal messages became other bytes; draw from the generator only (and set stochastic), "
                    "and keep no state"
                )
            if not arrived.isfinite().all() or not torch.equal(arrived, repeated):
                raise CompressionError(f"{where}decode must make finite numbers of the bytes alone")
            if len(values) == COUNTS[-1] and values.any() and float(arrived.double() @ values.double()) <= 0:
                raise CompressionError(f"{where}what arrives has nothing to do with what was sent")


def _encode_seeded(codec: _Values, values: Tensor, number: int) -> bytes:
    """Encode a message with the generator of its number."""
    torch.manual_seed(torch.initial_seed() + 1)  # whoever draws from it gets other numbers each time
    return codec.pack(values, torch.Generator().manual_seed(number))
