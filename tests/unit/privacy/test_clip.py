import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import compose
from privacy.clipping import NORMS, AdaptiveClip, clip, clip_each, clipped_sum, joint_norm

DTYPES = st.sampled_from([torch.float32, torch.float64])


def _rows(seed, shape, dtype, scale):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale


def _joint(parts):
    return torch.cat([part.double() for part in parts], dim=-1).norm(dim=-1)


def test_parts_are_clipped_by_their_joint_norm():
    """(3, 0) and (4) have joint norm 5; bound 1 scales both by 1/5. (0.3, 0) and (0.4) stay: norm 0.5."""
    a, b = torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[4.0], [0.4]])
    result = clip((a, b), 1.0)
    assert torch.allclose(result.parts[0], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    assert torch.allclose(result.parts[1], torch.tensor([[0.8], [0.4]]))
    assert result.norms.tolist() == pytest.approx([5.0, 0.5])
    assert result.exceeded.tolist() == [True, False]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 300), DTYPES, st.floats(-6, 12), st.floats(-3, 3))
def test_no_message_exceeds_the_bound_and_directions_stay(seed, size, dtype, log_scale, log_norm):
    norm = 10**log_norm
    parts = (_rows(seed, (2, 3, size), dtype, 10**log_scale), _rows(seed + 1, (2, 3, 2), dtype, 1.0))
    result = clip(parts, norm)
    assert (_joint(result.parts) <= norm * (1 + 1e-6)).all()
    before, after = (torch.cat([part.double() for part in side], dim=-1) for side in (parts, result.parts))
    expected = before * (norm / result.norms).clamp(max=1).unsqueeze(-1)
    assert torch.allclose(after, expected, rtol=1e-6, atol=1e-30)
    assert result.parts[0].dtype == dtype
    assert torch.equal(result.exceeded, result.norms > norm)


def test_long_float32_rows_keep_the_bound():
    row = _rows(0, (1, 2_000_000), torch.float32, 1e3)
    assert _joint(clip((row,), 10.0).parts).item() <= 10.0 * (1 + 1e-6)


def test_values_whose_squares_overflow_float32_are_still_clipped():
    result = clip((torch.tensor([[3e29, 4e29]]),), 5.0)
    assert torch.allclose(result.parts[0], torch.tensor([[3.0, 4.0]]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_becomes_zero(bad):
    rows = torch.tensor([[1.0, bad], [1.0, 2.0]])
    other = torch.ones(2, 1)
    result = clip((rows, other), 10.0)
    assert torch.equal(result.parts[0], torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    assert torch.equal(result.parts[1], torch.tensor([[0.0], [1.0]]))
    assert result.exceeded.tolist() == [True, False]


@pytest.mark.parametrize("norm", [1.0, 1e-2, 1e-6, 2.2e-7, 1e-7])
def test_the_bound_holds_up_to_the_largest_number_of_float32(norm):
    """The factor 2.2e-7 / 3e38 has no digits left in float32: norms came out at twice the bound."""
    values = torch.cat([torch.linspace(1e37, 3.4e38, 400), torch.logspace(20, 30, 400) * 0.999])
    for value in values.split(1):
        result = clip((value[None],), norm)
        assert _joint(result.parts).item() <= norm * (1 + 1e-6)
        assert bool(result.exceeded)
    assert not bool(clip((torch.tensor([[1e37]]),), norm).parts[0].any())
    assert not bool(clipped_sum((torch.tensor([[1e37]]),), norm, torch.tensor([True]))[0].any())


def test_zero_vectors_stay_zero():
    assert torch.equal(clip((torch.zeros(3, 4),), 1.0).parts[0], torch.zeros(3, 4))


def test_an_infinite_norm_is_the_identity_bit_for_bit():
    rows = _rows(3, (4, 5), torch.float32, 1e10)
    assert clip((rows,), math.inf).parts[0] is rows
    assert torch.equal(clip((rows,), torch.tensor(math.inf)).parts[0], rows)
    assert not clip((rows,), math.inf).exceeded.any()
    assert not clip((rows,), torch.tensor(math.inf)).exceeded.any()


def test_stacked_runs_may_have_clip_norms_of_their_own():
    rows = _rows(5, (2, 3, 4), torch.float64, 10.0)
    stacked = clip((rows,), torch.tensor([[1.0], [2.0]]))
    for run, norm in enumerate((1.0, 2.0)):
        apart = clip((rows[run],), norm)
        assert torch.equal(stacked.parts[0][run], apart.parts[0])
        assert torch.equal(stacked.exceeded[run], apart.exceeded)


def test_a_single_vector_is_a_row():
    result = clip((torch.tensor([3.0, 4.0]),), 1.0)
    assert torch.allclose(result.parts[0], torch.tensor([0.6, 0.8]))
    assert result.exceeded


def test_gradients_are_not_needed_and_inputs_are_not_changed():
    rows = torch.full((2, 2), 9.0)
    clip((rows,), 1.0)
    assert torch.equal(rows, torch.full((2, 2), 9.0))


def test_clipping_each_part_bounds_each_part():
    """Bounds 3 and 4 give the message the bound sqrt(9 + 16) = 5."""
    parts = (_rows(1, (6, 5), torch.float32, 100.0), _rows(2, (6, 2), torch.float32, 1e-3))
    result = clip_each(parts, (3.0, 4.0))
    assert (_joint(result.parts[:1]) <= 3.0 * (1 + 1e-6)).all()
    assert torch.equal(result.parts[1], parts[1])
    assert result.norms.shape == (6, 2)
    assert result.exceeded.all()
    assert joint_norm((3.0, 4.0)) == pytest.approx(5.0)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="clip norm must be positive"):
        clip((torch.ones(2, 2),), 0.0)
    with pytest.raises(ValueError, match="clip norm must be positive"):
        clip((torch.ones(2, 2),), math.nan)
    with pytest.raises(ValueError, match="leading axes"):
        clip((torch.ones(2, 2), torch.ones(3, 2)), 1.0)
    with pytest.raises(ValueError, match="leading axes"):
        clip((), 1.0)
    with pytest.raises(ValueError, match="one clip norm per part"):
        clip_each((torch.ones(2, 2),), (1.0, 1.0))
    with pytest.raises(ValueError, match="quantile"):
        AdaptiveClip(quantile=2)
    with pytest.raises(ValueError, match="learning rate"):
        AdaptiveClip(lr=0)
    with pytest.raises(ValueError, match="count_std"):
        AdaptiveClip(count_std=-1)


def test_the_adaptive_update_by_hand():
    """Norms 1, 2, 3, 9 against C = 2: share below 1/2, quantile 1: C exp(0.2 * (1 - 1/2)) = 2 exp(0.1)."""
    rule = AdaptiveClip(quantile=1.0, lr=0.2, count_std=0.0)
    norms = torch.tensor([1.0, 2.0, 3.0, 9.0], dtype=torch.float64)
    generator = np.random.default_rng(0)
    norm = torch.tensor(2.0, dtype=torch.float64)
    moved = rule.update(norm, rule.share(norm, norms, 4, [generator]))
    assert moved.item() == pytest.approx(2 * math.exp(0.1))


def test_padding_and_broken_rows_do_not_count_as_small():
    """Two present rows, one of them nan: share below 1/2. Padding has norm 0 and must not count."""
    rule = AdaptiveClip(quantile=0.5, lr=1.0, count_std=0.0)
    norms, present = torch.tensor([1.0, math.nan, 0.0, 0.0]), torch.tensor([1, 1, 0, 0])
    share = rule.share(torch.tensor(2.0), norms, 2, [np.random.default_rng(0)], present)
    assert rule.update(torch.tensor(2.0), share).item() == pytest.approx(2.0)


def test_the_adaptive_norm_finds_its_quantile():
    """Norms uniform on (0, 1): the 0.8 quantile is 0.8; two stacked runs, noise on the count of 200."""
    rule = AdaptiveClip(quantile=0.8, lr=0.2, count_std=5.0)
    generators = [np.random.default_rng(seed) for seed in (0, 1)]
    norm = torch.tensor([10.0, 0.01])
    for _ in range(150):
        norms = torch.from_numpy(generators[0].random((2, 200)))
        norm = rule.update(norm, rule.share(norm, norms, 200, generators))
    assert norm.tolist() == pytest.approx([0.8, 0.8], abs=0.06)


@pytest.mark.parametrize("replaced", [False, True])
def test_count_and_update_share_the_rounds_multiplier(replaced):
    """Add/remove: z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), the paper's split."""
    rule, z = AdaptiveClip(count_std=5.0), 1.3
    left = rule.update_multiplier(z, replaced=replaced)
    assert compose([left, rule.count_multiplier(replaced=replaced)]) == pytest.approx(z)
    if not replaced:
        assert left == pytest.approx((z**-2 - (2 * 5.0) ** -2) ** -0.5)
    assert rule.update_multiplier(0.0) == 0.0
    with pytest.raises(ValueError, match="raise count_std"):
        rule.update_multiplier(10.0)
    with pytest.raises(ValueError, match="expected cohort size"):
        rule.share(torch.tensor(1.0), torch.ones(3), 0, [np.random.default_rng(0)])


def test_a_share_beyond_its_range_moves_the_norm_no_further():
    """Quantile 0.25, lr 0.2: a step is between exp(-0.2 * 0.75) and exp(0.2 * 0.25), however loud the noise."""
    rule = AdaptiveClip(quantile=0.25, lr=0.2, count_std=1000.0)
    norm = torch.ones(40, dtype=torch.float64)
    streams = [np.random.default_rng(seed) for seed in range(40)]
    share = rule.share(norm, torch.ones(40, 3), 3, streams)
    assert float(share.min()) < -10 and float(share.max()) > 10
    moved = rule.update(norm, share)
    assert float(moved.min()) == pytest.approx(math.exp(-0.15))
    assert float(moved.max()) == pytest.approx(math.exp(0.05))


@pytest.mark.parametrize(("norm", "share"), [(1.05e15, 0.0), (0.95e-7, 1.0)])
def test_an_adaptive_norm_stays_in_its_range(norm, share):
    moved = AdaptiveClip().update(torch.tensor(norm, dtype=torch.float64), torch.tensor(share))
    assert float(moved) in NORMS


@pytest.mark.parametrize("replaced", [False, True])
def test_the_count_is_as_noisy_as_the_cohort_allows(replaced):
    """In large cohorts 5 % of the share; in small ones the update has 1.1 times the round's noise."""
    large = AdaptiveClip.for_cohort(10_000, 2.0, replaced=replaced)
    assert large.count_std == pytest.approx(500)
    assert large.update_multiplier(2.0, replaced=replaced) < 2.0001
    small = AdaptiveClip.for_cohort(10, 2.0, replaced=replaced)
    assert small.update_multiplier(2.0, replaced=replaced) == pytest.approx(2.2)
    assert AdaptiveClip.for_cohort(10, 0.0).count_std == 0
