"""The order of operations where each client protects itself (the table in harness/core/wire/channel.py).

Noise is a function of seed, round and message, so the message of zeros shows it alone: what arrives of it is
the noise, and every other expectation is computed by hand from that.
"""

import math

import pytest
import torch

from harness.core import Increment
from harness.core.public import Public
from harness.core.settings.compression import Compression
from tests.support.wire import channel, clipped, largest, privacy, rows
from tests.support.worlds import EXACT

UNIFORM = "uniform"


def noise_alone(mechanism, size, **options):
    return channel(mechanism, **options).gather(torch.zeros(4, size, dtype=torch.float64))


def test_the_increment_against_the_base_is_what_is_clipped() -> None:
    """Models of norm about 100 whose increments have norm 5: clipped to 2, an increment of norm 2 arrives."""
    base = torch.full((4, 9), 33.0, dtype=torch.float64)
    step = clipped(rows(9, scale=100.0), 5.0)
    arrived = channel(privacy(clip=2.0)).gather(Increment(base + step, of=base))
    torch.testing.assert_close(arrived, step * 2 / 5)


def test_parts_are_scaled_around_the_joint_clip() -> None:
    """Parts (30, 0) and (0, 0.04) with scales 10 and 0.01 are (3, 0, 0, 4) when clipped: norm 5.

    Clipped to 1 they are (0.6, 0, 0, 0.8), restored (6, 0) and (0, 0.008).
    """
    one = torch.tensor([[30.0, 0.0]], dtype=torch.float64)
    two = torch.tensor([[0.0, 0.04]], dtype=torch.float64)
    found = channel(privacy(clip=1.0), counts=(3,)).gather(
        Increment(one, scale=Public(10.0)), Increment(two, scale=Public(0.01))
    )
    torch.testing.assert_close(found[0], torch.tensor([[6.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(found[1], torch.tensor([[0.0, 0.008]], dtype=torch.float64))


def test_noise_is_that_of_the_scaled_message() -> None:
    """With scale s the noise of a part is s times that of an unscaled one: it is added before restoring."""
    zeros = torch.zeros(4, 6, dtype=torch.float64)
    plain = channel(privacy(z=1.0)).gather(zeros, zeros)
    scaled = channel(privacy(z=1.0)).gather(
        Increment(zeros, scale=Public(10.0)), Increment(zeros, scale=Public(0.5))
    )
    torch.testing.assert_close(scaled[0], 10.0 * plain[0])
    torch.testing.assert_close(scaled[1], 0.5 * plain[1])


def test_the_clip_is_joint_over_the_parts() -> None:
    """(3) and (4) together have norm 5: clipped to 1 they are 0.6 and 0.8, not 1 and 1."""
    one, two = (torch.full((4, 1), value, dtype=torch.float64) for value in (3.0, 4.0))
    found = channel(privacy(clip=1.0)).gather(one, two)
    torch.testing.assert_close(found[0], torch.full((4, 1), 0.6, dtype=torch.float64))
    torch.testing.assert_close(found[1], torch.full((4, 1), 0.8, dtype=torch.float64))


def test_clip_norms_of_parts_clip_apart_under_one_noise() -> None:
    """Norms (3, 4) bound the message by 5; with noise multiplier z its noise is z * 2 * 5."""
    one, two = rows(1, scale=100.0), rows(1, scale=100.0, seed=2)
    found = channel(privacy(clip=(3.0, 4.0))).gather(one, two)
    torch.testing.assert_close(found[0], 3.0 * one.sign())
    torch.testing.assert_close(found[1], 4.0 * two.sign())
    zeros = torch.zeros(4, 1, dtype=torch.float64)
    parts = torch.cat(channel(privacy(clip=(3.0, 4.0), z=0.5)).gather(zeros, zeros), -1)
    joint = torch.cat(channel(privacy(clip=5.0, z=0.5)).gather(zeros, zeros), -1)
    torch.testing.assert_close(parts, joint)


def test_masked_entries_take_no_share_of_the_clip_norm() -> None:
    """The mask comes before the clip: of a message clipped to 1 the kept half alone has norm 1."""
    setting = Compression(beta=0.5, select="random_k", codec="float64")
    arrived = channel(privacy(clip=1.0), setting).gather(rows(20, scale=10.0))
    torch.testing.assert_close(arrived.norm(dim=-1), torch.ones(4, dtype=torch.float64))
    kept = arrived != 0
    assert (kept.sum(-1) == 10).all() and (kept == kept[0]).all()


def test_noise_is_added_on_the_kept_positions_only() -> None:
    setting = Compression(beta=0.75, select="random_k", codec="float64")
    arrived = noise_alone(privacy(z=1.0), 40, compression=setting)
    assert ((arrived != 0).sum(-1) == 10).all()
    assert ((arrived != 0) == (arrived[0] != 0)).all(), "the mask is common to all clients"


def test_the_noise_is_added_after_the_clip() -> None:
    """What arrives is the clipped message plus the noise of a message of zeros."""
    messages = rows(12, scale=50.0)
    noise = noise_alone(privacy(clip=3.0, z=0.7), 12)
    arrived = channel(privacy(clip=3.0, z=0.7)).gather(messages)
    torch.testing.assert_close(arrived, clipped(messages, 3.0) + noise)
    assert (noise.norm(dim=-1) > 3.0).all(), "noise that was clipped would be shorter"


def test_the_noise_is_z_times_twice_the_clip_norm() -> None:
    """A client's data are replaced: 2 C. The estimate from 80000 numbers is good to 0.25 % (one sigma)."""
    noise = noise_alone(privacy(clip=3.0, z=0.7), 20000)
    assert noise.std().item() == pytest.approx(0.7 * 2 * 3.0, rel=0.015)


def test_the_largest_entries_are_chosen_after_the_noise() -> None:
    setting = Compression(beta=0.75, codec="float64")
    messages = rows(16, scale=0.1)
    noisy = clipped(messages, 1.0) + noise_alone(privacy(z=1.0), 16)
    arrived = channel(privacy(z=1.0), setting).gather(messages)
    torch.testing.assert_close(arrived, largest(noisy, 4))
    assert not torch.equal(arrived != 0, largest(messages, 4) != 0), "noise decides here"


def test_the_residual_is_what_the_code_dropped_after_the_noise() -> None:
    """Nothing of it is clipped or noised again: it is made of what was protected already."""
    setting = Compression(beta=0.75, codec="float64", error_feedback=True)
    mechanism, messages = privacy(z=1.0), rows(16)
    noisy = clipped(messages, 1.0) + noise_alone(mechanism, 16)
    first = channel(mechanism, setting)
    arrived = first.gather(messages)
    residual = noisy - largest(noisy, 4)
    torch.testing.assert_close(first.state["residual 0"], residual)
    second = channel(mechanism, setting, state=first.state, round=1)
    again = second.gather(messages)
    entering = clipped(messages, 1.0) + noise_alone(mechanism, 16, round=1) + residual
    torch.testing.assert_close(again, largest(entering, 4))
    torch.testing.assert_close(second.state["residual 0"], entering - again)
    torch.testing.assert_close(arrived + first.state["residual 0"], noisy)


def test_a_codec_after_the_noise_loses_what_a_codec_loses() -> None:
    """float16 of a noisy message is what arrives: encoding is post-processing."""
    messages = rows(16)
    noisy = clipped(messages, 1.0) + noise_alone(privacy(z=1.0), 16)
    arrived = channel(privacy(z=1.0), Compression(codec="float16")).gather(messages)
    assert torch.equal(arrived, noisy.half().double())


def test_the_server_clip_bounds_the_mean_after_the_noise() -> None:
    """With huge noise the mean would have norm in the thousands; it has norm 10 and the same direction."""
    free = channel(privacy(z=100.0)).mean(rows(50), weighting=UNIFORM)
    bounded = channel(privacy(z=100.0, server_clip=10.0)).mean(rows(50), weighting=UNIFORM)
    assert free.norm() > 100
    torch.testing.assert_close(bounded, free * 10 / free.norm())


def test_a_local_mean_is_weighted_by_public_sample_numbers() -> None:
    """Clients of 4, 8, 2 and 6 samples weigh 0.2, 0.4, 0.1 and 0.3; uniform weights are 1/4 each."""
    messages = clipped(rows(5), 1.0)
    weights = torch.tensor([0.2, 0.4, 0.1, 0.3], dtype=torch.float64)
    torch.testing.assert_close(channel(privacy()).mean(messages), weights @ messages)
    torch.testing.assert_close(channel(privacy()).mean(messages, weighting=UNIFORM), messages.mean(0))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_message_that_is_not_finite_counts_as_zeros(poison: float) -> None:
    messages = clipped(rows(6), 1.0)
    bad = messages.clone()
    bad[1, 2] = poison
    expected = messages.clone()
    expected[1] = 0
    for placement in ("local", "central"):
        arrived = channel(privacy(placement), EXACT).mean(
            bad, weighting=UNIFORM if placement == "local" else None
        )
        torch.testing.assert_close(arrived, expected.mean(0))


def test_nothing_is_booked_clipped_or_noised_without_privacy() -> None:
    way = channel()
    messages = rows(6, scale=1000.0)
    assert torch.equal(way.gather(messages), messages)
    assert way.ledger.made == 0
