"""Codecs of users: what is counted is what was written, and what arrives is read from it."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

from compression.codec import CODECS, find_codec
from compression.errors import CompressionError
from compression.own_codec import OwnCodec, codec
from compression.select import top_k


@pytest.fixture(autouse=True)
def _kept():
    before = dict(CODECS)
    yield
    CODECS.clear()
    CODECS.update(before)


class Plain(OwnCodec):
    """Float32."""

    name = "plain"

    def encode(self, values, generator):
        return values.float().numpy().tobytes()

    def decode(self, data, count):
        return torch.from_numpy(np.frombuffer(data, np.float32).copy())

    def size(self, count):
        return 4 * count


class Deflated(Plain):
    name = "deflated"
    fixed = False

    def encode(self, values, generator):
        return zlib.compress(super().encode(values, generator))

    def decode(self, data, count):
        return super().decode(zlib.decompress(data), count)

    def size(self, count):
        return 4 * count + count // 500 + 64


class Dithered(Plain):
    name = "dithered"
    stochastic = True

    def encode(self, values, generator):
        return super().encode(values * (0.5 + torch.rand(len(values), generator=generator)), generator)


def rows(seed=0):
    return torch.randn(3, 40, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("ways", ["dense", "kept", "shared", "both"])
def test_a_codec_of_float32_equals_ours_in_bytes_and_numbers(ways):
    codec(Plain)
    x = rows()
    kept = top_k(x, 0.8) if ways in ("kept", "both") else None
    shared = torch.arange(40) % 3 > 0 if ways in ("shared", "both") else None
    found, wanted = (find_codec(name).apply(x, kept, shared=shared) for name in ("plain", "float32"))
    assert torch.equal(found.decoded, wanted.decoded) and torch.equal(found.sizes, wanted.sizes)


def test_lengths_are_those_of_what_was_written():
    """Positions, of which some are gaps and some a bitmap, are found before values of any length."""
    codec(Deflated)
    own, x = find_codec("deflated"), torch.zeros(4, 400)
    x[0], x[1, ::50], x[2, :300] = torch.randn(400), 1.0, 2.0
    decoded, sizes = own.apply(x, x != 0)
    assert torch.equal(decoded, x)
    positions = [5 + 50, 5 + 8, 5 + 50, 5]
    written = [len(zlib.compress(row[row != 0].numpy().tobytes())) for row in x]
    assert sizes.tolist() == [sum(pair) for pair in zip(positions, written, strict=True)]
    assert not own.fixed and own.expected_size(400) == 4 * 400 + 64 and sizes[2] < 100


def test_draws_of_a_message_are_of_its_generator():
    codec(Dithered)
    own, x = find_codec("dithered"), rows()
    chances = [torch.Generator().manual_seed(seed) for seed in (5, 6, 7)]
    together = own.apply(x, None, chances).decoded
    alone = own.apply(x[1:2], None, [torch.Generator().manual_seed(6)]).decoded
    assert torch.equal(together[1:2], alone)
    assert own.stochastic and not own.entrywise


def changed(**parts):
    return type("Changed", (Plain,), {"name": "changed", **parts})


class Remembers(Plain):
    """What it sends stays in the object."""

    name = "remembers"

    def encode(self, values, generator):
        self.values = values.float()
        return bytes(4 * len(values))

    def decode(self, data, count):
        return getattr(self, "values", torch.zeros(count))


class Counts(Plain):
    """Every message is written otherwise."""

    name = "counts"
    calls = 0

    def encode(self, values, generator):
        self.calls += 1
        return super().encode(values + self.calls, generator)


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (changed(size=lambda self, count: 3 * count), "1 entries became 4 bytes; size says it takes 3"),
        (
            changed(fixed=False, size=lambda self, count: 3 * count),
            "1 entries became 4 bytes; size says it takes at most 3",
        ),
        (changed(encode=lambda self, values, generator: "text"), "encode returned str; return bytes"),
        (changed(encode=lambda self, values, generator: 1 / 0), "ZeroDivisionError: division by zero"),
        (changed(decode=lambda self, data, count: torch.zeros(count + 1)), "must return 0 floating-point"),
        (changed(decode=lambda self, data, count: torch.zeros(count).int()), "must return 0 floating-point"),
        (changed(decode=lambda self, data, count: torch.full((count,), torch.nan)), "finite numbers"),
        (changed(decode=lambda self, data, count: torch.rand(count)), "of the bytes alone"),
        (changed(decode=lambda self, data, count: torch.zeros(count)), "nothing to do with what was sent"),
        (Remembers, "nothing to do with what was sent"),
        (Counts, "equal messages became other bytes"),
        (
            changed(encode=lambda self, values, generator: torch.rand(len(values)).numpy().tobytes()),
            "equal messages became other bytes; draw from the generator only",
        ),
        (changed(name="q4"), "two codecs are called 'q4'"),
        (changed(name="a b"), "invalid codec name 'a b'"),
        (int, "a codec is a subclass of compression.own_codec.OwnCodec"),
    ],
)
def test_a_codec_that_breaks_its_contract_is_refused(cls, says):
    before = dict(CODECS)
    state = torch.get_rng_state()
    with pytest.raises(CompressionError, match=says):
        codec(cls)
    assert before == CODECS and torch.equal(state, torch.get_rng_state())


def test_a_message_longer_than_announced_ends_the_run():
    """Planned bytes are a bound: the trial messages do not show every length."""
    codec(changed(fixed=False, size=lambda self, count: 4 * min(count, 1000)))
    with pytest.raises(CompressionError, match="1001 entries became 4004 bytes"):
        find_codec("changed").apply(torch.ones(1, 1001))
