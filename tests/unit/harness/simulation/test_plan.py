"""Rule 12: the plan says before a run what the run then does; and what is claimed is what was encoded."""

from dataclasses import replace

import pytest
import torch

from compression.codec import Codec
from datasets.errors import DataError
from harness.config.recorded import identity
from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.core.execution.memory import Room
from harness.core.settings.compression import Compression
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.dry_run import dry_run
from harness.simulation.loop import simulate
from harness.simulation.plan import plan
from harness.simulation.room import BASELINE
from harness.simulation.simulation import Simulation
from tests.support.runs import finished, given, ready
from tests.support.wire import channel, rows
from tests.support.worlds import COUNTS

MLP = {"name": "mlp", "hidden": [40]}
LOCAL = {"placement": "local", "clip": 1.0, "epsilon": 4.0}
CENTRAL = {**LOCAL, "placement": "central"}
RECORD = {"unit": "record", **LOCAL}
SCAFFOLD = {"name": "scaffold", "local_steps": 2}
STEPS = [[0, 0.0], [1, 0.5], [3, 0.75]]


def planned(data, algorithm, fields):
    (row,) = plan([Combination({}, read_spec(given(data, algorithm, **fields)))])
    return row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("fedavg", {}),
        (SCAFFOLD, {"privacy": LOCAL}),
        (SCAFFOLD, {"privacy": {**CENTRAL, "sampling": "fixed"}, "cohort": {"size": 3}}),
        (SCAFFOLD, {"privacy": RECORD, "compression": {"codec": "q3"}}),
        ("fedavg", {"privacy": RECORD, "compression": {"codec": "q3"}}),
        (SCAFFOLD, {"compression": {"beta": 0.5, "select": "random_k", "codec": "sign", "downlink": True}}),
        (SCAFFOLD, {"model": MLP, "compression": {"alpha": STEPS, "codec": "float16"}, "privacy": CENTRAL}),
        (SCAFFOLD, {"model": MLP, "compression": {"rank": 2, "codec": "q4", "error_feedback": True}}),
        (
            SCAFFOLD,
            {"model": MLP, "compression": {"rank": 1, "alpha": STEPS}, "privacy": LOCAL}
            | {"cohort": {"size": 3}},
        ),
        ("fedavg", {"model": MLP, "compression": {"rank": 1, "shift": 0.5}, "privacy": CENTRAL}),
    ],
)
def test_planned_releases_epsilon_and_fixed_bytes_are_exact(data, algorithm, fields) -> None:
    """Messages of SCAFFOLD have two parts, those of FedAvg one."""
    fields = {**fields, "rounds": 4}
    row = planned(data, algorithm, fields)
    run = finished(ready(data, algorithm, **fields))
    claims = run.statement() or {}
    for name in ("releases", "epsilon_release", "epsilon_total", "noise_multiplier"):
        assert row[name] == claims.get(name), name
    assert row["bytes_up"] == int(run.cost.up)
    assert row["bytes_down"] == int(run.cost.down)


@pytest.mark.parametrize("name", ["d_sgd", "choco_sgd", "beer"])
@pytest.mark.parametrize("reduced", [{}, {"beta": 0.5, "select": "random_k"}, {"rank": 1}])
def test_planned_gossip_is_exact(data, name, reduced) -> None:
    """A common lot of entries has no positions, whether rows travel or their changes; nor have factors."""
    compression = {**reduced, "codec": "float16"}
    fields = {"model": MLP, "topology": "ring", "privacy": LOCAL, "compression": compression, "rounds": 3}
    row = planned(data, {"name": name}, fields)
    run = finished(ready(data, {"name": name}, **fields))
    for figure in ("releases", "epsilon_total", "noise_multiplier"):
        assert row[figure] == run.statement()[figure], figure
    assert row["bytes_up"] == int(run.cost.up)


@pytest.mark.parametrize("beta", [0.9, [[0, 0.9], [2, 0.98]]])
def test_other_codes_stay_near_the_planned_length(data, beta) -> None:
    """With heavy noise any entry may be the largest: within 2 % of a uniformly random choice."""
    model = {"name": "mlp", "hidden": [300]}
    fields = {
        "model": model,
        "privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 50.0},
        "rounds": 4,
    }
    fields["compression"] = {"beta": beta}
    row, run = planned(data, "fedavg", fields), finished(ready(data, **fields))
    assert int(run.cost.up) == pytest.approx(row["bytes_up"], rel=0.02)


def test_noise_to_signal_is_planned_from_the_second_round(data) -> None:
    fields = {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 3.0}, "rounds": 2}
    row, run = planned(data, "fedavg", fields), ready(data, **fields)
    line = simulate(replace(run, diagnostics=True))
    assert row["noise_to_signal"] == pytest.approx(line["diagnostics"]["noise_to_signal"], rel=1e-5)
    assert row["noise_to_signal"] > 1
    assert planned(data, "fedavg", {"rounds": 2})["noise_to_signal"] is None


def test_bytes_of_poisson_cohorts_are_expected_values(data) -> None:
    fields = {"privacy": CENTRAL, "cohort": {"size": 3}, "rounds": 20}
    row, run = planned(data, "fedavg", fields), finished(ready(data, **fields))
    assert row["releases"] == run.statement()["releases"] == 20
    assert row["epsilon_total"] == run.statement()["epsilon_total"]
    everybody = finished(ready(data, **{**fields, "cohort": None})).cost
    assert row["bytes_up"] == round(int(everybody.up) * 3 / 7)
    assert int(run.cost.up) == pytest.approx(row["bytes_up"], rel=0.35), (
        "60 clients expected, 5.9 (one sigma)"
    )


def test_what_cannot_work_is_planned_as_skipped_with_the_reason(data) -> None:
    row = planned(data, "fedavg", {"compression": {"alpha": 0.5}})
    assert row["status"] == "skipped" and "no hidden units" in row["reason"]


@pytest.mark.parametrize("algorithm", ["fedavg", SCAFFOLD])
@pytest.mark.parametrize(
    "setting",
    [
        {"codec": "float32"},
        {"beta": 0.9, "error_feedback": True},
        {"beta": 0.7, "codec": "q5", "downlink": True},
        {"beta": 0.5, "select": "random_k", "codec": "float16"},
        {"beta": 0.5, "alpha": 0.5, "codec": "sign"},
    ],
)
def test_the_bytes_reported_are_the_lengths_of_real_codes(data, monkeypatch, algorithm, setting) -> None:
    """Every stack of messages that goes through a codec is encoded for real, message by message."""
    lengths = {"up": 0, "down": 0}
    plain = Codec.apply

    def spy(self, stack, kept=None, generators=None, *, shared=None):
        coded = plain(self, stack, kept, generators, shared=shared)
        copies, way = (1, "up") if stack.ndim > 1 else (7, "down")
        for number, message in enumerate(stack.reshape(-1, stack.shape[-1])):
            own = kept if kept is None or kept.ndim == 1 else kept[number]
            code = self.encode(message, own, torch.Generator().manual_seed(0), shared=shared)
            lengths[way] += copies * len(code)
            read = self.decode(code, len(message), sparse=own is not None, shared=shared, dtype=stack.dtype)
            if not self.stochastic:
                assert torch.equal(read, coded.decoded.reshape(-1, stack.shape[-1])[number])
        return coded

    monkeypatch.setattr(Codec, "apply", spy)
    run = finished(ready(data, algorithm, model=MLP, compression=setting, privacy=LOCAL))
    assert (lengths["up"], lengths["down"]) == (int(run.cost.up), int(run.cost.down))
    assert lengths["up"] > 0


def test_a_cost_is_per_client_and_message() -> None:
    """4 clients, 10 float32 up each: 160 bytes; as many down; 5 of 10 by lot: 80, no positions."""
    dense, half = (Compression(), Compression(beta=0.5, select="random_k"))
    for setting, up in ((dense, 160), (half, 80)):
        way = channel(None, setting)
        way.mean(rows(10))
        way.down(rows(10)[0])
        assert (int(way.cost.up), int(way.cost.down)) == (up, len(COUNTS) * 40)


def test_the_choice_of_the_largest_pays_for_its_positions() -> None:
    """10 of 100 entries: 40 bytes of float32, a header, and at least ceil(log2(C(100, 10)) / 8) = 6 bytes."""
    way = channel(None, Compression(beta=0.9), counts=(3,))
    way.mean(rows(100, clients=1))
    assert 40 + 6 <= int(way.cost.up) <= 40 + 5 + 13


@pytest.mark.parametrize("codec", ["float16", "q4"])
@pytest.mark.parametrize("algorithm", ["decentralized_local_sgda", "dm_hsgd", {"name": "dream", "hops": 3}])
def test_gossip_is_planned_with_all_hops_and_one_release(algorithm, codec) -> None:
    """DREAM exchanges twice in three hops, whatever its coins; it releases once a round and once before."""
    matrices = {name: [1.0, 2.0, 1.0, 3.0] for name in "PBQcd"}
    spec = read_spec(
        {
            "problem": {"kind": "quadratic_minimax", **matrices},
            "algorithm": algorithm,
            "topology": "ring",
            "privacy": LOCAL,
            "compression": {"codec": codec},
            "rounds": 5,
        }
    )
    (row,), run = plan([Combination({}, spec)]), finished(calibrated(prepare(spec)))
    for name in ("releases", "epsilon_release", "epsilon_total", "noise_multiplier"):
        assert row[name] == run.statement()[name], name
    assert row["releases"] == (5 if algorithm == "decentralized_local_sgda" else 6)
    assert row["bytes_up"] == int(run.cost.up)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("fedavg", {"privacy": RECORD}),
        ({"name": "fedavg", "local_epochs": 2}, {}),
        ("fedavg", {"model": MLP, "compression": {"alpha": 0.5}}),
        (SCAFFOLD, {"privacy": {**CENTRAL, "sampling": "fixed"}, "cohort": {"size": 3}}),
        ("drfa", {"problem": "classify"}),
        ("d_sgd", {"topology": {"kind": "erdos-renyi", "p": 0.6}}),
    ],
)
def test_seeds_planned_together_are_planned_as_alone(data, algorithm, fields) -> None:
    """Dry runs are shared by seeds of which they do not depend, and only by these."""
    specs = [read_spec(given(data, algorithm, **{**fields, "rounds": 3, "seed": seed})) for seed in range(4)]
    figures = ("id", "bytes_up", "bytes_down", "flops", "oracle_calls", "releases", "epsilon_total")
    together = plan([Combination({}, spec) for spec in specs])
    alone = [plan([Combination({}, spec)])[0] for spec in specs]
    assert [[row.get(name) for name in figures] for row in together] == [
        [row.get(name) for name in figures] for row in alone
    ]
    assert all(row["status"] == "planned" for row in together)


@pytest.mark.parametrize(("privacy", "runs"), [(LOCAL, 1), (RECORD, 2)])
def test_a_plan_repeats_the_dry_run_of_calibration_for_records_only(data, monkeypatch, privacy, runs) -> None:
    """Under record-level privacy the first is one of everybody."""
    calls = []

    def counted(*given, **options):
        calls.append(given)
        return dry_run(*given, **options)

    for place in ("calibration", "dry_run"):
        monkeypatch.setattr(f"harness.simulation.{place}.dry_run", counted)
    planned(data, "fedavg", {"privacy": privacy})
    assert len(calls) == runs


def test_a_dry_run_computes_for_one_client_only(data, monkeypatch) -> None:
    """Other clients' results have the same shape; the counts are those of the real run."""
    fields = {"problem": "fair_weights", "rounds": 3}
    algorithm = {"name": "fedbio", "local_steps": 2, "outer_rounds": 2, "batch_size": 8}
    setup = ready(data, algorithm, **fields)
    real = finished(setup).cost.state()
    monkeypatch.setattr(setup.executor, "map", None)
    dry = dry_run(setup).cost
    assert dry == real
    assert dry["flops"] > 0


def test_an_untimed_plan_says_all_but_seconds(data):
    fields = {"problem": "fair_classification", "rounds": 3}
    spec = read_spec(given(data, {"name": "fedsgda_plus", "local_steps": 2}, **fields))
    (timed,), (untimed,) = plan([Combination({}, spec)]), plan([Combination({}, spec)], timed=False)
    assert timed["seconds"] is not None and untimed["seconds"] is None
    assert timed["seconds_stacked"] > 0
    unknown = {"seconds": None, "seconds_stacked": None, "noise_to_signal": None}
    assert untimed == timed | unknown


def test_images_that_are_not_here_are_planned_by_size(monkeypatch):
    """Ten clients, three rounds, up 4 bytes for each weight of x and of the ten classes: 64 x 10 + 10 + 10."""
    spec = {
        "data": "digits",
        "partition": {"kind": "shards", "clients": 10},
        "problem": "fair_classification",
        "model": "logistic",
        "algorithm": {"name": "fedsgda_plus", "local_steps": 2, "batch_size": 4},
        "rounds": 3,
    }
    (here,) = plan([Combination({}, read_spec(spec))], timed=False)
    monkeypatch.setattr("harness.simulation.federations.available", lambda name: None)
    (row,) = plan([Combination({}, read_spec(spec))], timed=False)
    assert row["id"] is None and here["id"] is not None
    assert row["bytes_up"] == 10 * 3 * 4 * (64 * 10 + 10 + 10)
    assert {**row, "id": here["id"]} == here


def test_tables_that_are_not_here_are_not_planned(monkeypatch):
    monkeypatch.setattr("harness.simulation.federations.available", lambda name: None)
    spec = {"data": "breast-cancer", "partition": {"kind": "iid", "clients": 4}, "model": "logistic"}
    cell = Combination({}, read_spec({**spec, "algorithm": "fedavg", "rounds": 1}))
    with pytest.raises(DataError, match="only images can"):
        plan([cell], timed=False)


@pytest.mark.parametrize(
    ("algorithm", "fields", "made"),
    [
        ("fedavg", {}, 1),
        ("fedavg", {"privacy": LOCAL}, 1),
        ("fedavg", {"cohort": {"size": 3}}, 6),
        ({"name": "fedbio", "local_steps": 2, "batch_size": 8}, {"problem": "fair_weights"}, 6),
    ],
)
def test_seeds_of_equal_sizes_share_problem_and_model(data, monkeypatch, algorithm, fields, made) -> None:
    """Fair_weights splits the data anew for every seed, and a cohort is drawn by it."""
    calls = []

    def counted(*given, **options):
        calls.append(given)
        return prepare(*given, **options)

    monkeypatch.setattr("harness.simulation.plan.prepare", counted)
    fields = {**fields, "partition": {"kind": "iid", "clients": 7}, "rounds": 2}
    specs = [read_spec(given(data, algorithm, **fields, seed=seed)) for seed in range(6)]
    together = plan([Combination({}, spec) for spec in specs], timed=False)
    assert len(calls) == made
    assert together == [plan([Combination({}, spec)], timed=False)[0] for spec in specs]


def test_more_seeds_than_are_planned_take_over_figures_in_turn(data, monkeypatch) -> None:
    monkeypatch.setattr("harness.simulation.plan.SEEDS", 2)
    cells = [Combination({}, read_spec(given(data, seed=seed))) for seed in range(5)]
    told = []
    rows = plan(cells, timed=False, done=told.append)
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row.get("seed_planned") for row in rows] == [None, None, 0, 1, 0]
    assert [row["id"] for row in rows] == [
        identity(cell.spec, prepare(cell.spec).federation.digest) for cell in cells
    ]
    assert rows[4]["bytes_up"] == rows[0]["bytes_up"]
    assert told == [1, 2, 3, 4, 5]


def test_a_plan_names_the_memory_of_a_run_and_of_a_stack(data) -> None:
    row = planned(data, "fedavg", {})
    assert BASELINE < row["memory"] < row["memory_stack"]


def test_a_plan_says_what_this_machine_has_too_little_memory_for(data, monkeypatch) -> None:
    """`run` refused what a plan had called possible, and computed clients in turn where a plan counted all."""
    fields = {"model": {"name": "mlp", "hidden": [2000]}, "partition": {"kind": "iid", "clients": 7}}
    whole = {name: planned(data, name, fields) for name in ("fedavg", "scaffold")}
    assert [row["squeezed"] for row in whole.values()] == [None, None]
    left = (whole["fedavg"]["memory"] - BASELINE) // 3
    monkeypatch.setattr("harness.simulation.room.room", lambda: Room(left, "limit of a test"))
    in_turn = planned(data, "fedavg", fields)
    assert "its clients are computed one after another" in in_turn["squeezed"]
    assert in_turn["memory"] < whole["fedavg"]["memory"]
    monkeypatch.setattr("harness.simulation.room.room", lambda: Room(10_000, "limit of a test"))
    refused = planned(data, "scaffold", fields)
    assert refused["squeezed"].startswith("memory: the run takes at least")
    assert refused["memory"] == whole["scaffold"]["memory"]


def test_trial_rounds_of_large_runs_have_fewer_clients(data, monkeypatch) -> None:
    fields = {"model": MLP, "partition": {"kind": "iid", "clients": 7}}
    whole = planned(data, "fedavg", {**fields, "privacy": LOCAL})
    asked = []
    step = Simulation.step
    monkeypatch.setattr(
        Simulation, "step", lambda run, ids=None, **o: asked.append(ids) or step(run, ids, **o)
    )
    monkeypatch.setattr("harness.simulation.plan.TRIAL_BYTES", (whole["memory"] - BASELINE) // 2)
    part = planned(data, "fedavg", {**fields, "privacy": LOCAL})
    assert {len(ids) for ids in asked if ids is not None} == {3}
    assert part["noise_to_signal"] is None
    assert part["seconds"] > 0
    monkeypatch.setattr("harness.simulation.plan.TRIAL_BYTES", 1)
    assert planned(data, "fedavg", fields)["seconds"] is None
