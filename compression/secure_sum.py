"""Bytes of secure aggregation: a sum of which the server learns nothing but the result.

Every two clients that know each other agree on a key, from which both expand a mask; one adds it, the other
subtracts it, so masks cancel in the sum. Each client adds a mask of its own too, and shares the seeds of its masks
among the others, so that the server can remove what does not cancel if somebody drops out. The messages are those
of protocols against an honest but curious server:

1. a client sends two public keys, and the server passes them on;
2. a client sends each neighbor, encrypted, a share of two secrets, and the server passes them on;
3. a client sends its masked integers, and the server says whose have arrived;
4. a client sends one share for each neighbor.

In ``secagg`` all clients are neighbors, in ``secagg+`` everybody has some `neighbors` of them.
tests/support/secure_sum.py runs the protocol, and tests compare its bytes with these.

References
----------
K. Bonawitz et al., *Practical secure aggregation for privacy-preserving machine learning*, CCS 2017,
https://doi.org/10.1145/3133956.3133982.

J. Bell et al., *Secure single-server aggregation with (poly)logarithmic overhead*, CCS 2020,
https://doi.org/10.1145/3372297.3417885.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Protocol = Literal["secagg", "secagg+", "ideal"]

KEY = 32  # bytes of a public key of X25519
SHARE = 33  # of a secret of 32 bytes, modulo a prime above 2^256
SEALED = 12 + 2 * SHARE + 16  # a nonce, two shares, and the tag of ChaCha20-Poly1305
NUMBER = 4  # a client's number


class SumBytes(NamedTuple):
    """Bytes of one client.

    Attributes
    ----------
    up, down : int
        Sent to the server, and received from it, without the result.
    """

    up: int
    down: int


def packed_bytes(length: int, bits: int) -> int:
    """Return the bytes of integers of some bits each, one after the other."""
    return (length * bits + 7) // 8


def neighbors(clients: int, protocol: Protocol) -> int:
    """Return how many others each client shares secrets with.

    For ``secagg+`` the next even number from ``6 log2(clients)`` on. Bell et al. prove that a multiple of the
    logarithm is enough and choose it by the shares of clients that drop out or collude; the factor 6 is ours.
    """
    if protocol == "ideal":
        return 0
    few = 2 * math.ceil(3 * math.log2(max(2, clients)))
    return clients - 1 if protocol == "secagg" else min(clients - 1, few)


def sum_bytes(clients: int, length: int, bits: int, protocol: Protocol) -> SumBytes:
    """Return the bytes of one client in a secure sum from which nobody drops out.

    Parameters
    ----------
    clients : int
        Number of clients.
    length : int
        Number of integers.
    bits : int
        Bits of each.
    protocol : {"secagg", "secagg+", "ideal"}
        Everybody shares secrets with all others, or with some of them; or nothing but the integers is counted,
        as with a trusted adder.
    """
    integers = packed_bytes(length, bits)
    if protocol == "ideal":
        return SumBytes(integers, 0)
    partners = neighbors(clients, protocol)
    up = 2 * KEY + partners * (NUMBER + SEALED) + integers + partners * (NUMBER + SHARE)
    down = partners * (NUMBER + 2 * KEY) + partners * (NUMBER + SEALED) + packed_bytes(partners, 1)
    return SumBytes(up, down)
