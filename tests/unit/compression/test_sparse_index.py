"""Positions of kept entries: layout by hand, exact length, expectation and bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.errors import CompressionError
from compression.sparse_index import (
    expected_bytes,
    position_bytes,
    read_positions,
    write_positions,
)


def mask(n: int, *places: int) -> torch.Tensor:
    kept = torch.zeros(n, dtype=torch.bool)
    kept[list(places)] = True
    return kept


def test_many_entries_are_written_as_a_bitmap():
    """Entries 0 and 3 of 8: two gaps of a byte each against one byte 0b1001 = 9."""
    assert write_positions(mask(8, 0, 3)) == bytes([0, 2, 0, 0, 0, 9])


def test_few_entries_are_written_as_gaps():
    """Entries 3 and 304 of 1000 skip 3 and then 300 = 2 * 128 + 44, written 0x80 + 44 and 2."""
    assert write_positions(mask(1000, 3, 304)) == bytes([1, 2, 0, 0, 0, 3, 0x80 + 44, 2])


def test_no_entry_at_all_is_a_header():
    assert write_positions(mask(100)) == bytes([1, 0, 0, 0, 0])
    assert write_positions(mask(0)) == bytes([0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("gap", "length"),
    [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_151, 3), (2_097_152, 4)],
)
def test_a_gap_takes_a_byte_for_every_seven_bits(gap, length):
    """One entry after `gap` skipped ones, so the positions are this one number."""
    kept = mask(gap + 1 + 64, gap)
    data = write_positions(kept)
    assert len(data) == 5 + length
    assert position_bytes(kept.unsqueeze(0), None, torch.tensor([1])).item() == len(data)
    assert read_positions(data, len(kept), lambda count: 0)[0].tolist() == [gap]


@st.composite
def masks(draw: st.DrawFn) -> torch.Tensor:
    rows, n = draw(st.integers(1, 6)), draw(st.sampled_from([1, 7, 8, 9, 100, 1000, 40_000]))
    rates = draw(
        st.lists(st.sampled_from([0.0, 1e-4, 1e-3, 0.01, 0.1, 0.2, 0.9]), min_size=rows, max_size=rows)
    )
    chance = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.rand(rows, n, generator=chance) < torch.tensor(rates).unsqueeze(-1)


@settings(max_examples=60, deadline=None)
@given(masks())
def test_lengths_of_a_stack_are_those_of_the_written_bytes(kept):
    written = [write_positions(row) for row in kept]
    assert position_bytes(kept, None, kept.sum(-1)).tolist() == [len(data) for data in written]
    for row, data in zip(kept, written, strict=True):
        places, rest = read_positions(data + b"rest", row.numel(), lambda count: 4)
        assert places.tolist() == row.nonzero().flatten().tolist()
        assert rest == b"rest"


@settings(max_examples=40, deadline=None)
@given(masks(), st.integers(0, 2**31), st.booleans())
def test_positions_are_counted_among_the_public_entries_only(kept, seed, one_for_all):
    """Each row's positions are those of the message from which everything not public has been cut out."""
    chance = torch.rand(kept.shape, generator=torch.Generator().manual_seed(seed))
    public = (chance[:1] if one_for_all else chance).expand(kept.shape) < 0.5
    sent = kept & public
    lengths = [len(write_positions(row[open_])) for row, open_ in zip(kept, public, strict=True)]
    assert position_bytes(sent, public, sent.sum(-1)).tolist() == lengths


@pytest.mark.parametrize(("n", "kept"), [(5000, 50), (5000, 400), (40_000, 40), (40_000, 2)])
def test_the_expected_length_is_the_mean_over_random_positions(n, kept):
    """300 draws; one gap's length varies by well under a byte, so 1 % is many standard errors."""
    g = torch.Generator().manual_seed(0)
    lengths = [
        len(write_positions(mask(n, *torch.randperm(n, generator=g)[:kept].tolist()))) for _ in range(300)
    ]
    assert sum(lengths) / 300 == pytest.approx(expected_bytes(n, kept), rel=0.01)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes([2, 1, 0, 0, 0, 1]), "kind 2"),
        (bytes([0, 2, 0, 0, 0, 1]), "announces 2 of 8"),
        (bytes([1, 1, 0, 0, 0, 8]), "announces 1 of 8"),
        (bytes([0, 1, 0, 0, 0, 1, 0]), "kind 0, 2 bytes"),
        (bytes([0, 1]), "too short"),
    ],
)
def test_broken_bytes_are_refused(data, message):
    with pytest.raises(CompressionError, match=message):
        read_positions(data, 8, lambda count: 0)
