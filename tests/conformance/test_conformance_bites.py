"""The channel's conformance checks fail for algorithms that go around it; `test_algorithms.py` has FedAvg pass."""

from dataclasses import dataclass, replace

import pytest

from harness.core import Increment
from harness.core.algorithm import ALGORITHMS
from harness.core.clients.private_batches import Records
from harness.core.wire.dp_client import Mechanism
from harness.testing import conformance
from harness.testing.conformance import check
from harness.testing.conformance_privacy import CHANNEL_CHECKS

FEDAVG = ALGORITHMS["fedavg"]


@dataclass(frozen=True, kw_only=True)
class Smuggler(FEDAVG):
    """Averages the clients' models without sending them."""

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for batch in clients.batches(self):
            x = x - self.lr * clients.grad(x, batch)
        channel.mean(Increment(x, of=x_t))
        return self.State(x.mean(-2))


@dataclass(frozen=True, kw_only=True)
class Restorer(FEDAVG):
    """Trains what was pruned from the model."""

    def round(self, state, clients, channel):
        return self.State(super().round(state, clients, channel).x + 1.0)


@dataclass(frozen=True, kw_only=True)
class Talker(FEDAVG):
    """Sends its increment divided by the number of steps of the slowest member of its cohort."""

    def round(self, state, clients, channel):
        x = x_t = channel.down(state.x)
        for batch in (batches := clients.batches(self)):
            x = x - self.lr * clients.grad(x, batch)
        return self.State(state.x + channel.mean((x - x_t) / batches.num_steps.max()))


@dataclass(frozen=True, kw_only=True)
class Undeclared(ALGORITHMS["decentralized_local_sgda"]):
    """Gossips, and does not say that it needs a topology."""

    meta = replace(ALGORITHMS["decentralized_local_sgda"].meta, gossip=False)


def fails(algorithm, name: str) -> bool:
    (one,) = (one for one in CHANNEL_CHECKS if one.__name__ == name)
    try:
        one(algorithm)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [(Smuggler, "_bounded"), (Restorer, "_pruned"), (Talker, "_separate")],
)
def test_who_goes_around_the_channel_is_caught(algorithm, expected: str) -> None:
    assert fails(algorithm, expected)


def test_gossip_that_is_not_declared_is_caught_with_the_way_out() -> None:
    """A run of it would get no topology, so its check gets none either."""
    (row,) = check(Undeclared, [conformance._pure])
    assert row["result"] == "failed" and "Meta(..., gossip=True)" in row["why"]


def test_a_mechanism_with_half_the_noise_is_caught(monkeypatch) -> None:
    noise = Mechanism.noise
    monkeypatch.setattr(Mechanism, "noise", lambda self, *given: 0.5 * noise(self, *given))
    assert fails(FEDAVG, "_audited")


@pytest.mark.parametrize("kept", ["one in two", "at rate 1"])
def test_a_gradient_that_is_not_booked_as_it_was_drawn_is_caught(monkeypatch, kept) -> None:
    book, calls = Records.book, []

    def wrong(self, batch, *others):
        calls.append(batch)
        if kept == "one in two":
            return book(self, batch, *others) if len(calls) % 2 else 0
        return book(self, replace(batch, private=replace(self.of(batch), rate=1.0)), *others)

    monkeypatch.setattr(Records, "book", wrong)
    assert fails(FEDAVG, "_sampled")
