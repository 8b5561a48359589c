"""Value formats: how the numbers of one message become bytes, and what the receiver reads out of them.

A format sees only the entries that are sent, ``(m,)`` for one message or ``(R, m)`` for a stack; which
entries these are is the codec's business. All formats take a number of bits per entry plus a fixed overhead,
so the length of the values follows from their count alone. Numbers are little-endian; codes of less than a
byte fill each byte from its lowest bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compression.errors import CompressionError

_SCALE_BYTES = 4
_UNSIGNED = {2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


class ValueFormat(Protocol):
    """Number format of a codec."""

    @property
    def bits(self) -> int:
        """Bits per entry."""

    @property
    def overhead(self) -> int:
        """Bytes per message besides the entries."""

    @property
    def pointwise(self) -> bool:
        """Whether each entry is coded without regard to the others of its message."""

    @property
    def stochastic(self) -> bool:
        """Whether a generator is drawn from."""

    def round_trip(self, values: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Return what the receiver reads, for rows ``(R, m)``, one generator a row."""

    def pack(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Encode one message's entries ``(m,)``."""

    def unpack(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        """Decode ``count`` entries into ``(m,)`` of the given type."""


@dataclass(frozen=True)
class Cast:
    """Floating-point numbers of a fixed width, rounded to nearest.

    Magnitudes beyond the largest finite number of a narrower type saturate there instead of turning into
    infinity, which would poison the average of a whole cohort.

    Attributes
    ----------
    dtype : torch.dtype
        float64, float32, float16 or bfloat16.
    """

    dtype: torch.dtype
    overhead: int = 0
    pointwise: bool = True
    stochastic: bool = False

    @property
    def bits(self) -> int:
        """Bits per entry."""
        return 8 * self.dtype.itemsize

    def _exact(self, dtype: torch.dtype) -> bool:
        """Return whether every finite number of this type survives unchanged."""
        return torch.promote_types(dtype, self.dtype) == self.dtype

    def round_trip(self, values: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Return the rounded numbers; the very same tensor where rounding changes nothing."""
        return values if self._exact(values.dtype) else self._narrow(values).to(values.dtype)

    def pack(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Encode one message's entries ``(m,)``."""
        width = self.dtype.itemsize
        numbers = self._narrow(values).cpu().contiguous().view(_UNSIGNED[width]).numpy()
        return numbers.astype(f"<u{width}", copy=False).tobytes()

    def unpack(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        """Decode ``count`` entries into ``(m,)`` of the given type."""
        width = self.dtype.itemsize
        numbers = np.frombuffer(data, dtype=f"<u{width}", count=count).astype(f"u{width}")
        return torch.from_numpy(numbers).view(self.dtype).to(dtype)

    def _narrow(self, values: Tensor) -> Tensor:
        if self._exact(values.dtype):
            return values.to(self.dtype)
        largest = torch.finfo(self.dtype).max
        return values.clamp(-largest, largest).to(self.dtype)


@dataclass(frozen=True)
class Stochastic:
    """Unbiased stochastic rounding onto a uniform grid between minus and plus the largest magnitude.

    ``b >= 2`` bits: the ``2^b - 1`` levels ``j s / L`` with ``L = 2^(b-1) - 1`` and ``-L <= j <= L``, so that
    zero is a level and silent entries stay silent (b = 2 is the ternary grid of TernGrad, Wen et al. 2017).
    One bit: the two levels ``-s`` and ``s``. An entry is rounded to one of its two neighbors with
    probabilities that make its expectation the entry itself.

    Deviation from QSGD (Alistarh et al. 2017): the scale ``s`` is the largest magnitude of the message, not
    its L2 norm, and codes have a fixed length instead of Elias codes. ``s`` travels as a float32 rounded up.

    Attributes
    ----------
    bits : int
        Bits per entry, 1 to 8.
    """

    bits: int
    overhead: int = _SCALE_BYTES
    pointwise: bool = False
    stochastic: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise CompressionError(f"stochastic quantization takes 1 to 8 bits per entry; got {self.bits}")

    @property
    def steps(self) -> int:
        """Number of grid steps between ``-s`` and ``s``."""
        return 1 if self.bits == 1 else 2**self.bits - 2

    def round_trip(self, values: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Return what the receiver reads, for rows ``(R, m)``, one generator a row."""
        if generators is None:
            raise CompressionError("stochastic quantization needs one generator per message")
        if values.numel() == 0:
            return values
        scales = self._scale(values)
        return self._levels(self._codes(values, scales, generators), scales, values.dtype)

    def pack(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Encode one message's entries ``(m,)``: the scale, then the codes."""
        if generator is None:
            raise CompressionError("stochastic quantization needs one generator per message")
        row = values.unsqueeze(0)
        scale = self._scale(row)
        codes = self._codes(row, scale, [generator])[0]
        return _scale_bytes(scale) + _pack_bits(codes.to(torch.uint8).cpu().numpy(), self.bits)

    def unpack(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        """Decode ``count`` entries into ``(m,)`` of the given type."""
        codes = torch.from_numpy(_unpack_bits(data[_SCALE_BYTES:], count, self.bits))
        return self._levels(codes.to(dtype), _scale_from(data), dtype)

    @staticmethod
    def _scale(rows: Tensor) -> Tensor:
        """Return the largest magnitude of each row as a float32 that is not smaller, ``(R, 1)``."""
        if rows.shape[-1] == 0:
            return rows.new_zeros((rows.shape[0], 1), dtype=torch.float32)
        exact = rows.abs().amax(dim=-1, keepdim=True)
        rounded = exact.to(torch.float32)
        above = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
        return torch.where(rounded.to(exact.dtype) < exact, above, rounded)

    def _codes(self, rows: Tensor, scales: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the grid index of each entry, 0 to ``steps``, as floating-point numbers."""
        scales = scales.to(rows.dtype)
        half = self.steps / 2
        # Counted from the middle of the grid (for one bit, half a step below it) so that zero stays exact.
        middle = half % 1
        place = rows / torch.where(scales > 0, scales, 1) * half + middle
        lower = place.floor()
        draws = [_uniform(row, generator) for row, generator in zip(rows, generators, strict=True)]
        codes = lower + (torch.stack(draws) < place - lower) + (half - middle)
        return codes.nan_to_num(0.0).clamp(0, self.steps)

    def _levels(self, codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the grid points with these indices; a scale that is not finite makes them NaN."""
        return (2 * codes - self.steps) / self.steps * scales.to(dtype)


@dataclass(frozen=True)
class Sign:
    """One bit per entry, times the mean magnitude of the message; zero counts as positive.

    The scaled sign of Karimireddy et al. (2019): biased, so it wants error feedback.
    """

    bits: int = 1
    overhead: int = _SCALE_BYTES
    pointwise: bool = False
    stochastic: bool = False

    def round_trip(self, values: Tensor, generators: Sequence[torch.Generator] | None) -> Tensor:
        """Return what the receiver reads, for rows ``(R, m)``."""
        if values.numel() == 0:
            return values
        # Row by row: the order of a sum over many rows at once depends on how many there are.
        scales = torch.stack([self._scale(row) for row in values]).unsqueeze(-1).to(values.dtype)
        return torch.where(values < 0, -scales, scales)

    def pack(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Encode one message's entries ``(m,)``: the scale, then the signs."""
        return _scale_bytes(self._scale(values)) + _pack_bits((values < 0).to(torch.uint8).cpu().numpy(), 1)

    def unpack(self, data: bytes, count: int, dtype: torch.dtype) -> Tensor:
        """Decode ``count`` entries into ``(m,)`` of the given type."""
        negative = torch.from_numpy(_unpack_bits(data[_SCALE_BYTES:], count, 1)).bool()
        scale = _scale_from(data).to(dtype)
        return torch.where(negative, -scale, scale)

    @staticmethod
    def _scale(values: Tensor) -> Tensor:
        """Return the mean magnitude of one message as a float32 scalar."""
        if values.numel() == 0:
            return torch.zeros((), dtype=torch.float32)
        return values.abs().to(torch.float64).mean().to(torch.float32)


def _uniform(row: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) per entry, on the generator's device, and bring it to the row's."""
    uniform = torch.rand(row.shape, generator=generator, device=generator.device, dtype=torch.float32)
    return uniform.to(row.device)


def _scale_bytes(scale: Tensor) -> bytes:
    return np.asarray(scale.item(), dtype="<f4").tobytes()


def _scale_from(data: bytes) -> Tensor:
    return torch.tensor(float(np.frombuffer(data, dtype="<f4", count=1)[0]), dtype=torch.float32)


def _pack_bits(codes: NDArray[np.uint8], bits: int) -> bytes:
    """Put codes of ``bits`` bits side by side."""
    single = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & np.uint8(1)
    return np.packbits(single.reshape(-1), bitorder="little").tobytes()


def _unpack_bits(data: bytes, count: int, bits: int) -> NDArray[np.uint8]:
    """Return the first ``count`` codes of ``bits`` bits."""
    single = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=count * bits, bitorder="little")
    places = np.left_shift(np.uint8(1), np.arange(bits, dtype=np.uint8))
    return np.asarray((single.reshape(count, bits) * places).sum(axis=1), dtype=np.uint8)
