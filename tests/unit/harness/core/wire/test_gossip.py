"""Rule 7: `mix` returns what this client sent, so that trackers keep their mean whatever the channel does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from datasets.topology import Ring, mixing_matrix
from harness.core import Increment, rng
from harness.core.algorithm import ALGORITHMS
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.wire.channel import Channel
from harness.core.wire.message import Part
from harness.problems import PROBLEMS, Setting
from tests.support.wire import channel, clipped, cohort, privacy, rows
from tests.support.worlds import EXACT

KGT = ALGORITHMS["k_gt_minimax"]
MIXING = mixing_matrix(Ring(), 5)
NOISY = privacy(clip=5.0, z=0.05)
CODED = Compression(beta=0.5, codec="q4")


class Clean(Channel):
    """The mistake: a tracker is given its own clean share and not what it sent."""

    def mix(self, *rows: Any, **options: Any) -> Any:
        heard = super().mix(*rows, **options)
        assert len(heard.sent) == len(rows)
        clean = [row.row if isinstance(row, Part) else row for row in rows]
        return heard._replace(sent=tuple(clean))


def run(
    kind: type[Channel] = Channel, mechanism=None, compression=EXACT, rounds: int = 60, zero_init: bool = True
):
    """Run K-GT-Minimax on a ring of five two-dimensional quadratics."""
    eye = [[1.0, 0.0], [0.0, 2.0]]
    entries = {"P": [eye] * 5, "B": [eye] * 5, "Q": [eye] * 5}
    entries |= {"c": [[float(n), 1.0] for n in range(5)], "d": [[0.5, -float(n)] for n in range(5)]}
    found = PROBLEMS["quadratic_minimax"]
    problem, data = found.build(Setting(found.settings(**entries), None, None))
    algorithm = KGT(local_steps=3, lr_x=0.05, lr_y=0.05, zero_init=zero_init)
    memory, state = {}, None
    for round in range(-1, rounds):
        clients = cohort(data=data, problem=problem, round=round)
        way = kind(clients, mixing=MIXING, privacy=mechanism, compression=compression, state=memory)
        if state is None:
            state = algorithm.init(problem.init(rng.stream(0, "start")), clients, way)
        else:
            state = algorithm.round(state, clients, way)
        memory = way.state
    return state


def drift(state) -> float:
    return float(torch.cat([state.cx.mean(0), state.cy.mean(0)]).norm())


def test_mix_returns_what_was_sent_and_the_mix_of_it() -> None:
    ring = mixing_matrix(Ring(), 4)
    messages = rows(20, scale=10.0)
    zeros = torch.zeros(4, 20, dtype=torch.float64)
    (noise,), *_ = channel(privacy(z=1.0), mixing=ring).mix(zeros)
    (sent,), (mixed,), *_ = channel(privacy(z=1.0), mixing=ring).mix(messages)
    torch.testing.assert_close(sent, clipped(messages, 1.0) + noise)
    torch.testing.assert_close(mixed, ring @ sent)


def test_a_sender_draws_its_noise_once_for_all_its_neighbors() -> None:
    """Two neighbors hear the same: the mix of a doubly stochastic matrix keeps the mean of what was sent."""
    way = channel(privacy(z=1.0), mixing=mixing_matrix(Ring(), 4))
    (sent,), (mixed,), *_ = way.mix(rows(20))
    torch.testing.assert_close(mixed.mean(0), sent.mean(0))
    assert way.ledger.made == 1
    assert int(way.cost.up) == 4 * 2 * 20 * 8, "a message of 20 float64 to each of 2 neighbors"


def test_known_rows_are_not_noised_clipped_or_pruned() -> None:
    known = rows(20, scale=100.0)
    mixing = mixing_matrix(Ring(), 4)
    setting = Compression(beta=0.9, codec="float64")
    _, _, (told,), _ = channel(privacy(z=1.0), setting, mixing=mixing).mix(rows(20), rebroadcast=(known,))
    torch.testing.assert_close(told, mixing @ known)


@pytest.mark.parametrize(
    ("mechanism", "compression"), [(None, EXACT), (NOISY, EXACT), (None, CODED), (NOISY, CODED)]
)
def test_k_gt_corrections_keep_mean_zero_under_noise_and_codecs(mechanism, compression) -> None:
    assert drift(run(mechanism=mechanism, compression=compression)) < 1e-10


@pytest.mark.slow
def test_corrections_drift_if_nodes_use_their_clean_share() -> None:
    """Without noise and code there is no difference; with them the mean walks away."""
    assert drift(run(Clean)) < 1e-10
    assert drift(run(Clean, mechanism=NOISY)) > 0.1
    assert drift(run(Clean, compression=CODED)) > 0.1


def test_the_first_exchange_of_k_gt_keeps_the_mean_zero_too() -> None:
    assert drift(run(mechanism=NOISY, zero_init=False)) < 1e-10


def test_the_first_exchange_leaves_no_residual_to_rounds() -> None:
    """Those are other quantities, though they may have the same number and length."""
    setting = Compression(beta=0.5, codec="float64", error_feedback=True)
    before = channel(None, setting, round=-1)
    before.mean(rows(10))
    after = channel(None, setting, state=before.state)
    found = after.gather(rows(10))
    torch.testing.assert_close(found, channel(None, setting).gather(rows(10)))


def test_changes_are_sent_against_what_is_remembered() -> None:
    """The largest half of the entries of z - m; then m is z on these, and z + (W - I) m is mixed."""
    ring, rows_now, old = mixing_matrix(Ring(), 4), rows(20), rows(20, seed=2)
    way = channel(None, Compression(beta=0.5, codec="float64"), mixing=ring)
    _, (mixed,), _, (known,) = way.mix_changes(rows_now, memory=[old])
    change = rows_now - old
    kept = change.abs() >= change.abs().sort(-1).values[:, 10:11]
    torch.testing.assert_close(known, torch.where(kept, rows_now, old))
    torch.testing.assert_close(mixed, rows_now + ring @ known - known)
    torch.testing.assert_close(mixed.mean(0), rows_now.mean(0))
    whole = channel(None, EXACT, mixing=ring)
    whole.mix_changes(rows_now, memory=[old])
    assert int(whole.cost.up) == 4 * 2 * 20 * 8 > int(way.cost.up)


def test_what_is_remembered_is_protected_first() -> None:
    """The noise is that of the increment; neither it nor what is known is clipped again."""
    ring, step, start, old = mixing_matrix(Ring(), 4), rows(20), rows(20, seed=2), rows(20, scale=50.0)
    (alone,), *_ = channel(privacy(z=1.0), mixing=ring).mix(step)
    way = channel(privacy(z=1.0), mixing=ring)
    (sent,), (mixed,), _, (known,) = way.mix_changes(
        Increment(start + step, of=start), onto=[start], memory=[old]
    )
    torch.testing.assert_close(sent, alone)
    torch.testing.assert_close(known, start + alone)
    torch.testing.assert_close(mixed, ring @ (start + alone))
    assert way.ledger.made == 1


def test_changes_of_known_rows_release_nothing() -> None:
    ring, known, old = mixing_matrix(Ring(), 4), rows(20, scale=100.0), rows(20)
    way = channel(privacy(z=1.0), Compression(beta=0.9, codec="float64"), mixing=ring)
    sent, _, _, (told,) = way.mix_changes(rebroadcast=[known], memory=[old])
    assert sent == () and way.ledger.made == 0
    assert ((told == old).sum(-1) == 18).all(), "two of twenty entries travel"


def test_every_row_needs_a_memory_and_no_residual() -> None:
    way = channel(None, EXACT, mixing=mixing_matrix(Ring(), 4))
    with pytest.raises(ValueError, match="a memory for each of 2 rows; got 1"):
        way.mix_changes(rows(3), rebroadcast=[rows(3)], memory=[rows(3)])
    setting = Compression(beta=0.5, codec="float64", error_feedback=True)
    with pytest.raises(Incompatible, match="error_feedback"):
        channel(None, setting, mixing=mixing_matrix(Ring(), 4)).mix_changes(rows(3), memory=[rows(3)])
