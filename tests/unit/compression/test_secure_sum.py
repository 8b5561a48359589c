"""The bytes of secure aggregation, against a run of the protocol."""

import numpy as np
import pytest

from compression.secure_sum import neighbors, packed_bytes, sum_bytes
from tests.support.secure_sum import Sum, restore, ring, shares

BITS, LENGTH = 13, 77


def vectors(clients):
    generator = np.random.default_rng(clients)
    return {c: generator.integers(0, 2**BITS, LENGTH).astype(np.uint64) for c in range(clients)}


@pytest.mark.parametrize(("clients", "protocol"), [(5, "secagg"), (9, "secagg"), (40, "secagg+")])
def test_every_client_sends_and_receives_as_many_bytes_as_stated(clients, protocol):
    given = vectors(clients)
    known = neighbors(clients, protocol)
    made = Sum(given, ring(clients, known), BITS, threshold=known // 2 + 1)
    assert (made.result == sum(given.values()) % 2**BITS).all()
    stated = sum_bytes(clients, LENGTH, BITS, protocol)
    assert set(made.up.values()) == {stated.up} and set(made.down.values()) == {stated.down}


@pytest.mark.parametrize(("clients", "known"), [(8, 7), (30, 10)])
def test_a_sum_survives_clients_that_drop_out(clients, known):
    given, lost = vectors(clients), {0, 3}
    made = Sum(given, ring(clients, known), BITS, threshold=known // 2, lost=lost)
    assert (made.result == sum(v for c, v in given.items() if c not in lost) % 2**BITS).all()


def test_too_few_shares_tell_nothing():
    secret = bytes(range(32))
    held = shares(secret, range(5), threshold=3)
    assert restore({c: held[c] for c in (0, 2, 4)}, 3) == secret
    assert restore({c: held[c] for c in (0, 2)}, 2) != secret
    with pytest.raises(AssertionError, match="too few"):
        restore({c: held[c] for c in (0, 2)}, 3)


def test_a_trusted_adder_costs_the_integers_alone():
    assert sum_bytes(100, 1024, 15, "ideal") == (packed_bytes(1024, 15), 0) == (1920, 0)


def test_some_neighbors_are_far_fewer_than_all():
    assert neighbors(10_000, "secagg") == 9999
    assert neighbors(10_000, "secagg+") < 100
    assert neighbors(4, "secagg+") == 3
    assert sum_bytes(1000, 1024, 16, "secagg+").up < sum_bytes(1000, 1024, 16, "secagg").up / 8
