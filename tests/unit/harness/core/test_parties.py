"""Whole runs of parties: schedules of pruning, what is claimed of their records, and how they are cut."""

from itertools import pairwise

import pytest
import torch

from compression.graph import units
from compression.structured import alive
from harness.config.sweep import Combination
from harness.core import Channel
from harness.core.errors import Incompatible, UserError
from harness.simulation import evaluation
from harness.simulation.build import prepare
from harness.simulation.dry_run import dry_run
from harness.simulation.evaluation import measure
from harness.simulation.loop import simulate
from harness.simulation.plan import plan
from harness.simulation.simulation import Simulation
from privacy.gaussian import gaussian_epsilon
from tests.support.runs import ready
from tests.support.wire import cohort
from tests.support.worlds import EXACT

LVFL = {"name": "lvfl", "local_epochs": 1, "batch_size": 32, "iterations": 2, "lr": 0.05}
PARTIES = {
    "partition": {"kind": "columns", "clients": 3},
    "problem": {"kind": "vertical", "embedding": 4, "head": [8]},
    "model": {"name": "mlp", "hidden": [10]},
}
RECORD = {"unit": "record", "clip": 1.0, "noise_multiplier": 0.5}


def parties(data, algorithm=LVFL, **fields):
    return ready(data, algorithm, **{**PARTIES, **fields})


def settled_at(run):
    """Return how many units each party's hidden layer has left."""
    groups = units(run.problem.module)
    return [[int(alive(model.mask, group).sum()) for group in groups] for model in run.pruned.models]


def test_a_pruning_schedule_never_restores_units(data):
    """alpha 0.4, 0.2, 0.4, 0.6 of ten neurons: 6, 6, 6, 4 are left, so rounds 0 and 3 prune."""
    run = Simulation.from_setup(
        parties(data, compression={"alpha": [[0, 0.4], [1, 0.2], [2, 0.4], [3, 0.6]]}, rounds=5)
    )
    kept, seen = [], []
    for _ in range(5):
        run.step()
        kept.append(run.pruned)
        seen.append(settled_at(run))
        masks = run.pruned.mask_of([run.state.y], torch.arange(3))
        assert not run.state.y[~masks].any() and run.state.y[masks].all()  # trained on, and still zero
        assert run.state.x.all()
    assert seen == [[[6]] * 3] * 3 + [[[4]] * 3] * 2
    assert kept[0] is kept[1] is kept[2] and kept[3] is kept[4]
    for before, after in pairwise(kept):
        for one, other in zip(before.models, after.models, strict=True):
            assert not (other.mask & ~one.mask).any()


def test_every_party_has_its_own_schedule_and_units(data):
    """10 neurons: 8, 5 and 10 left at first; then 0.3, 0.2, 0.9 leave 7, 5 (nothing grows back) and 1."""
    alpha = [[0, [0.2, 0.5, 0.0]], [2, [0.3, 0.2, 0.9]]]
    run = Simulation.from_setup(parties(data, compression={"alpha": alpha}, rounds=3))
    run.step()
    assert settled_at(run) == [[8], [5], [10]]
    run.step()
    run.step()
    assert settled_at(run) == [[7], [5], [1]]
    same = Simulation.from_setup(parties(data, compression={"alpha": 0.5}, rounds=1))
    same.step()
    assert len({model.problem for model in same.pruned.models}) == 1  # of one size: one function
    assert settled_at(same) == [[5]] * 3


@pytest.mark.slow
def test_alpha_saves_operations_and_beta_saves_bytes(data):
    """NL, PL, ML and L: PL sends what NL sends, ML computes as much as NL does, L has the savings of both."""
    settings = {"NL": {}, "PL": {"alpha": 0.5}, "ML": {"beta": 0.5}, "L": {"alpha": 0.5, "beta": 0.5}}
    costs = {}
    for name, compression in settings.items():
        setup = parties(data, compression=compression, rounds=3)
        run = Simulation.from_setup(setup)
        for _ in range(3):
            run.step()
        costs[name] = run.cost
        assert dry_run(setup).cost == run.cost.state()  # the plan is exact
    up, flops = ({name: int(getattr(cost, what)) for name, cost in costs.items()} for what in ("up", "flops"))
    assert up["NL"] == up["PL"] > up["ML"] == up["L"]
    assert flops["NL"] == flops["ML"] > flops["PL"] == flops["L"]
    assert int(costs["NL"].down) == int(costs["PL"].down) > int(costs["ML"].down)


def test_evaluations_report_the_pruning_of_embeddings(data):
    lines = []
    setup = parties(data, compression={"alpha": [[1, 0.5]], "beta": 0.9}, rounds=3, eval_every=1)
    simulate(setup, progress=lambda round, line: lines.append(line))
    assert "parties" not in lines[0] and set(lines[1]["parties"]) == {"omega"}
    assert (
        set(lines[2]["parties"]) == {"omega", "psi"}
        and lines[3]["parties"]["psi"] == lines[2]["parties"]["psi"]
    )
    for name, each in lines[3]["parties"].items():
        assert len(each) == 3 and min(each) > 0
        assert lines[3]["metrics"][name] == pytest.approx(sum(each) / 3)


def test_stationarity_is_of_the_joint_loss_on_all_samples(data, monkeypatch):
    """By one graph through all parties; summed over passes of seven samples; beta and alpha do not enter."""
    run = Simulation.from_setup(parties(data, compression={"alpha": 0.5, "beta": 0.5}, rounds=2))
    run.step()
    found = [run.evaluate().metrics["stationarity"]]
    monkeypatch.setattr(evaluation, "WITH_GRADIENTS", 7)
    found.append(
        measure(run.problem, run.each[0].federation, run.executor, run.state, run.personal())[0][
            "stationarity"
        ]
    )
    batch = run.each[0].federation.pool.at(run.each[0].federation.splits["train"])
    first = type(batch)(*(part[0] for part in batch))
    point = [part.clone().requires_grad_() for part in (run.state.x, run.state.y)]
    h = torch.stack(
        [run.problem.embed(point[1][k], type(batch)(*(part[k] for part in batch))) for k in range(3)]
    )
    both = torch.autograd.grad(run.problem.loss(point[0], h, first), point)
    norm = float(torch.cat([part.flatten() for part in both]).norm())
    assert norm > 0 and found == pytest.approx([norm, norm], rel=1e-4)


@pytest.mark.parametrize(
    "algorithm", [LVFL, {**LVFL, "labels": "server"}, {"name": "splitnn", "local_epochs": 1}]
)
def test_an_epoch_charges_records_per_embedding_and_gradient(data, algorithm):
    """T rounds of one pass, 1 + E releases of multiplier z about everybody: one Gaussian of z / sqrt(T (1 + E))."""
    setup = parties(data, algorithm, privacy=RECORD, rounds=3)
    run = Simulation.from_setup(setup)
    for _ in range(3):
        run.step()
    releases = 3 * (1 + algorithm.get("iterations", 1))
    claim = run.statement()
    assert claim["releases"] == releases
    assert claim["epsilon_total"] == pytest.approx(gaussian_epsilon(0.5 / releases**0.5, 1e-5), rel=1e-9)
    assert (claim["adjacency"], claim["sampling"], claim["sampling_rate"]) == ("replace", "full", 1.0)


def test_the_ledger_is_of_the_most_charged_record(data):
    """One batch of 32 of 98 people a round, drawn anew: counted from the batches themselves, times 1 + E."""
    work = {**LVFL, "local_epochs": None, "local_steps": 1}
    setup = parties(data, work, privacy=RECORD, rounds=6)
    run = Simulation.from_setup(setup)
    appeared = torch.zeros(int(setup.federation.counts().max()), dtype=torch.int64)
    for _ in range(6):
        clients = run.cohort()
        (batch,) = clients.batches(setup.algorithm, aligned=True)
        people = clients._records.of(batch).numbers
        appeared[people] += 1
        run.step()
        assert run.statement()["releases"] == 3 * int(appeared.max())
    ((_, charged),) = run.ledger.counts.items()
    assert 1 < int(appeared.max()) < 6 and charged.tolist() == (3 * appeared).tolist()


@pytest.mark.slow
def test_a_budget_holds(data):
    """The noise is settled for the person who appears most often, and the budget is used up.

    One batch of 32 of 98 people a round: in 4 rounds nobody appears in all, so the noise is less than in passes.
    """
    budget = {"unit": "record", "clip": 1.0, "epsilon": 5.0}
    whole, part = (
        simulate(parties(data, {**LVFL, **steps}, privacy=budget, rounds=4))["privacy"]
        for steps in ({}, {"local_epochs": None, "local_steps": 1})
    )
    assert whole["epsilon_total"] == pytest.approx(5.0, rel=1e-6)
    assert part["epsilon_total"] == pytest.approx(5.0, rel=1e-6)
    assert part["noise_multiplier"] < whole["noise_multiplier"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [{}, {"local_epochs": None, "local_steps": 1}])
def test_a_plan_counts_appearances_as_the_run_does(data, steps):
    spec = parties(data, {**LVFL, **steps}, privacy=RECORD, rounds=4).spec
    (planned,) = plan([Combination({}, spec)])
    claim = simulate(prepare(spec))["privacy"]
    assert planned["releases"] == claim["releases"]
    assert planned["epsilon_total"] == claim["epsilon_total"]


def world(data, **privacy):
    """Return the two sides of a first round, under the mechanism of a run with noise multiplier z."""
    setup = parties(data, privacy={**RECORD, **privacy}, precision="float64")
    mechanism = setup.privacy
    clients = cohort(data=setup.federation, problem=setup.problem, mechanism=mechanism)
    batch = next(iter(clients.batches(setup.algorithm, aligned=True)))
    y = clients.rows(setup.start["y"])
    return clients, Channel(clients, privacy=mechanism, compression=EXACT), batch, y


def test_embeddings_are_clipped_and_noised_by_sample(data):
    """Clip norm 0.1, multiplier 50: 32 x 4 x 3 draws of standard deviation 50 x 2 x 0.1 = 10."""
    clients, channel, batch, y = world(data, clip=0.1, noise_multiplier=0.0)
    h = clients.embed(y, batch)
    seen = channel.gather(h, per_sample=batch)
    norms = h.norm(dim=-1)
    assert bool((norms > 0.1).any())
    torch.testing.assert_close(seen, h * (0.1 / norms).clamp(max=1).unsqueeze(-1))
    clients, channel, batch, y = world(data, clip=0.1, noise_multiplier=50.0)
    noise = channel.gather(clients.embed(y, batch), per_sample=batch) - seen
    assert float(noise.std()) == pytest.approx(10.0, rel=0.15)
    assert abs(float(noise.mean())) < 2.5


def test_batches_have_public_labels_and_no_features(data):
    clients, _, batch, _ = world(data)
    assert bool(batch.x.isnan().all()) and len(set(batch.y.flatten().tolist())) == 2
    with pytest.raises(Incompatible, match="gradients only"):
        clients.each(lambda y: y.sum(), torch.zeros(3, 2))


def test_embeddings_leave_no_other_way(data):
    clients, channel, batch, y = world(data)
    h = clients.embed(y, batch)
    for leave in (channel.gather, channel.mean):
        with pytest.raises(Incompatible, match="gather"):
            leave(h.flatten(-2))


@pytest.mark.slow
def test_the_report_says_what_is_claimed(data):
    final = simulate(parties(data, privacy=RECORD, compression={"alpha": 0.5, "beta": 0.5}))
    assert "features that one party holds of one person" in final["privacy"]["protects"]
    assert "labels" in final["public"] and "which people are in which batch" in final["public"]
    assert not any("who takes part" in line for line in final["public"])


REFUSED = [
    (
        {"compression": {"beta": 0.5, "error_feedback": True}},
        LVFL,
        "the residual of one message must not be added",
    ),
    ({"compression": {"beta": 0.5, "shift": 1.0}}, LVFL, "no part in the next batch's"),
    ({"cohort": {"size": 2}}, LVFL, "all take part"),
    ({"privacy": {**RECORD, "sampling": "poisson"}}, LVFL, "accounted by full"),
    ({"privacy": {**RECORD, "adjacency": "add-remove", "record_rate": 0.1}}, LVFL, "accounted by replace"),
    ({"compression": {"alpha": [[0, [0.5, 0.5]]]}}, LVFL, "2 ratios for 3 clients"),
    ({"model": "logistic", "compression": {"alpha": 0.5}}, LVFL, "no hidden units"),
    ({}, {**LVFL, "iterations": 0}, "iterations must be above 0"),
    ({"problem": {"kind": "vertical", "head": [0]}}, LVFL, "at least 1"),
    ({"partition": {"kind": "iid", "clients": 3}}, LVFL, "columns or quadrants"),
    ({"partition": {"kind": "quadrants"}}, LVFL, "not images"),
]


@pytest.mark.parametrize(("fields", "algorithm", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(data, fields, algorithm, message):
    with pytest.raises((Incompatible, UserError, ValueError), match=message):
        parties(data, algorithm, **fields)


def test_separate_party_models_need_a_vertical_problem(data):
    with pytest.raises(Incompatible, match="ratios of their own that change"):
        ready(data, compression={"alpha": [[0, [0.5] * 7]]}, model={"name": "mlp"})


def test_x_and_y_that_cannot_be_told_apart_are_not_pruned(data):
    """Head of 3 x 10 embeddings and 2 classes: 62. Party of 2 columns, 4 neurons, 10 outputs: 8 + 4 + 40 + 10."""
    alike = {"problem": {"kind": "vertical", "embedding": 10}, "model": {"name": "mlp", "hidden": [4]}}
    setup = parties(data, **alike)
    assert len(setup.start["x"]) == len(setup.start["y"]) == 62
    with pytest.raises(Incompatible, match="x and y must differ in size"):
        parties(data, **alike, compression={"alpha": 0.5})
