"""Codes of differences to a remembered shift: EF21, DIANA, SoteriaFL."""

import pytest
import torch

from harness.core import Problem
from harness.core.errors import Incompatible
from harness.core.losses import weighted_mean
from harness.core.settings.compression import Compression
from tests.support.wire import booked, channel, clipped, largest, privacy, rows
from tests.support.worlds import close, federation_of, network, random_federation, run_algorithm

LR = 0.25
OPTIMA = torch.tensor([[4.0, 0.0, 1.0, -1.0], [0.0, -6.0, 1.0, 2.0], [1.0, 2.0, -5.0, 0.0]]).double()
CURVATURES = torch.tensor([[1.0, 2.0, 0.5, 1.0], [3.0, 1.0, 1.0, 0.5], [0.5, 1.0, 2.0, 1.0]]).double()
BEST = (CURVATURES * OPTIMA).sum(0) / CURVATURES.sum(0)


def disagreeing():
    """Three clients with ``f_i = 1/2 sum_j a_ij (w_j - o_ij)^2``, whose gradients at the optimum are not zero."""

    def loss(w, batch):
        errors = 0.5 * (CURVATURES[batch.y] * (w - batch.x) ** 2).sum(-1)
        return weighted_mean(errors, batch.weight)

    federation = federation_of(list(OPTIMA[:, None]), [torch.tensor([i]) for i in range(3)], classes=3)
    return Problem("disagreeing", "erm", lambda generator: {"x": torch.zeros(4)}, loss), federation


def end(rounds=80, cohort=None, **setting):
    work = {"lr": LR, "local_steps": 1, "batch_size": None, "cohort": cohort}
    wire = Compression(**{"codec": "float64", **setting})
    return run_algorithm("fedavg", *disagreeing(), rounds, compression=wire, **work)


@pytest.mark.parametrize(
    "code", [{"beta": 0.75}, {"beta": 0.5}, {"codec": "q4"}, {"codec": "sign"}, {"beta": 0.5, "codec": "q8"}]
)
def test_differences_reach_the_optimum_where_messages_do_not(code):
    """The top one of four entries, few levels, or signs: of messages they err by what clients disagree on."""
    step = 0.5 if code.get("codec") == "q4" else 1.0
    assert close(end(**code, shift=step).state.x, BEST, 1e-6)
    assert not close(end(**code).state.x, BEST, 1e-2)


def test_shifts_tend_to_the_messages():
    """At rest a client's increment is -lr times its gradient at the optimum, and so is its shift."""
    problem, federation = disagreeing()
    way, x = None, torch.zeros(4, dtype=torch.float64)
    for number in range(80):
        way = channel(
            None, Compression(codec="float64", beta=0.75, shift=1.0), state=way and way.state,
            data=federation, problem=problem, round=number,
        )  # fmt: skip
        x = x + way.mean(-LR * CURVATURES * (x - OPTIMA), weighting="uniform")
    assert close(x, BEST, 1e-6)
    assert close(way.state["shift 0"], -LR * CURVATURES * (BEST - OPTIMA), 1e-6)
    assert float(way.state["shift 0"].abs().max()) > 0.1


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_two_private_rounds_by_hand(step):
    """v = top_4(clipped + noise - s): s + v arrives, and s moves by step v. Noise is drawn once, as without."""
    setting, mechanism = Compression(beta=0.75, codec="float64", shift=step), privacy(z=1.0)
    state, shift = None, torch.zeros(4, 16, dtype=torch.float64)
    for number in range(3):
        way = channel(mechanism, setting, state=state, round=number)
        messages = rows(16, seed=number)
        arrived = way.gather(messages)
        noise = channel(mechanism, round=number).gather(torch.zeros(4, 16, dtype=torch.float64))
        v = largest(clipped(messages, 1.0) + noise - shift, 4)
        torch.testing.assert_close(arrived, shift + v)
        shift, state = shift + step * v, way.state
        torch.testing.assert_close(state["shift 0"], shift)


def test_what_is_remembered_is_clipped_like_what_is_sent():
    """Central: shift plus decoded difference is the message, and no longer than the bound in any round."""
    setting, mechanism = Compression(beta=0.5, codec="float64", shift=1.0), privacy("central")
    state, shift = None, torch.zeros(4, 6, dtype=torch.float64)
    for number in range(3):
        way = channel(mechanism, setting, state=state, round=number)
        messages = rows(6, scale=20.0, seed=number)
        shift = shift + largest(messages - shift, 3)
        torch.testing.assert_close(way.mean(messages), clipped(shift, 1.0).mean(0))
        state = way.state


def test_shifts_cost_neither_bytes_nor_noise():
    ways = []
    for shift in (None, 0.5):
        mechanism = privacy(z=1.0)
        way = channel(mechanism, Compression(beta=0.75, codec="q4", shift=shift))
        way.mean(rows(40))
        ways.append(way)
    one, other = ways
    assert int(one.cost.up) == int(other.cost.up) > 0
    assert booked(one) == booked(other)


def test_who_is_absent_keeps_its_shift():
    setting = Compression(beta=0.5, codec="float64", shift=1.0)
    way = channel(None, setting, ids=[1, 3])
    way.mean(rows(6, clients=2))
    moved = way.state["shift 0"].ne(0).any(-1)
    assert moved.tolist() == [False, True, False, True]


def test_partial_cohorts_forget_nothing():
    """Two of three a round: with shifts every round is nearly plain averaging of those who take part."""
    exact, shifted, top = (
        end(80, cohort=2),
        end(80, cohort=2, beta=0.5, shift=1.0),
        end(80, cohort=2, beta=0.5),
    )
    near = float((shifted.state.x - exact.state.x).abs().max())
    assert near < 0.4 * float((top.state.x - exact.state.x).abs().max())


def test_what_a_pruned_model_lacks_does_not_come_back_from_a_shift():
    """Entries that were sent before the model was pruned are in the shifts, but no longer in any message."""
    wire = Compression(codec="float64", beta=0.5, shift=1.0, alpha=((0, 0.0), (2, 0.5)))
    seen = []
    work = {"local_steps": 2, "batch_size": None, "lr": 0.5}
    problem, federation = network(hidden=(8,)), random_federation([9, 9, 9])
    run_algorithm("fedavg", problem, federation, 5, compression=wire, watch=seen.append, **work)
    gone = [set(torch.nonzero(state.x == 0).flatten().tolist()) for state in seen]
    assert len(gone[3]) >= 4 * (4 + 1 + 3)  # four neurons with their weights
    assert gone[3] <= gone[4] <= gone[5]


def test_gossip_remembers_what_neighbors_have():
    """A ring of four: rows that no longer change arrive exactly after enough rounds of one entry in four."""
    mixing = torch.full((4, 4), 0.25, dtype=torch.float64)
    state, own = None, rows(8)
    for number in range(4):
        way = channel(
            None, Compression(beta=0.75, codec="float64", shift=1.0), state=state, mixing=mixing, round=number
        )
        (sent,), (mixed,), *_ = way.mix(own)
        state = way.state
        assert close(sent, own, 1e-12) == (number == 3)
    torch.testing.assert_close(mixed, own.mean(0).expand(4, -1))


def test_messages_without_a_past_are_refused():
    mixing = torch.full((4, 4), 0.25, dtype=torch.float64)
    with pytest.raises(Incompatible, match="already adds its messages"):
        channel(None, Compression(shift=1.0), mixing=mixing).mix(rows(3), onto=(rows(3),))
