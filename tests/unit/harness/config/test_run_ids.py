"""The id of a run follows from its record, and from nothing that a record may leave out."""

import json

import pytest

import harness
from harness.config.recorded import BUILT_IN, RUN_FIELDS, completed, essential, identity, run_id, versions
from harness.config.run import RunSpec, read_spec
from harness.core.algorithm import ALGORITHMS, Release

NAMED = {
    "3fb84aec5bdf75bb": {
        "partition": {"kind": "dirichlet", "clients": 5},
        "model": {"name": "mlp", "hidden": [64]},
        "algorithm": "fedavg",
    },
    "adc49ec0a6ab8e2b": {
        "partition": {"kind": "iid", "clients": 5, "test": 0.25},
        "model": {"name": "mlp", "hidden": [32, 16]},
        "algorithm": {"name": "fedprox", "lr": 0.3},
        "precision": "float64",
        "compression": {"alpha": [0.1, 0.2, 0.3, 0.4, 0.5], "beta": [[0, 0.2], [5, 0.4]]},
    },
    "2cdd7e14fb940646": {
        "partition": {"kind": "columns", "clients": 3},
        "problem": "vertical",
        "model": {"name": "mlp"},
        "algorithm": "lvfl",
    },
    "4062ac4f1dc10fa0": {
        "partition": {"kind": "columns", "blocks": [["age"], ["sex"]]},
        "problem": "vertical",
        "model": {"name": "mlp"},
        "algorithm": "splitnn",
    },
}


@pytest.mark.parametrize("id", NAMED)
def test_runs_keep_the_names_that_they_were_given(id):
    """Ids of version 1 of these algorithms and versions 3 and 5 of their problems, as in results folders."""
    assert identity(read_spec({"data": "adult", **NAMED[id]}), "d") == id


@pytest.mark.parametrize("id", NAMED)
def test_what_is_left_out_of_a_record_can_be_filled_in(id):
    spec = read_spec({"data": "adult", **NAMED[id]}).model_dump(mode="json")
    short = essential(spec)
    assert len(json.dumps(short)) < len(json.dumps(spec)) / 2
    assert essential(completed(short)) == short == essential(spec)
    assert run_id(short, "d", versions(spec)) == id


def test_parts_that_are_not_known_keep_all_settings():
    """As in skipped combinations, and of plugins that are not loaded."""
    odd = {"algorithm": {"name": "nobody", "lr": 0.05}, "data": "adult", "model": {"name": 3}, "rounds": 100}
    assert essential(odd) == {key: value for key, value in odd.items() if key != "rounds"}
    assert completed(odd) == odd
    assert versions(odd) == {}


def test_every_run_says_of_what_family_its_algorithm_is(tmp_path):
    """Which is no part of what its id follows from."""
    spec = {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 3},
        "model": "logistic",
        "rounds": 1,
    }
    record = harness.run(spec | {"algorithm": "ditto"}, tmp_path)
    assert record.meta == {"family": "personalized", "pooled": False}
    assert run_id(record.spec, record.digest, record.versions) == record.id


def test_only_adaptive_clips_have_a_version_of_their_own():
    def found(clip):
        privacy = {"placement": "central", "epsilon": 1.0, "clip": clip}
        fields = {"data": "breast-cancer", "partition": {"kind": "iid", "clients": 5}, "model": "mlp"}
        return versions(
            read_spec(fields | {"algorithm": "fedavg", "privacy": privacy}).model_dump(mode="json")
        )

    assert found("adaptive") == found(1.0) | {"adaptive_clip": 2}


def test_the_algorithms_that_find_known_terms_have_the_setting_of_their_release():
    listed = {name for name, part in BUILT_IN["algorithm"].items() if "release" in part["defaults"]}
    assert listed == {name for name in ALGORITHMS if issubclass(ALGORITHMS[name], Release)} != set()


def test_all_fields_of_a_run_are_known_without_its_class():
    assert set(RUN_FIELDS) == RunSpec.model_fields.keys()


def test_a_record_cannot_leave_out_what_is_not_at_its_default():
    """Defaults are those of the file, whatever the record says of itself."""
    spec = read_spec({"data": "adult", **NAMED["adc49ec0a6ab8e2b"]}).model_dump(mode="json")
    code = versions(spec)
    del spec["algorithm"]["lr"]  # 0.3
    assert run_id(spec, "d", code) != "adc49ec0a6ab8e2b"
    assert completed(spec)["algorithm"]["lr"] == 0.1


LOCAL = {"placement": "local", "epsilon": 1.0}
MOVED = [
    ("scaffold", {"weight_decay": 0.1}, {}),
    ("sagda", {"weight_decay": 0.1}, {}),
    ("fedgda_gt", {"weight_decay": 0.1}, {}),
    ("codasca", {}, {}),
    ("codasca", {"prox": 0.0, "weight_decay": 0.1}, {}),
    ("feddyn", {"momentum": 0.5}, {}),
    ("fedsgda_m", {"average_prev": True}, {}),
    ("fedbioacc", {"release": "value"}, {"cohort": {"size": 2}}),
]
SAME = [
    ("scaffold", {"momentum": 0.5, "grad_clip": 0.1}, {}),
    ("scaffold", {"weight_decay": 0.1, "release": "change"}, {}),
    ("scaffold", {"weight_decay": 0.1}, {"privacy": None}),
    ("scaffold", {"weight_decay": 0.1}, {"privacy": {"unit": "record", "epsilon": 1.0}}),
    ("fedavg", {"weight_decay": 0.1}, {}),
    ("fedprox", {"weight_decay": 0.1}, {"cohort": {"size": 2}}),
    ("codasca", {"prox": 0.0}, {"cohort": {"size": 2}}),
    ("codasca", {"release": "change"}, {}),
    ("coda_plus", {}, {}),
    ("feddyn", {}, {"cohort": {"size": 2}}),
    ("fedsgda_m", {}, {}),
    ("fedbioacc", {"release": "value"}, {}),
    ("fedbioacc", {}, {"cohort": {"size": 2}}),
    ("momentum_local_sgda", {}, {}),
]


@pytest.mark.parametrize(("given", "moved"), [(MOVED, True), (SAME, False)])
def test_only_known_terms_that_were_once_protected_have_a_version_of_their_own(given, moved):
    """Measured: of these runs, what is clipped has changed, or has not, since the harness finds known terms."""
    kinds = {"minimax": "auroc", "bilevel": "fair_weights", "erm": "classify"}
    fields = {"data": "heart", "partition": {"kind": "iid", "clients": 5}, "model": "logistic"}
    for name, settings, more in given:
        problem = kinds[ALGORITHMS[name].meta.solves[0]]
        data = {"data": {"name": "heart", "sensitive": "sex"}} if problem == "fair_weights" else {}
        spec = {**fields, **data, "problem": problem, "privacy": LOCAL, **more}
        written = read_spec({**spec, "algorithm": {"name": name, **settings}}).model_dump(mode="json")
        for one in (written, essential(written)):
            assert (versions(one).get("known_terms") == 1) == moved, (name, settings, more)
