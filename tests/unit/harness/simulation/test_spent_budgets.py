"""Under secure_rng no command repeats a round that is on record: its noise would be new and uncharged."""

import json

import pytest

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.executors.local import run_one
from harness.simulation import loop
from harness.simulation.simulation import Simulation
from tests.support.runs import RAW, given, table

PRIVACY = {"placement": "central", "clip": 1.0, "noise_multiplier": 20.0}


def spec_of(tmp_path, secure: bool = True, **fields):
    privacy = {**PRIVACY, "secure_rng": secure}
    return read_spec(given(table(tmp_path), privacy=privacy, rounds=4, **{**RAW, **fields}))


def files(root) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.glob("runs/*/*"))}


@pytest.fixture
def rounds(monkeypatch) -> list[int]:
    """Return the rounds that are run, dry runs apart."""
    made: list[int] = []
    advance = loop._advance

    def counted(run, **options):
        made.append(run.round)
        return advance(run, **options)

    monkeypatch.setattr(loop, "_advance", counted)
    return made


def test_predictions_of_a_finished_run_are_refused(tmp_path, rounds, capsys) -> None:
    """Three requests showed the figures of three further trainings."""
    spec, root = spec_of(tmp_path), tmp_path / "results"
    assert run_one(spec, root).status == "done"
    before, seen = files(root), []
    rounds.clear()
    with pytest.raises(
        UserError, match=r"--save-predictions: .*new noise, which spends its budget again.*remove"
    ):
        run_one(spec, root, save=["predictions.csv"], progress=lambda *figures: seen.append(figures))
    assert rounds == [] and seen == [] and files(root) == before
    file = tmp_path / "run.json"
    file.write_text(json.dumps(spec.model_dump(mode="json", exclude_none=True)))
    assert main(["run", "--spec", str(file), "--out", str(root), "--save-predictions"]) == 2
    assert files(root) == before
    first = run_one(spec, tmp_path / "other", save=["predictions.csv"])
    assert first.status == "done" and "predictions.csv" in files(tmp_path / "other")


def test_predictions_of_a_run_that_can_be_repeated_are_made(tmp_path) -> None:
    spec, root = spec_of(tmp_path, secure=False), tmp_path / "results"
    run_one(spec, root)
    assert run_one(spec, root, save=["predictions.csv"]).status == "done"
    assert "predictions.csv" in files(root)


@pytest.mark.parametrize("secure", [True, False])
def test_a_damaged_run_is_made_again_only_if_its_noise_is_the_same(tmp_path, rounds, secure: bool) -> None:
    spec, root = spec_of(tmp_path, secure), tmp_path / "results"
    run_one(spec, root)
    (end,) = root.glob("runs/*/done.json")
    end.write_text(end.read_text().replace("accuracy", "accurate", 1))
    before = files(root)
    rounds.clear()
    outcome = run_one(spec, root)
    if secure:
        assert outcome.status == "damaged" and outcome.reason is not None and "remove" in outcome.reason
        assert rounds == [] and files(root) == before
    else:
        assert outcome.status == "done" and rounds == [0, 1, 2, 3]


@pytest.mark.parametrize("secure", [True, False])
def test_a_failed_run_is_retried_only_if_its_noise_is_the_same(tmp_path, rounds, monkeypatch, secure) -> None:
    spec, root = spec_of(tmp_path, secure, eval_every=1), tmp_path / "results"
    evaluate = Simulation.evaluate

    def broken(self, *given, **options):
        if self.round == 2:
            raise RuntimeError("no memory")
        return evaluate(self, *given, **options)

    monkeypatch.setattr(Simulation, "evaluate", broken)
    assert run_one(spec, root).reason == "RuntimeError: no memory"
    monkeypatch.setattr(Simulation, "evaluate", evaluate)
    before = files(root)
    rounds.clear()
    outcome = run_one(spec, root, retry=True)
    assert outcome.status == ("failed" if secure else "done")
    assert (rounds == []) == secure and (files(root) == before) == secure
    assert not secure or "no memory. Under privacy.secure_rng a repeated round" in str(outcome.reason)


def test_an_interrupted_run_without_its_checkpoint_does_not_begin_again(
    tmp_path, rounds, monkeypatch
) -> None:
    spec, root = spec_of(tmp_path, eval_every=1), tmp_path / "results"

    def interrupt(_, round: int, line) -> None:
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(spec, root, progress=interrupt)
    (checkpoint,) = root.glob("runs/*/checkpoint.pt")
    whole = checkpoint.read_bytes()
    checkpoint.unlink()
    rounds.clear()
    assert run_one(spec, root).status == "damaged" and rounds == []
    checkpoint.write_bytes(whole)
    assert run_one(spec, root).status == "done" and rounds == [2, 3]
