"""A stack that breaks: who has ended stays so, and the others go on and write what they write alone."""

from algorithms.centralized.fedavg import FedAvg
from harness.config.run import read_spec
from harness.executors.scheduler import run_all
from harness.simulation.build import Execution
from harness.simulation.callbacks import StopEarly
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
    assert [line["round"] for line in folder.rounds()] == [0]
