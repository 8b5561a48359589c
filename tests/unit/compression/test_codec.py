"""Codecs: the receiver's numbers and the reported bytes are those of a real byte string."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.codec import CODECS, find_codec
from compression.errors import CompressionError
from compression.quantize import Stochastic
from compression.select import random_k, top_k
from compression.sparse_index import bitmap_bytes

NARROW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "sign",
    "q1",
    "q3",
    "q8",
]  # codes within, across and of bytes
BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "sign": 1} | {
    f"q{b}": b for b in range(1, 9)
}


def generators(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(1000 * seed + i) for i in range(count)]


@st.composite
def stacks(draw: st.DrawFn):
    """Rows with a mask chosen by the sender, a public one, both or neither, each common or per row."""
    rows, n = draw(st.integers(1, 4)), draw(st.sampled_from([0, 1, 5, 8, 33, 700]))
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = torch.randn(rows, n, generator=chance, dtype=dtype) * draw(st.sampled_from([1.0, 1e-6, 1e4, 0.0]))

    def mask() -> torch.Tensor | None:
        shape = draw(st.sampled_from([None, (n,), (rows, n)]))
        rate = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
        return None if shape is None else torch.rand(shape, generator=chance) < rate

    return x, mask(), mask()


def row_of(mask: torch.Tensor | None, i: int) -> torch.Tensor | None:
    return mask if mask is None or mask.dim() == 1 else mask[i]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40, deadline=None)
@given(stack=stacks())
def test_the_fast_path_is_decode_of_encode_and_its_length(name, stack):
    x, kept, shared = stack
    codec = find_codec(name)
    decoded, sizes = codec.apply(x, kept, generators(len(x)), shared=shared)
    assert (decoded.shape, decoded.dtype, sizes.dtype) == (x.shape, x.dtype, torch.int64)
    for i, g in enumerate(generators(len(x))):
        data = codec.encode(x[i], row_of(kept, i), g, shared=row_of(shared, i))
        read = codec.decode(
            data, x.shape[-1], sparse=kept is not None, shared=row_of(shared, i), dtype=x.dtype
        )
        assert torch.equal(decoded[i], read)
        assert sizes[i] == len(data)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=30, deadline=None)
@given(stack=stacks())
def test_the_expected_size_is_exact_for_codes_of_fixed_length(name, stack):
    x, kept, _ = stack
    codec, n = find_codec(name), x.shape[-1]
    _, sizes = codec.apply(x, kept, generators(len(x)))
    for i, size in enumerate(sizes.tolist()):
        count = None if kept is None else int(row_of(kept, i).sum())
        if codec.fixed and (not count or count >= bitmap_bytes(n)):
            assert size == codec.expected_size(n, count)


@pytest.mark.parametrize("name", CODECS)
def test_leading_axes_are_free(name):
    """Two runs of three clients at once are the six messages one by one."""
    x = torch.randn(2, 3, 50, generator=generators(1)[0])
    kept = top_k(x, (0.0, 0.5, 0.9))
    codec = find_codec(name)
    decoded, sizes = codec.apply(x, kept, generators(6))
    flat, flat_sizes = codec.apply(x.view(6, 50), kept.view(6, 50), generators(6))
    assert torch.equal(decoded.view(6, 50), flat)
    assert torch.equal(sizes.view(6), flat_sizes)
    assert sizes.shape == (2, 3)


@pytest.mark.parametrize("name", CODECS)
def test_a_dense_message_has_no_header(name):
    """Bits per entry, rounded up to bytes, and a scale of 4 bytes where the format has one."""
    scale = 4 if name == "sign" or name.startswith("q") else 0
    codec = find_codec(name)
    assert (
        len(codec.encode(torch.ones(101), None, generators(1)[0])) == math.ceil(101 * BITS[name] / 8) + scale
    )


def test_dense_float32_is_the_raw_numbers():
    x = torch.tensor([[1.5, -2.0], [0.0, 1e-30]])
    decoded, sizes = find_codec("float32").apply(x)
    assert find_codec("float32").encode(x[0]) == struct.pack("<2f", 1.5, -2.0)
    assert decoded.data_ptr() == x.data_ptr()
    assert sizes.tolist() == [8, 8]


def test_a_sparse_message_by_hand():
    """Entry 3 of 16: kind 1, count 1, a gap of 3 (one byte; the bitmap would take two), the number."""
    x = torch.arange(16.0)
    data = find_codec("float32").encode(x, top_k(x, 0.0) & (x == 3))
    assert data == bytes([1, 1, 0, 0, 0, 3]) + struct.pack("<f", 3.0)


def test_an_explicit_zero_travels():
    kept = torch.ones(4, dtype=torch.bool)
    assert find_codec("float32").apply(torch.zeros(4), kept).sizes.item() == 5 + 1 + 16


def test_a_public_mask_costs_no_positions():
    mask = random_k(1000, 0.9, generators(1)[0])
    x = torch.randn(3, 1000, generator=generators(1)[0])
    decoded, sizes = find_codec("float32").apply(x, shared=mask)
    assert sizes.tolist() == [400] * 3
    assert torch.equal(decoded, x * mask)


def test_half_precision_by_hand():
    """1/3 lies between 1365/4096 and 1366/4096 in half precision, nearer to the first."""
    decoded, sizes = find_codec("float16").apply(torch.tensor([1 / 3, 1.0]))
    assert decoded.tolist() == [1365 / 4096, 1.0]
    assert sizes.item() == 4


@pytest.mark.parametrize("name", NARROW)
def test_narrow_numbers_saturate_instead_of_overflowing(name):
    largest = torch.finfo(NARROW[name]).max
    x = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
    assert find_codec(name).apply(x).decoded.tolist() == [largest, -largest]


def test_three_bit_codes_by_hand():
    """Largest magnitude 3, L = 3, so integers are levels whatever the luck: codes 6, 0, 3, 4 of 3 bits.

    From the lowest bit on 011 000 110 001, that is bytes 2 + 4 + 64 + 128 = 198 and 8; 3.0 is 0x40400000.
    """
    x = torch.tensor([3.0, -3.0, 0.0, 1.0])
    codec = find_codec("q3")
    assert codec.encode(x, None, generators(1)[0]) == bytes([0, 0, 0x40, 0x40, 198, 8])
    assert codec.apply(x, None, generators(1)).decoded.tolist() == x.tolist()


def test_signs_by_hand():
    """Mean magnitude (1 + 3 + 0 + 4) / 4 = 2 = 0x40000000; entries 1 and 3 are negative: 2 + 8 = 10."""
    x = torch.tensor([1.0, -3.0, 0.0, -4.0])
    assert find_codec("sign").encode(x) == bytes([0, 0, 0, 0x40, 10])
    assert find_codec("sign").apply(x).decoded.tolist() == [2.0, -2.0, 2.0, -2.0]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_stochastic_rounding_is_unbiased(bits):
    """4000 messages; a rounded entry's standard deviation is at most half a step: 5 standard errors."""
    x = torch.tensor([1.0, -0.7, 0.31, 0.001, 0.0, -1.0])
    step = 2 / Stochastic(bits).steps
    decoded = find_codec(f"q{bits}").apply(x.expand(4000, 6), None, generators(4000)).decoded
    assert (decoded - x).abs().max() < step * (1 + 1e-6)
    assert (decoded.double().mean(0) - x).abs().max() < 5 * step / 2 / math.sqrt(4000)
    assert len(decoded.unique()) <= 2**bits


@pytest.mark.parametrize("bits", range(2, 9))
def test_silent_entries_stay_silent(bits):
    x = torch.zeros(100_000)
    x[0] = 1.0
    assert find_codec(f"q{bits}").apply(x, None, generators(1)).decoded[1:].count_nonzero() == 0


def test_a_scale_is_rounded_up_so_that_nothing_is_cut_off():
    """1 + 2^-40 is no float32; were the scale rounded to 1, the entry would lie outside the grid."""
    x = torch.tensor([1 + 2.0**-40], dtype=torch.float64)
    assert find_codec("q8").apply(x, None, generators(1)).decoded.abs().item() >= 1.0
    data = find_codec("q8").encode(x, None, generators(1)[0])
    assert struct.unpack("<f", data[:4])[0] == 1 + 2.0**-23


@pytest.mark.parametrize("name", ["q1", "q4", "sign"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_message_does_not_look_healthy(name, bad):
    x = torch.tensor([1.0, bad, -2.0])
    decoded = find_codec(name).apply(x, None, generators(1)).decoded
    read = find_codec(name).decode(find_codec(name).encode(x, None, generators(1)[0]), 3)
    assert not decoded.isfinite().any()
    assert torch.equal(decoded.isnan(), read.isnan())


def test_noise_of_one_message_does_not_depend_on_the_others():
    x = torch.randn(3, 40, generator=generators(1)[0])
    together = find_codec("q2").apply(x, None, generators(3)).decoded
    alone = find_codec("q2").apply(x[2:], None, generators(3)[2:]).decoded
    assert torch.equal(together[2:], alone)


def test_stochastic_codecs_ask_for_generators():
    with pytest.raises(CompressionError, match="one generator per message"):
        find_codec("q4").apply(torch.ones(2, 3))
    with pytest.raises(CompressionError, match="one generator per message"):
        find_codec("q4").encode(torch.ones(3))
    assert [name for name, codec in CODECS.items() if codec.stochastic] == [f"q{b}" for b in range(1, 9)]


def test_an_unknown_codec_is_answered_with_the_nearest():
    with pytest.raises(CompressionError, match="unknown codec 'flaot16'; did you mean 'float16'"):
        find_codec("flaot16")


def test_a_message_of_the_wrong_length_is_refused():
    with pytest.raises(CompressionError, match="2 values of codec 'float32' take 8 bytes; got 7"):
        find_codec("float32").decode(bytes(7), 2)
