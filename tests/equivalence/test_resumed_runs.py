"""A run that was interrupted and taken up again ends as one that was not, bit for bit."""

import json
import signal
import weakref

import pytest
import torch

from harness.config.run import read_spec
from harness.simulation import loop as loop
from harness.simulation.build import prepare
from harness.simulation.loop import simulate
from harness.simulation.simulation import Simulation
from harness.storage.store import RunFolder
from tests.support.runs import BL2, MM4

CANCER = {
    "data": "breast-cancer",
    "partition": {"kind": "dirichlet", "alpha": 0.5, "clients": 6},
    "model": "logistic",
}
SMALL_NET = CANCER | {"model": {"name": "mlp"}, "algorithm": {"name": "fedavg", "local_steps": 3}}

SPECS = {
    "gradient tracking": {
        "problem": MM4,
        "algorithm": {"name": "k_gt_minimax", "local_steps": 3},
        "topology": "ring",
    },
    "coins and several hops": {
        "problem": MM4,
        "algorithm": {"name": "dream", "hops": 3},
        "topology": "ring",
        "compression": {"codec": "q8"},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "what neighbors remember": CANCER
    | {
        "algorithm": {"name": "beer"},
        "topology": "ring",
        "compression": {"beta": 0.5, "codec": "q8"},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "variance reduction": {
        "problem": MM4,
        "algorithm": {"name": "fedsgda_m", "local_steps": 3},
        "cohort": {"size": 2},
    },
    "bilevel": {"problem": BL2, "algorithm": {"name": "fedbio", "local_steps": 2, "neumann_terms": 2}},
    "control variates": CANCER
    | {"algorithm": {"name": "scaffold", "local_epochs": 1}, "cohort": {"size": 3}},
    "error feedback and noise": CANCER
    | {
        "algorithm": {"name": "fedavg", "local_steps": 2},
        "cohort": {"size": 3},
        "compression": {"beta": 0.8, "codec": "q4", "error_feedback": True},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "shifts and noise": CANCER
    | {
        "algorithm": {"name": "scaffold", "local_steps": 2},
        "cohort": {"size": 3},
        "compression": {"beta": 0.8, "codec": "q4", "shift": 0.5},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "factors of low rank and noise": SMALL_NET
    | {
        "cohort": {"size": 3},
        "compression": {"rank": 1, "codec": "q8", "error_feedback": True},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "factors of each client": SMALL_NET
    | {
        "cohort": {"size": 3},
        "compression": {"rank": 1, "shift": 1.0, "alpha": [[0, 0.0], [2, 0.3]]},
        "privacy": {"placement": "central", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "differences between neighbors": SMALL_NET
    | {
        "algorithm": {"name": "k_gt", "local_steps": 2},
        "topology": "ring",
        "compression": {"rank": 1, "codec": "q8"},
        "privacy": {"placement": "local", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "adaptive clipping": CANCER
    | {
        "algorithm": {"name": "fedavg", "local_steps": 2},
        "cohort": {"size": 3},
        "privacy": {"placement": "central", "noise_multiplier": 1.0, "clip": "adaptive"},
    },
    "pruned model": SMALL_NET | {"compression": {"alpha": [[0, 0.0], [2, 0.3], [5, 0.6]]}},
    "parties with smaller models and protected records": {
        "data": "breast-cancer",
        "partition": {"kind": "columns", "clients": 3},
        "problem": {"kind": "vertical", "embedding": 4},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": "lvfl", "local_steps": 2, "iterations": 2},
        "compression": {"alpha": [[1, 0.25], [5, [0.5, 0.3, 0.1]]], "beta": 0.5},
        "privacy": {"unit": "record", "noise_multiplier": 0.5, "clip": 1.0},
    },
    "records": CANCER
    | {
        "algorithm": {"name": "fedavg", "local_steps": 2},
        "privacy": {"unit": "record", "noise_multiplier": 1.0, "clip": 1.0},
    },
}


class Killed(Exception):
    """Somebody pulled the plug."""


def timeless(folder):
    """Return all a run has written, without its timings."""
    lines = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    final = json.loads((folder.path / "done.json").read_text())
    return [{k: v for k, v in one.items() if k != "timing"} for one in (*lines, final)]


def last_state(monkeypatch):
    """Remember the run that is under way."""
    runs = []
    start = Simulation.__init__

    def remember(self, *arguments, **options):
        start(self, *arguments, **options)
        runs.append(self)

    monkeypatch.setattr(Simulation, "__init__", remember)
    return runs


@pytest.mark.parametrize("what", SPECS)
@pytest.mark.parametrize("killed_at", [4])
def test_resumed_is_straight(what, killed_at, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    runs = last_state(monkeypatch)
    setup = prepare(read_spec(SPECS[what] | {"rounds": 7, "eval_every": 2, "seed": 3}))
    straight, broken = RunFolder(tmp_path / "straight"), RunFolder(tmp_path / "broken")
    for folder in (straight, broken):
        folder.path.mkdir()
    expected = simulate(setup, straight)
    reference = runs[-1]

    def kill(round, line):
        if round == killed_at:
            raise Killed

    with pytest.raises(Killed):
        simulate(setup, broken, kill)
    assert broken.load()["round"] == killed_at - 1
    assert not (broken.path / "done.json").exists()
    seen = []
    found = simulate(setup, broken, lambda round, line: seen.append(round))
    assert seen[0] == killed_at - 1  # it did not begin again
    assert {k: v for k, v in found.items() if k != "timing"} == {
        k: v for k, v in expected.items() if k != "timing"
    }
    assert timeless(broken) == timeless(straight)
    assert [line["round"] for line in broken.evaluations.all()] == [0, 2, 4, 6, 7]
    for one, other in zip(runs[-1].state, reference.state, strict=True):
        assert torch.equal(one, other)
    assert not (broken.path / "checkpoint.pt").exists()


@pytest.mark.parametrize("killed_at", [2, 5])
def test_noise_of_a_recorded_round_is_drawn_once(killed_at, tmp_path, monkeypatch):
    """Even if the run dies right after the line, or after the last one: system entropy would differ."""
    privacy = {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0, "secure_rng": True}
    spec = CANCER | {"algorithm": "fedavg", "privacy": privacy, "rounds": 5, "eval_every": 2}
    setup, folder = prepare(read_spec(spec)), RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def kill(round, line):
        if round == killed_at:
            raise Killed

    with pytest.raises(Killed):
        simulate(setup, folder, kill)
    assert folder.load()["round"] == killed_at
    before = (folder.path / "rounds.jsonl").read_text().splitlines()
    simulate(setup, folder)
    after = (folder.path / "rounds.jsonl").read_text().splitlines()
    for one, other in zip(before, after, strict=False):
        assert {**json.loads(one), "timing": 0} == {**json.loads(other), "timing": 0}
    assert [json.loads(line)["round"] for line in after] == [0, 2, 4, 5]


def test_keyboard_interrupt_saves_the_last_whole_round(tmp_path, monkeypatch):
    """Interrupted in the middle of a round, long before the next checkpoint would be due."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    setup = prepare(read_spec(SPECS["bilevel"] | {"rounds": 6, "eval_every": 2}))
    advance = Simulation.step

    def interrupted(self, **options):
        if self.round == 3 and "diagnose" in options:  # not of a dry run
            raise KeyboardInterrupt
        advance(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulate(setup, folder)
    assert folder.load()["round"] == 3
    found, straight = simulate(setup, folder), simulate(setup)
    assert found["solution"] == straight["solution"]
    assert found["metrics"] == straight["metrics"]


def test_an_interruption_that_python_ignores_ends_the_run_all_the_same(tmp_path):
    """As in the callback of a weak reference, which torch has many of."""
    folder, seen = RunFolder(tmp_path / "run"), []
    folder.path.mkdir()
    setup = prepare(read_spec(SPECS["bilevel"] | {"rounds": 6}))

    def lose(round, line):
        seen.append(round)
        if round == 3:
            thing = Killed()
            weakref.finalize(thing, signal.raise_signal, signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(setup, folder, lose)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [0, 1, 2, 3] and folder.load()["round"] == 3


def test_a_lost_checkpoint_costs_time_only(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    setup = prepare(read_spec(SPECS["gradient tracking"] | {"rounds": 5, "eval_every": 1}))

    def kill(round, line):
        if round == 3:
            raise Killed

    with pytest.raises(Killed):
        simulate(setup, folder, kill)
    (folder.path / "checkpoint.pt").write_bytes(b"half a file")
    found = simulate(setup, folder)
    assert found["solution"] == simulate(setup)["solution"]
    assert [line["round"] for line in folder.evaluations.all()] == [0, 1, 2, 3, 4, 5]
