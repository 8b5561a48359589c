"""PruneFL: its rounds written out, what travels, and what it cannot be combined with."""

from itertools import pairwise

import pytest
import torch

from compression.sparse_index import write_positions
from harness.core import UserError
from harness.core.errors import Incompatible
from harness.core.settings.compression import Compression
from harness.core.settings.privacy import Privacy
from harness.simulation.simulation import Simulation
from tests.support.worlds import (
    EXACT,
    close,
    largest_difference,
    make_algorithm,
    network,
    random_federation,
    run_algorithm,
)

SIZES = (6, 4, 5, 3)
WEIGHTS = [(0, 20), (25, 40)]  # 4 x 5, five biases, 5 x 3, three biases
WORK = {"lr": 0.3, "local_steps": 2, "batch_size": None}
P = 43


def simulation(*, cohort=None, privacy=None, compression=EXACT, **settings):
    algorithm = make_algorithm("prunefl", **{**WORK, "reconfigure_rounds": 3, **settings})
    start = network().init(torch.Generator().manual_seed(0))["x"].double()
    options = {"cohort": cohort, "start": {"x": start}}
    return Simulation(network(), random_federation(SIZES), algorithm, privacy, compression, (0,), **options)


def largest(values, count):
    return sorted(range(len(values)), key=lambda place: (-values[place], place))[:count]


def chosen_anew(x, kept, importance, removable, fixed):
    """Add one parameter at a time, the best of its layer's rest, while the ratio grows."""
    each = 1 / sum(stop - start for start, stop in WEIGHTS)
    free = set()
    for start, stop in WEIGHTS:
        there = [place for place in range(start, stop) if kept[place]]
        stay = len(there) - int(removable * len(there) + 1e-9)
        safe = {there[place] for place in largest([abs(float(x[p])) for p in there], stay)}
        free |= set(range(start, stop)) - safe
    mask = {place for place in range(P) if place not in free}
    weights = {place for start, stop in WEIGHTS for place in range(start, stop)}
    gain, time = float(sum(importance[p] for p in mask)), fixed + each * len(mask & weights)
    for place in sorted(free, key=lambda p: -float(importance[p])):
        if float(importance[place]) / each <= gain / time:
            break
        mask.add(place)
        gain, time = gain + float(importance[place]), time + each
    return torch.tensor([place in mask for place in range(P)])


def test_prunefl_is_its_recursion_on_partial_cohorts():
    """Masked local SGD weighed by samples; every third round the mask follows the squared mean gradient."""
    settings = {"removable": 0.4, "fixed_time": 0.5, "density": 0.6}
    run, problem, data = simulation(cohort=2, **settings), network(), random_federation(SIZES)
    batches = list(zip(data.pool.x.split(SIZES), data.pool.y.split(SIZES), strict=True))
    x, kept = run.start["x"].clone(), torch.ones(P, dtype=torch.bool)
    for start, stop in WEIGHTS:
        kept[start:stop] = False
        count = stop - start - int(0.4 * (stop - start) + 1e-9)
        kept[[start + place for place in largest(x[start:stop].abs().tolist(), count)]] = True
    x, masks = x * kept, [kept]
    for number in range(9):
        who = run.cohort().ids.tolist()
        run.step()
        total = torch.zeros(P, dtype=torch.float64)
        for client in who:
            inputs, labels = batches[client]
            local, moved = x.clone(), torch.zeros_like(x)
            for _ in range(2):
                point = local.clone().requires_grad_()
                scores = torch.func.functional_call(
                    problem.module,
                    {
                        name: part.view(shape)
                        for (name, shape), part in zip(
                            [(n, p.shape) for n, p in problem.module.named_parameters()],
                            point.split([20, 5, 15, 3]),
                            strict=True,
                        )
                    },
                    (inputs,),
                )
                (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, labels), point)
                moved -= 0.3 * slope
                local -= 0.3 * slope * kept
            total += moved * SIZES[client] / sum(SIZES[one] for one in who)
        x = x + total * kept
        if number % 3 == 2:
            kept = chosen_anew(x, kept, total**2, 0.4, 0.5)
            masks.append(kept)
        x = x * kept
        assert close(run.state.x, x, 1e-12) and torch.equal(run.state.kept.bool(), kept)
    gone = [bool((before & ~after).any()) for before, after in pairwise(masks)]
    back = [bool((after & ~before).any()) for before, after in pairwise(masks)]
    assert any(gone) and any(back)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5, "weight_decay": 0.1, "grad_clip": 0.5}])
def test_with_all_parameters_it_is_federated_averaging(settings):
    task = network(), random_federation(SIZES)
    work = {**WORK, "batch_size": 2, **settings}
    found = run_algorithm("prunefl", *task, 5, density=1.0, reconfigure_rounds=99, cohort=2, **work).state
    assert close(found.x, run_algorithm("fedavg", *task, 5, cohort=2, **work).state.x, 1e-12)
    assert bool(found.kept.all())


@pytest.mark.parametrize("cohort", [None, 2])
def test_bytes_are_those_of_kept_numbers_and_written_positions(cohort):
    """4 K down and up; 4 P up before a change. Positions after a change, and always to partial cohorts."""
    run, members = simulation(cohort=cohort, compression=Compression(), fixed_time=0.5), cohort or 4
    for number in range(7):
        kept, before = run.state.kept.bool(), (int(run.cost.up), int(run.cost.down))
        run.step()
        size, told = int(kept.sum()), cohort is not None or number % 3 == 0
        assert int(run.cost.up) - before[0] == members * 4 * (P if number % 3 == 2 else size)
        positions = len(write_positions(kept)) if told else 0
        assert int(run.cost.down) - before[1] == members * (4 * size + positions)
        assert size < P


def test_a_longer_round_without_weights_keeps_more_of_them():
    sizes = []
    for fixed in (0.01, 1.0, 100.0):
        run = simulation(fixed_time=fixed)
        for _ in range(12):
            run.step()
        sizes.append(int(run.state.kept.sum()))
    assert sizes[0] < sizes[1] < sizes[2]


def test_weights_of_a_slow_layer_go_first():
    """The output layer's take 50 times as long."""
    run, even = simulation(layer_times=(1.0, 50.0), fixed_time=0.5), simulation(fixed_time=0.5)
    for _ in range(6):
        run.step(), even.step()
    assert int(run.state.kept[25:40].sum()) < int(even.state.kept[25:40].sum())


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy.of(1.0, placement="local", clip=1.0),
        Privacy.of(1.0, unit="record", sampling="poisson", clip=1.0),
    ],
)
def test_no_noise_gets_to_what_is_pruned(privacy):
    """One release a round, of the parameters that there are; x has noise on these alone."""
    run, masks = simulation(privacy=privacy, fixed_time=0.5), []
    for number in range(7):
        masks.append(run.state.kept.bool())
        run.step()
        assert run.ledger.last == (1 if privacy.unit == "client" else 2), number
        assert not bool(run.state.x[~run.state.kept.bool()].any())
        if number % 3 < 2:
            assert torch.equal(run.state.kept.bool(), masks[-1])
    assert not torch.equal(masks[0], masks[3]) and not torch.equal(masks[3], masks[6])


def test_single_samples_are_clipped_by_what_the_model_has():
    """Clipped to almost nothing, all gradients have the clip's norm, on kept parameters alone: lr C a step."""
    clip, data = 1e-6, random_federation((1, 1, 1))
    privacy = Privacy.of(0.0, unit="record", sampling="poisson", clip=clip)
    algorithm = make_algorithm("prunefl", lr=1.0, local_steps=1, batch_size=1, density=0.3)
    run = Simulation(network(), data, algorithm, privacy, EXACT, (0,))
    ids = torch.tensor([1])
    before = run.state.x
    run.step(ids)
    assert float((run.state.x - before).norm()) == pytest.approx(clip, rel=1e-6)


def test_one_client_at_a_time_or_all_at_once():
    whole = run_algorithm("prunefl", network(), random_federation(SIZES), 7, reconfigure_rounds=3, **WORK)
    chunks = run_algorithm(
        "prunefl", network(), random_federation(SIZES), 7, reconfigure_rounds=3, chunks=True, **WORK
    )
    assert largest_difference(whole.state, chunks.state) < 1e-12
    assert torch.equal(whole.cost.up, chunks.cost.up) and torch.equal(whole.cost.down, chunks.cost.down)


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        ({"compression": EXACT.model_copy(update={"alpha": 0.5})}, "compression.alpha"),
        ({"compression": EXACT.model_copy(update={"beta": 0.5, "error_feedback": True})}, "error_feedback"),
        (
            {"privacy": Privacy.of(1.0, sampling="poisson", rate=0.5, clip=1.0), "cohort": 2},
            "central privacy",
        ),
    ],
)
def test_what_does_not_go_with_it_is_refused(refused, match):
    with pytest.raises(Incompatible, match=match):
        simulation(**refused).step()


@pytest.mark.parametrize(
    "settings",
    [
        {"density": 0.0},
        {"max_density": 1.5},
        {"removable": 1.0},
        {"reconfigure_rounds": 0},
        {"fixed_time": 0.0},
    ],
)
def test_prunefl_refuses_what_makes_no_sense(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        make_algorithm("prunefl", **settings)


def test_every_layer_needs_its_time():
    with pytest.raises(UserError, match="each of the model's 2 layers"):
        simulation(layer_times=(1.0, 2.0, 3.0))
