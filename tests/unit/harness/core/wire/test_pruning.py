"""alpha and beta: what is pruned is neither trained nor sent."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from torch import nn

from compression.graph import units
from compression.structured import alive
from harness import models
from harness.core.algorithm import ALGORITHMS
from harness.core.clients.pruning import PrunedModels, SubModel, prune_models
from harness.core.errors import Incompatible
from harness.core.execution.vectorize import ClientExecutor
from harness.core.settings.compression import Compression
from harness.core.wire.message import Statistic
from harness.problems.classify import classifier
from harness.simulation.dry_run import dry_run
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, ready
from tests.support.wire import channel, cohort, privacy, rows
from tests.support.worlds import iid_federation, make_algorithm, random_federation

MLP = {"name": "mlp", "hidden": [16, 8]}
STEPS = [[0, 0.25], [2, 0.75], [4, 0.5]]
LOCAL = {"placement": "local", "clip": 1.0, "noise_multiplier": 0.5}
CENTRAL = {**LOCAL, "placement": "central"}
RECORD = {"unit": "record", **LOCAL}
FEEDBACK = {"beta": 0.5, "error_feedback": True}
BY_LOT = {"beta": 0.5, "select": "random_k", "codec": "q4"}
# SCAFFOLD has all that there is: model, control variate of the server, rows of clients, messages of two parts.
PRUNED = [
    *product(["scaffold"], [None, LOCAL, CENTRAL, RECORD], [{}, FEEDBACK, BY_LOT]),
    ("fedavg", RECORD, BY_LOT),
    ("fedprox", CENTRAL, FEEDBACK),
    ("local", LOCAL, {}),
]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def pruned_coordinates(run: Simulation) -> torch.Tensor:
    assert run.pruned is not None
    mask = run.pruned.mask
    return torch.cat([part[..., ~mask].flatten() for part in run.state if part.shape[-1] == len(mask)])


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "mechanism", "setting"), PRUNED)
def test_pruned_coordinates_are_zero_in_all_state(data, algorithm, mechanism, setting) -> None:
    """Model, control variates, whoever adds the noise: (schedule 0.25, then 0.75 from round 2)."""
    fields = {"compression": {"alpha": STEPS, **setting}, "model": MLP, "privacy": mechanism}
    run = Simulation.from_setup(ready(data, algorithm, **fields, rounds=4))
    shares = []
    for _ in range(4):
        run.step()
        assert not pruned_coordinates(run).any()
        assert run.state.x.any()
        shares.append(float(run.pruned.mask.double().mean()))
    assert shares[0] == shares[1] > shares[2] == shares[3]


@pytest.mark.parametrize("alpha", [0.5, STEPS])
def test_of_a_common_model_in_two_halves_the_extractor_is_pruned(data, alpha) -> None:
    """FedBABU evaluates extractor and head end to end, and keeps, sends and prunes the extractor alone."""
    run = finished(ready(data, "fedbabu", compression={"alpha": alpha}, model=MLP, rounds=3))
    mask = run.pruned.mask
    assert mask.shape == run.state.u.shape and not bool(mask.all())
    assert not run.state.u[~mask].any() and run.state.u.any()


def test_minimax_variables_are_pruned_with_the_model(data) -> None:
    work = {"name": "fedsgda_m", "local_steps": 2, "batch_size": 8}
    fields = {"problem": "fair_classification", "compression": {"alpha": 0.5}, "model": MLP}
    run = finished(ready(data, work, **fields, privacy=CENTRAL))
    assert not pruned_coordinates(run).any()
    assert run.state.u[run.pruned.mask].any() and run.state.v.all()


def test_what_is_gone_stays_gone_whatever_the_schedule_says(data) -> None:
    """0.25 from round 0, 0.75 from 2, 0.5 from 4: the masks shrink, and never grow again."""
    run = Simulation.from_setup(ready(data, compression={"alpha": STEPS}, model=MLP, rounds=6))
    masks = []
    for _ in range(6):
        run.step()
        masks.append(run.pruned.mask)
    assert all(not (later & ~earlier).any() for earlier, later in pairwise(masks))
    assert torch.equal(masks[5], masks[2])
    groups = units(run.problem.module)
    assert [int(alive(masks[0], g).sum()) for g in groups] == [12, 6]
    assert [int(alive(masks[5], g).sum()) for g in groups] == [4, 2]


def test_the_ratio_comes_back_with_the_models(data) -> None:
    setup = ready(data, compression={"alpha": STEPS}, model=MLP, rounds=6)
    run, resumed = (Simulation.from_setup(setup) for _ in range(2))
    for _ in range(3):
        run.step()
    resumed.load_state_dict(run.state_dict())
    assert resumed.pruned.ratio == run.pruned.ratio == 0.75
    resumed.step()
    assert resumed.pruned.ratio == 0.75


def test_no_unit_is_pruned_before_the_schedule_begins(data) -> None:
    run = Simulation.from_setup(ready(data, compression={"alpha": [[2, 0.5]]}, model=MLP, rounds=3))
    run.step()
    run.step()
    assert run.pruned is None
    run.step()
    assert run.pruned is not None


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_bytes_and_operations_fall(data, algorithm: str) -> None:
    """float32 codes have 4 bytes an entry: the bytes fall as the number of coordinates does, exactly."""
    runs = {
        alpha: finished(ready(data, algorithm, compression={"alpha": alpha}, model=MLP))
        for alpha in (0.0, 0.25, 0.5, 0.75)
    }
    full = runs[0.0]
    sizes = [int(run.pruned.mask.sum()) for alpha, run in runs.items() if alpha]
    total = full.state.x.shape[-1]
    for size, run in zip(sizes, list(runs.values())[1:], strict=True):
        assert int(run.cost.up) * total == int(full.cost.up) * size
        assert int(run.cost.down) * total == int(full.cost.down) * size
    flops = [int(run.cost.flops) for run in runs.values()]
    assert flops == sorted(flops, reverse=True) and flops[3] < 0.35 * flops[0]


@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_a_pruned_gradient_is_the_full_gradient_of_the_rest(mode: str) -> None:
    problem = classifier(small())
    x = problem.init(torch.Generator().manual_seed(0))["x"].double()
    pruned = prune_models(problem, x, 0.5, None)
    work = ALGORITHMS["fedavg"](local_steps=1, batch_size=None)
    data = iid_federation()
    full = cohort(problem=problem, data=data, mode=mode)
    less = cohort(problem=problem, data=data, pruned=pruned, mode=mode)
    point = full.rows(pruned.masked(x))
    (batch,) = full.batches(work)
    expected, found = full.grad(point, batch) * pruned.mask, less.grad(point, batch)
    torch.testing.assert_close(found, expected)
    assert found.any() and not found[:, ~pruned.mask].any()
    assert int(less.cost.flops) < int(full.cost.flops)


def test_pruned_messages_have_noise_and_bytes_of_kept_entries() -> None:
    problem = classifier(small())
    x = problem.init(torch.Generator().manual_seed(0))["x"].double()
    pruned = prune_models(problem, x, 0.5, None)
    way = channel(privacy(z=1.0), Compression(), problem=problem, pruned=pruned)
    zeros = torch.zeros(4, len(x), dtype=torch.float64)
    arrived, other = way.gather(zeros, zeros[:, :3])
    assert not arrived[:, ~pruned.mask].any()
    assert arrived[:, pruned.mask].all() and other.all()
    assert int(way.cost.up) == 4 * 4 * (int(pruned.mask.sum()) + 3)


def test_a_schedule_of_beta_changes_the_share_from_its_round_on() -> None:
    setting = Compression(beta=((0, 0.5), (3, 0.9)), codec="float64")
    for round, kept in ((0, 10), (2, 10), (3, 2), (9, 2)):
        arrived = channel(None, setting, round=round).gather(rows(20))
        assert ((arrived != 0).sum(-1) == kept).all()


def test_before_a_schedule_begins_nothing_is_dropped() -> None:
    setting = Compression(beta=((3, 0.9),), codec="float64")
    assert torch.equal(channel(None, setting, round=2).gather(rows(20)), rows(20))


def test_top_k_is_chosen_over_the_joint_message() -> None:
    """Part one is 100 times part two: all 10 kept entries are of part one."""
    one, two = channel(None, Compression(beta=0.5, codec="float64")).gather(rows(10, scale=100.0), rows(10))
    assert (one != 0).sum() > 36 and (two != 0).sum() < 4


def test_random_k_sends_no_positions_and_changes_every_round() -> None:
    """10 of 40 entries in float32: 40 bytes a client, values only."""
    setting = Compression(beta=0.75, select="random_k")
    masks = []
    for round in range(2):
        way = channel(None, setting, round=round)
        masks.append(way.gather(rows(40))[0] != 0)
        assert int(way.cost.up) == 4 * 40
    assert not torch.equal(*masks)


@pytest.mark.parametrize("select", ["top_k", "random_k"])
def test_what_the_server_sends_is_dense_unless_asked_for(select: str) -> None:
    vector = rows(40)[0]
    plain = channel(None, Compression(beta=0.75, codec="q4", select=select))
    torch.testing.assert_close(plain.down(vector)[0], vector, rtol=1e-6, atol=0)
    assert int(plain.cost.down) == 4 * 4 * 40
    asked = channel(None, Compression(beta=0.75, codec="float32", select=select, downlink=True))
    arrived = asked.down(vector)
    assert ((arrived != 0).sum(-1) == 10).all() and (arrived == arrived[0]).all()
    assert int(asked.cost.down) < 4 * 4 * 20


@pytest.mark.parametrize("codec", ["sign", "q2", "float16"])
def test_error_feedback_also_makes_up_for_what_a_code_lost(codec) -> None:
    """Nothing is dropped, but every entry is rounded."""
    setting, state, total = Compression(codec=codec, error_feedback=True), None, 0.0
    for round in range(4):
        way = channel(None, setting, round=round, state=state)
        total, state = total + way.gather(rows(10)), way.state
    assert state["residual 0"].abs().max() > 1e-6
    torch.testing.assert_close(total + state["residual 0"], 4 * rows(10))


@pytest.mark.parametrize("privacy_or_none", [None, privacy(z=1.0)])
def test_a_threshold_comes_after_the_noise(privacy_or_none) -> None:
    """With noise the choice comes after it, so it tells no more than what is sent."""
    setting = Compression(select="threshold", threshold=0.5, codec="float64")
    dense = channel(privacy_or_none, Compression(codec="float64")).gather(rows(40))
    way = channel(privacy_or_none, setting)
    assert torch.equal(way.gather(rows(40)), torch.where(dense.abs() >= 0.5, dense, 0))


def test_every_client_may_have_a_ratio_of_its_own() -> None:
    setting = Compression(beta=(0.0, 0.5, 0.9, 0.75), codec="float64")
    arrived = channel(None, setting).gather(rows(20))
    assert (arrived != 0).sum(-1).tolist() == [20, 10, 2, 5]
    few = channel(None, setting, ids=[1, 3]).gather(rows(20, clients=2))
    assert (few != 0).sum(-1).tolist() == [10, 5]
    with pytest.raises(Incompatible, match="2 ratios for 4 clients"):
        channel(None, Compression(beta=(0.5, 0.5))).gather(rows(20))


def test_random_k_draws_among_the_pruned_models_entries(data) -> None:
    """So that every round sends as much, and the plan is exact."""
    compression = {"alpha": 0.5, "beta": 0.9, "select": "random_k"}
    setup = ready(data, "fedavg", compression=compression, model=MLP, rounds=5)
    planned = dry_run(setup)
    assert int(finished(setup).cost.up) == int(planned.cost["up"])


def test_a_dense_downlink_is_not_longer_than_without_the_option() -> None:
    ways = [channel(None, Compression(downlink=downlink)) for downlink in (False, True)]
    for way in ways:
        way.down(rows(10)[0])
    assert int(ways[0].cost.down) == int(ways[1].cost.down)


def test_error_feedback_loses_nothing_over_the_rounds() -> None:
    """What arrived and what is still owed is what was meant: 5 messages of each client."""
    setting = Compression(beta=0.9, codec="float16", error_feedback=True)
    state, total, meant = None, *torch.zeros(2, 4, 30, dtype=torch.float64)
    for round in range(5):
        way = channel(None, setting, round=round, state=state)
        message = rows(30, seed=round)
        total, meant, state = total + way.gather(message), meant + message, way.state
    torch.testing.assert_close(total + state["residual 0"], meant)


def test_masks_of_personal_models_come_from_the_common_start(data) -> None:
    """Never from private rows: `local` keeps one model a client."""
    run = finished(ready(data, "local", compression={"alpha": 0.5}, model=MLP))
    expected = prune_models(run.problem, run.start["x"], 0.5, None).mask
    assert torch.equal(run.pruned.mask, expected)


OWN = [0.75, 0.0, 0.5, 0.5, 0.25, 0.0, 0.5]  # of the seven clients


@pytest.mark.parametrize(
    ("algorithm", "mechanism"),
    [*product(["scaffold"], [None, LOCAL, CENTRAL, RECORD]), ("fedavg", CENTRAL), ("local", None)],
)
def test_equal_ratios_of_clients_are_one_common_ratio(data, algorithm, mechanism) -> None:
    fields = {"model": MLP, "privacy": mechanism}
    one, each = (
        finished(
            replace(ready(data, algorithm, compression={"alpha": alpha}, **fields), noise_key="one")
        )  # one noise
        for alpha in (0.5, [0.5] * 7)
    )
    for a, b in zip(one.state, each.state, strict=True):
        torch.testing.assert_close(a, b)
    assert (int(one.cost.up), int(one.cost.flops)) == (int(each.cost.up), int(each.cost.flops))


def test_models_are_as_small_as_asked_and_nested(data) -> None:
    run = finished(ready(data, "local", compression={"alpha": OWN}, model=MLP))
    masks = run.pruned.mask_of([run.state.x], torch.arange(7))
    groups = units(run.problem.module)
    assert [int(alive(mask, groups[0]).sum()) for mask in masks] == [4, 16, 8, 8, 12, 16, 8]
    assert not (masks[0] & ~masks[2]).any() and not (masks[2] & ~masks[4]).any()
    assert not run.state.x[~masks].any() and run.state.x[masks].any()


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [None, LOCAL, CENTRAL])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_each_client_is_sent_and_sends_its_own_coordinates(data, algorithm, mechanism) -> None:
    """float32: 4 bytes a coordinate of its own model; both algorithms send it k times a round each way."""
    setup = ready(data, algorithm, compression={"alpha": OWN}, model=MLP, privacy=mechanism)
    run = finished(setup)
    own = int(run.pruned.mask_of([run.state.x], torch.arange(7)).sum())
    vectors = {"fedavg": 1, "scaffold": 2}[algorithm]
    assert int(run.cost.up) == int(run.cost.down) == 2 * 4 * vectors * own
    assert int(dry_run(setup).cost["up"]) == int(run.cost.up)
    least = finished(ready(data, algorithm, compression={"alpha": 0.75}, model=MLP, privacy=mechanism))
    most = finished(ready(data, algorithm, model=MLP, privacy=mechanism))
    assert int(least.cost.flops) < int(run.cost.flops) < int(most.cost.flops)


def of_own_sizes(masks: torch.Tensor, which: list[int]) -> PrunedModels:
    problem = classifier(small())
    return PrunedModels(
        tuple(SubModel(mask, problem, mask.nonzero()[:, 0]) for mask in masks), torch.tensor(which)
    )


def test_who_lacks_a_coordinate_has_no_say_in_its_average() -> None:
    """Clients 0 and 2 have all three, 1 and 3 the first only, which all four share: (1+2+3+4)/4, (1+3)/2, 2."""
    masks = torch.tensor([[True, True, True], [True, False, False]])
    sizes = of_own_sizes(masks, [0, 1, 0, 1])
    messages = torch.tensor([[1.0, 1, 1], [2, 7, 7], [3, 3, 3], [4, 7, 7]], dtype=torch.float64)
    way = channel(pruned=sizes)
    assert way.mean(messages, weighting="uniform").tolist() == [2.5, 2.0, 2.0]
    assert int(way.cost.up) == 8 * (3 + 1 + 3 + 1)
    # Weighted by size, (4, 8, 2, 6) samples: (4 + 16 + 6 + 24) / 20, (4 + 6) / 6.
    assert channel(pruned=sizes).mean(messages).tolist() == pytest.approx([2.5, 10 / 6, 10 / 6])
    few = channel(pruned=sizes, ids=[1, 2]).mean(messages[1:3], weighting="uniform")
    assert few.tolist() == [2.5, 3.0, 3.0]


def test_a_statistic_as_long_as_the_model_is_sent_whole() -> None:
    """Of two parts of three entries only the one about the model lacks the last two, in both directions."""
    pruned = of_own_sizes(torch.tensor([[True, False, False]]), [0, 0, 0, 0])
    messages = torch.arange(12, dtype=torch.float64).view(4, 3)
    way = channel(pruned=pruned)
    x, c = way.mean(messages, Statistic(messages), weighting="uniform")
    assert x.tolist() == [4.5, 0.0, 0.0] and c.tolist() == [4.5, 5.5, 6.5]
    assert int(way.cost.up) == 4 * 8 * (1 + 3)
    x, c = way.down(messages[1], Statistic(messages[1]))
    assert x[0].tolist() == [3.0, 0.0, 0.0] and c[0].tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("server_momentum", [0.0, 0.5])
def test_prototypes_as_long_as_the_extractor_are_not_pruned(server_momentum) -> None:
    """Four classes of six features, and an extractor 2-2-6 of 24 parameters: its mask would fit both.

    State and messages lacked what the extractor lacks, and a gradient had only a part of the prototypes.
    """
    problem = classifier(models.build("mlp", (2,), 4, {"hidden": [2, 6]}))
    federation, half = random_federation((20, 30, 25), 2, 4), Compression(alpha=0.5, codec="float64")
    algorithm = make_algorithm("fedpac", server_momentum=server_momentum)
    run = Simulation(problem, federation, algorithm, compression=half)
    for _ in range(3):
        run.step()
    gone = ~run.pruned.mask
    assert run.state.c.shape[-1] == len(gone) == 24
    assert not run.state.u[gone].any() and run.state.c[gone].any()


def test_central_privacy_uses_shares_of_all_clients() -> None:
    """Two of four have the last coordinate, so its average counts twice, whoever is there: here only client 0."""
    masks = torch.tensor([[True, True], [True, False]])
    mechanism = privacy("central", clip=100.0, rate=0.5)
    way = channel(mechanism, pruned=of_own_sizes(masks, [0, 1, 0, 1]), ids=[0], expected=2)
    assert way.mean(torch.tensor([[3.0, 3.0]], dtype=torch.float64)).tolist() == [1.5, 3.0]
    noisy = channel(
        privacy("central", clip=100.0, rate=0.5, z=1.0),
        pruned=of_own_sizes(masks[1:], [0, 0, 0, 0]),
        ids=[0],
        expected=2,
    ).mean(torch.tensor([[3.0, 3.0]], dtype=torch.float64))
    assert noisy[0] != 1.5 and noisy[1] == 0


def test_a_resumed_run_keeps_every_client_s_own_model(data) -> None:
    setup = ready(data, "scaffold", compression={"alpha": OWN}, model=MLP, rounds=4)
    straight, first = finished(setup, 4), finished(setup, 2)
    second = Simulation.from_setup(setup)
    second.load_state_dict(first.state_dict())
    second.step()
    second.step()
    assert all(torch.equal(a, b) for a, b in zip(straight.state, second.state, strict=True))


def test_own_models_one_by_one_are_the_whole_cohort(data) -> None:
    fields = {"compression": {"alpha": OWN}, "model": MLP}
    whole = finished(ready(data, "fedavg", **fields))
    setup = ready(data, "fedavg", **fields)
    parts = finished(replace(setup, executor=ClientExecutor("loop")))
    torch.testing.assert_close(whole.state.x, parts.state.x)
    assert int(whole.cost.up) == int(parts.cost.up) and int(whole.cost.flops) == int(parts.cost.flops)


def test_ratios_that_are_not_one_for_each_client_are_refused(data) -> None:
    with pytest.raises(Incompatible, match="3 ratios for 7 clients"):
        ready(data, compression={"alpha": [0.5, 0.5, 0.1]}, model=MLP)


def test_a_common_lot_and_gossip_want_models_of_one_size(data) -> None:
    with pytest.raises(Incompatible, match="one mask for all clients"):
        finished(ready(data, compression={"alpha": OWN, "beta": 0.5, "select": "random_k"}, model=MLP))
    work = {"name": "k_gt_minimax", "local_steps": 2, "batch_size": 8}
    fields = {"problem": "fair_classification", "topology": "ring", "model": MLP}
    with pytest.raises(Incompatible, match="one model size"):
        finished(ready(data, work, compression={"alpha": OWN}, **fields))
