"""A stack that breaks: who has ended stays so, and the others go on and write what they write alone."""

import json

import pytest

from algorithms.centralized.fedavg import FedAvg
from harness.config.run import read_spec
from harness.executors.scheduler import run_all
from harness.simulation.callbacks import StopEarly
from harness.simulation.recorder import Recorder
from harness.simulation.setup import Execution
from harness.simulation.simulation import Simulation
from harness.storage.files import Unwritable
from harness.storage.store import Store
from tests.support.written import written

APART, STACKED = Execution(stack=1), Execution(stack=8)
CANCER = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 6},
    "model": "logistic",
    "algorithm": {"name": "fedavg", "local_steps": 2, "batch_size": 16},
    "rounds": 7,
    "eval_every": 3,
}


def runs(seeds=3, **fields):
    return [read_spec(CANCER | fields | {"seed": seed}) for seed in range(seeds)]


def break_down(monkeypatch, seed=1, at=4):
    """Let a run, and whoever is stacked with it, raise in a round."""
    honest = FedAvg.round

    def broken(self, state, clients, channel):
        if seed in clients.seeds and clients.round == at:
            raise ZeroDivisionError(f"seed {seed}")
        return honest(self, state, clients, channel)

    monkeypatch.setattr(FedAvg, "round", broken)


def test_a_run_that_was_stopped_before_stays_stopped(tmp_path, monkeypatch):
    """It was carried out again and was both done and failed, if the callback's reason was of the moment."""
    break_down(monkeypatch)
    ends = {}
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        seen = []

        def stop_once(spec, round, line, seen=seen):
            seen.append((spec.seed, round))
            if seen.count((0, 2)) == 1 and (spec.seed, round) == (0, 2):
                raise StopEarly("enough")

        outcomes = run_all(runs(), tmp_path / name, execution=execution, progress=stop_once)
        ends[name] = [(outcome.status, outcome.reason) for outcome in outcomes]
        assert [round for seed, round in seen if seed == 0] == [0, 1, 2]
        assert Store(tmp_path / name).folder(outcomes[0].id).load()["round"] == 2, (
            "a retry goes on from there"
        )
    assert ends["stacked"] == ends["apart"]
    assert [status for status, _ in ends["apart"]] == ["stopped", "failed", "done"]
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")


def test_a_run_that_diverged_before_is_not_repeated(tmp_path, monkeypatch):
    """Under secure_rng it was, with new noise, which nobody charged for."""
    private = {"placement": "central", "noise_multiplier": 1.0, "clip": 1.0, "secure_rng": True}
    break_down(monkeypatch)
    broken, spoiled = FedAvg.round, []

    def diverge_once(self, state, clients, channel):
        x = broken(self, state, clients, channel).x.clone()
        if clients.round == 2 and 0 in clients.seeds and not spoiled:
            spoiled.append(clients.round)
            x.view(len(clients.seeds), -1)[clients.seeds.index(0)] *= float("inf")
        return self.State(x)

    monkeypatch.setattr(FedAvg, "round", diverge_once)
    outcomes = run_all(runs(privacy=private), tmp_path, execution=STACKED)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "done"]
    assert "diverged" in outcomes[0].reason
    folder = Store(tmp_path).folder(outcomes[0].id)
    assert folder.status == "failed" and not (folder.path / "done.json").exists()
    assert [line["round"] for line in folder.evaluations.all()] == [0]


KEPT = {  # rows of clients, residuals, a ledger
    "algorithm": {"name": "scaffold", "local_steps": 2, "batch_size": 16},
    "cohort": {"size": 3},
    "compression": {"beta": 0.8, "codec": "q4", "error_feedback": True},
    "privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 0.5},
}


def broken_rounds(monkeypatch):
    """In the middle of a round of seed 1, whose clients and channel have begun."""

    def half(self, clients, channel):
        if 1 in clients.seeds and clients.round == 4:
            raise ZeroDivisionError("seed 1")
        finish(self, clients, channel)

    finish = Simulation._finish_round
    monkeypatch.setattr(Simulation, "_finish_round", half)


def broken_evaluations(monkeypatch):
    """After round 6, once the first run of the stack has been evaluated."""
    evaluate = Recorder.evaluate

    def broken(self, run, number):
        if self.setup.spec.seed == 1 and run.round == 6:
            raise ZeroDivisionError("seed 1")
        return evaluate(self, run, number)

    monkeypatch.setattr(Recorder, "evaluate", broken)


def broken_ends(monkeypatch):
    """After the last round, once the first run of the stack is done."""
    finish = Recorder.finish

    def broken(self, run, number):
        if self.setup.spec.seed == 1:
            raise ZeroDivisionError("seed 1")
        finish(self, run, number)

    monkeypatch.setattr(Recorder, "finish", broken)


@pytest.mark.parametrize("fields", [{}, KEPT], ids=["models", "more than models"])
@pytest.mark.parametrize(
    ("broken", "seen_before", "at"),
    [(broken_rounds, 4, 4), (broken_evaluations, 5, 5), (broken_ends, 7, 6)],
    ids=["round", "evaluation", "end"],
)
def test_the_others_go_on_from_the_last_whole_round(broken, seen_before, at, fields, tmp_path, monkeypatch):
    """Long before a checkpoint is due: they began again, and the failed run did when it was retried."""
    run_all(runs(**fields), tmp_path / "straight", execution=APART)
    seen = []
    with monkeypatch.context() as patch:
        broken(patch)
        outcomes = run_all(
            runs(**fields),
            tmp_path / "broken",
            execution=STACKED,
            progress=lambda spec, round, line: seen.append((spec.seed, round)),
        )
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert [round for seed, round in seen if seed == 2] == [*range(seen_before + 1), *range(at, 8)]
    assert Store(tmp_path / "broken").folder(outcomes[1].id).load()["round"] == at
    run_all(runs(**fields), tmp_path / "broken", execution=STACKED, retry=True)
    assert written(tmp_path / "broken") == written(tmp_path / "straight")


def test_what_a_callback_raises_leaves_checkpoints(tmp_path):
    """As the documentation of callbacks says: asked for again, runs continue from there."""
    run_all(runs(**KEPT), tmp_path / "straight", execution=APART)
    seen = []

    def raising(spec, round, line):
        if round == 5:
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        run_all(runs(**KEPT), tmp_path / "broken", execution=STACKED, progress=raising)
    run_all(
        runs(**KEPT), tmp_path / "broken", execution=STACKED, progress=lambda _, round, __: seen.append(round)
    )
    assert min(seen) == 4
    assert written(tmp_path / "broken") == written(tmp_path / "straight")


@pytest.mark.parametrize("problem", [OSError("full"), Unwritable("full")])
def test_a_checkpoint_that_fails_hides_no_error(problem, tmp_path, monkeypatch, caplog):
    def refuse(self, checkpoint):
        raise problem

    monkeypatch.setattr(Recorder, "save", refuse)
    break_down(monkeypatch)
    outcomes = run_all(runs(), tmp_path, execution=STACKED)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert outcomes[1].reason == "ZeroDivisionError: seed 1 (test_broken_stacks.py, line 39, in broken)"
    assert "the last round is not saved" in caplog.text


UNEVEN = {
    "losses of all data": {"algorithm": {"name": "afl", "local_steps": 2}},
    "small cohorts": {"partition": {"kind": "dirichlet", "alpha": 5.0, "clients": 30}, "cohort": {"size": 3}},
}


@pytest.mark.parametrize("what", UNEVEN)
def test_where_seeds_do_not_fit_together_runs_of_each_do(what, tmp_path, caplog):
    """Batches of two seeds are of different width: all their runs went on one by one."""
    caplog.set_level("INFO")
    given = CANCER | UNEVEN[what]
    specs = [
        read_spec(given | {"algorithm": given["algorithm"] | {"lr": lr}, "seed": seed})
        for lr in (0.1, 0.2, 0.4)
        for seed in (0, 1)
    ]
    for name, execution in (("apart", APART), ("stacked", STACKED)):
        run_all(specs, tmp_path / name, execution=execution)
    ends = [json.loads(path.read_text()) for path in (tmp_path / "stacked").glob("runs/*/done.json")]
    assert [end["timing"]["stacked"] for end in ends] == [3] * 6
    assert (
        "6 runs continue in smaller stacks from their checkpoints: stacked runs have batches of"
        in caplog.text
    )
    assert written(tmp_path / "stacked") == written(tmp_path / "apart")


def test_one_run_that_raises_leaves_the_other_seeds_in_stacks(tmp_path, monkeypatch):
    break_down(monkeypatch)
    specs = runs(2) + runs(2, algorithm=CANCER["algorithm"] | {"lr": 0.2})
    outcomes = run_all(specs, tmp_path, execution=STACKED)
    assert [outcome.status for outcome in outcomes] == ["done", "failed"] * 2
    ends = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/done.json")]
    assert [end["timing"]["stacked"] for end in ends] == [2, 2]
