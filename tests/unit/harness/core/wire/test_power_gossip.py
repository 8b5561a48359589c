"""Gossip about differences as factors (PowerGossip): against its definition, and the mean that it keeps."""

import pytest
import torch
from torch import nn

from compression.low_rank import Factors
from datasets.topology import Ring, mixing_matrix
from harness.core import Increment, rng
from harness.core.clients.pruning import prune_models
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.wire.gossip import momentum
from harness.problems.classify import classifier
from tests.support.wire import booked, channel, clipped, privacy, rows
from tests.support.worlds import network, random_federation, run_algorithm

ROWS, COLUMNS, BIAS = 6, 8, 6
SIZE = ROWS * COLUMNS + BIAS
PROBLEM = classifier(nn.Linear(COLUMNS, ROWS))
RING4 = mixing_matrix(Ring(), 4)
RANK2 = Compression(rank=2, codec="float64")


def way_of(mechanism=None, compression=RANK2, mixing=RING4, **options):
    return channel(mechanism, compression, mixing=mixing, problem=PROBLEM, **options)


def mixed(held, rounds=1, hops=1, **options):
    """Return rows after rounds of gossip alone."""
    state = None
    for number in range(rounds):
        way = way_of(state=state, round=number, **options)
        _, (held,), *_ = way.mix(held, hops=hops)
        state = way.state
    return held


def matrix(row):
    return row[..., :-BIAS].unflatten(-1, (ROWS, COLUMNS))


def first_start():
    drawn = torch.randn(COLUMNS * 2, generator=rng.stream(0, "low rank", 1))  # 0 is the message itself
    return drawn.double().view(COLUMNS, 2)


def span(columns):
    """Return the orthogonal projection onto the span of columns."""
    return columns @ torch.linalg.pinv(columns)


# --- against the definition -------------------------------------------------------------------------


def by_the_paper(held, rounds):
    """Two iterations a round, from the right and from the left, edge by edge and with full matrices."""
    x, weights = matrix(held).clone(), RING4
    edges = [(i, j) for i in range(4) for j in range(i) if weights[i, j] > 0]
    factor = dict.fromkeys(edges, first_start())
    for iteration in range(2 * rounds):
        steps = torch.zeros_like(x)
        for i, j in edges:
            difference = x[j] - x[i]
            if iteration % 2 == 0:
                shown = difference @ span(factor[i, j])
                factor[i, j] = difference @ torch.linalg.qr(factor[i, j]).Q
            else:
                shown = span(factor[i, j]) @ difference
                factor[i, j] = difference.T @ torch.linalg.qr(factor[i, j]).Q
            steps[i] += weights[i, j] * shown
            steps[j] -= weights[i, j] * shown
        x = x + steps
    return x


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_rounds_are_those_of_the_paper(rounds):
    held = rows(SIZE)
    torch.testing.assert_close(matrix(mixed(held, rounds)), by_the_paper(held, rounds))


def test_what_is_no_matrix_is_mixed_as_ever():
    held = rows(SIZE)
    torch.testing.assert_close(mixed(held)[:, -BIAS:], RING4 @ held[:, -BIAS:])


def test_two_neighbors_by_hand():
    """With weights of a half, both projections are taken off the difference whole: (1 - P) D (1 - Q)."""
    pair = mixing_matrix(Ring(), 2)
    assert torch.equal(pair, torch.full((2, 2), 0.5).double())
    held = rows(SIZE, clients=2)
    found = mixed(held, mixing=pair, counts=(4, 4))
    difference, q = matrix(held[1] - held[0]), span(first_start())
    p = span(difference @ first_start())
    left = (torch.eye(ROWS).double() - p) @ difference @ (torch.eye(COLUMNS).double() - q)
    torch.testing.assert_close(matrix(found[1] - found[0]), left)


def test_neighbors_that_differ_by_two_ranks_agree_at_once():
    pair, held = mixing_matrix(Ring(), 2), rows(SIZE, clients=2)
    thin = rows(ROWS * 2, clients=1).view(ROWS, 2) @ rows(2 * COLUMNS, clients=1, seed=3).view(2, COLUMNS)
    held[1, :-BIAS] = held[0, :-BIAS] + thin.flatten()
    found = mixed(held, mixing=pair, counts=(4, 4))
    torch.testing.assert_close(found, held.mean(0).expand(2, -1))


def test_rows_that_stay_agree_after_some_rounds():
    held = rows(SIZE)
    apart = float((held - held.mean(0)).norm())
    assert float((mixed(held, 10) - held.mean(0)).norm()) < 0.1 * apart
    assert float((mixed(held, 100) - held.mean(0)).norm()) < 1e-6 * apart


def test_many_edges_are_computed_some_at_a_time(monkeypatch):
    """Nothing of the length of a model is held for all edges of a dense graph at once."""
    held, dense = rows(SIZE), torch.full((4, 4), 0.25).double()
    found = mixed(held, 3, mixing=dense)
    monkeypatch.setattr("harness.core.wire.edges.BLOCK_ENTRIES", 2 * SIZE)
    largest = []
    join = Factors.join
    monkeypatch.setattr(Factors, "join", lambda *given: largest.append(len(given[1])) or join(*given))
    torch.testing.assert_close(mixed(held, 3, mixing=dense), found)
    assert max(largest) == 2


# --- the mean ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("codec", ["float64", "float16", "q4", "sign"])
def test_the_mean_is_kept_whatever_the_code(codec, hops):
    """What one end of an edge adds, the other takes away."""
    held = rows(SIZE, scale=3.0)
    found = mixed(held, 3, hops, compression=Compression(rank=1, codec=codec))
    torch.testing.assert_close(found.mean(0), held.mean(0), rtol=0, atol=1e-11)
    assert float((found - held).norm()) > 0.1


def test_several_hops_accelerate_as_ever():
    """``z_1 = (1 + e) W z_0 - e z_0`` and ``z_2 = (1 + e) W z_1 - e z_0``, with what factors show of W z."""
    held, way, single = rows(SIZE), way_of(), way_of()
    _, _, (found,), _ = way.mix(rebroadcast=[held], hops=2)
    e = float(momentum(RING4))
    _, _, (one,), _ = single.mix(rebroadcast=[held])
    _, _, (two,), _ = single.mix(rebroadcast=[(1 + e) * one - e * held])
    torch.testing.assert_close(found, (1 + e) * two - e * held)
    assert int(way.cost.up) == int(single.cost.up) == 2 * 8 * 34 * 8
    assert way.ledger.made == 0


@pytest.mark.parametrize("mechanism", [None, privacy(clip=5.0, z=0.05)])
def test_corrections_of_a_tracker_keep_mean_zero(mechanism):
    """K-GT: a node's share of the tracker is what it has sent, as protected."""
    problem, federation = network(), random_federation([9] * 5)
    made = run_algorithm(
        "k_gt", problem, federation, 6, compression=Compression(rank=1, codec="q4"), privacy=mechanism,
        local_steps=2, lr=0.1, zero_init=True,
    )  # fmt: skip
    assert float(made.state.c.abs().max()) > 1e-3
    assert float(made.state.c.mean(0).abs().max()) < 1e-10


@pytest.mark.slow
def test_a_tracker_learns_nearly_the_same_model_with_factors():
    """For two fifths of the bytes; gossip of factors is slower, but nothing is left out for good."""
    problem, federation = network(features=12, classes=6, hidden=(16,)), random_federation([20] * 5, 12, 6)
    work = {"local_steps": 2, "lr": 0.3, "batch_size": None}
    exact = run_algorithm("k_gt", problem, federation, 60, **work)
    made = run_algorithm("k_gt", problem, federation, 60, compression=RANK2, **work)
    way = float((exact.state.x.mean(0) - problem_start(problem)).norm())
    assert float((made.state.x.mean(0) - exact.state.x.mean(0)).norm()) < 0.05 * way
    assert int(made.cost.up) < 0.4 * int(exact.cost.up)


def problem_start(problem):
    return problem.init(rng.stream(0, "start"))["x"].double()


# --- bytes and privacy ------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "each"), [("float32", 4 * 34), ("q8", 34 + 2 * 4)])
def test_bytes_by_hand(codec, each):
    """8 directed edges; 12 numbers from the right with 6 biases, 16 from the left; no weight is sent whole."""
    way = way_of(compression=Compression(rank=2, codec=codec))
    way.mix(rows(SIZE))
    assert (int(way.cost.up), int(way.cost.down)) == (8 * each, 0)


def test_known_rows_travel_as_differences_too():
    way, known = way_of(), rows(SIZE, seed=2)
    _, (one,), (other,), _ = way.mix(rows(SIZE), rebroadcast=[known])
    assert int(way.cost.up) == 8 * 2 * 34 * 8
    torch.testing.assert_close(one.mean(0), rows(SIZE).mean(0))
    torch.testing.assert_close(other.mean(0), known.mean(0))
    assert float((other - RING4 @ known).norm()) > 0.1


def test_rows_are_protected_before_their_differences_are_told():
    """The same noise and the same account as without factors; what is mixed is what was protected."""
    mechanism, step, start = privacy(z=1.0), rows(SIZE, scale=10.0), rows(SIZE, seed=2)
    plain = way_of(mechanism, Compression(codec="float64"))
    (noisy,), *_ = plain.mix(Increment(start + step, of=start), onto=[start])
    way = way_of(mechanism)
    (sent,), (found,), *_ = way.mix(Increment(start + step, of=start), onto=[start])
    torch.testing.assert_close(sent, noisy)
    torch.testing.assert_close(found, mixed(start + noisy))
    assert booked(way) == booked(plain) and way.ledger.made == 1
    assert not torch.allclose(sent, clipped(step, 1.0))


def test_differences_of_pruned_models_are_smaller():
    net = network(features=6, classes=5, hidden=(8,))
    start = problem_start(net)
    pruned = prune_models(net, start, 0.5, None)
    setting = Compression(rank=1, codec="float64")
    way = channel(None, setting, mixing=RING4, problem=net, pruned=pruned)
    _, (found,), *_ = way.mix(rows(len(start)) * pruned.mask)
    assert int(way.cost.up) == 8 * 8 * (10 + 9 + 9) and not found[:, ~pruned.mask].any()


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [{"error_feedback": True}, {"shift": 1.0}])
def test_differences_need_no_memory(memory):
    with pytest.raises(Incompatible, match="rank in gossip supports neither"):
        way_of(compression=Compression(rank=1, **memory)).mix(rows(SIZE))


def test_a_stack_of_graphs_with_unequal_edges_is_refused():
    graphs = torch.stack([mixing_matrix(Ring(), 4), torch.full((4, 4), 0.25).double()])
    with pytest.raises(Incompatible, match="different numbers of edges"):
        way_of(mixing=graphs, seeds=(0, 1)).mix(rows(SIZE).expand(2, -1, -1))
