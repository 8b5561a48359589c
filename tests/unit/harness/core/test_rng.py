"""Keyed randomness: uniform, reproducible, never the same twice."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.run import read_spec
from harness.core import rng
from harness.simulation.build import prepare
from harness.simulation.dry_run import with_some_noise
from harness.simulation.loop import simulate
from privacy.gaussian import gaussian_noise


def chi_square(values, cells):
    counts = torch.bincount(values, minlength=cells).double()
    expected = len(values) / cells
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("shift", [0, 8, 30, 55])
def test_bits_are_uniform_in_all_places(shift):
    """20,000 consecutive counters, 64 cells: chi-square has 63 degrees; 4.5 standard deviations are 50."""
    draws = rng.bits(torch.tensor(rng.key(0, "x")), torch.arange(20_000))
    assert chi_square((draws >> shift) & 63, 64) < 63 + 4.5 * math.sqrt(2 * 63)


def test_uniform_numbers_have_the_moments_of_the_interval():
    """Mean 1/2 and variance 1/12, each within 5 standard errors at 20,000 draws."""
    draws = rng.uniform(torch.tensor(rng.key(1, "x")), torch.arange(20_000))
    assert float(draws.min()) >= 0 and float(draws.max()) < 1
    assert abs(float(draws.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 20_000)
    assert abs(float(draws.var()) - 1 / 12) < 0.004


def test_neighboring_counters_and_keys_are_independent():
    """Correlations of 20,000 pairs are below 5 / sqrt(20,000)."""
    key = torch.tensor(rng.key(0, "x"))
    grid = rng.uniform(key, torch.arange(200)[:, None], torch.arange(101))
    other = rng.uniform(torch.tensor(rng.key(1, "x")), torch.arange(200)[:, None], torch.arange(101))
    for a, b in ((grid[:, 1:], grid[:, :-1]), (grid[1:], grid[:-1]), (grid, other)):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(a.numel())


@settings(max_examples=60, deadline=None)
@given(
    a=st.tuples(*[st.integers(0, 2**40)] * 3),
    b=st.tuples(*[st.integers(0, 2**40)] * 3),
    key=st.integers(0, 2**63 - 1),
)
def test_other_counters_give_other_bits(a, b, key):
    """Also when two counters are exchanged: the order counts."""
    draw = lambda counters: int(rng.bits(torch.tensor(key), *map(torch.tensor, counters)))  # noqa: E731
    assert draw(a) == draw(a)
    assert (draw(a) == draw(b)) == (a == b)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    one=st.tuples(
        st.integers(0, 100),
        st.lists(st.one_of(st.integers(0, 99), st.text("a1\x1f", max_size=3)), max_size=4),
    ),
    other=st.tuples(
        st.integers(0, 100),
        st.lists(st.one_of(st.integers(0, 99), st.text("a1\x1f", max_size=3)), max_size=4),
    ),
)
def test_other_purposes_give_other_keys(one, other):
    keys = [rng.key(seed, *purpose) for seed, purpose in (one, other)]
    assert all(0 <= key < 2**63 for key in keys)
    plain = all(
        "\x1f" not in part for _, purpose in (one, other) for part in purpose if isinstance(part, str)
    )
    if plain:
        assert (keys[0] == keys[1]) == (one == other)


def test_a_number_and_its_text_are_different_purposes():
    assert rng.key(0, "round", 1) != rng.key(0, "round", "1")
    assert rng.key(0, "a", "b") != rng.key(0, "ab")
    assert rng.key(1, "a") != rng.key(0, "a")


def test_streams_are_reproducible_and_not_global():
    before = torch.get_rng_state()
    draws = [torch.randn(4, generator=rng.stream(7, "noise", 3)) for _ in range(2)]
    assert torch.equal(*draws)
    assert (rng.numpy_stream(7, "split").random(3) == rng.numpy_stream(7, "split").random(3)).all()
    assert torch.equal(torch.get_rng_state(), before)


CANCER = {"data": "breast-cancer", "partition": {"kind": "iid", "clients": 5}, "model": "logistic"}
RUNS = {
    "cohorts, noise and random masks": CANCER
    | {
        "algorithm": {"name": "scaffold", "local_steps": 2},
        "cohort": {"size": 3},
        "privacy": {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0},
        "compression": {"beta": 0.5, "select": "random_k", "codec": "q4", "downlink": True},
    },
    "central and adaptive": CANCER
    | {
        "algorithm": {"name": "fedavg", "local_steps": 2},
        "cohort": {"size": 3},
        "privacy": {"placement": "central", "noise_multiplier": 1.0, "clip": "adaptive"},
    },
    "records": CANCER
    | {
        "algorithm": {"name": "scaffold", "local_steps": 3},
        "privacy": {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0},
    },
    "bilevel": {
        "problem": {"kind": "quadratic_bilevel", "A": [2, 4], "B": [2, 4], "b": [0, 4], "t": [3, 1]},
        "algorithm": {"name": "fedbio", "local_steps": 2, "neumann_terms": 3},
        "privacy": {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0},
    },
    "coins and several hops": {
        "problem": {
            "kind": "quadratic_minimax",
            **{name: [1.0, 2.0, 3.0, 1.0] for name in ("P", "B", "Q", "c", "d")},
        },
        "algorithm": {"name": "dream", "hops": 3, "p": 0.3},
        "topology": "ring",
        "privacy": {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0},
        "compression": {"codec": "q4"},
    },
    "gossip on a random graph": {
        "problem": {
            "kind": "quadratic_minimax",
            **{name: [1.0, 2.0, 3.0, 1.0] for name in ("P", "B", "Q", "c", "d")},
        },
        "algorithm": {"name": "k_gt_minimax", "local_steps": 2},
        "topology": "erdos-renyi",
        "privacy": {"placement": "local", "noise_multiplier": 1.0, "clip": 1.0},
        "compression": {"codec": "q4"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("what", RUNS)
def test_no_key_is_drawn_twice_in_a_run(what, monkeypatch):
    """Two draws with one key would be one draw: correlated noise, or batches that tell the mask."""
    drawn, key, noise_stream = [], rng.key, rng.noise_stream

    def record(seed, *purpose):
        drawn.append((seed, *purpose))
        return key(seed, *purpose)

    def record_noise(run, *purpose):
        drawn.append((run, *purpose))
        return noise_stream(run, *purpose)

    # The noise of a budget is calibrated by a dry run, which draws nothing that is used; the multiplier is given.
    monkeypatch.setattr("harness.simulation.loop.calibrated", with_some_noise)
    monkeypatch.setattr("harness.simulation.loop.expected_cost", lambda *given: None)
    setup = prepare(read_spec(RUNS[what] | {"rounds": 4, "eval_every": 2, "seed": 11}))
    monkeypatch.setattr(rng, "key", record)
    monkeypatch.setattr(rng, "noise_stream", record_noise)
    simulate(setup)
    assert len(drawn) >= 4
    twice = {purpose for purpose in drawn if drawn.count(purpose) > 1}
    assert not twice


def test_noise_depends_on_every_bit_of_its_key():
    """Torch's CPU generator keeps 32 bits: of 100 clients x 2,000 rounds several would share theirs."""
    low, high = 5, 5 + 2**40
    torches = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in (low, high)]
    assert torch.equal(*torches)  # why noise must not come from there
    zeros = torch.zeros(2, 3)
    noise = gaussian_noise(zeros, 1.0, [np.random.default_rng(seed) for seed in (low, high)])
    assert not torch.equal(noise[0], noise[1])
    streams = [
        rng.noise_stream("run", "noise", round, client) for round in range(200) for client in range(100)
    ]
    firsts = gaussian_noise(torch.zeros(20_000, 1, dtype=torch.float64), 1.0, streams)
    assert len(firsts.unique()) == 20_000


def test_noise_is_standard_normal_within_a_stream_and_between_streams():
    streams = [rng.noise_stream("run", "noise", number) for number in range(2_000)]
    noise = gaussian_noise(torch.zeros(2_000, 50, dtype=torch.float64), 1.0, streams).numpy()
    for sample in (noise[:, 0], noise[:, 49], noise[7], noise.ravel()):
        assert scipy.stats.kstest(sample, "norm").pvalue > 1e-4
    for one, other in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / one.size**0.5


def test_a_stream_begins_anew_and_is_not_disturbed_by_others():
    one, other = (rng.noise_stream("run", "noise", number) for number in range(2))
    first = gaussian_noise(torch.zeros(1, 9), 1.0, [one])
    with ThreadPoolExecutor(4) as pool:
        drawn = list(
            pool.map(lambda _: gaussian_noise(torch.zeros(3, 9), 1.0, [other, one, other]), range(50))
        )
    assert all(torch.equal(noise[1:2], first) and torch.equal(noise[0], noise[2]) for noise in drawn)
