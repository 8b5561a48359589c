"""Whatever a file says, it is a valid run or suite, or refused in one line."""

import datetime
import json
import os

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import CANCER, MINIMAX, PRIVATE

from harness.cli.parser import refusals
from harness.config.recorded import identity
from harness.config.run import RunSpec, read_spec
from harness.config.suite import make_suite
from harness.config.yaml import read_yaml
from harness.core.errors import UserError
from harness.storage.store import Store

SPECS = [
    CANCER,
    PRIVATE | {"cohort": {"size": 2}, "rounds": 3, "seed": 1, "precision": "float64"},
    MINIMAX,
    CANCER
    | {"partition": {"kind": "dirichlet", "alpha": 0.3, "clients": 4, "test": 0.2, "stratify": ["label"]}},
    CANCER | {"data": "csv:../../x.csv?label=y", "model": {"name": "mlp", "hidden": [8, 4]}},
    {
        "problem": {"kind": "random_quadratic", "samples": 8, "noise": 0.5, "clients": 4},
        "algorithm": {"name": "dream", "hops": 2},
        "topology": {"kind": "erdos-renyi", "p": 0.6},
        "privacy": {"placement": "local", "noise_multiplier": 1.0, "clip": [1.0, 2.0], "delta": 1e-6},
        "compression": {"alpha": 0.0, "beta": [[0, 0.5], [3, 0.8]], "select": "random_k"},
    },
    CANCER
    | {"compression": {"alpha": [[0, 0.1], [2, 0.3]], "select": "threshold", "threshold": 0.1, "codec": "q8"}}
    | {"model": {"name": "vgg16", "width": 0.5, "norm": "group"}, "algorithm": "fedbio"}
    | {"problem": {"kind": "fair_weights"}, "data": {"name": "adult", "sensitive": ["sex", "race"]}}
    | {"privacy": {"unit": "record", "epsilon": 1.0}},
    CANCER
    | {"problem": {"kind": "vertical", "embedding": 4}, "partition": {"kind": "columns", "clients": 3}}
    | {"algorithm": "lvfl", "model": {"name": "mlp", "hidden": [4]}},
]
SUITE = {
    "suite": "tiny",
    "title": "a suite",
    "base": CANCER,
    "sweep": [{"seed": [0, 1], "algorithm.lr": [0.1, 0.2]}, {"algorithm": ["fedavg", "scaffold"]}],
    "profiles": {"smoke": {"base": {"rounds": 2}}, "paper": {"sweep": {"seed": [0]}}},
    "report": {
        "by": "accuracy",
        "baseline": "fedavg",
        "target": {"accuracy": 0.8},
        "pivot": ["algorithm.lr", "seed"],
        "curves": ["loss", "bytes"],
        "along": "algorithm",
    },
}
NAMES = [
    "name",
    "kind",
    "lr",
    "clients",
    "settings",
    "data",
    "algorithm",
    "a\nb",
    "",
    "__class__",
    "x.y",
    "../..",
]
WORDS = [
    "nan",
    "inf",
    "-1",
    "1e400",
    "null",
    "fedavg",
    "ring",
    "../../etc/passwd",
    "csv:",
    "csv:a?b",
    "\x1b[2J",
    "a\nb",
]
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.sampled_from([10**18, -(10**18), 2**63, 10**400, 2**2000]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(WORDS),
    st.sampled_from([datetime.date(2001, 1, 1), b"\xff", {1, 2}, (1, 2)]),
)
junk = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=3)), inner, max_size=3),
        st.dictionaries(st.one_of(st.integers(), st.none(), st.booleans()), inner, max_size=2),
    ),
    max_leaves=8,
)


def places(value, path=()):
    """Return the path of every value within."""
    found = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        found += places(part, (*path, key))
    return found


def changed(value, path, new):
    """Return a copy with one value replaced."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


@st.composite
def spoiled(draw, goods):
    """Return something valid in which a few values have been replaced, or something was added."""
    content = draw(st.sampled_from(goods))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in places(content) if path]))
        if draw(st.booleans()):
            content = changed(content, path, draw(junk))
        else:
            above = path[:-1]
            inner = content
            for key in above:
                inner = inner[key]
            if isinstance(inner, dict):
                content = changed(content, above, {**inner, draw(st.sampled_from(NAMES)): draw(junk)})
    return content


def one_line(error):
    text = str(error)
    assert text and len(text) < 2000 and text.isprintable(), text


@settings(max_examples=200, deadline=None)
@given(spoiled(SPECS))
def test_a_run_file_is_a_run_with_a_name_or_refused_in_one_line(content):
    try:
        spec = read_spec(content)
    except refusals() as error:
        one_line(error)
        return
    assert isinstance(spec, RunSpec)
    assert len(identity(spec, "digest")) == 16
    text = json.dumps(spec.model_dump(mode="json"), allow_nan=True)
    again = json.loads(text)
    assert read_spec({key: value for key, value in again.items() if value is not None}) == spec


@settings(max_examples=200, deadline=None)
@given(spoiled([SUITE]), st.sampled_from(["smoke", "paper", "other"]))
def test_a_suite_file_is_a_suite_or_refused_in_one_line(content, profile):
    try:
        suite = make_suite(content, profile)
    except refusals() as error:
        one_line(error)
        return
    assert os.path.basename(suite.name) == suite.name not in ("", ".", "..", "runs", "all")
    assert all(cell.spec is None or isinstance(cell.spec, RunSpec) for cell in suite.combinations)
    assert all(cell.spec is not None or "\n" not in cell.reason for cell in suite.combinations)


SIGNS = "[]{}:,-?!&*|>'\"#%@`\n \t0a"
# fmt: off
PHRASES = (
    "\n  ", ": ", "- ", "&a ", "*a", "<<: ", "!!python/object:os.system ", "!!int ", "!!bool x", "!!timestamp y",
    "2001-13-45", "0x" + "f" * 5000, ".nan", "!!set {a}", "!!binary x", "data", "seed",
)
# fmt: on
pieces = st.sampled_from([*SIGNS, *PHRASES])


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(pieces, max_size=12).map("".join), st.text(max_size=20)))
def test_a_file_of_any_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_spec(read_yaml(path))
    except UserError as error:
        one_line(error)


TRAPS = {
    "an object": "data: !!python/object/apply:os.system ['touch {trap}']",
    "a module": "data: !!python/module:os",
    "a tuple": "seed: !!python/tuple [1, 2]",
    "many levels": "data: " + "[" * 20_000,
    "many closed levels": "data: " + "[" * 400 + "]" * 400,
    "an alias to itself": "data: &a [*a]",
    "a section that holds itself": "data: &a {{name: *a}}",
    "ten aliases of ten aliases": "\n".join(
        ["a: &n0 [x, x]", *(f"b{n}: &n{n} [{', '.join([f'*n{n - 1}'] * 10)}]" for n in range(1, 12))]
    ),
    "a number of 20,000 digits": "seed: " + "9" * 20_000,
    "a number of 20,000 hexadecimal digits": "seed: 0x" + "f" * 20_000,
    "a date that is none": "seed: 2001-13-45",
    "a byte that is no text": "data: \udcff",
    "nothing": "",
    "a list": "[1, 2]",
}


@pytest.mark.parametrize("what", TRAPS)
def test_a_trap_is_refused_in_one_line_and_nothing_happens(what, tmp_path):
    trap, path = tmp_path / "sprung", tmp_path / "trap.yaml"
    path.write_bytes(TRAPS[what].format(trap=trap).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refused:
        read_spec(read_yaml(path))
    one_line(refused.value)
    assert not trap.exists()


@pytest.mark.parametrize(
    "name",
    ["../x", "/tmp/x", "..", ".", "", "runs", "all", "store.json", "a/b", "a\\b", "a\n", "x" * 300, 3, None],
)
def test_a_suite_cannot_be_named_out_of_its_folder(name):
    with pytest.raises(UserError, match=r"^suite: a name of letters, digits"):
        make_suite({"suite": name, "base": CANCER}, "smoke")


@pytest.mark.parametrize("id", ["../x", "/etc", "..", ".", "", "a/b"])
def test_a_suite_file_in_a_results_folder_cannot_lead_out_of_it(id, tmp_path):
    store = Store(tmp_path).open()
    cell = {"id": id, "spec": {"algorithm": {"name": "fedavg"}, "seed": 0}}
    store.write_suite("x", {"suite": "x", "profile": "smoke", "cells": [cell]})
    with pytest.raises(UserError, match="a run is named by letters and digits"):
        store.records()


def test_a_sweep_of_too_many_combinations_is_refused():
    """Ten lists of 100 equal values are one run, found after 10^20 attempts."""
    sweep = {f"algorithm.a{n}": [0.1] * 100 for n in range(10)}
    with pytest.raises(UserError, match=r"^sweep: more than 100,000 runs$"):
        make_suite({"base": CANCER, "sweep": sweep}, "smoke")


def test_a_file_written_by_us_is_read_by_us(tmp_path):
    """The fuzz above would hold if everything were refused."""
    path = tmp_path / "good.yaml"
    for spec in SPECS:
        path.write_text(yaml.safe_dump(spec))
        assert read_spec(read_yaml(path)).rounds == spec.get("rounds", 100)
    assert len(make_suite(SUITE, "smoke").combinations) == 4 + 2
