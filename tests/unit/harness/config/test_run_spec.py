"""A run as a value: equal runs have one name, unequal ones have two, and mistakes are explained."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from harness.cli.parser import main
from harness.config import recorded
from harness.config.recorded import identity, run_id, versions
from harness.config.run import read_spec
from harness.config.yaml import read_yaml
from harness.core import ALGORITHMS
from harness.core.errors import Incompatible, UserError

WHOLE = {
    "data": {"name": "csv", "path": "a.csv", "label": "y"},
    "partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 20},
    "problem": "classify",
    "model": "logistic",
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 10},
    "privacy": {"placement": "local", "epsilon": 8, "delta": 1e-5, "clip": 10},
    "compression": {"alpha": 0.25, "beta": 0.9},
    "cohort": {"size": 10},
    "rounds": 100,
    "eval_every": 10,
    "seed": 0,
}
QUADRATIC = {
    "problem": {
        "kind": "quadratic_minimax",
        **{name: [1.0, 2.0] for name in ("P", "B", "Q", "c", "d")},
    },
    "algorithm": "fedsgda_m",
}


def changed(path, value, base=WHOLE):
    """Return the spec with one field replaced."""
    spec = copy.deepcopy(base)
    inner = spec
    *above, last = path.split(".")
    for part in above:
        inner[part] = {"kind": inner[part]} if isinstance(inner[part], str) else inner[part]
        inner = inner[part]
    inner[last] = value
    return spec


def name(spec, digest="d"):
    return identity(read_spec(spec), digest)


def turned(value):
    """Return the same mapping with its keys in the opposite order, at every level."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


def test_the_order_of_keys_does_not_matter():
    assert name(turned(WHOLE)) == name(WHOLE)


@pytest.mark.slow
def test_another_process_finds_the_same_name():
    """With another seed of Python's own hashing."""
    program = (
        "import json, sys\nfrom harness.config.recorded import identity\n"
        "from harness.config.run import read_spec\n"
        "print(identity(read_spec(json.load(sys.stdin)), 'd'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(WHOLE),
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == name(WHOLE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("algorithm.lr", "1e-1"),
        ("algorithm.local_steps", 10.0),
        ("algorithm.local_steps", "10"),
        ("privacy.epsilon", 8.0),
        ("privacy.clip", 10.0),
        ("partition.alpha", "0.3"),
        ("partition.clients", 20.0),
        ("rounds", 100.0),
        ("seed", "0"),
        ("cohort", 10),
    ],
)
def test_the_way_a_number_is_written_does_not_matter(path, value):
    assert name(changed(path, value)) == name(WHOLE)


def test_yaml_numbers_without_a_point_are_numbers():
    """YAML reads 1e-3 as text; it must mean the same as 0.001."""
    text = yaml.safe_load("{name: fedavg, lr: 1e-3}")
    assert text["lr"] == "1e-3"
    assert read_spec(changed("algorithm", text)).algorithm["lr"] == 0.001
    assert name(changed("algorithm", text)) == name(changed("algorithm", {"name": "fedavg", "lr": 0.001}))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("algorithm.server_lr", 1.0),
        ("algorithm.batch_size", 32),
        ("problem", {"kind": "classify"}),
        ("privacy.unit", "client"),
        ("privacy.sampling", "fixed"),
        ("compression.codec", "float32"),
        ("precision", "float32"),
        ("partition.test", 0.3),
        ("data.binary", None),
        ("data.drop_negatives", 0),
    ],
)
def test_saying_a_default_aloud_does_not_matter(path, value):
    assert name(changed(path, value)) == name(WHOLE)


def test_saying_a_default_of_the_model_aloud_does_not_matter():
    spelled = changed("model", {"name": "vgg16", "width": 1.0, "norm": "none"})
    assert (
        name(spelled)
        == name(changed("model", "vgg16"))
        == name(changed("model", {"name": "vgg16", "width": 1}))
    )


def test_what_is_made_of_the_labels_is_part_of_the_name():
    names = {name(changed("data.binary", "halves")), name(changed("data.drop_negatives", 0.8)), name(WHOLE)}
    assert len(names) == 3


def test_a_run_id_depends_on_the_data_and_not_on_their_path():
    assert name(changed("data.path", "elsewhere/b.csv")) == name(WHOLE)
    assert name(WHOLE, "another digest") != name(WHOLE)


def test_readers_of_files_have_versions_of_their_own():
    """Runs on CSV files keep their ids; other data sets are known by their digest alone."""
    found = {
        kind: versions(changed("data.name", kind)).get("data")
        for kind in ("csv", "parquet", "arrow", "adult")
    }
    assert found == {"csv": 3, "parquet": 2, "arrow": 2, "adult": None}


def test_an_address_may_stand_beside_further_fields():
    spelled = {"name": "mine.parquet?label=y&missing.a%3Fb=drop", "rare": 5}
    whole = {"name": "parquet", "path": "mine.parquet", "label": "y", "missing": {"a?b": "drop"}, "rare": 5}
    assert read_spec(changed("data", spelled)) == read_spec(changed("data", whole))
    assert hash(read_spec(changed("data", spelled)).data) == hash(read_spec(changed("data", whole)).data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 1),
        ("rounds", 101),
        ("eval_every", 5),
        ("algorithm.lr", 0.2),
        ("algorithm.name", "fedprox"),
        ("partition.alpha", 0.4),
        ("partition.clients", 21),
        ("model", "mlp"),
        ("privacy.epsilon", 4),
        ("privacy.placement", "central"),
        ("compression.beta", 0.8),
        ("compression.codec", "q4"),
        ("cohort.size", 11),
        ("precision", "float64"),
        ("data.label", "z"),
        ("data.missing", {"y": "drop"}),
        ("data.rare", 5),
        ("data.text", "zip"),
        ("data.name", "parquet"),
    ],
)
def test_everything_that_decides_the_result_changes_the_name(path, value):
    assert name(changed(path, value)) != name(WHOLE)


@pytest.fixture
def raised(monkeypatch):
    """Raise the version of FedAvg in its class."""
    meta = ALGORITHMS["fedavg"].meta
    monkeypatch.setattr(ALGORITHMS["fedavg"], "meta", replace(meta, version=meta.version + 1))
    recorded._current.cache_clear()
    yield meta.version + 1
    recorded._current.cache_clear()


def test_versions_of_the_parts_change_the_name(monkeypatch, raised):
    before = run_id(read_spec(WHOLE).model_dump(mode="json"), "d", versions(read_spec(WHOLE).model_dump()))
    monkeypatch.setitem(recorded.BUILT_IN["algorithm"]["fedavg"], "version", raised)
    assert name(WHOLE) != before


def test_a_run_whose_parts_are_not_those_of_the_file_has_no_name(monkeypatch, raised):
    """It would be that of a run of the version before, whose results would count as its own."""
    with pytest.raises(UserError, match=r"algorithm fedavg: its version .*python -m tests.golden.update"):
        name(WHOLE)
    monkeypatch.setitem(recorded.BUILT_IN["algorithm"]["fedavg"], "version", raised)
    recorded._current.cache_clear()
    assert name(WHOLE)
    monkeypatch.setitem(recorded.BUILT_IN["section"]["run"]["defaults"], "rounds", 50)
    recorded._current.cache_clear()
    with pytest.raises(UserError, match="section run: its version or defaults"):
        name(WHOLE)


def test_an_algorithm_of_ours_that_the_file_does_not_have_has_no_name(monkeypatch):
    """Its runs would have other ids once the file has it."""
    monkeypatch.delitem(recorded.BUILT_IN["algorithm"], "fedavg")
    with pytest.raises(UserError, match=r"fedavg is not in .*parts.json; .*golden.update --defaults"):
        name(WHOLE)


def test_a_spec_survives_being_written_down():
    """What spec.json holds reads back as the same run."""
    for given in (WHOLE, QUADRATIC):
        spec = read_spec(given)
        written = json.loads(json.dumps(spec.model_dump(mode="json")))
        assert read_spec(written) == spec
        assert identity(read_spec(written), "d") == identity(spec, "d")


def test_a_spec_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        read_spec(WHOLE).seed = 5


UNKNOWN = [
    ("algorithn", {}, "algorithm"),
    ("algorithm.local_step", 3, "local_steps"),
    ("partition.alphaa", 3, "alpha"),
    ("problem.embeddingg", 3, None),
]
SECTIONS = [
    ("privacy.epsilom", 3, "epsilon"),
    ("compression.bta", 3, "beta"),
    ("cohort.sizee", 3, "size"),
    ("data.labell", 3, "label"),
]


@pytest.mark.parametrize(("path", "value", "near"), UNKNOWN)
def test_an_unknown_key_gets_the_nearest_one(path, value, near):
    with pytest.raises(UserError) as caught:
        read_spec(changed(path, value))
    message = str(caught.value)
    assert path.rsplit(".", 1)[-1] in message
    if near:
        assert f"Did you mean '{near}'?" in message
    assert "Allowed" in message


@pytest.mark.parametrize(("path", "value", "near"), SECTIONS)
def test_an_unknown_key_of_a_section_gets_the_nearest_one(path, value, near):
    with pytest.raises(UserError, match=f"Did you mean '{near}'"):
        read_spec(changed(path, value))


@pytest.mark.parametrize(("path", "value", "near"), SECTIONS)
def test_an_unknown_key_of_a_section_is_refused_by_name(path, value, near):
    with pytest.raises(UserError, match=path.replace(".", r".*")):
        read_spec(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "near"),
    [
        ("algorithm", "fedavgg", "fedavg"),
        ("problem", "classifyy", "classify"),
        ("partition.kind", "dirichlett", "dirichlet"),
        ("model", "logistc", "logistic"),
        ("data", "adlut", "adult"),
        ("compression.codec", "float23", "float32"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(path, value, near):
    with pytest.raises(UserError, match=f"{value}.*Did you mean '{near}'"):
        read_spec(changed(path, value))


def test_an_unknown_topology_gets_the_nearest_one():
    spec = QUADRATIC | {"algorithm": "k_gt_minimax", "topology": "rign"}
    with pytest.raises(UserError, match="Did you mean 'ring'"):
        read_spec(spec)
    with pytest.raises(UserError, match=r"'sides'\. Allowed: none\."):
        read_spec(spec | {"topology": {"kind": "ring", "sides": 3}})


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("rounds", 0, "rounds.*greater than or equal to 1"),
        ("rounds", "many", "rounds.*'many'"),
        ("seed", -1, "seed"),
        ("eval_every", 0, "eval_every"),
        ("cohort.size", 0, "cohort.size"),
        ("cohort.size", 21, "cohort.size: at most the 20 clients"),
        ("privacy.epsilon", -1, "privacy.epsilon"),
        ("privacy.noise_multiplier", 1.0, "exactly one of.*given epsilon and noise_multiplier"),
        ("privacy.clip", 0, "clip norms must be above 0"),
        ("privacy.delta", 1.5, "privacy.delta"),
        ("compression.beta", 1.0, r"beta.*\[0, 1\); got 1\.0$"),
        (
            "compression.beta",
            "half",
            r"^compression\.beta: a number is needed, or .* a schedule .*, given 'half'",
        ),
        ("compression.shift", "half", r"^compression\.shift: a number is needed, given 'half'"),
        ("compression.downlink", "maybe", r"^compression\.downlink: true or false is needed, given 'maybe'"),
        ("privacy.clip", "adaptiv", r"^privacy\.clip: a number is needed.*, given 'adaptiv'"),
        ("compression.alpha", -0.1, r"alpha.*\[0, 1\)"),
        ("algorithm.lr", "fast", "algorithm.fedavg.lr.*'fast'"),
        ("algorithm.lr", -1, "lr must be above 0"),
        ("algorithm", 5, "algorithm: give a name"),
        ("algorithm", {"lr": 1}, "algorithm: give a name"),
        ("partition.clients", 0, "partition.clients"),
        ("topology", "ring", "has a server; remove topology"),
        ("data.missing", "mean", "data.missing 'mean'. Allowed: drop, error, fill"),
        ("data.missing", {"age": "fil"}, "data.missing 'fil'. Did you mean 'fill'"),
        ("data.missing", ["drop"], r"data.missing \['drop'\]"),
        ("data.rare", 0, "data.rare"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(path, value, says):
    with pytest.raises(UserError, match=says) as caught:
        read_spec(changed(path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["INF", float("-inf")])
def test_settings_are_finite_as_files_hold_no_other_numbers(value):
    matrix = QUADRATIC["problem"] | {"P": [value, 1.0]}
    with pytest.raises(UserError, match=r"quadratic_minimax\.P: a finite number is needed, given -?inf"):
        read_spec(QUADRATIC | {"problem": matrix, "topology": None})


@pytest.mark.parametrize("section", ["data", "partition", "model"])
def test_a_missing_part_is_named(section):
    spec = {key: value for key, value in WHOLE.items() if key != section}
    if section == "partition":
        spec.pop("cohort")
    with pytest.raises(UserError, match=f"{section}: missing"):
        read_spec(spec)
    with pytest.raises(UserError, match="has its own data"):
        read_spec(QUADRATIC | {section: WHOLE[section]})


def test_a_missing_algorithm_is_named():
    with pytest.raises(UserError, match="algorithm"):
        read_spec({key: value for key, value in WHOLE.items() if key != "algorithm"})


@pytest.mark.parametrize(
    "spec",
    [
        changed("algorithm", "fedsgda_m"),
        changed("algorithm", "centralized"),
        QUADRATIC | {"algorithm": "k_gt_minimax", "topology": "ring", "cohort": {"size": 1}},
    ],
)
def test_valid_parts_that_do_not_go_together_are_incompatible(spec):
    with pytest.raises(Incompatible):
        read_spec(spec)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n- 2", "must hold named fields"),
        ("3: x", "must hold named fields"),
        ("", "must hold"),
    ],
)
def test_an_unreadable_run_file_is_explained(tmp_path, text, says):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        read_yaml(path)
    with pytest.raises(UserError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_merges_of_merges_are_refused_before_they_grow(tmp_path):
    """Ten merges at each of 40 levels: 10 ** 40 values, which would never end."""
    path = tmp_path / "run.yaml"
    levels = (f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 10)}]}}" for i in range(40))
    path.write_text("\n".join(["a0: &a0 {x: 1}", *levels]))
    with pytest.raises(UserError, match="at most 200,000 values, counting what aliases expand to"):
        read_yaml(path)
    path.write_text("base: &base {rounds: 3}\nrun: {<<: *base, seed: 1}")
    assert read_yaml(path)["run"] == {"rounds": 3, "seed": 1}


def test_yaml_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: !!python/object/apply:os.system ['true']")
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(path)


def test_a_new_setting_renames_no_run(monkeypatch):
    """Settings at their defaults are left out one by one, also those of algorithms, models and partitions."""
    spec = read_spec(WHOLE).model_dump(mode="json")
    before, code = name(WHOLE), versions(spec)
    monkeypatch.delitem(recorded.BUILT_IN["algorithm"]["fedavg"]["defaults"], "server_lr")
    assert run_id(spec, "d", code) != before  # the setting then stands in the name
    del spec["algorithm"]["server_lr"]
    assert run_id(spec, "d", code) == before


def test_strict_is_said_of_private_runs_only():
    spec = read_spec(WHOLE)
    for name in ("strict", "secure_rng"):
        asked = spec.protected(**{name: True})
        assert getattr(asked.privacy, name) and identity(asked, "d") != identity(spec, "d")
    plain = read_spec(changed("privacy", None))
    assert plain.protected(strict=True) is plain


def test_fields_of_a_partition_are_listed_without_its_storage():
    with pytest.raises(
        UserError, match=r"Allowed: clients, kind, limit, selection, selection_seed, standardize"
    ):
        read_spec(WHOLE | {"partition": {"kind": "iid", "foo": 1}})


def test_only_attacks_and_validation_on_users_have_a_version_of_users():
    """Splits by user are told from older ones by the version of the file's reader."""
    users = {"algorithm": {"name": "fedavg"}, "data": {"name": "csv", "user": "person"}}
    protected = {"algorithm": {"name": "fedavg"}, "privacy": {"unit": "user", "user": "person"}}
    for spec in (users, protected):
        assert "users" not in versions(spec)
        assert versions({**spec, "attacks": {"kinds": ["membership"]}})["users"] == 1
        assert versions({**spec, "problem": {"kind": "fair_weights"}})["users"] == 1
    assert "users" not in versions({"algorithm": {"name": "fedavg"}, "data": "adult", "attacks": ["labels"]})


def test_privacy_of_users_takes_the_column_that_the_data_name():
    """It had to be given twice, and the refusal did not say where."""
    users = {"unit": "user", "epsilon": 8, "clip": 1}
    for data in ({"name": "csv", "path": "a.csv", "label": "y", "user": "id"}, "csv:a.csv?label=y&user=id"):
        spec = WHOLE | {"data": data, "algorithm": {"name": "fedavg", "local_steps": 5}}
        given, named = (read_spec(spec | {"privacy": users | more}) for more in ({}, {"user": "id"}))
        assert given.privacy.user == "id" and given == named
    with pytest.raises(
        UserError, match=r"name it in the data, as in csv:FILE.*user=COLUMN, or as data\.user"
    ):
        read_spec(WHOLE | {"privacy": users})


def test_an_option_of_a_file_that_is_unknown_is_refused_once_with_the_nearest():
    with pytest.raises(UserError, match="unknown option 'sep'; did you mean 'delimiter'") as refused:
        read_spec(WHOLE | {"data": "csv:a.csv?label=y&sep=;"})
    assert str(refused.value).count("csv:a.csv") == 1


def test_mistakes_of_all_sections_are_told_at_once(tmp_path, capsys):
    """A line each: unknown fields, settings and names, and wrong values, also of one section and of its files."""
    wrong = {
        "data": {"name": "files", "files": {"A": {"pth": "a.csv"}, "B": {"path": "b", "dates": "d"}}, "labl": "y",
                 "rare": 0},
        "partition": "dirichlett",
        "model": "logistic",
        "algorithm": {"name": "fedavg", "lrr": 1, "local_steps": "x", "momentu": 0},
        "privacy": {"placement": "local", "epsilon": -1, "noise_cohort": 5, "bits": 3},
        "compression": {"beta": 2, "codecc": 1},
        "roundss": 2,
        "rounds": 0,
    }  # fmt: skip
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    assert main(["run", "--spec", str(tmp_path / "wrong.yaml")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    expected = [
        "'roundss'. Did you mean 'rounds'", "'labl'. Did you mean 'label'", "data.rare", "data.files.A 'pth'",
        "data.files.A.path: missing", "data.files.B: dates is 'd'", "'dirichlett'", "'lrr'", "'momentu'",
        "algorithm.fedavg.local_steps", "privacy.noise_cohort", "privacy.bits", "'codecc'", "compression.beta",
        "rounds: ",
    ]  # fmt: skip
    assert [text for text in expected if not any(text in line for line in said)] == []
    assert len(said) == len(expected)


def test_a_value_of_several_types_has_one_error():
    with pytest.raises(UserError) as refused:
        read_spec(changed("data.sensitive", 3))
    assert not refused.value.errors and "data.sensitive" in str(refused.value)


def test_a_list_with_a_wrong_item_is_not_called_empty_too():
    with pytest.raises(UserError) as caught:
        read_spec({"algorithm": "fedavg", "data": "digits", "attacks": {"kinds": ["membrship"]}})
    assert "attacks.kinds.0" in str(caught.value) and "at least one" not in str(caught.value)
