"""Several hops of gossip: FastMix, what it costs, and that it releases nothing more than one hop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.topology import ErdosRenyi, Ring, Star, directed_edges, mixing_matrix
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.wire import gossip
from harness.core.wire.message import Message, Part
from harness.core.wire.pipeline import public
from harness.simulation.dry_run import DryChannel
from tests.support.wire import booked, channel, clipped, cohort, largest, privacy, rows
from tests.support.worlds import EXACT

RING4 = mixing_matrix(Ring(), 4)
Z = torch.tensor([[1.0], [2.0], [3.0], [10.0]], dtype=torch.float64)


def mixed(known, mixing=RING4, hops=1, compression=EXACT, **others):
    """Return what known rows become."""
    _, _, (found,), _ = channel(None, compression, mixing=mixing, **others).mix(
        rebroadcast=(known,), hops=hops
    )
    return found


def by_mode(eigenvalue: float, hops: int) -> float:
    """Return what FastMix makes of a mode of the ring of four: p_{k+1} = (1 + e) l p_k - e p_{k-1}."""
    e = (1 - (8 / 9) ** 0.5) / (1 + (8 / 9) ** 0.5)
    before, now = 1.0, 1.0
    for _ in range(hops):
        before, now = now, (1 + e) * eigenvalue * now - e * before
    return now


@pytest.mark.parametrize("hops", [2, 3, 4, 7])
def test_fast_mix_scales_ring_modes_by_its_polynomial(hops) -> None:
    """z - 4 = (-3, -2, -1, 6) = -(1, 0, -1, 0) - 4 (0, 1, 0, -1) - 2 (1, -1, 1, -1).

    The first two modes have eigenvalue 1/3, the last -1/3.
    """
    a, b = by_mode(1 / 3, hops), by_mode(-1 / 3, hops)
    expected = torch.tensor([-a - 2 * b, -4 * a + 2 * b, a - 2 * b, 4 * a + 2 * b], dtype=torch.float64)
    torch.testing.assert_close(mixed(Z, hops=hops)[:, 0] - 4, expected, rtol=0, atol=1e-14)


def test_four_hops_leave_a_third_of_plain_mixing() -> None:
    """W^4 multiplies every mode by 1/81: -3/81 = -0.037 and so on. FastMix: the polynomial above at +-1/3."""
    plain = Z
    for _ in range(4):
        plain = mixed(plain)
    expected = torch.tensor([-3.0, -2.0, -1.0, 6.0], dtype=torch.float64) / 81
    torch.testing.assert_close(plain[:, 0] - 4, expected)
    fast = torch.tensor([-0.0136, -0.0051, -0.0061, 0.0248], dtype=torch.float64)
    torch.testing.assert_close(mixed(Z, hops=4)[:, 0] - 4, fast, rtol=0, atol=5e-5)


@pytest.mark.parametrize("hops", [4, 5, 8, 12])
@pytest.mark.parametrize("topology", [Ring(), Star()])
@pytest.mark.parametrize("nodes", [4, 12])
def test_from_four_hops_on_fast_mix_beats_the_worst_plain_mode(topology, nodes, hops) -> None:
    """The worst direction of W^K shrinks by lambda^K; FastMix applied to all unit rows has a smaller norm."""
    mixing = mixing_matrix(topology, nodes)
    away = mixed(torch.eye(nodes, dtype=torch.float64), mixing, hops, counts=(1,) * nodes) - 1 / nodes
    assert float(torch.linalg.matrix_norm(away, 2)) < gossip.spectral_gap(mixing).second ** hops


def test_one_hop_is_plain_mixing() -> None:
    torch.testing.assert_close(mixed(Z), RING4 @ Z, rtol=0, atol=0)


@settings(max_examples=20, deadline=None)
@given(
    hops=st.integers(1, 6),
    codec=st.sampled_from(["float64", "float16", "q4", "sign"]),
    seed=st.integers(0, 99),
)
def test_the_mean_is_preserved_whatever_the_code(hops, codec, seed) -> None:
    """Every node adds sum_j w_ij (heard_j - heard_i), and W is symmetric: these cancel over the graph."""
    held = rows(7, scale=3.0, seed=seed)
    found = mixed(held, hops=hops, compression=Compression(codec=codec))
    torch.testing.assert_close(found.mean(0), held.mean(0), rtol=0, atol=1e-12 * 10**hops)


def test_mixing_only_what_is_heard_would_lose_the_mean() -> None:
    """A code of four bits moves it by some hundredths; from round to round that would add up in a tracker."""
    held, way = rows(7, scale=3.0), channel(None, Compression(codec="q4"), mixing=RING4)
    message = Message(0, [Part(held)], torch.ones(4, dtype=torch.int64), sender="neighbor", sparsify=False)
    (heard,) = public(way._stages, message)
    assert float((heard.mean(0) - held.mean(0)).abs().max()) > 0.01


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_a_message_is_released_once_and_paid_for_in_every_hop(hops) -> None:
    """The ring has 8 directed edges, the message 20 numbers of 8 bytes."""
    way = channel(privacy(z=1.0), mixing=RING4)
    (sent,), (found,), *_ = way.mix(rows(20), hops=hops)
    assert way.ledger.made == 1
    assert int(way.cost.up) == hops * 8 * 20 * 8
    torch.testing.assert_close(found, mixed(sent, hops=hops))


def test_the_message_of_many_hops_is_that_of_one() -> None:
    """Same clip, same draw of noise: what is new is only how far it goes."""
    messages = rows(20, scale=10.0)
    (noise,), *_ = channel(privacy(z=1.0), mixing=RING4).mix(torch.zeros_like(messages), hops=3)
    (sent,), *_ = channel(privacy(z=1.0), mixing=RING4).mix(messages, hops=3)
    torch.testing.assert_close(sent, clipped(messages, 1.0) + noise)


def test_known_rows_alone_release_nothing_and_are_counted() -> None:
    way = channel(privacy(z=1.0), mixing=RING4)
    sent, found, (one, two), _ = way.mix(rebroadcast=(rows(20), rows(5)), hops=2)
    assert (sent, found, way.ledger.made) == ((), (), 0)
    assert int(way.cost.up) == 2 * 8 * 25 * 8
    torch.testing.assert_close(one, mixed(rows(20), hops=2))
    torch.testing.assert_close(two, mixed(rows(5), hops=2))


def test_known_rows_and_the_message_go_equally_far() -> None:
    way = channel(mixing=RING4)
    (sent,), (found,), (told,), _ = way.mix(rows(20), rebroadcast=(rows(5),), hops=3)
    torch.testing.assert_close(found, mixed(sent, hops=3))
    torch.testing.assert_close(told, mixed(rows(5), hops=3))
    assert int(way.cost.up) == 3 * 8 * 25 * 8


def test_later_hops_travel_whole() -> None:
    """Random half of 20 entries: 10 numbers in the first hop, 20 in the second, of 8 bytes along 8 edges."""
    way = channel(None, Compression(beta=0.5, codec="float64", select="random_k"), mixing=RING4)
    (sent,), (found,), *_ = way.mix(rows(20), hops=2)
    assert int((sent != 0).sum()) == 4 * 10
    assert int(way.cost.up) == 8 * (10 + 20) * 8
    torch.testing.assert_close(found, mixed(sent, hops=2))


@pytest.mark.parametrize("hops", [1, 3])
def test_a_message_put_onto_known_rows_travels_as_their_sum(hops) -> None:
    """20 numbers in place of 40; what is clipped and noised is the message alone."""
    messages, known = rows(20, scale=10.0), rows(20, scale=100.0, seed=2)
    way = channel(privacy(z=1.0), mixing=RING4)
    (alone,), *_ = channel(privacy(z=1.0), mixing=RING4).mix(messages)
    (sent,), (found,), *_ = way.mix(messages, onto=(known,), hops=hops)
    torch.testing.assert_close(sent, alone)
    torch.testing.assert_close(found, mixed(known + sent, hops=hops))
    assert way.ledger.made == 1
    assert int(way.cost.up) == hops * 8 * 20 * 8


def test_a_tracker_keeps_the_rounding_of_its_step() -> None:
    """So the tracker's mean moves by the mean step, though the sum goes out in four bits."""
    step, tracker = rows(20), rows(20, scale=5.0, seed=2)
    (sent,), (found,), *_ = channel(None, Compression(codec="q4"), mixing=RING4).mix(step, onto=(tracker,))
    torch.testing.assert_close(sent, step, rtol=0, atol=0)
    torch.testing.assert_close(found.mean(0), (tracker + step).mean(0), rtol=0, atol=1e-12)
    assert float((found - RING4 @ (tracker + step)).abs().max()) > 0.01


@pytest.mark.parametrize("setting", [{"beta": 0.75}, {"beta": 0.75, "select": "random_k"}])
def test_sums_with_known_rows_keep_their_mean_when_pruned(setting) -> None:
    """The largest of the sum go out, not of the message; what stays behind stays with its node."""
    step, tracker = rows(20), rows(20, scale=50.0, seed=2)
    wire = Compression(codec="float64", **setting)
    way = channel(None, wire, mixing=RING4)
    (sent,), (found,), *_ = way.mix(step, onto=(tracker,))
    torch.testing.assert_close(sent, step)
    torch.testing.assert_close(found.mean(0), (tracker + step).mean(0))
    if "select" not in setting:
        told = largest(tracker + step, 5)
        torch.testing.assert_close(found, tracker + step + RING4 @ told - told)
    twice = channel(None, wire, mixing=RING4)
    twice.mix(step, onto=(tracker,), hops=2)
    assert 2 * 8 * 5 * 8 <= int(twice.cost.up) <= 2 * 8 * (5 * 8 + 20)
    torch.testing.assert_close(found.mean(0), (tracker + step).mean(0))


def test_what_is_missing_of_a_known_row_is_not_owed() -> None:
    way = channel(None, Compression(beta=0.5, error_feedback=True), mixing=RING4)
    with pytest.raises(Incompatible, match="must not be added to the next one"):
        way.mix(rows(3), onto=(rows(3),))


def test_nothing_to_send_and_no_hop_to_go_are_mistakes() -> None:
    for given_rows, hops in (((), 1), ((rows(3),), 0)):
        with pytest.raises(ValueError, match="at least one row and one hop"):
            channel(mixing=RING4).mix(*given_rows, hops=hops)


@pytest.mark.parametrize("codec", ["float32", "float16", "q4"])
def test_the_counting_channel_books_and_counts_the_same(codec) -> None:
    ways = []
    for kind in (lambda clients, **o: DryChannel(clients, **o), None):
        way = channel(privacy(z=1.0), Compression(codec=codec), mixing=RING4)
        if kind is not None:
            options = {"privacy": privacy(z=1.0), "compression": Compression(codec=codec)}
            way = kind(cohort(mechanism=privacy(z=1.0)), mixing=RING4, **options)
        way.mix(rows(20), rebroadcast=(rows(7),), hops=3)
        way.mix(rows(20), onto=(rows(20),), hops=2)
        way.mix(rebroadcast=(rows(3),), hops=2)
        ways.append((int(way.cost.up), booked(way)))
    assert ways[0] == ways[1]


def test_the_momentum_is_computed_once_a_matrix(monkeypatch) -> None:
    gossip._gap.cache_clear()
    seen, plain = [], gossip.spectral_gap
    monkeypatch.setattr(gossip, "spectral_gap", lambda mixing: seen.append(mixing) or plain(mixing))
    mixing = mixing_matrix(Ring(), 4)
    mixed(Z, mixing)
    assert len(seen) == 0
    for _ in range(3):
        mixed(Z, mixing, hops=3)
    assert len(seen) == 1


def test_stacked_runs_have_each_their_own_graph_and_momentum() -> None:
    """Two random graphs side by side give what they give apart."""
    graphs = [mixing_matrix(ErdosRenyi(p), 6, np.random.default_rng(0)) for p in (0.3, 0.8)]
    assert directed_edges(graphs[0]) != directed_edges(graphs[1])
    held = torch.stack([rows(5, clients=6, seed=seed) for seed in (1, 2)])
    way = channel(mixing=torch.stack(graphs), seeds=(0, 1), counts=(1,) * 6)
    _, _, (found,), _ = way.mix(rebroadcast=(held,), hops=4)
    for number, graph in enumerate(graphs):
        apart = mixed(held[number], graph, 4, counts=(1,) * 6)
        torch.testing.assert_close(found[number], apart, rtol=0, atol=1e-12)
        assert int(way.cost.up[number]) == 4 * directed_edges(graph) * 5 * 8
