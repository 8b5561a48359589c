"""Positions of the kept entries of a message as bytes: layout, exact length, expected length and bounds.

Layout: one byte for the kind, four for the number of kept entries (little-endian), then the shorter of

* a bitmap of the entries in play, eight to a byte from its lowest bit (kind 0);
* the gaps, that is how many entries are skipped before each kept one, as LEB128 numbers: seven bits to a byte,
  lowest first, the top bit says that more follow (kind 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compression.errors import CompressionError
from compression.select import row_counts

HEADER_BYTES = 5
"""Kind of positions (1) and number of kept entries (4)."""

_BITMAP, _GAPS = 0, 1
# A gap takes one byte more from each of these values on.
_LONGER_FROM = (2**7, 2**14, 2**21, 2**28)


def write_positions(kept: Tensor) -> bytes:
    """Write which entries are kept.

    Parameters
    ----------
    kept : Tensor
        Boolean, one for each entry in play, ``(n,)``.

    Returns
    -------
    bytes
        Header and positions.

    Raises
    ------
    CompressionError
        If more than 2^32 - 1 entries are kept.
    """
    chosen = kept.cpu().numpy()
    places = np.flatnonzero(chosen)
    if len(places) >= 2**32:
        raise CompressionError(f"a message has at most 2^32 - 1 kept entries; got {len(places)}")
    bitmap = np.packbits(chosen, bitorder="little").tobytes()
    gaps = _write_numbers(np.diff(places, prepend=-1) - 1)
    kind, positions = (_BITMAP, bitmap) if len(bitmap) <= len(gaps) else (_GAPS, gaps)
    return bytes([kind]) + len(places).to_bytes(4, "little") + positions


def read_positions(data: bytes, n: int, value_bytes: Callable[[int], int]) -> tuple[Tensor, bytes]:
    """Read positions and return what follows them.

    Parameters
    ----------
    data : bytes
        Header, positions and values.
    n : int
        Number of entries in play.
    value_bytes : callable
        Length of the values as a function of their number; the positions are what lies before them.

    Returns
    -------
    places : Tensor
        Indices of the kept entries, ascending, int64.
    values : bytes
        The rest.

    Raises
    ------
    CompressionError
        If header and positions contradict each other, or the message is too short.
    """
    count = int.from_bytes(data[1:HEADER_BYTES], "little")
    end = len(data) - value_bytes(count)
    if end < HEADER_BYTES:
        raise CompressionError(f"{len(data)} bytes are too short for a header and {count} values")
    positions = np.frombuffer(data[HEADER_BYTES:end], dtype=np.uint8)
    if data[0] == _BITMAP and len(positions) == bitmap_bytes(n):
        places = np.flatnonzero(np.unpackbits(positions, count=n, bitorder="little"))
    elif data[0] == _GAPS:
        places = np.cumsum(_read_numbers(positions) + 1) - 1
    else:
        raise CompressionError(
            f"positions are a bitmap (kind 0, {bitmap_bytes(n)} bytes) or gaps (kind 1); "
            f"got kind {data[0]}, {len(positions)} bytes"
        )
    if len(places) != count or (count and places[-1] >= n):
        raise CompressionError(f"the header announces {count} of {n} entries; the positions say otherwise")
    return torch.from_numpy(places), data[end:]


def positions_end(data: bytes, n: int) -> int:
    """Return where header and positions end, as they state themselves.

    Parameters
    ----------
    data : bytes
        Header, positions and values of any length.
    n : int
        Number of entries in play.
    """
    if data[:1] == bytes([_BITMAP]):
        return HEADER_BYTES + bitmap_bytes(n)
    count = int.from_bytes(data[1:HEADER_BYTES], "little")
    ends = np.flatnonzero(np.frombuffer(data[HEADER_BYTES:], dtype=np.uint8) < 128)[:count]
    return HEADER_BYTES + (int(ends[-1]) + 1 if len(ends) else 0)


def bitmap_bytes(n: int) -> int:
    """Return the length of a bitmap of ``n`` entries."""
    return (n + 7) // 8


def position_bytes(sent: Tensor, public: Tensor | None, counts: Tensor) -> Tensor:
    """Return the exact length of what `write_positions` returns, row by row.

    Gaps take at least a byte each, so rows that keep an eighth or more need not be looked at.

    Parameters
    ----------
    sent : Tensor
        Boolean ``(R, n)``, the kept entries.
    public : Tensor or None
        Boolean ``(R, n)``, the entries in play; None for all.
    counts : Tensor
        Number of kept entries, ``(R,)``, int64.

    Returns
    -------
    Tensor
        Bytes, ``(R,)``, int64.
    """
    widths = torch.full_like(counts, sent.shape[-1]) if public is None else row_counts(public)
    sizes = (widths + 7) // 8
    few = counts < sizes
    if bool(few.any()):
        marked = sent[few]
        entries = marked.reshape(-1) if public is None else marked[public[few]]
        sizes[few] = torch.minimum(sizes[few], _gap_bytes(entries, widths[few], counts[few]))
    return sizes + HEADER_BYTES


def _gap_bytes(entries: Tensor, widths: Tensor, counts: Tensor) -> Tensor:
    """Return the length of the written gaps of rows that lie one behind the other, ``(sum of widths,)``."""
    places = entries.nonzero().squeeze(1)
    ends = counts.cumsum(0)
    filled = counts > 0
    first = (ends - counts)[filled]
    gaps = places.diff(prepend=places.new_full((1,), -1)) - 1
    gaps[first] = places[first] - (widths.cumsum(0) - widths)[filled]
    total = counts.clone()
    for bound in _LONGER_FROM:
        longer = (gaps >= bound).nonzero().squeeze(1)
        if longer.numel() == 0:
            break
        total += torch.bincount(torch.searchsorted(ends, longer, right=True), minlength=counts.numel())
    return total


def expected_bytes(n: int, kept: int) -> float:
    """Return the expected length if every choice of the kept entries is equally likely.

    The smaller of the bitmap and the expected length of the gaps; of the ``C(n, kept)`` choices
    ``C(n - g, kept)`` have a given gap of at least ``g``.

    Parameters
    ----------
    n : int
        Number of entries in play.
    kept : int
        How many of them are kept.

    Returns
    -------
    float
        Bytes.
    """
    gaps = float(kept)
    for bound in _LONGER_FROM:
        if n - bound >= kept:
            gaps += kept * math.exp(_log_choices(n - bound, kept) - _log_choices(n, kept))
    return HEADER_BYTES + min(bitmap_bytes(n), gaps)


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _write_numbers(numbers: NDArray[np.int64]) -> bytes:
    """Write numbers as LEB128."""
    lengths = 1 + np.searchsorted(_LONGER_FROM, numbers, side="right")
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), dtype=np.uint8)
    for place in range(len(_LONGER_FROM) + 1):
        here = lengths > place
        more = np.where(lengths[here] > place + 1, 128, 0)
        out[starts[here] + place] = ((numbers[here] >> (7 * place)) & 127) | more
    return out.tobytes()


def _read_numbers(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Undo `_write_numbers`."""
    if len(data) == 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], data[:-1] < 128)))
    place = np.arange(len(data)) - np.repeat(starts, np.diff(starts, append=len(data)))
    parts = (data & 127).astype(np.int64) << (7 * place)
    return np.asarray(np.add.reduceat(parts, starts), dtype=np.int64)
