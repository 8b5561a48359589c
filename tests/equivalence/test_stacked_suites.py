"""Runs of a suite that are computed side by side write the same files, bit for bit, as the runs apart."""

import copy
import gc
import itertools
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.centralized.fedavg import FedAvg
from harness.config.run import read_spec
from harness.executors import local
from harness.executors.local import fitting
from harness.executors.scheduler import Outcome, run_all, run_together, units
from harness.simulation import loop as loop
from harness.simulation import stacking
from harness.simulation.build import identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.recorder import Recorder
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from harness.simulation.stacking import cut, obstacle, signature, stack_setups
from harness.storage.store import Store
from tests.support.runs import BL2, MM4
from tests.support.written import written

APART, STACKED = Execution(stack=1), Execution(stack=8)
NOISY = {"kind": "random_quadratic", "samples": 8, "noise": 0.5, "clients": 4}
CANCER = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 6},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 16},
}
SMALL = {"name": "mlp", "hidden": [8, 6]}
MANY = CANCER | {
    "partition": {"kind": "dirichlet", "alpha": 5.0, "clients": 30},
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 2},
}
SCAFFOLD = {"name": "scaffold", "local_steps": 2, "batch_size": 16}
RANDOM_GRAPH = {"kind": "erdos-renyi", "p": 0.6}
CENTRAL = {"placement": "central", "noise_multiplier": 1.0, "clip": "adaptive"}

SPECS = {
    "uneven clients": CANCER,
    "epochs of uneven clients": CANCER | {"algorithm": {"name": "fedavg", "local_epochs": 1}},
    "means of the steps of uneven clients": CANCER
    | {"algorithm": {"name": "fednova", "local_epochs": 1, "batch_size": 16}},
    "pooled": CANCER | {"algorithm": {"name": "centralized", "local_steps": 3}},
    "personal models": CANCER | {"algorithm": {"name": "local", "local_steps": 3}},
    "perceptron": CANCER | {"model": "mlp"},
    "predicted numbers": CANCER | {"data": "diabetes", "problem": "regression", "model": "mlp"},
    "control variates and cohorts": CANCER | {"algorithm": SCAFFOLD, "cohort": {"size": 3}},
    "error feedback, a code by chance, a budget": CANCER
    | {
        "algorithm": SCAFFOLD,
        "compression": {"beta": 0.8, "codec": "q4", "error_feedback": True},
        "privacy": {"placement": "local", "clip": 1.0, "epsilon": 8.0},
    },
    "prototypes of uneven clients": CANCER
    | {"model": "mlp", "algorithm": {"name": "fedreco", "local_steps": 2}, "cohort": {"size": 4}},
    "heads combined within a cohort": CANCER
    | {"model": SMALL, "algorithm": {"name": "fedpac", "local_steps": 2}, "cohort": {"size": 4}}
    | {"partition": {"kind": "iid", "clients": 6}},
    "work at home before an evaluation": CANCER
    | {"model": "mlp", "algorithm": {"name": "fedbabu", "local_steps": 2}},
    "networks in bfloat16": CANCER | {"model": SMALL, "precision": "bfloat16"},
    "random entries": CANCER | {"compression": {"beta": 0.5, "select": "random_k"}},
    "cohorts of unlike size": CANCER
    | {"algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 4}, "cohort": {"size": 2}}
    | {"privacy": CENTRAL},
    "cohorts of nearly all": CANCER
    | {"algorithm": SCAFFOLD | {"batch_size": 4}, "cohort": {"size": 5}, "privacy": CENTRAL},
    "cohorts of a third of many": MANY | {"cohort": {"size": 9}, "privacy": CENTRAL | {"clip": 1.0}},
    "cohorts that runs of a seed share": MANY
    | {"cohort": {"size": 9}, "privacy": CENTRAL | {"clip": 1.0, "draws": "shared"}},
    "noise that later noise takes back": CANCER
    | {"cohort": {"size": 2, "kind": "balanced"}}
    | {"privacy": {"placement": "central", "clip": 1.0, "noise_multiplier": 1.0, "mechanism": "banded"}},
    "noise that clients add together": CANCER
    | {"privacy": {"placement": "distributed", "clip": 1.0, "noise_multiplier": 1.0}},
    "losses of all data": CANCER
    | {"partition": {"kind": "iid", "clients": 6}, "algorithm": {"name": "afl", "local_steps": 2}},
    "powers of losses": CANCER
    | {
        "partition": {"kind": "iid", "clients": 6},
        "algorithm": {"name": "q_fedavg", "q": 0.3, "local_steps": 2},
    },
    "gossip on graphs of their own": {
        "problem": NOISY,
        "algorithm": {"name": "k_gt_minimax", "local_steps": 2, "batch_size": 2},
        "topology": RANDOM_GRAPH,
    },
    "instances of their own": {
        "problem": NOISY | {"seed": None, "matrix_noise": 0.5, "nonconvex": 0.3},
        "algorithm": {"name": "k_gt_minimax", "local_steps": 2, "batch_size": 2}
        | {"smoothness": 0.001, "condition": 1.5},
        "topology": RANDOM_GRAPH,
    },
    "compressed changes on graphs of their own": CANCER
    | {
        "algorithm": {"name": "choco_sgd", "local_epochs": 1, "batch_size": 16},
        "partition": {"kind": "iid", "clients": 6},
        "topology": RANDOM_GRAPH,
        "compression": {"beta": 0.5, "codec": "q4"},
    },
    "losses at a random step": CANCER
    | {"partition": {"kind": "iid", "clients": 6}, "algorithm": {"name": "drfa", "local_steps": 3}},
    "minimax": {"problem": NOISY, "algorithm": {"name": "fedsgda_m", "local_steps": 2, "batch_size": 2}},
    "fair": CANCER
    | {"problem": "fair_classification", "algorithm": {"name": "fedsgda_plus", "local_steps": 2}},
    "problems drawn from the seed": {
        "problem": {"kind": "random_bilevel", "samples": 8, "noise": 0.3, "clients": 4},
        "algorithm": {"name": "fedbioacc", "local_steps": 2, "batch_size": 2, "neumann_terms": 2},
    },
    "bilevel": {"problem": BL2, "algorithm": {"name": "fedbio", "local_steps": 2, "neumann_terms": 2}},
}


def runs(what, seeds=3, **fields):
    return [
        read_spec(SPECS[what] | {"rounds": 7, "eval_every": 3, "seed": seed} | fields)
        for seed in range(seeds)
    ]


BESIDE: dict[Path, int] = {}  # folder of a run: size of the stack in which it ended


@pytest.fixture(autouse=True)
def _noted(monkeypatch):
    """Note sizes of stacks, which runs with secret cohorts do not write down."""
    finish = Recorder.finish

    def noted(self, run, number):
        BESIDE[self._folder.path] = len(run.each)
        finish(self, run, number)

    monkeypatch.setattr(Recorder, "finish", noted)


def stacked(root):
    """Return beside how many runs each was done."""
    return [BESIDE[path.parent] for path in sorted(root.glob("runs/*/done.json"))]


@pytest.mark.parametrize("what", SPECS)
def test_stacked_runs_write_what_the_runs_apart_write(what, tmp_path):
    """Lines, bytes, operations, epsilon and the end: to the last bit, on a CPU."""
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        run_all(runs(what), tmp_path / name, execution=execution)
    assert stacked(tmp_path / "apart") == [1, 1, 1]
    assert stacked(tmp_path / "stacked") == [3, 3, 3]
    found = written(tmp_path / "stacked")
    assert found == written(tmp_path / "apart")
    assert len({json.dumps(lines[1:3]) for path, lines in found.items() if path.endswith(".jsonl")}) == (
        1 if what == "bilevel" else 3
    )


UNLIKE = {
    "losses of all data of uneven clients": CANCER | {"algorithm": {"name": "afl", "local_steps": 2}},
    "cohorts of small clients": MANY
    | {"algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 16}, "cohort": {"size": 3}},
}


@pytest.mark.parametrize("what", UNLIKE)
def test_runs_with_batches_of_other_widths_separate_and_say_so(what, tmp_path, caplog):
    """A sum over more padding rounds otherwise: 569 samples dealt unevenly, all of a client's in one batch."""
    specs = [read_spec(UNLIKE[what] | {"rounds": 7, "eval_every": 3, "seed": seed}) for seed in range(3)]
    assert len({signature(prepare(spec)) for spec in specs}) == 1
    caplog.set_level("INFO")
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        run_all(specs, tmp_path / name, execution=execution)
    assert stacked(tmp_path / "stacked") == [1, 1, 1]
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")
    assert (
        "3 runs continue in smaller stacks from their checkpoints: stacked runs have batches of different"
        in caplog.text
    )


class Killed(BaseException):
    """Somebody pulled the plug."""


def kill(at):
    def watch(spec, round, line):
        if round == at:
            raise Killed

    return watch


def assert_resumed_alone_in_pairs_and_together(specs, tmp_path):
    """Kill a stack after its checkpoint of round 4, and take copies of what it left up in stacks of other sizes."""
    run_all(specs, tmp_path / "straight", execution=APART)
    with pytest.raises(Killed):
        run_all(specs, tmp_path / "broken", execution=STACKED, progress=kill(5))
    checkpoints = [torch.load(path) for path in (tmp_path / "broken").glob("runs/*/checkpoint.pt")]
    assert [one["round"] for one in checkpoints] == [4] * len(specs)
    for again in (1, 2, 8):
        root, seen = tmp_path / f"again {again}", []
        shutil.copytree(tmp_path / "broken", root)
        run_all(
            specs,
            root,
            execution=Execution(stack=again),
            progress=lambda spec, round, line, seen=seen: seen.append(round),
        )
        assert min(seen) == 4, again  # nobody began again
        assert max(stacked(root)) == min(again, len(specs))
        assert written(root) == written(tmp_path / "straight"), again


@pytest.mark.parametrize(
    "what",
    ["error feedback, a code by chance, a budget", "cohorts of nearly all", "gossip on graphs of their own"],
)
def test_a_killed_stack_is_taken_up_in_any_other(what, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    assert_resumed_alone_in_pairs_and_together(runs(what, seeds=4), tmp_path)


def test_runs_at_different_rounds_resume_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    specs = runs("uneven clients")
    run_all(specs, tmp_path / "straight", execution=APART)
    for some, round in ((specs[:1], 6), (specs[1:], 3)):
        with pytest.raises(Killed):
            run_all(some, tmp_path / "broken", execution=STACKED, progress=kill(round))
    run_all(specs, tmp_path / "broken", execution=STACKED)
    assert sorted(stacked(tmp_path / "broken")) == [1, 2, 2]
    assert written(tmp_path / "broken") == written(tmp_path / "straight")


def test_an_interrupted_stack_saves_every_run(tmp_path, monkeypatch):
    """Interrupted in the middle of a round, long before the next checkpoint would be due."""
    specs, advance = runs("uneven clients"), Simulation.step
    run_all(specs, tmp_path / "straight", execution=APART)

    def interrupted(self, **options):
        if self.round == 3:
            raise KeyboardInterrupt
        advance(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_all(specs, tmp_path / "broken", execution=STACKED)
    checkpoints = list((tmp_path / "broken").glob("runs/*/checkpoint.pt"))
    assert [torch.load(path)["round"] for path in checkpoints] == [3] * 3
    run_all(specs, tmp_path / "broken", execution=STACKED)
    assert written(tmp_path / "broken") == written(tmp_path / "straight")


def spoil(monkeypatch, seeds, at):
    """Let runs of these seeds lose their state in a round."""
    honest = FedAvg.round

    def round(self, state, clients, channel):
        x = honest(self, state, clients, channel).x.clone()
        if clients.round == at:
            for number, seed in enumerate(clients.seeds):
                x.view(len(clients.seeds), -1)[number] *= torch.inf if seed in seeds else 1
        return self.State(x)

    monkeypatch.setattr(FedAvg, "round", round)


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("uneven clients", (1,)),
        ("uneven clients", (0, 1, 2)),
        ("cohorts of unlike size", (1,)),
        ("cohorts of unlike size", (0, 2)),
    ],
)
def test_a_diverging_run_leaves_the_stack(what, lost, tmp_path, monkeypatch):
    spoil(monkeypatch, lost, at=3)
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        outcomes = run_all(runs(what), tmp_path / name, execution=execution)
        failed = [n for n, outcome in enumerate(outcomes) if outcome.status == "failed"]
        assert failed == list(lost)
        assert all("diverged" in outcomes[n].reason and "round 4" in outcomes[n].reason for n in failed)
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")
    assert stacked(tmp_path / "stacked") == [3 - len(lost)] * (3 - len(lost))


def test_a_failing_run_does_not_fail_its_neighbors(tmp_path, monkeypatch):
    """A stack cannot tell whose fault an error is: its runs are carried out apart, from their checkpoints."""
    honest = FedAvg.round

    def broken(self, state, clients, channel):
        if 1 in clients.seeds and clients.round == 3:
            raise ZeroDivisionError("seed 1")
        return honest(self, state, clients, channel)

    specs = runs("uneven clients")
    run_all(specs, tmp_path / "straight", execution=APART)
    monkeypatch.setattr(FedAvg, "round", broken)
    outcomes = run_all(specs, tmp_path / "stacked", execution=STACKED)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    line = broken.__code__.co_firstlineno + 2
    assert outcomes[1].reason == f"ZeroDivisionError: seed 1 (test_stacked_suites.py, line {line}, in broken)"
    found, straight = written(tmp_path / "stacked"), written(tmp_path / "straight")
    for outcome in (outcomes[0], outcomes[2]):
        own = [path for path in straight if outcome.id in path]
        assert len(own) == 3 and all(found[path] == straight[path] for path in own)


def test_who_is_done_failed_or_held_by_others_is_left_alone(tmp_path):
    specs = runs("uneven clients", seeds=5)
    first = run_all(specs[:1], tmp_path, execution=APART)[0].id
    store = Store(tmp_path)
    ids = [prepare(spec).id for spec in specs]
    with store.folder(ids[2]).claim():
        store.folder(ids[2]).start({"id": ids[2], "source": "", "spec": specs[2].model_dump(mode="json")})
        store.folder(ids[2]).fail({"reason": "tired"})
    with store.folder(ids[1]).claim():
        outcomes = run_all(specs, tmp_path, execution=STACKED)
    assert outcomes == [
        Outcome(first, "done"),
        Outcome(ids[1], "running"),
        Outcome(ids[2], "failed", "tired", earlier=True),
        Outcome(ids[3], "done"),
        Outcome(ids[4], "done"),
    ]
    assert sorted(stacked(tmp_path)) == [1, 2, 2]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"compression": {"alpha": 0.5}, "model": "mlp"}, "prunes its own model"),
        ({"compression": {"rank": 1}, "model": "mlp"}, "where they lie in memory"),
        ({"privacy": {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0}}, "record"),
        (
            {"algorithm": {"name": "scaffold", "local_epochs": 1}, "cohort": {"size": 3}},
            "depends on its largest client",
        ),
        (
            {
                **{"data": None, "partition": None, "model": None, "problem": MM4, "topology": "ring"},
                "algorithm": {"name": "dream"},
            },
            "decides per run",
        ),
    ],
)
def test_what_is_each_run_s_own_keeps_it_alone(fields, why, tmp_path):
    specs = [read_spec(CANCER | fields | {"rounds": 1, "seed": seed}) for seed in (0, 1)]
    assert why in obstacle(prepare(specs[0]))
    assert {outcome.status for outcome in run_together(specs, tmp_path, STACKED)} == {"done"}
    assert stacked(tmp_path) == [1, 1]


def test_runs_in_a_loop_are_alone():
    spec = read_spec(CANCER)
    assert obstacle(prepare(spec)) is None
    assert "loop" in obstacle(prepare(spec, Execution(vectorize="loop")))


def test_runs_on_several_torch_threads_are_alone():
    """A perceptron with 1,000 hidden units rounds otherwise stacked there."""
    setup, before = prepare(read_spec(CANCER)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert "--jobs" in obstacle(setup)
    finally:
        torch.set_num_threads(before)


def test_runs_of_unlike_problems_are_not_stacked():
    """The share of positives that AUROC uses is that of the seed's own training samples."""
    auroc = CANCER | {"problem": "auroc", "algorithm": {"name": "local_sgda", "local_steps": 2}}
    setups = [prepare(read_spec(auroc | {"seed": seed})) for seed in (0, 0, 1)]
    assert obstacle(setups[0]) is None
    assert signature(setups[0]) == signature(setups[1]) != signature(setups[2])


def test_full_batches_stack_if_the_largest_clients_are_equal():
    """Dirichlet clients are of unlike sizes, even ones of one: steps of an epoch, and full batches."""
    kinds = {
        "dirichlet": {"kind": "dirichlet", "alpha": 0.5, "clients": 6},
        "iid": {"kind": "iid", "clients": 6},
    }
    for work in ({"name": "scaffold", "local_epochs": 1}, {"name": "fedavg", "batch_size": None}):
        for kind, partition in kinds.items():
            specs = [
                read_spec(CANCER | {"partition": partition, "algorithm": work, "seed": s}) for s in range(6)
            ]
            agree = len({signature(prepare(spec)) for spec in specs}) == 1
            assert agree == (kind == "iid"), (work, kind)


def test_stacked_runs_hold_their_samples_once():
    """Each seed standardizes its own pool; side by side they are one, and every run points into it."""
    whole = stack_setups([prepare(spec) for spec in runs("uneven clients")])
    assert len(whole.training.pool.y) == 3 * 569
    assert all(run.federation.pool.x is whole.training.pool.x for run in whole.members)
    lone = [prepare(spec).federation for spec in runs("uneven clients")]
    for run, federation in zip(whole.members, lone, strict=True):
        for split, index in federation.splits.items():
            there = run.federation.splits[split]
            assert torch.equal(there >= 0, index >= 0)  # padding may show any sample
            assert torch.equal(run.federation.pool.x[there[there >= 0]], federation.pool.x[index[index >= 0]])


LADDERS = {
    "each client its noise": (
        "error feedback, a code by chance, a budget",
        {"placement": "local", "clip": 1.0},
    ),
    "noise that later noise takes back": (
        "noise that later noise takes back",
        {"placement": "central", "clip": 1.0, "mechanism": "banded"},
    ),
    "noise that clients add together": (
        "noise that clients add together",
        {"placement": "distributed", "clip": 1.0},
    ),
    "one noise for the average": ("cohorts of a third of many", {"placement": "central", "clip": 1.0}),
    "on a graph": ("gossip on graphs of their own", {"placement": "local", "clip": 1.0}),
}


def ladder(what):
    """Two seeds under three budgets, one of which is so large that its noise is nearly none."""
    name, mechanism = LADDERS[what]
    return [
        spec
        for budget in (0.5, 8.0, 1e4)
        for spec in runs(name, seeds=2, privacy=mechanism | {"epsilon": budget})
    ]


@pytest.mark.parametrize("what", LADDERS)
def test_runs_of_unlike_budgets_go_side_by_side(what, tmp_path):
    specs = ladder(what)
    assert [len(piece) for piece in units(specs, 1, None)] == [6]
    run_all(specs, tmp_path / "apart", execution=APART)
    run_all(specs, tmp_path / "stacked", execution=STACKED)
    assert set(stacked(tmp_path / "stacked")) == {6}
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")
    ends = [
        content for path, (content, *_) in written(tmp_path / "apart").items() if path.endswith("done.json")
    ]
    spent = {end["privacy"]["epsilon_total"] for end in ends}
    assert len(spent) == 3, "every budget has noise of its own"


GRIDS = {
    "step sizes, clip norms and budgets": (
        "cohorts that runs of a seed share",
        {"algorithm.lr": [0.1, 1.0], "algorithm.server_lr": [1.0, 0.7], "privacy.clip": [1.0, 0.3]},
    ),
    "secret cohorts of their own": (
        "cohorts of a third of many",
        {"algorithm.lr": [0.1, 1.0], "algorithm.server_lr": [1.0, 0.7], "privacy.clip": [1.0, 0.3]},
    ),
    "local noise": (
        "perceptron",
        {
            "privacy": [
                {"placement": "local", "clip": clip, "epsilon": epsilon}
                for clip in (0.5, 2.0)
                for epsilon in (2.0, 50.0)
            ],
            "algorithm.momentum": [0.3, 0.9],
        },
    ),
    "shares of entries": (
        "control variates and cohorts",
        {"compression.beta": [0.9, 0.5, 0.25], "algorithm.lr": [0.1, 0.05]},
    ),
    "magnitudes of entries": (
        "epochs of uneven clients",
        {
            "compression": [{"select": "threshold", "threshold": size} for size in (1e-3, 1e-2)],
            "algorithm.lr_decay": [0.9, 1.0],
        },
    ),
    "pooled": ("pooled", {"algorithm.lr": [0.1, 0.2, 0.3], "algorithm.weight_decay": [1e-3, 1e-2]}),
    "on a graph": (
        "gossip on graphs of their own",
        {"algorithm.lr_x": [0.01, 0.02], "algorithm.server_lr": [0.5, 0.7]},
    ),
    "gradients that are cut": ("personal models", {"algorithm.grad_clip": [0.1, 0.2], "algorithm.lr": [0.1, 0.4]}),
}  # fmt: skip


def grid(what, seeds=2):
    """Every combination of some settings, under each seed."""
    name, axes = GRIDS[what]
    specs = []
    for seed in range(seeds):
        for values in itertools.product(*axes.values()):
            given = copy.deepcopy(SPECS[name]) | {"rounds": 4, "eval_every": 2, "seed": seed}
            for path, value in zip(axes, values, strict=True):
                section, _, setting = path.partition(".")
                given[section] = (given.get(section, {}) | {setting: value}) if setting else value
            specs.append(read_spec(given))
    return specs


@pytest.mark.parametrize("what", GRIDS)
def test_runs_of_unlike_settings_go_side_by_side(what, tmp_path, monkeypatch):
    """In stacks of one seed, which share their batches, and in stacks of several.

    Runs with secret cohorts of their own share none: in a stack, seeds are all the same to them.
    """
    specs = grid(what)
    run_all(specs, tmp_path / "apart", execution=APART)
    for most, by_seed in ((0, what != "secret cohorts of their own"), (2**40, False)):
        monkeypatch.setattr(stacking, "SHARED_ENTRIES", most)
        root = tmp_path / f"stacked {most}"
        run_all(specs, root, execution=Execution(stack=16))
        assert set(stacked(root)) == {len(specs) // 2 if by_seed else len(specs)}
        assert written(root) == written(tmp_path / "apart")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_many_runs_on_large_batches_of_many_features_round_as_each_alone(precision, tmp_path):
    """A product of so many rows has another kernel: the gradient of the first layer rounded otherwise."""
    drawn, file = np.random.default_rng(0), tmp_path / "wide.csv"
    table = np.column_stack([drawn.normal(size=(2600, 240)).round(3), drawn.integers(0, 2, 2600)])
    np.savetxt(file, table, "%g", ",", header=",".join([*map(str, range(240)), "label"]), comments="")
    given = {
        "data": f"csv:{file}?label=label",
        "partition": {"kind": "iid", "clients": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "rounds": 1,
        "precision": precision,
    }
    algorithm = {"name": "fedavg", "local_steps": 2, "batch_size": None}
    specs = [read_spec(given | {"algorithm": algorithm | {"lr": lr / 50}}) for lr in range(1, 17)]
    run_all(specs, tmp_path / "stacked", execution=Execution(stack=16))
    assert stacked(tmp_path / "stacked") == [16] * 16
    run_all(specs[::5], tmp_path / "apart", execution=APART)
    together, alone = written(tmp_path / "stacked"), written(tmp_path / "apart")
    assert {path: together[path] for path in alone} == alone


def test_a_killed_stack_of_several_budgets_resumes_in_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    assert_resumed_alone_in_pairs_and_together(ladder("each client its noise"), tmp_path)


def test_noise_free_and_adaptive_runs_stack_with_their_own_kind():
    plain = CANCER | {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 0}}
    noisy = CANCER | {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 2}}
    loud = CANCER | {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 4}}
    adaptive = [CANCER | {"privacy": CENTRAL | {"noise_multiplier": z}} for z in (1, 2)]
    signatures = [signature(prepare(read_spec(one))) for one in (plain, noisy, loud, *adaptive)]
    assert signatures[1] == signatures[2]
    assert len(set(signatures)) == 4


def test_the_noise_of_a_budget_is_settled_once_for_the_stack():
    setups = [prepare(spec) for spec in runs("error feedback, a code by chance, a budget")]
    whole = calibrated(stack_setups(setups))
    multipliers = {calibrated(setup).privacy.noise_multiplier for setup in setups}
    assert {whole.privacy.noise_multiplier} == multipliers
    assert all(run.privacy == whole.privacy for run in whole.members)


def test_workers_get_even_shares_and_settings_stay_together():
    """12 seeds of one setting and 4 of another for two workers: 8 runs each."""
    specs = [*runs("uneven clients", 12), *runs("perceptron", 4)]
    pieces = units(specs, 2, None)
    assert [len(piece) for piece in pieces] == [6, 6, 4]
    assert sorted(number for piece in pieces for number in piece) == list(range(16))
    assert [len(piece) for piece in units(specs, 1, 5)] == [4, 4, 4, 4]
    assert [len(piece) for piece in units(specs, 1, 1)] == [1] * 16


def test_groups_are_cut_into_as_few_pieces_as_possible():
    """160 runs are not 54, 53 and 53; where others keep workers busy, runs are not parted for it."""
    assert [len(piece) for piece in units(runs("uneven clients", 160), 2, None)] == [40] * 4
    many = runs("uneven clients", 80)
    assert [len(piece) for piece in units([*many, *runs("perceptron", 6)], 2, 5)] == [5] * 16 + [3, 3]


def test_the_runs_of_a_seed_are_handed_out_together():
    pieces = units(ladder("each client its noise"), 2, None)
    assert [{number % 2 for number in piece} for piece in pieces] == [{0}, {1}]


@pytest.mark.parametrize(
    ("seeds", "budgets", "workers", "sizes"),
    [
        (10, 16, 1, [64, 48, 48]),
        (10, 8, 2, [40, 40]),
        (10, 16, 2, [48, 48, 32, 32]),
        (3, 80, 1, [40] * 6),
        (1, 160, 2, [40] * 4),
    ],
)
def test_seeds_are_not_parted_unless_they_are_too_many_for_a_piece(seeds, budgets, workers, sizes):
    """Runs of a seed share their batches, whatever others are in the piece."""
    specs = [
        spec
        for number in range(budgets)
        for spec in runs("perceptron", seeds, privacy={"placement": "local", "epsilon": 1.0 + number})
    ]
    pieces = units(specs, workers, None)
    assert [len(piece) for piece in pieces] == sizes
    held = [{specs[number].seed for number in piece} for piece in pieces]
    assert budgets > stacking.LARGEST_STACK or sum(map(len, held)) == seeds


def test_runs_of_one_seed_share_their_clients_data():
    """Two seeds under three budgets: the pool of the stack holds the samples of two runs."""
    dealt = {}
    setups = [prepare(spec, None, dealt) for spec in ladder("each client its noise")]
    assert len(dealt) == 2
    samples = len(setups[0].federation.pool.y)
    assert len(stack_setups(setups).federation.pool.y) == 2 * samples


def test_models_are_stacked_as_far_as_they_fit(monkeypatch):
    """6 clients x (62 parameters + 16 samples of 30 columns) x 4 bytes are 13,008 bytes a step and run."""
    first, *_ = (prepare(spec) for spec in runs("uneven clients", 1))
    setups = [replace(first, spec=first.spec.model_copy(update={"seed": seed})) for seed in range(64)]

    def stack_size(setups):
        return max(map(len, cut(setups)))

    assert stack_size(setups) == stacking.LARGEST_STACK
    for limit, size in ((13_007, 1), (13_008, 1), (26_016, 2), (5 * 13_008, 5)):
        monkeypatch.setattr(stacking, "STEP_BYTES", limit)
        assert stack_size(setups) == size
    assert stack_size(setups[:1] * 10) == 10, "6 clients x 62 parameters: runs of a seed share their batches"
    monkeypatch.setattr(stacking, "STEP_BYTES", 4 * 6 * 62 * 4)
    assert stack_size(setups[:1] * 10) == 4
    monkeypatch.setattr(stacking, "STEP_BYTES", 2**30)
    monkeypatch.setattr(stacking, "POOL_BYTES", 2 * 569 * 30 * 4)  # each seed standardizes its own samples
    apart = [prepare(spec) for spec in runs("uneven clients")]
    assert stack_size(apart) == 2
    monkeypatch.setattr(stacking, "POOL_BYTES", 1)
    assert stack_size(apart) == 1, "a pool that is too large is still worked on"
    assert stack_size(setups[:1] * 10) == 10, "a pool that all share is held once"


def test_as_many_seeds_are_in_a_stack_as_their_batches_fit(monkeypatch):
    """Three seeds under two budgets: 6 clients x 16 samples x 30 columns are 2,880 entries of batches a seed."""
    budgets = [{"placement": "local", "epsilon": epsilon} for epsilon in (2.0, 8.0)]
    specs = [spec for privacy in budgets for spec in runs("uneven clients", privacy=privacy)]
    setups = [prepare(spec) for spec in specs]
    one, two, three = [[0, 3], [1, 4], [2, 5]], [[0, 3, 1, 4], [2, 5]], [[0, 3, 1, 4, 2, 5]]
    for most, stacks in ((1, one), (5759, one), (5760, two), (8640, three)):
        monkeypatch.setattr(stacking, "SHARED_ENTRIES", most)
        assert cut(setups) == stacks
    lone, own = cut(setups[:5])[::-1], cut(setups[:5], 1)
    assert (lone, own) == ([[0, 3, 1, 4], [2]], [[2], [0], [3], [1], [4]]), "equally many runs of each seed"


def test_runs_whose_features_would_not_fit_together_go_in_groups_of_seeds(tmp_path, monkeypatch):
    """Ten seeds of 327,000 flights took up to 15 GB in a worker."""
    specs = [
        read_spec(CANCER | {"rounds": 2, "seed": seed, "compression": {"beta": beta}})
        for beta in (0.0, 0.5)
        for seed in range(5)
    ]
    assert fitting(specs) == [list(range(10))]
    run_together(specs, tmp_path / "together", STACKED)
    bytes_of_one = 569 * 30 * 4
    monkeypatch.setattr(local, "POOL_BYTES", 2 * bytes_of_one + 1)
    assert fitting(specs) == [[0, 1, 5, 6], [2, 3, 7, 8], [4, 9]]
    monkeypatch.setattr(local, "POOL_BYTES", 1)
    assert fitting(specs[:2]) == [[0], [1]], "one seed at least"
    monkeypatch.setattr(local, "POOL_BYTES", 2 * bytes_of_one + 1)
    outcomes = run_together(specs, tmp_path / "groups", STACKED)
    assert [outcome.id for outcome in outcomes] == [identify(spec) for spec in specs]
    assert written(tmp_path / "together") == written(tmp_path / "groups")
    assert max(stacked(tmp_path / "together")) > max(stacked(tmp_path / "groups")) >= 2


def test_a_group_of_runs_leaves_no_samples_in_memory(tmp_path, monkeypatch):
    """Functions that refer to themselves kept a piece's pools until the collector came, which it rarely does."""
    pools = []

    def seen(*given):
        setup = prepare(*given)
        pools.append(weakref.ref(setup.federation.pool.x))
        return setup

    monkeypatch.setattr(local, "prepare", seen)
    gc.collect()
    gc.disable()
    try:
        specs = [read_spec(CANCER | {"rounds": 1, "seed": seed}) for seed in (0, 1)]
        run_together(specs, tmp_path, STACKED)
        assert [pool() for pool in pools] == [None, None]
    finally:
        gc.enable()


def test_features_that_seeds_share_are_no_reason_for_groups(monkeypatch):
    """Without standardization all runs index the same samples, as those of images do."""
    monkeypatch.setattr(local, "POOL_BYTES", 1)
    raw = CANCER["partition"] | {"standardize": False}
    assert fitting([read_spec(CANCER | {"partition": raw, "seed": seed}) for seed in range(3)]) == [[0, 1, 2]]
