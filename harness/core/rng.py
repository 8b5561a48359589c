"""Keyed random streams: every draw of a run is a function of (seed, purpose, round, ...), not of earlier draws.

`stream` seeds a generator, for long draws such as start values, and `noise_stream` sets one, for noise. `bits`
hashes counters, for many small draws at once: the batches of a thousand clients are one vectorized call, and a
client's draw does not depend on the other clients of the cohort.

Functions that need torch import it: reports draw with numpy alone, and start in half the time without it.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_here = threading.local()  # the generator of this thread
_GAMMA = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed 64-bit number
_MULTIPLY = tuple(map(np.uint64, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))
_SHIFTS = tuple(map(np.uint64, (30, 27, 31)))


def key(seed: int | str, *purpose: str | int) -> int:
    """Return the 63-bit key of a draw.

    Parameters
    ----------
    seed : int or str
        The run's seed; for secret draws of its own, its name.
    *purpose : str or int
        Identification of the draw, for instance ``"batch", "main", round``. It must be unique.
    """
    return int.from_bytes(hashlib.blake2b(_text(seed, purpose), digest_size=8).digest(), "little") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return the torch generator of a draw, for start values and masks.

    torch keeps 32 bits of the key only, so the noise of a privacy mechanism uses `noise_stream`.
    """
    import torch

    return torch.Generator().manual_seed(key(seed, *purpose))


def numpy_stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the numpy generator of a draw, which uses all 63 bits of the key."""
    return np.random.default_rng(key(seed, *purpose))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators on the CPU with 32 bits, for constructors that draw from them.

    Those of torch, numpy and Python are set back afterwards.
    """
    import torch

    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - of users' code
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


class NoiseStream:
    """Random numbers of one draw of noise.

    A numpy generator that is set to a state, instead of one that is made for every message: in a round of a hundred
    clients and thirty runs making them takes longer than drawing.

    Parameters
    ----------
    digest : bytes
        32 bytes, the state and the increment of a PCG64 generator.
    """

    __slots__ = ("_digest",)

    def __init__(self, digest: bytes) -> None:
        self._digest = digest

    def standard_normal(self, *, dtype: Any, out: np.ndarray) -> None:
        """Fill an array of float32 or float64, always from the beginning of the stream."""
        self.generator().standard_normal(dtype=dtype, out=out)

    def generator(self) -> np.random.Generator:
        """Return the thread's generator at the beginning of the stream; the next stream takes it over."""
        if (generator := getattr(_here, "generator", None)) is None:
            generator = _here.generator = np.random.Generator(np.random.PCG64(0))
        state, step = (int.from_bytes(half, "little") for half in (self._digest[:16], self._digest[16:]))
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": step | 1},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator


def noise_stream(run: str, *purpose: str | int) -> NoiseStream:
    """Return the stream of noise that protects.

    Parameters
    ----------
    run : str
        Name of the run, so that no two runs share noise: the difference of their releases would be free of it. With
        the system's entropy, a secret.
    *purpose : str or int
        As in `key`.
    """
    return NoiseStream(hashlib.blake2b(_text(run, purpose), digest_size=32).digest())


def bits(keys: Tensor, *counters: Tensor) -> Tensor:
    """Hash keys with counters to 64 random bits, elementwise with broadcasting.

    The finalizer of SplitMix64 (Steele, Lea, Flood 2014) after each counter.

    Parameters
    ----------
    keys : Tensor
        int64 keys made by `key`, one per stacked run.
    *counters : Tensor
        int64 counters: client, pass over the data, position, ...

    Returns
    -------
    Tensor
        int64 of the broadcast shape.
    """
    return more_bits(_mix(keys + _GAMMA), *counters)


def more_bits(drawn: Tensor, *counters: Tensor) -> Tensor:
    """Hash random bits with further counters: ``more_bits(bits(k, a), b)`` equals ``bits(k, a, b)``.

    This way counters that many draws share are hashed once.
    """
    for counter in counters:
        drawn = _mix(drawn + (counter + 1) * _GAMMA)
    return drawn


def uniform(keys: Tensor, *counters: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), keyed as in `bits`."""
    return _shift(bits(keys, *counters), 11).double() * 2.0**-53


def normal(keys: Tensor, owners: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float64 standard normal numbers, ``(*shape)`` per owner; an entry depends on its index only."""
    import torch

    drawn = bits(keys, owners)
    for length in shape:
        drawn = more_bits(drawn.unsqueeze(-1), torch.arange(length))
    numbers: Tensor = torch.special.ndtri(_shift(drawn, 11).double() * 2.0**-53 + 2.0**-54)
    return numbers


def _text(first: int | str, purpose: tuple[str | int, ...]) -> bytes:
    return "\x1f".join([str(first), *(f"{type(word).__name__}:{word}" for word in purpose)]).encode()


def _mix(drawn: Tensor) -> Tensor:
    """Mix the bits of fresh numbers, in place: long draws are limited by memory, and short ones by calls."""
    z = drawn.numpy().view(np.uint64)  # numpy's calls take half the time of torch's
    for shift, factor in zip(_SHIFTS, _MULTIPLY, strict=False):
        z ^= z >> shift
        z *= factor
    z ^= z >> _SHIFTS[-1]
    return drawn


def _shift(z: Tensor, by: int) -> Tensor:
    """Shift right without sign extension; torch has signed 64-bit integers only."""
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)
