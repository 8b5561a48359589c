"""Serialized ``tf.train.Example`` messages, as TFF's SQLite files hold them, without TensorFlow.

An example is a map from names to lists: of bytes, floats or whole numbers. Protocol buffers write a message as
fields, each a key (number and wire type) and a value; lists of numbers are packed or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
LONGEST = 10  # bytes of a varint
Values = list[bytes] | NDArray[np.float32] | NDArray[np.int64]


def parse_example(message: bytes) -> dict[str, Values]:
    """Return the features of an example by name; those without values are left out.

    Raises
    ------
    ValueError
        If the bytes are no such message.
    """
    features: dict[str, Values] = {}
    for whole in _parts(message, 1):
        for entry in _parts(whole, 1):
            name = b"".join(_parts(entry, 1)).decode()
            for feature in _parts(entry, 2):
                for number, value in _fields(feature):
                    if not isinstance(value, bytes):
                        raise ValueError(f"the feature {name!r} is no list")
                    if len(values := _values(number, value)):
                        features[name] = values
    return features


def _values(number: int, content: bytes) -> Values:
    """Return the values of a list of bytes (1), floats (2) or whole numbers (3)."""
    if number == 1:
        return list(_parts(content, 1))
    if number not in (2, 3):
        raise ValueError(f"a list of kind {number}")
    packed = b"".join(
        value if isinstance(value, bytes) else _written(value) for key, value in _fields(content) if key == 1
    )
    return np.frombuffer(packed, "<f4") if number == 2 else _varints(packed)


def _parts(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the fields of a number that are bytes."""
    for key, value in _fields(message):
        if key == number and isinstance(value, bytes):
            yield value


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the value of each field; fixed ones as their bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        wire = key & 7
        if wire == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if wire not in (FIXED64, BYTES, FIXED32):
            raise ValueError(f"a field of wire type {wire}")
        length, place = _varint(message, place) if wire == BYTES else (8 if wire == FIXED64 else 4, place)
        if place + length > len(message):
            raise ValueError("a field that ends after the message")
        yield key >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, least first, and the place after it."""
    value = 0
    for shift, byte in enumerate(message[place : place + LONGEST]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, place + shift + 1
    raise ValueError("a number without an end")


def _written(value: int) -> bytes:
    """Return a number as a varint again."""
    parts = [value >> 7 * shift & 127 for shift in range(max(1, -(-value.bit_length() // 7)))]
    return bytes([*(part | 128 for part in parts[:-1]), parts[-1]])


def _varints(packed: bytes) -> NDArray[np.int64]:
    """Return the numbers of a sequence of varints; negative ones have ten bytes."""
    octets = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(octets < 128)
    if not len(octets):
        return np.empty(0, np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if not len(ends) or ends[-1] + 1 < len(octets) or (ends - starts >= LONGEST).any():
        raise ValueError("a number without an end")
    shifts = 7 * (np.arange(len(octets)) - np.repeat(starts, ends - starts + 1))
    bits = (octets & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(bits, starts).astype(np.int64)
