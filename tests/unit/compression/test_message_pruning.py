"""Which entries of a message are sent, and how the ratio develops over the rounds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compression.errors import CompressionError
from compression.select import kept_count, random_k, ratio_at, threshold, top_k


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("n", "ratio", "left"),
    [(10, 0.25, 8), (10, 0.99, 1), (100, 0.29, 71), (7, 0.0, 7), (1, 0.9, 1), (0, 0.5, 0), (3, 1 - 1e-12, 1)],
)
def test_the_floor_is_taken_of_what_is_dropped(n, ratio, left):
    """10 * 0.25 = 2.5 drops 2; 100 * 0.29 = 28.999999999999996 in floating point drops 29, not 28."""
    assert kept_count(n, ratio) == left


@pytest.mark.parametrize("ratio", [-0.1, 1.0, math.nan])
def test_a_ratio_outside_zero_one_is_refused(ratio):
    with pytest.raises(CompressionError, match="in \\[0, 1\\)"):
        top_k(torch.ones(4), ratio)


def test_top_k_keeps_the_largest_magnitudes():
    """Half of four: |-5| and |3| outrank |2| and |-1|."""
    assert top_k(torch.tensor([2.0, -5.0, -1.0, 3.0]), 0.5).tolist() == [False, True, False, True]


def test_of_equal_magnitudes_the_first_are_kept():
    """Of six entries three stay: the 4, then the first two of the four that share magnitude 1."""
    mask = top_k(torch.tensor([0.0, 1.0, -1.0, 4.0, 1.0, -1.0]), 0.5)
    assert mask.tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("value", [0.0, -0.0, 7.0, math.inf, math.nan])
def test_the_count_is_exact_when_all_entries_are_equal(value):
    mask = top_k(torch.full((3, 11), value), 0.5)
    assert mask.tolist() == [[True] * 6 + [False] * 5] * 3


def test_a_diverged_entry_counts_as_the_largest():
    assert top_k(torch.tensor([1.0, math.nan, math.inf, 2.0]), 0.5).tolist() == [False, True, True, False]


messages = st.integers(1, 5).flatmap(
    lambda rows: st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(-3, 3).map(float), min_size=n, max_size=n), min_size=rows, max_size=rows
        )
    )
)


@settings(max_examples=60, deadline=None)
@given(messages, st.floats(0, 0.999), st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_top_k_is_a_stable_sort_by_magnitude(rows, ratio, dtype):
    """Few distinct values, so ties everywhere; the oracle is numpy's stable argsort."""
    x = torch.tensor(rows, dtype=dtype)
    order = np.argsort(-x.abs().numpy(), axis=-1, kind="stable")[:, : kept_count(x.shape[-1], ratio)]
    expected = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(expected, order, True, axis=-1)
    assert top_k(x, ratio).tolist() == expected.tolist()


def test_each_row_may_have_its_own_ratio():
    x = torch.randn(2, 3, 20, generator=generator())
    ratios = torch.tensor([[0.0, 0.25, 0.5], [0.5, 0.9, 0.99]], dtype=torch.float64)
    mask = top_k(x, ratios)
    assert mask.sum(-1).tolist() == [[20, 15, 10], [10, 2, 1]]
    assert torch.equal(mask[0, 1], top_k(x[0, 1], 0.25))
    with pytest.raises(CompressionError, match="must be float64"):
        top_k(x, ratios.float())


def test_the_ratio_counts_only_the_entries_in_play():
    """Of 8 entries 4 are in play, of which half stay; the largest of all is not in play."""
    x = torch.tensor([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0])
    play = torch.arange(8) % 2 == 1
    assert top_k(x, 0.5, among=play).nonzero().flatten().tolist() == [5, 7]


def test_rows_with_other_masks_have_other_counts():
    play = torch.tensor([[True, True, False, False], [True, True, True, True], [False] * 4])
    mask = top_k(torch.zeros(3, 4), 0.5, among=play)
    assert mask.tolist() == [[True, False, False, False], [True, True, False, False], [False] * 4]


def test_random_choice_has_the_exact_count_and_is_shared_by_seed():
    mask = random_k(1000, 0.9, generator(3))
    assert int(mask.sum()) == 100
    assert torch.equal(mask, random_k(1000, 0.9, generator(3)))
    assert not torch.equal(mask, random_k(1000, 0.9, generator(4)))


def test_random_choice_is_fair():
    """Each of 10 places is kept in 4 of 10 draws; 5 standard errors are 5 sqrt(.24 / 2000) = 0.055."""
    g = generator()
    share = torch.stack([random_k(10, 0.6, g) for _ in range(2000)]).double().mean(0)
    assert (share - 0.4).abs().max() < 0.055


def test_threshold_keeps_magnitudes_from_tau_on():
    x = torch.tensor([0.5, -0.5, 0.4, math.nan])
    assert threshold(x, 0.5).tolist() == [True, True, False, True]
    assert threshold(torch.zeros(2), 0.0).all()
    with pytest.raises(CompressionError, match=">= 0"):
        threshold(x, -1.0)


def test_a_schedule_holds_each_step_until_the_next():
    schedule = ((0, 0.0), (20, 0.2), (40, 0.4))
    assert [ratio_at(schedule, t) for t in (0, 19, 20, 39, 40, 99)] == [0.0, 0.0, 0.2, 0.2, 0.4, 0.4]
    assert ratio_at([[5, 0.9]], 4) == 0.0


def test_ratios_per_client_may_be_scheduled_too():
    assert ratio_at(0.5, 7) == 0.5
    assert ratio_at((0.1, 0.2), 7).tolist() == [0.1, 0.2]
    assert ratio_at(((0, 0.5), (3, (0.1, 0.2))), 3).tolist() == [0.1, 0.2]


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (1.0, "in \\[0, 1\\)"),
        ((0.5, 1.5), "in \\[0, 1\\)"),
        (((0, 0.5), (0, 0.6)), "must ascend; 0 follows 0"),
        (((0, 0.5), (9, 1.5)), "in \\[0, 1\\)"),
        (((0, 0.5, 1),), "\\[round, ratio\\] steps"),
        (((0, 0.5), 0.3), "\\[round, ratio\\] steps"),
    ],
)
def test_a_bad_ratio_is_refused_in_every_round(ratio, message):
    with pytest.raises(CompressionError, match=message):
        ratio_at(ratio, 0)
