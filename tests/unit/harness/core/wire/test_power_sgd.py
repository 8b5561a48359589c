"""Messages as factors of low rank (PowerSGD): against its definition, under privacy, and counted in bytes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from algorithms.centralized.fedavg import FedAvg
from compression.codec import find_codec
from compression.low_rank import Factors
from harness import prepare
from harness.core import Problem, rng
from harness.core.clients.pruning import prune_models
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.problem import set_apart, split_model
from harness.core.settings.compression import Compression
from harness.core.wire import low_rank
from harness.core.wire.message import Statistic
from harness.problems.classify import classifier
from harness.simulation.simulation import Simulation
from tests.support.wire import booked, channel, clipped, cohort, privacy, rows
from tests.support.worlds import network, random_federation

ROWS, COLUMNS, BIAS = 6, 8, 6
SIZE = ROWS * COLUMNS + BIAS
PROBLEM = classifier(nn.Linear(COLUMNS, ROWS))
RANK2 = Compression(rank=2, codec="float64")
SHARES = torch.tensor([4, 8, 2, 6]).double() / 20  # of samples


def way_of(mechanism=None, compression=RANK2, **options):
    return channel(mechanism, compression, **{"problem": PROBLEM, **options})


def halves(row):
    """Return the matrix and the bias in a message."""
    return row[..., :-BIAS].unflatten(-1, (ROWS, COLUMNS)), row[..., -BIAS:]


def first_start(slot=0, rank=2):
    drawn = torch.randn(COLUMNS * rank, generator=rng.stream(0, "low rank", slot))
    return drawn.double().view(COLUMNS, rank)


def gram_schmidt(matrix):
    """Return an orthonormal basis, as the paper makes it: without any decomposition."""
    columns = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, -1)


def power_sgd(matrices, q, shares):
    """Return the decoded average of matrices and the mean right factor: the paper's Algorithm 1."""
    p = sum(share * (m @ q) for share, m in zip(shares, matrices, strict=True))
    basis = gram_schmidt(p)
    q = sum(share * (m.T @ basis) for share, m in zip(shares, matrices, strict=True))
    return basis @ q.T, q


# --- against the definition -------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_rounds_are_those_of_the_paper_with_error_feedback(weighting):
    """Errors there are against the decoded average; here against what the client sent. Their means are equal."""
    setting = Compression(rank=2, codec="float64", error_feedback=True)
    shares = SHARES if weighting == "size" else torch.full((4,), 0.25).double()
    q, errors, state = first_start(), torch.zeros(4, ROWS, COLUMNS).double(), None
    for number in range(6):
        messages = rows(SIZE, seed=number)
        way = way_of(compression=setting, state=state, round=number)
        found, bias = halves(way.mean(messages, weighting=weighting))
        state = way.state
        given = halves(messages)[0] + errors
        expected, q = power_sgd(given, q, shares)
        errors = given - expected
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(bias, (shares[:, None] * messages[:, -BIAS:]).sum(0))


def test_without_error_feedback_the_start_is_still_kept():
    """The same messages again and again: their average tends to its best approximation."""
    messages, state = rows(SIZE), None
    mean = halves(messages.mean(0))[0]
    u, s, v = torch.linalg.svd(mean)
    best = u[:, :2] * s[:2] @ v[:2]
    for number in range(200):
        way = way_of(state=state, round=number)
        found, state = halves(way.mean(messages, weighting="uniform"))[0], way.state
    torch.testing.assert_close(found, best)


def test_each_client_knows_what_it_has_sent():
    """The projections of the messages onto one common space, whose mean is the mean."""
    mean, sent = way_of().mean_and_sent(rows(SIZE), weighting="uniform")
    torch.testing.assert_close(sent.mean(0), mean)
    matrices = halves(sent)[0]
    assert int(torch.linalg.matrix_rank(torch.cat(list(matrices), -1))) == 2, "one space of columns for all"


def test_gathered_messages_are_factored_each_by_itself():
    messages = rows(SIZE)
    found = way_of().gather(messages)
    for one, message in zip(found, messages, strict=True):
        expected, _ = power_sgd([halves(message)[0]], first_start(), [1.0])
        torch.testing.assert_close(halves(one)[0], expected)


def test_who_is_absent_keeps_its_start():
    way = way_of()
    way.gather(rows(SIZE))
    before, after = way.state, way_of(state=way.state, ids=[1, 3], round=1)
    after.gather(rows(SIZE, clients=2, seed=5))
    moved = (after.state["factors 0"] != before["factors 0"]).any(-1)
    assert moved.tolist() == [False, True, False, True]


def test_silence_does_not_end_the_iteration():
    """A round of zero messages leaves zero factors; the next one starts anew."""
    silent = way_of()
    assert not silent.mean(torch.zeros(4, SIZE).double()).any()
    found = way_of(state=silent.state, round=1).mean(rows(SIZE))
    assert int(torch.linalg.matrix_rank(halves(found)[0])) == 2


def test_shifts_reach_what_factors_alone_do_not():
    """EF21 with factors of rank 1: messages that stay are known after some rounds."""
    messages, state = rows(SIZE), None
    for number in range(60):
        way = way_of(compression=Compression(rank=1, codec="float64", shift=1.0), state=state, round=number)
        found, state = way.mean(messages, weighting="uniform"), way.state
    assert float((found - messages.mean(0)).norm()) < 1e-6
    assert float((way_of().mean(messages, weighting="uniform") - messages.mean(0)).norm()) > 0.1


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "up"), [("float32", 4 * 34), ("float16", 2 * 34), ("q8", 34 + 2 * 4)])
def test_bytes_by_hand(codec, up):
    """Rank 2: 12 numbers of P, 16 of Q, 6 biases up; 28 float32 down. q8 has a scale of 4 bytes a message."""
    way = way_of(compression=Compression(rank=2, codec=codec))
    way.mean(rows(SIZE))
    assert (int(way.cost.up), int(way.cost.down)) == (4 * up, 4 * 28 * 4)
    alone = way_of(compression=Compression(rank=2, codec=codec))
    alone.gather(rows(SIZE))
    assert (int(alone.cost.up), int(alone.cost.down)) == (4 * up, 0), "nobody needs the server for that"


@pytest.mark.parametrize("codec", ["float32", "bfloat16", "q4", "sign"])
def test_what_is_counted_was_encoded_and_what_arrives_was_decoded(codec):
    """The rows of factors go through real byte strings and give the same messages, bit for bit."""
    factors, real = Factors.of(((ROWS, COLUMNS), (BIAS,)), 2), find_codec(codec)
    count, chances = [], {"fast": [], "real": []}
    for kind in chances:
        chances[kind] = [torch.Generator().manual_seed(client) for client in range(4)]

    def through_bytes(sent):
        texts = [real.encode(row, None, g) for row, g in zip(sent, chances["real"], strict=True)]
        count.append(sum(map(len, texts)))
        read = [real.decode(text, sent.shape[-1], dtype=sent.dtype) for text in texts]
        return torch.stack(read), torch.tensor([len(text) for text in texts])

    messages = rows(SIZE).float()
    start = torch.ones(4, factors.right_size)
    bytewise = low_rank.exchange(messages, factors, start, through_bytes)
    fast = low_rank.exchange(
        messages, factors, start, lambda sent: real.apply(sent, generators=chances["fast"])
    )
    assert torch.equal(bytewise.decoded, fast.decoded)
    assert int(fast.sizes.sum()) == sum(count)


# --- privacy ----------------------------------------------------------------------------------------


def test_local_noise_comes_first_and_costs_the_same():
    """What is factored is the protected message: the same noise, and the same account."""
    mechanism, messages = privacy(z=1.0), rows(SIZE, scale=10.0)
    noise = way_of(mechanism, Compression(codec="float64")).mean(
        torch.zeros_like(messages), weighting="uniform"
    )
    plain = way_of(mechanism, Compression(codec="float64"))
    plain.mean(messages, weighting="uniform")
    way = way_of(mechanism)
    found, bias = halves(way.mean(messages, weighting="uniform"))
    protected = clipped(messages, 1.0).mean(0) + noise
    expected, _ = power_sgd([halves(protected)[0]], first_start(), [1.0])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(bias, halves(protected)[1])
    assert booked(way) == booked(plain)


def test_central_messages_depend_on_their_own_client_alone():
    """Else one client would move the others' messages, and the sum by more than the clip norm."""
    one, other = rows(SIZE, scale=10.0), rows(SIZE, scale=10.0)
    other[0] = 100 * rows(SIZE, seed=9)[0]
    for mechanism, same in ((privacy("central"), True), (None, False)):
        ways = [way_of(mechanism), way_of(mechanism)]
        sent = [way.mean_and_sent(given)[1] for way, given in zip(ways, (one, other), strict=True)]
        assert torch.equal(sent[0][1:], sent[1][1:]) == same
    means = [way_of(privacy("central")).mean(given) for given in (one, other)]
    assert 4 * float((means[0] - means[1]).norm()) <= 2.0 + 1e-9, "twice the clip norm"


def test_central_messages_are_clipped_after_they_are_decoded():
    _, sent = way_of(privacy("central")).mean_and_sent(rows(SIZE, scale=10.0))
    torch.testing.assert_close(
        way_of(privacy("central")).mean(rows(SIZE, scale=10.0)), clipped(sent, 1.0).mean(0)
    )


# --- which tensors ----------------------------------------------------------------------------------


def test_parts_of_other_lengths_travel_whole():
    """A dual variable of 3 beside the model: 34 + 3 numbers up."""
    way = way_of()
    model, dual = way.mean(rows(SIZE), rows(3, seed=2), weighting="uniform")
    torch.testing.assert_close(dual, rows(3, seed=2).mean(0))
    assert int(torch.linalg.matrix_rank(halves(model)[0])) == 2
    assert int(way.cost.up) == 4 * 8 * (34 + 3)
    plain = way_of()
    plain.mean(rows(3))
    assert int(plain.cost.up) == 4 * 8 * 3


def test_what_the_server_sends_is_not_factored():
    way = way_of()
    model = rows(SIZE)[0]
    assert torch.equal(way.down(model)[0], model)


def test_extractor_head_and_parts_at_home_have_their_own_tensors():
    net = network(features=4, classes=3, hidden=(5,))
    whole = ((5, 4), (5,), (3, 5), (3,))
    assert low_rank.tensors(net) == {"x": whole}
    assert low_rank.tensors(split_model(net)) == {"x": whole[:2], "y": whole[2:]}
    assert low_rank.tensors(set_apart(net, "extractor")) == {"x": whole[2:], "y": whole[:2]}
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2))
    normed = set_apart(classifier(layers), "norms")
    assert low_rank.tensors(normed) == {
        "x": ((4, 1, 3, 3), (4,), (2, 16), (2,)),
        "y": ((4,), (4,)),
    }


def test_matrices_of_a_pruned_model_are_smaller():
    """Half of 8 neurons: (4, 6) and (5, 4) instead of (8, 6) and (5, 8); rank 1 sends 10 + 9 and 9 biases."""
    net = network(features=6, classes=5, hidden=(8,))
    start = net.init(rng.stream(0, "start"))["x"].double()
    pruned = prune_models(net, start, 0.5, None)
    way = channel(None, Compression(rank=1, codec="float64"), problem=net, pruned=pruned)
    messages = rows(len(start))
    found = way.mean(messages, weighting="uniform")
    assert int(way.cost.up) == 4 * 8 * (10 + 9 + 9) and not found[~pruned.mask].any()
    smaller = Factors.of(((4, 6), (4,), (5, 4), (5,)), 1)
    mean = messages.mean(0)[pruned.mask]
    begin = torch.randn(10, generator=rng.stream(0, "low rank", 0)).double()
    basis = smaller.left_basis(smaller.left(mean, begin))
    expected = smaller.join(basis, smaller.right(mean, basis), smaller.rest(mean))
    torch.testing.assert_close(found[pruned.mask], expected)


def test_factors_begin_anew_where_a_model_is_pruned_further():
    net, federation = network(hidden=(8,)), random_federation([9, 9, 9])
    setting = Compression(rank=1, codec="float64", alpha=((0, 0.0), (1, 0.5)), error_feedback=True)
    run = Simulation(net, federation, FedAvg(local_steps=2, batch_size=None, lr=0.5), None, setting)
    run.step()
    assert run.channel_state["factors 1"].shape == (4 + 8,)
    run.step()
    assert run.channel_state["factors 1"].shape == (4 + 4,)
    assert run.pruned is not None and not run.state.x[~run.pruned.mask].any()


def test_a_loop_over_clients_finds_the_same_factors():
    """Though FedAvg can be run client by client: a cohort in chunks would have no common factor."""
    net, federation = network(hidden=(8,)), random_federation([9, 5, 9])
    work = FedAvg(local_steps=2, batch_size=None, lr=0.5), None, Compression(rank=1, codec="float64")
    states = []
    for kind in ("vmap", "loop"):
        run = Simulation(net, federation, *work, executor=ClientExecutor(kind))
        run.step()
        run.step()
        states.append(run.state.x)
    torch.testing.assert_close(*states)


# --- refusals ---------------------------------------------------------------------------------------


def test_what_has_no_matrices_is_refused_with_the_reason():
    quadratic = Problem(
        "a quadratic", "erm", lambda generator: {"x": torch.zeros(3)}, lambda x, batch: x.sum()
    )
    with pytest.raises(Incompatible, match="problem a quadratic has no model with matrices"):
        way_of(problem=quadratic).mean(rows(3))
    with pytest.raises(Incompatible, match="two factors of rank 4 are longer than any matrix"):
        way_of(compression=Compression(rank=4)).mean(rows(SIZE))


def test_a_run_is_refused_before_its_first_round():
    """The logistic model (2, 30) of breast-cancer: rank 1 sends 32 numbers for 60, rank 2 would send 64."""
    spec = {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 3},
        "model": "logistic",
        "algorithm": "fedavg",
        "rounds": 1,
    }
    assert prepare(spec | {"compression": {"rank": 1}}).compression.rank == 1
    with pytest.raises(Incompatible, match="two factors of rank 2 are longer"):
        prepare(spec | {"compression": {"rank": 2}})
    parties = {"partition": {"kind": "columns", "clients": 3}, "problem": "vertical", "algorithm": "splitnn"}
    with pytest.raises(Incompatible, match="parties send embeddings of a new batch"):
        prepare(spec | parties | {"compression": {"rank": 1}})


def test_variables_that_cannot_be_told_apart_are_refused():
    start = {"x": torch.zeros(SIZE), "y": torch.zeros(SIZE)}
    twins = replace(PROBLEM, kind="minimax", init=lambda generator: start)
    with pytest.raises(Incompatible, match="x and y must differ in size"):
        way_of(problem=twins).mean(rows(SIZE))


def test_a_statistic_as_long_as_the_model_has_no_factors():
    """It travels as it is: eight bytes an entry from each client, and no factor comes back."""
    way = way_of()
    values = rows(SIZE)
    torch.testing.assert_close(way.mean(Statistic(values), weighting="uniform"), values.mean(0))
    assert int(way.cost.up) == len(values) * SIZE * 8 and int(way.cost.down) == 0


def test_models_of_different_sizes_have_no_common_factors():
    net = network(hidden=(8,))
    start = net.init(rng.stream(0, "start"))["x"].double()
    pruned = prune_models(net, start, torch.tensor([0.0, 0.5, 0.5, 0.0]).double(), None)
    clients = cohort(problem=net, pruned=pruned)
    with pytest.raises(Incompatible, match="alpha must be equal for all"):
        low_rank.layout(clients, RANK2, [rows(len(start))])
