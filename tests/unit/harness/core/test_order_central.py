"""The order of operations where the server adds noise to the average (the table in docs/design.md, section 4)."""

import pytest
import torch

from datasets.errors import warn_once
from harness.core import Increment
from harness.core.errors import Incompatible
from harness.core.public import Public
from harness.core.settings.compression import Compression
from tests.support.wire import channel, clipped, largest, privacy, rows


def noise_alone(mechanism, size, **options):
    return channel(mechanism, **options).mean(torch.zeros(4, size, dtype=torch.float64))


def test_scaling_comes_first_and_is_restored_last() -> None:
    """Increments (30) and (0.04) of scales 10 and 0.01 are (3, 4): clipped to 1 and averaged 6 and 0.008."""
    base = torch.full((4, 1), 5.0, dtype=torch.float64), torch.full((4, 1), 7.0, dtype=torch.float64)
    dx, dy = channel(privacy("central")).mean(
        Increment(base[0] + 30, of=base[0], scale=Public(10.0)),
        Increment(base[1] + 0.04, of=base[1], scale=Public(0.01)),
    )
    torch.testing.assert_close(dx, torch.tensor([6.0], dtype=torch.float64))
    torch.testing.assert_close(dy, torch.tensor([0.008], dtype=torch.float64))


def test_the_clip_comes_after_the_codec() -> None:
    """Of (3, 0.1, 4, 0.1) the two largest are encoded, (3, 0, 4, 0), and clipped to 1: (0.6, 0, 0.8, 0).

    Clipping first would leave norm below 1 after the encoding.
    """
    messages = torch.tensor([[3.0, 0.1, 4.0, 0.1]], dtype=torch.float64).repeat(4, 1)
    found = channel(privacy("central"), Compression(beta=0.5, codec="float64")).mean(messages)
    torch.testing.assert_close(found, torch.tensor([0.6, 0, 0.8, 0], dtype=torch.float64))


def test_no_codec_makes_a_message_longer_than_the_clip_norm() -> None:
    """A one-bit stochastic code of a short message is longer than the message; the clip comes after it."""
    for name in ("q1", "q4", "sign", "float16"):
        found = channel(privacy("central"), Compression(codec=name), counts=(3,)).mean(rows(40, clients=1))
        assert found.norm() <= 1 + 1e-6, name


def test_the_residual_is_added_before_the_code() -> None:
    """residual = what entered the encoder - what came out, both before the clip."""
    setting = Compression(beta=0.75, codec="float64", error_feedback=True)
    messages = rows(16, scale=20.0)
    first = channel(privacy("central"), setting)
    found = first.mean(messages)
    torch.testing.assert_close(found, clipped(largest(messages, 4), 1.0).mean(0))
    residual = messages - largest(messages, 4)
    torch.testing.assert_close(first.state["residual 0"], residual)
    second = channel(privacy("central"), setting, state=first.state, round=1)
    found = second.mean(messages)
    entering = messages + residual
    torch.testing.assert_close(found, clipped(largest(entering, 4), 1.0).mean(0))
    torch.testing.assert_close(second.state["residual 0"], entering - largest(entering, 4))


def test_noise_is_added_to_the_mean_on_kept_entries_only() -> None:
    for setting in (Compression(codec="float64"), Compression(beta=0.5, select="random_k", codec="float64")):
        noise = noise_alone(privacy("central", z=1.0), 30, compression=setting)
        assert (noise != 0).sum() == (30 if setting.beta == 0 else 15)
        quiet = channel(privacy("central"), setting).mean(rows(30))
        found = channel(privacy("central", z=1.0), setting).mean(rows(30))
        torch.testing.assert_close(found, quiet + noise)


def test_the_noise_of_stacked_runs_spares_each_run_s_own_mask() -> None:
    setting = Compression(beta=0.5, select="random_k", codec="float64")
    messages = torch.stack([rows(30), rows(30, seed=2)])
    together = channel(privacy("central", z=1.0), setting, seeds=(0, 1)).mean(messages)
    for number, seed in enumerate((0, 1)):
        apart = channel(privacy("central", z=1.0), setting, seeds=(seed,)).mean(messages[number])
        torch.testing.assert_close(together[number], apart)


def test_the_noise_is_z_sensitivity_over_the_expected_cohort() -> None:
    """C for add-remove, 2 C where one client is replaced; 40000 numbers: 0.35 % (one sigma)."""
    for factor, others in ((1, {}), (2, {"adjacency": "replace", "sampling": "fixed"})):
        noise = noise_alone(privacy("central", clip=3.0, z=0.7, **others), 40000)
        assert noise.std().item() == pytest.approx(0.7 * factor * 3.0 / 4, rel=0.02)


def test_the_mean_is_over_the_expected_cohort() -> None:
    """One client of norm 1 came where 4 were expected: the mean has norm 1/4."""
    one = clipped(rows(6, clients=1), 1.0)
    found = channel(privacy("central"), ids=[2], participation_mask=[1], expected=4).mean(one)
    torch.testing.assert_close(found, one[0] / 4)


def test_weights_are_uniform_and_size_weights_are_refused() -> None:
    messages = clipped(rows(6), 1.0)
    for weighting in (None, "uniform"):
        found = channel(privacy("central")).mean(messages, weighting=weighting)
        torch.testing.assert_close(found, messages.mean(0))
    with pytest.raises(
        Incompatible, match="central privacy does not support a mean weighted by sample counts"
    ):
        channel(privacy("central")).mean(messages, weighting="size")


def test_one_client_moves_the_mean_within_its_sensitivity() -> None:
    """Whatever it sends: the sensitivity that the noise is made for."""
    messages, setting = rows(10, scale=5.0), Compression(beta=0.5, codec="q2")
    usual = channel(privacy("central"), setting).mean(messages)
    for other in (0.0, 1e30, -3.0, torch.nan):
        changed = messages.clone()
        changed[1] = other
        moved = channel(privacy("central"), setting).mean(changed) - usual
        assert moved.norm() <= 2 * 1.0 / 4 + 1e-6


def test_the_server_clip_bounds_the_noisy_mean() -> None:
    found = channel(privacy("central", z=1000.0, server_clip=10.0)).mean(rows(50))
    assert found.norm().item() == pytest.approx(10.0)


def test_an_adaptive_norm_warns_once_at_the_end_of_its_range(caplog) -> None:
    """Norms of 0 are short ones, so the norm falls until it has reached 1e-7."""
    warn_once.cache_clear()
    state = {"clip 0": torch.tensor(1.05e-7, dtype=torch.float64)}
    for round in range(2):
        way = channel(privacy("central", clip="adaptive"), state=state, round=round)
        way.mean(rows(6, scale=0.0))
        state = way.state
    assert float(state["clip 0"]) == 1e-7
    assert [one.message for one in caplog.records] == [
        "privacy.clip: an adaptive clip norm has reached 1e-07, the end of its range; give clip as a number"
    ]


def test_an_adaptive_norm_moves_towards_the_median() -> None:
    """All norms are above 1: C <- C exp(-0.2 (0 - 0.5)) = 1.105 C, without noise."""
    way = channel(privacy("central", clip="adaptive"))
    found = way.mean(rows(6, scale=100.0))
    torch.testing.assert_close(found, clipped(rows(6, scale=100.0), 1.0).mean(0))
    assert float(way.state["clip 0"]) == pytest.approx(1.10517, rel=1e-3)
    later = channel(privacy("central", clip="adaptive"), state=way.state, round=1)
    torch.testing.assert_close(
        later.mean(rows(6, scale=100.0)), clipped(rows(6, scale=100.0), float(way.state["clip 0"])).mean(0)
    )
