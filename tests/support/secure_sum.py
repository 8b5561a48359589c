"""Secure aggregation, run for real among a few clients: an oracle for the bytes of `compression.secure_sum`.

Follows the protocol of Bonawitz et al. (2017) against an honest but curious server: X25519 for keys, ChaCha20 to
expand masks, ChaCha20-Poly1305 to seal shares, and Shamir's shares modulo a prime. Every message is bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

PRIME = 2**256 + 297
SHARE = 33


def shares(secret: bytes, holders: Collection[int], threshold: int) -> dict[int, bytes]:
    """Share a secret of 32 bytes: any ``threshold`` of the holders can restore it."""
    terms = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]

    def at(x: int) -> int:
        return sum(term * pow(x, power, PRIME) for power, term in enumerate(terms)) % PRIME

    return {holder: at(holder + 1).to_bytes(SHARE, "big") for holder in holders}


def restore(given: Mapping[int, bytes], threshold: int) -> bytes:
    """Restore a secret from the first shares."""
    points = [(holder + 1, int.from_bytes(share, "big")) for holder, share in given.items()][:threshold]
    assert len(points) == threshold, "too few shares"
    secret = 0
    for x, y in points:
        for other, _ in points:
            if other != x:
                y = y * other * pow(other - x, -1, PRIME) % PRIME
        secret = (secret + y) % PRIME
    return secret.to_bytes(32, "big")


def mask(seed: bytes, length: int, bits: int) -> np.ndarray:
    """Expand a seed to integers modulo ``2^bits``."""
    stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), "<u8") & np.uint64(2**bits - 1)


def pack(integers: np.ndarray, bits: int) -> bytes:
    single = (integers[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)
    return np.packbits(single.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def unpack(data: bytes, length: int, bits: int) -> np.ndarray:
    single = np.unpackbits(np.frombuffer(data, np.uint8), count=length * bits, bitorder="little")
    return (single.reshape(length, bits).astype(np.uint64) << np.arange(bits, dtype=np.uint64)).sum(1)


def number(client: int) -> bytes:
    return client.to_bytes(4, "little")


def raw(key: X25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


def public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def agreed(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(hashes.SHA256(), 32, None, purpose).derive(shared)


class Sum:
    """A sum of the clients' integers modulo ``2^bits``.

    Parameters
    ----------
    vectors : dict of int to array
        Each client's integers.
    edges : dict of int to set
        Each client's neighbors.
    threshold : int
        Number of shares that restore a secret.
    lost : set of int
        Clients that drop out before they send their masked integers.

    Attributes
    ----------
    result : array
        The sum over the clients that stayed.
    up, down : dict of int to int
        Bytes that each client sent and received.
    """

    def __init__(
        self,
        vectors: Mapping[int, np.ndarray],
        edges: Mapping[int, set[int]],
        bits: int,
        threshold: int,
        lost: Collection[int] = (),
    ) -> None:
        self.bits, self.length = bits, len(next(iter(vectors.values())))
        self.up, self.down = dict.fromkeys(vectors, 0), dict.fromkeys(vectors, 0)
        sealing = {c: X25519PrivateKey.generate() for c in vectors}
        masking = {c: X25519PrivateKey.generate() for c in vectors}
        own = {c: secrets.token_bytes(32) for c in vectors}
        told = {c: self._sent(c, public(sealing[c]) + public(masking[c])) for c in vectors}
        known = {}
        for c in vectors:
            heard = self._received(c, b"".join(number(v) + told[v] for v in sorted(edges[c])))
            parts = [heard[i : i + 68] for i in range(0, len(heard), 68)]
            known[c] = {int.from_bytes(part[:4], "little"): (part[4:36], part[36:]) for part in parts}
        boxes: dict[int, dict[int, bytes]] = {c: {} for c in vectors}
        for c in vectors:
            of_key, of_seed = (shares(s, edges[c], threshold) for s in (raw(masking[c]), own[c]))
            letter = b""
            for v in sorted(edges[c]):
                nonce = secrets.token_bytes(12)
                key = ChaCha20Poly1305(agreed(sealing[c], known[c][v][0], b"seal"))
                letter += number(v) + nonce + key.encrypt(nonce, of_key[v] + of_seed[v], None)
            self._sent(c, letter)
            size = len(letter) // max(1, len(edges[c]))
            for i in range(0, len(letter), size):
                boxes[int.from_bytes(letter[i : i + 4], "little")][c] = letter[i + 4 : i + size]
        held: dict[int, dict[int, tuple[bytes, bytes]]] = {c: {} for c in vectors}
        for c in vectors:
            self._received(c, b"".join(number(v) + box for v, box in sorted(boxes[c].items())))
            for v, box in boxes[c].items():
                key = ChaCha20Poly1305(agreed(sealing[c], known[c][v][0], b"seal"))
                opened = key.decrypt(box[:12], box[12:], None)
                held[c][v] = opened[:SHARE], opened[SHARE:]
        stayed = [c for c in vectors if c not in lost]
        total = np.zeros(self.length, np.uint64)
        for c in stayed:
            hidden = vectors[c].astype(np.uint64) + mask(own[c], self.length, bits)
            for v in edges[c]:
                pair = mask(agreed(masking[c], known[c][v][1], b"mask"), self.length, bits)
                hidden = hidden + pair if c < v else hidden - pair
            total += unpack(self._sent(c, pack(hidden & np.uint64(2**bits - 1), bits)), self.length, bits)
        given: dict[int, dict[int, bytes]] = {c: {} for c in vectors}
        for c in stayed:
            there = [v in stayed for v in sorted(edges[c])]
            self._received(c, np.packbits(there).tobytes())
            for v, here in zip(sorted(edges[c]), there, strict=True):
                given[v][c] = self._sent(c, number(v) + held[c][v][int(here)])[4:]
        for c in vectors:
            secret = restore(given[c], threshold)
            if c in stayed:
                total -= mask(secret, self.length, bits)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            for v in edges[c]:
                if v in stayed:
                    pair = mask(agreed(key, told[v][32:], b"mask"), self.length, bits)
                    total = total - pair if v < c else total + pair
        self.result = total & np.uint64(2**bits - 1)

    def _sent(self, client: int, data: bytes) -> bytes:
        self.up[client] += len(data)
        return data

    def _received(self, client: int, data: bytes) -> bytes:
        self.down[client] += len(data)
        return data


def ring(clients: int, known: int) -> dict[int, set[int]]:
    """Return neighbors on a ring, ``known`` of each, as many on one side as on the other."""
    if known >= clients - 1:
        return {c: set(range(clients)) - {c} for c in range(clients)}
    steps = range(1, known // 2 + 1)
    return {
        c: {(c + s) % clients for s in steps} | {(c - s) % clients for s in steps} for c in range(clients)
    }
