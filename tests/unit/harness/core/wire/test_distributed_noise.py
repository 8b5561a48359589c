"""Noise that clients add together: what the server learns, what it costs, and what is refused."""

import pytest
import torch

from compression.secure_sum import sum_bytes
from harness.config.run import read_spec
from harness.core.errors import Incompatible, UserError
from harness.core.settings.compression import Compression
from harness.core.wire.channel import Channel
from harness.simulation.dry_run import dry_run
from privacy.clipping import clip
from privacy.discrete import grid, padded_length
from tests.support.runs import finished, given, ready
from tests.support.wire import channel, cohort, privacy

WIDE = {"name": "mlp", "hidden": [300]}
TOGETHER = {"placement": "distributed", "clip": 0.5, "adjacency": "zero-out"}
PLAIN = Compression()


def rows(clients=4, length=3000, seed=0):
    return torch.randn(clients, length, generator=torch.Generator().manual_seed(seed))


def together(z, **settings):
    return privacy("distributed", 2.0, z, **settings)


def test_without_noise_it_is_the_mean_of_clipped_messages_to_within_the_grid():
    sent = rows()
    mean = channel(together(0.0, bits=20), PLAIN).mean(sent)
    clean = clip([sent], 2.0).parts[0].mean(0)
    step = 2.0 * grid(0.0, 2.0, 4, 4096, 20).step
    assert mean.dtype == sent.dtype
    assert 0 < (mean - clean).abs().max() < 5 * step / 2
    assert (mean - clean).norm() / clean.norm() < 0.01


@pytest.mark.parametrize("dropouts", [None, 0.5])
def test_noise_of_the_mean_is_what_the_sensitivity_asks_for(dropouts):
    """Twice the clip norm over the cohort; half the clients may leave, so all together add more."""
    z = 3.0
    sent = rows(length=4096)
    clean = clip([sent], 2.0).parts[0].mean(0)
    noise = channel(together(z, dropouts=dropouts), PLAIN).mean(sent) - clean
    usual = z * 2 * 2.0 / 4 * (1 if dropouts is None else 2**0.5)
    assert usual * 0.95 < float(noise.std()) < usual * 1.06
    assert abs(float(noise.mean())) < 4 * usual / 64


def test_every_client_adds_its_share_so_fewer_clients_bring_less_noise():
    """Of six members of a padded cohort, four take part; the divisor is the public size."""
    sent = rows(clients=4, length=4096)
    whole = channel(together(3.0), PLAIN).mean(sent)
    half = channel(together(3.0), PLAIN, participation_mask=[1, 1, 0, 0]).mean(sent)
    assert float(half.std() / whole.std()) == pytest.approx(0.5**0.5, rel=0.08)


def test_the_server_sees_numbers_of_so_many_bits_that_one_client_alone_does_not_explain():
    way = channel(together(3.0, bits=12), PLAIN)
    mechanism = way._mechanism
    sent = clip([rows(length=4096)], 2.0).parts[0]
    made = mechanism.integers(sent, 0)
    assert made.dtype == torch.int64 and made.min() >= 0 and made.max() < 2**12
    again = mechanism.integers(sent, 0)
    assert torch.equal(made, again)  # of the same run, round and message
    assert not torch.equal(made, mechanism.integers(sent, 1))
    silent = channel(together(0.0, bits=12), PLAIN)._mechanism
    longer, quiet = silent.grids(4096)[0].longest, silent.integers(sent, 0)
    centered = (quiet + 2**11) % 2**12 - 2**11
    assert float(centered.double().norm(dim=-1).max()) <= longer


def test_bytes_are_those_of_the_secure_sum_whatever_is_sent():
    way = channel(together(3.0, bits=14, aggregation="secagg+"), PLAIN)
    way.mean(rows(length=3000))
    each = sum_bytes(4, padded_length(3000), 14, "secagg+")
    assert int(way.cost.up) == 4 * each.up and int(way.cost.down) == 4 * each.down


def test_a_dry_run_knows_the_bytes_and_the_releases(data):
    setup = ready(data, privacy=TOGETHER | {"epsilon": 4.0}, cohort=3, model=WIDE, rounds=3)
    run, dry = finished(setup), dry_run(setup)
    assert dry.cost["up"] == run.cost.up and dry.cost["down"] == run.cost.down
    claim = run.statement()
    assert claim["epsilon_total"] == pytest.approx(4.0) and claim["accountant"] == "exact"
    assert (claim["placement"], claim["sampling"]) == ("distributed", "fixed")


def test_the_epsilon_is_that_of_a_trusted_server_with_public_cohorts(data):
    fields = {"cohort": 3, "rounds": 5}
    both = [
        finished(
            ready(data, privacy=TOGETHER | {"epsilon": 2.0, "placement": name} | more, **fields)
        ).statement()
        for name, more in (("distributed", {}), ("central", {"sampling": "fixed"}))
    ]
    assert both[0]["noise_multiplier"] == both[1]["noise_multiplier"]


def test_entries_that_nobody_sends_stay_as_they_are(data):
    """A pruned model has fewer entries, and so has a message with a common random choice."""
    for compression in ({"alpha": 0.5}, {"select": "random_k", "beta": 0.5}):
        fields = {"privacy": TOGETHER | {"noise_multiplier": 1.0}, "model": WIDE, "rounds": 2}
        setup = ready(data, compression=compression, **fields)
        run = finished(setup)
        assert run.cost.up < 0.8 * finished(ready(data, **fields)).cost.up
        assert bool((run.state.x == 0).any()) or "select" in compression


def test_a_cohort_in_chunks_sends_what_it_sends_in_one_piece():
    sent = rows(length=500)
    torch.testing.assert_close(
        channel(together(2.0), PLAIN).mean(sent),
        channel(together(2.0), PLAIN, mode="loop").mean(sent),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize(
    ("privacy", "fields", "text"),
    [
        ({"sampling": "poisson", "adjacency": "add-remove"}, {"cohort": 3}, "not amplified by sampling"),
        ({"clip": "adaptive"}, {}, "need independent noise and a fixed clip norm"),
        ({"mechanism": "banded"}, {}, "need independent noise and a fixed clip norm"),
        ({"clip": float("inf"), "epsilon": None, "noise_multiplier": 0.0}, {}, "needs a finite clip norm"),
        ({"unit": "record"}, {}, "units record and user protect every local gradient"),
        ({"bits": 21}, {}, "less than or equal to 20"),
        ({"dropouts": 1.0}, {}, "less than 1"),
        ({"aggregation": "secag"}, {}, "'secagg'"),
        ({"placement": "central", "bits": 12, "sampling": "full"}, {}, "bits: is for placement distributed"),
        ({}, {"compression": {"beta": 0.5}}, "only alpha and select random_k"),
        ({}, {"compression": {"codec": "q8"}}, "only alpha and select random_k"),
        ({}, {"compression": {"shift": 0.5, "codec": "q8"}}, "only alpha and select random_k"),
    ],
)
def test_other_settings_are_refused_in_one_sentence(data, privacy, fields, text):
    with pytest.raises((UserError, Incompatible), match=text):
        read_spec(given(data, privacy=TOGETHER | {"epsilon": 1.0} | privacy, **fields))


def test_messages_that_are_seen_one_by_one_are_refused():
    with pytest.raises(Incompatible, match="distributed privacy protects only averages"):
        channel(together(1.0), PLAIN).gather(rows())


def test_too_few_bits_are_refused():
    with pytest.raises(Incompatible, match=r"privacy\.bits: 3 bits a coordinate cannot hold the sum of 4"):
        channel(together(3.0, bits=3), PLAIN).mean(rows())


def test_models_of_unlike_sizes_are_refused(data):
    fields = {"privacy": TOGETHER | {"noise_multiplier": 1.0}, "model": WIDE, "rounds": 1}
    alpha = [0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    with pytest.raises(Incompatible, match="the clients' models"):
        finished(ready(data, compression={"alpha": alpha}, **fields))


def test_diagnostics_say_how_much_the_noise_is_and_how_many_bits_it_takes():
    way = Channel(cohort(counts=(4,) * 4), privacy=together(3.0, bits=14), diagnose=True)
    way.mean(rows())
    figures = way.diagnostics
    assert int(figures["bits"]) == 14
    assert float(figures["noise_std"]) == pytest.approx(3.0 * 2 * 2.0 / 4, rel=0.02)
    assert float(figures["noise_to_signal"]) > 0
