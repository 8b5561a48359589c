"""What users have called while runs are made, and how it may end them."""

import pytest

import harness
from harness.config.run import read_spec
from harness.executors.scheduler import run_all
from harness.storage.store import Store

SPEC = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": "fedavg",
    "rounds": 6,
    "eval_every": 2,
}


class Seen(harness.Callback):
    """Notes every call."""

    def __init__(self):
        self.calls = []

    def on_round(self, run, round, evaluation):
        self.calls.append(("round", run.seed, round, evaluation["round"]))

    def on_evaluation(self, run, round, evaluation):
        self.calls.append(("evaluation", run.seed, round, evaluation["metrics"]["accuracy"]))

    def on_run_end(self, record):
        self.calls.append(("end", record.spec["seed"], record.status, len(record.rounds)))


class At(harness.Callback):
    """Raises something after a round of one seed."""

    def __init__(self, error, round=3, seed=0):
        self.error, self.round, self.seed = error, round, seed

    def on_round(self, run, round, evaluation):
        if (run.seed, round) == (self.seed, self.round):
            raise self.error


def lines(record):
    return [{key: value for key, value in line.items() if key != "timing"} for line in record.rounds]


def test_callbacks_see_rounds_evaluations_and_the_end(tmp_path):
    seen = Seen()
    record = harness.run(SPEC, tmp_path, callbacks=[seen])
    rounds = [call[2:] for call in seen.calls if call[0] == "round"]
    assert rounds == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (5, 4), (6, 6)]
    figures = [call[2:] for call in seen.calls if call[0] == "evaluation"]
    assert figures == [(line["round"], line["metrics"]["accuracy"]) for line in record.rounds]
    assert seen.calls[-1] == ("end", 0, "done", 4)


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_what_a_callback_raises_reaches_the_caller(tmp_path, seeds):
    """The run is not failed; asked for again, it ends as if nothing had been."""
    straight = harness.sweep(SPEC, {"seed": seeds}, tmp_path / "straight", progress=False)
    trouble = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError, match="mine"):
        harness.sweep(SPEC, {"seed": seeds}, tmp_path / "out", callbacks=[At(trouble)], progress=False)
    assert {record.status for record in Store(tmp_path / "out").records("sweep")} == {"interrupted"}
    again = harness.sweep(SPEC, {"seed": seeds}, tmp_path / "out", progress=False)
    assert [*map(lines, again.records)] == [*map(lines, straight.records)]


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
def test_a_run_stopped_early_is_neither_done_nor_failed(tmp_path, seeds):
    """Its neighbors in a stack end as they would; with retry it continues to the same end."""
    straight = harness.sweep(SPEC, {"seed": seeds}, tmp_path / "straight", progress=False)
    stop = At(harness.StopEarly("no better"))
    made = harness.sweep(SPEC, {"seed": seeds}, tmp_path / "out", callbacks=[stop], progress=False)
    first, *others = made.records
    assert (first.status, first.reason) == ("stopped", "stopped early in round 3: no better")
    assert made.ends == {"stopped": 1, **({"done": len(others)} if others else {})}
    assert [*map(lines, others)] == [*map(lines, straight.records[1:])]
    row = made.leaderboard().iloc[0]
    assert (row["done"], row["failed"], row["missing"]) == (len(others), 0, 1)
    assert harness.run(SPEC | {"seed": 0}, tmp_path / "out").status == "stopped"
    continued = harness.run(SPEC | {"seed": 0}, tmp_path / "out", retry=True)
    assert lines(continued) == lines(straight.records[0]) and continued.status == "done"


def test_the_end_of_runs_is_told_from_other_processes(tmp_path):
    class Ends(harness.Callback):
        def __init__(self):
            self.seen = []

        def on_run_end(self, record):
            self.seen.append((record.spec["seed"], record.status))

    ends = Ends()
    harness.sweep(SPEC, {"seed": range(2)}, tmp_path, jobs=2, callbacks=[ends], progress=False)
    assert sorted(ends.seen) == [(0, "done"), (1, "done")]


def test_rounds_of_other_processes_cannot_be_watched(tmp_path):
    with pytest.raises(harness.UserError, match="use jobs=1, or override on_run_end only"):
        harness.sweep(SPEC, {"seed": range(2)}, tmp_path / "out", jobs=2, callbacks=[Seen()])
    assert not (tmp_path / "out").exists()


def test_a_callback_ends_a_stack_but_not_the_next(tmp_path):
    """The error of one stack is raised at once; nothing of the others has begun."""
    specs = [read_spec(SPEC), read_spec(SPEC | {"algorithm": "scaffold"})]
    with pytest.raises(ValueError, match="here"):
        run_all(specs, tmp_path, progress=lambda run, round, line: int("here"))
    assert len(Store(tmp_path).run_folders()) == 1
