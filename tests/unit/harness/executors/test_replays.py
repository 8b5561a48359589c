"""A run computed again says whether its record is true; what cannot be computed again is not called false."""

import json
import math
import shutil

import pandas as pd
import pytest

from harness.config import plugins
from harness.config.recorded import BUILT_IN, run_id
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.core.registry import PLUGGED
from harness.executors import records
from harness.executors import replay as module
from harness.executors.local import run_one
from harness.executors.records import checked_record
from harness.executors.replay import caught, chosen, difference, differences, replay, values
from harness.models import MODELS
from harness.simulation.setup import Execution
from harness.storage import seals
from harness.storage.store import Store
from tests.support.submitted import forge, results


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return results(tmp_path_factory.mktemp("made"), seeds=1)


@pytest.fixture
def copy(made, tmp_path):
    """Return a copy of the results, and its only run."""
    shutil.copytree(made.root, tmp_path / "copy")
    store = Store(tmp_path / "copy")
    (run,) = store.run_folders()
    return store, run


def respecified(run, change):
    """Change the spec.json of a run, with checksums that agree."""
    started, _ = seals.read_sealed(run.path / "spec.json")
    change(started)
    seals.write_sealed(run.path / "spec.json", started)
    final, seal = seals.read_sealed(run.path / "done.json")
    seals.write_sealed(
        run.path / "done.json", final, {**seal, "spec.json": seals.sha256(run.path / "spec.json")}
    )
    return run


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0.5, 0.75, 0.25),  # absolute up to one
        (200.0, 100.0, 0.5),  # relative to the larger above
        (3, 3, 0.0),
        (3, 4, math.inf),  # counts are exact
        (3, 3.5, 0.5 / 3.5),
        (True, 1, math.inf),
        (None, 0.0, math.inf),
        (math.nan, math.nan, 0.0),
        (math.nan, 1.0, math.inf),
        (math.inf, math.inf, 0.0),
        (10**400, 1.0, math.inf),
        ("inf", "inf", 0.0),
    ],
)
def test_the_difference_of_two_values(a, b, expected):
    assert difference(a, b) == expected == difference(b, a)


def compared(recorded, repeated):
    """Return the places where two JSON values differ, with the differences, the largest first."""
    frames = [
        pd.Series(dict(module._leaves({"x": value, "y": 0})), dtype=object) for value in (recorded, repeated)
    ]
    frame = differences(*frames)
    return dict(zip(frame["place"], frame["difference"], strict=True))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"a": [1.0, {"b": 0.5}]}, {"a": [1.0, {"b": 0.25}]}, {"x a 1 b": 0.25}),
        ({"a": 1}, {}, {"x a": math.inf}),
        ([1.0], [1.0, 2.0], {"x 1": math.inf}),
        ([1.0, 0.5, 2], [0.5, 0.25, 3], {"x 2": math.inf, "x 0": 0.5, "x 1": 0.25}),
        ({"a": {"b": 0.5}, "a b": 0.25}, {"a": {"b": 0.25}}, {'x "a b"': math.inf, "x a b": 0.25}),
        ({}, {}, {}),
    ],
)
def test_the_places_where_two_runs_differ(a, b, expected):
    """A forger cannot hide a figure behind a key that names its place."""
    assert compared(a, b) == expected
    assert compared(b, a) == expected


def test_a_true_record_is_computed_again_bit_by_bit(made):
    (run,) = made.run_folders()
    assert run.has("predictions.csv")
    assert str(replay(made, run.path.name)) == "identical"


def test_a_forged_record_is_sound_but_not_repeated(copy):
    store, run = copy
    forge(run, 0.999)
    assert store.folder(run.path.name).status == "done"
    found = replay(store, run.path.name)
    assert found.state == "different" and "accuracy: 0.999, repeated 0." in found.reason
    assert replay(store, run.path.name, found.largest * 0.99).state == "different"
    assert replay(store, run.path.name, found.largest).state == "within tolerance"


def test_a_different_record_says_if_it_was_made_elsewhere(copy):
    store, run = copy
    forge(run)
    assert "made with" not in replay(store, run.path.name).reason
    final, seal = seals.read_sealed(run.path / "done.json")
    final["timing"] |= {"cpu": "an abacus", "device": "cuda:0"}
    seals.write_sealed(run.path / "done.json", final, seal)
    reason = replay(store, run.path.name).reason
    assert "(made with cpu an abacus, here" in reason and "device cuda:0, here cpu)" in reason


def test_forged_predictions_and_claims_are_found(copy):
    store, run = copy
    path = run.path / "predictions.csv"
    head, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, *rest, first]) + "\n")
    final, seal = seals.read_sealed(run.path / "done.json")
    seals.write_sealed(run.path / "done.json", final, {**seal, "predictions.csv": seals.sha256(path)})
    assert "predictions.csv" in replay(store, run.path.name).reason
    seals.write_sealed(run.path / "done.json", {**final, "privacy": {"epsilon_total": 0.1}}, seal)
    path.unlink()
    seals.write_sealed(
        run.path / "done.json",
        {**final, "privacy": {"epsilon_total": 0.1}},
        {name: value for name, value in seal.items() if name != "predictions.csv"},
    )
    assert "done.json privacy" in replay(store, run.path.name).reason


def test_figures_under_another_spec_are_found(copy):
    """A run of two rounds that says that it had one has not the id of either."""
    store, run = copy
    respecified(run, lambda started: started["spec"].update(rounds=1))
    found = replay(store, run.path.name)
    assert found.state == "different" and "id does not follow" in found.reason
    with pytest.raises(UserError, match="id does not follow"):
        checked_record(store, run.path.name)


def test_forged_counts_of_samples_are_found(copy):
    """They are in spec.json beside the spec, so the id says nothing of them."""
    store, run = copy
    respecified(run, lambda started: started["held"].update(counts="none"))
    found = replay(store, run.path.name)
    assert found.state == "different" and found.reason.startswith("spec.json held counts")


def test_a_spec_in_other_words_is_refused(copy):
    """A number as text is read as that number, but its id is another: a page would show one run as two."""
    store, run = copy

    def reworded(started):
        started["spec"]["rounds"] = "2"
        started["id"] = run_id(started["spec"], started["digest"], started["versions"])

    respecified(run, reworded)
    started, _ = seals.read_sealed(run.path / "spec.json")
    moved = run.path.rename(run.path.with_name(started["id"]))
    final, seal = seals.read_sealed(moved / "done.json")
    seals.write_sealed(moved / "done.json", final, {**seal, "run": moved.name})
    with pytest.raises(UserError, match="not written as this version writes it"):
        checked_record(store, moved.name)
    assert replay(store, moved.name).state != "identical"


def test_a_run_is_computed_as_it_was(copy, monkeypatch):
    store, run = copy
    final, seal = seals.read_sealed(run.path / "done.json")
    final["timing"] |= {"vectorize": "loop", "threads": 10**9}
    seals.write_sealed(run.path / "done.json", final, seal)
    used = []
    real = module.run_one

    def noted(spec, root, execution, **options):
        used.append(execution)
        return real(spec, root, execution, **options)

    monkeypatch.setattr(module, "run_one", noted)
    replay(store, run.path.name)
    assert used == [Execution("cpu", "loop", 1, 1)]


def test_noise_of_the_system_is_not_compared(tmp_path):
    private = {"placement": "central", "epsilon": 8, "clip": 1, "secure_rng": True}
    store = results(tmp_path, seeds=1, privacy=private)
    (run,) = store.run_folders()
    found = replay(store, run.path.name)
    assert found.state == "not compared" and "secure_rng" in found.reason
    with pytest.raises(UserError, match="nobody can repeat it"):
        checked_record(store, run.path.name)


def test_other_versions_and_missing_plugins_are_not_compared(made, monkeypatch):
    (run,) = made.run_folders()
    plain = BUILT_IN["algorithm"]["fedavg"]["version"]
    monkeypatch.setitem(BUILT_IN["algorithm"]["fedavg"], "version", 99)
    found = replay(made, run.path.name)
    assert found.state == "not compared"
    assert f"algorithm {plain}, here 99" in found.reason
    monkeypatch.setattr(
        records, "versions_of", lambda spec: {}
    )  # as where a part of the spec is not registered
    found = replay(made, run.path.name)
    assert found.state == "not compared" and "--plugin" in found.reason


def test_data_that_were_replaced_are_not_compared(data, tmp_path):
    path = tmp_path / "own.csv"
    shutil.copy(data, path)
    own = {"name": "csv", "path": str(path), "label": "label"}
    store = results(tmp_path / "out", seeds=1, data=own)
    (run,) = store.run_folders()
    assert replay(store, run.path.name).state == "identical"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    found = replay(store, run.path.name)
    assert found.state == "not compared" and "data" in found.reason
    path.unlink()
    assert replay(store, run.path.name).state == "not compared"
    with pytest.raises(UserError, match="file of the submitter"):
        checked_record(store, run.path.name)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"metrics": {"accuracy": "<b>1</b>"}}, "not evaluations"),
        ({"metrics": "none"}, "not evaluations"),
        ({"bytes_up": [1]}, "not evaluations"),
        ({"timing": 3}, "not evaluations"),
        ({"round": 1}, "marked as finished"),
    ],
)
def test_records_that_tables_cannot_read_are_refused(line, why, copy):
    store, run = copy
    lines = run.evaluations.all()
    lines[-1] |= line
    (run.path / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(UserError, match="it is damaged"):
        checked_record(store, run.path.name)
    final, seal = seals.read_sealed(run.path / "done.json")
    seal["rounds.jsonl"] = seals.sha256(run.path / "rounds.jsonl")
    seals.write_sealed(run.path / "done.json", final, seal)
    with pytest.raises(UserError, match=why):
        checked_record(store, run.path.name)


def test_a_sample_depends_on_its_seed_only():
    ids = [f"{n:02d}" for n in range(40)]
    assert chosen(ids, 5, 3) == chosen(ids[::-1], 5, 3) != chosen(ids, 5, 4)
    assert chosen(ids, 99, 0) == ids and chosen([], 3, 0) == [] and chosen(ids, 0, 0) == []


def test_the_chance_to_catch_forged_runs_by_hand():
    """Of 4 runs 2 are forged: 1 of the 6 pairs holds none of them, so a sample of 2 finds one with 5/6."""
    assert caught(4, 2, 2) == pytest.approx(5 / 6)
    assert caught(10, 1, 3) == pytest.approx(0.3)
    assert caught(10, 0, 3) == 0 and caught(10, 1, 10) == 1 and caught(5, 5, 1) == 1 and caught(3, 1, 9) == 1


@pytest.mark.usefixtures("registries")
def test_a_run_of_a_plugin_that_is_not_loaded_is_not_compared(tmp_path):
    """Its id depends on the defaults of the plugin's part, so without the plugin nothing can be said of it."""
    source = tmp_path / "mine.py"
    source.write_text(
        "from torch import nn\nfrom harness.models import model\n\n\n"
        "@model('tables')\ndef mine(shape, outputs, *, width: int = 3):\n"
        "    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))\n"
    )
    plugins.load([source])
    iid = {"kind": "iid", "clients": 3}
    spec = {"data": "breast-cancer", "partition": iid, "model": "mine", "algorithm": "fedavg", "rounds": 1}
    store = Store(tmp_path / "out")
    id = run_one(read_spec(spec), store.root).id
    assert replay(store, id).state == "identical"
    del MODELS["mine"], PLUGGED["model", "mine"]
    told = replay(store, id)
    assert told.state == "not compared"
    assert told.reason == "model mine of a plugin is not loaded; give --plugin FILE.py"


@pytest.mark.parametrize(
    ("recorded", "repeated", "within"),
    [
        (7.79981, 7.7998, True),  # one unit of the last of six digits
        (0.1, 0.099999, True),
        (123456.0, 123457.0, True),
        (7.7999, 7.7998, False),
        (0.1, 0.0, False),
    ],
)
def test_rounded_diagnostics_may_differ_by_a_unit_of_their_last_digit(recorded, repeated, within):
    """Other machines round sums otherwise. The difference is still told from none."""
    ends = [{"diagnostics": {"noise_to_signal": value}} for value in (recorded, repeated)]
    ((place, size),) = compared(*ends).items()
    assert size > 0 and (size < 1e-12) == within and "noise_to_signal" in place
    assert compared({"metrics": recorded}, {"metrics": repeated})["x metrics"] > 1e-7


def test_what_earlier_versions_did_not_record_is_not_missed(made):
    (run,) = made.run_folders()
    now = values(run)
    then = now[~now.index.str.startswith(("done.json events", "spec.json tested"))]
    assert len(then) < len(now) and differences(then, now).empty
    assert not differences(now, then).empty


def test_a_metric_that_the_record_lacks_is_no_difference():
    """A record of before a metric was added was called different from its repetition."""
    recorded = {"metrics": {"accuracy": 0.5}}
    repeated = {"metrics": {"accuracy": 0.5, "brier": 0.2}}
    assert compared(recorded, repeated) == {}
    assert list(compared(repeated, recorded)) == ["x metrics brier"]
    assert list(compared(recorded, {"metrics": {"accuracy": 0.6, "brier": 0.2}})) == ["x metrics accuracy"]
