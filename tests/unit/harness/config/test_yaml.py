"""YAML means one thing, or is refused with what to write."""

import re

import pytest

from harness.cli.arguments import content_from
from harness.cli.parser import parser
from harness.config.report import read_report
from harness.config.run import read_spec
from harness.config.sweep import expand
from harness.config.yaml import read
from harness.core.errors import UserError

WHOLE = {
    "data": "adult",
    "partition": {"kind": "dirichlet", "clients": 10},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "model": "logistic",
}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "privacy: {epsilon: 1}\nrounds: 3\nprivacy: {epsilon: 100}",
            "privacy is given twice, in lines 1 and 3",
        ),
        ("base:\n  a:\n    lr: 1\n    b: 2\n    'lr': 2", "lr is given twice, in lines 3 and 5"),
        ("a: {lr: 1, b: {c: 1, c: 1}}", "c is given twice, in line 1, columns 16 and 22"),
        ("sweep:\n- seed: 1\n- lr: 1\n  seed: 2\n  lr: 2", "lr is given twice, in lines 3 and 5"),
        ("1: a\n'1': b", "1 is given twice"),
        ("1: a\n1.0: b", "1.0 is given twice"),
        ("z: &z {a: 1}\nb: {<<: *z, a: 2, a: 3}", "a is given twice, in line 2"),
        ("z: &z {a: 1}\nb: {<<: *z, <<: *z}", "<< is given twice, in line 2, .*merge a list"),
    ],
)
def test_a_key_has_one_value_at_every_depth(text, says):
    with pytest.raises(UserError, match=f"^a.yaml: {says}"):
        read("a.yaml", text)


def test_a_tab_is_called_a_tab():
    with pytest.raises(UserError, match=r"line 2, column 1: a tab; indent with spaces$"):
        read("a.yaml", "partition:\n\tkind: iid")


def test_what_is_merged_may_be_given_anew():
    """Also where the merged section is one that itself gives a merged key anew."""
    found = read("", "z: &z {a: 1, b: 1}\nx: &x {<<: *z, a: 2}\ny: {<<: *x, a: 3}\nw: [*z, *z]")
    assert found["x"] == {"a": 2, "b": 1}
    assert found["y"] == {"a": 3, "b": 1}


def given(*options):
    return content_from(parser().parse_args(["run", "--algorithm", "fedavg", *options]))


def test_options_give_a_key_once():
    with pytest.raises(UserError, match="lr is given twice, in line 1, columns 2 and 9"):
        given("--set", "algorithm={lr: 1, lr: 2}")
    with pytest.raises(UserError, match="--set rounds is given twice"):
        given("--set", "rounds=1", "--set", "rounds=2")
    assert given("--set", "rounds=1", "--set", "algorithm.lr=1e-3")["algorithm"]["lr"] == 0.001


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("010", "write 10, or '010' for text"),
        ("08", "write 8,"),
        ("-0_17", "write -17,"),
        ("!!int 010", "write 10,"),
        ("1:30", "base of 60 .* or '1:30' for text"),
        ("-1:30:00", "base of 60"),
        ("1:30.5", "base of 60"),
        ("!!float 1:30", "base of 60"),
    ],
)
def test_numbers_that_readers_understand_differently_are_refused(text, says):
    with pytest.raises(UserError, match=says):
        read("", f"a: [{text}]")


def test_numbers_and_text_are_what_they_look_like():
    numbers = {"0": 0, "1_000": 1000, "1e-3": 0.001, "-1.5E+3": -1500.0, "1e3": 1000.0, ".5": 0.5, "0x1f": 31}
    texts = ["2001-02-03", "1__0", "1e", "csv:a.csv", "0..9", "-", "."]
    for text, number in numbers.items():
        assert repr(read("", f"a: {text}")["a"]) == repr(number)
    assert [read("", f"a: '{text}'")["a"] for text in [*texts, "010"]] == [*texts, "010"]
    assert [read("", f"a: {text}")["a"] for text in texts[:-2]] == texts[:-2]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("rounds", "yes"),
        ("seed", "on"),
        ("cohort", "true"),
        ("partition.alpha", "true"),
        ("algorithm.lr", "yes"),
        ("model", "{name: mlp, hidden: [true]}"),
        ("privacy", "{placement: local, epsilon: true}"),
        ("privacy", "{placement: local, epsilon: 1, clip: [1, yes]}"),
        ("compression.beta", "[[0, true]]"),
        ("compression", "{alpha: [true, 0]}"),
    ],
)
def test_a_truth_value_is_no_number(section, value):
    path = re.escape(section.split(".")[0])
    with pytest.raises(UserError, match=rf"^(?:model '|){path}.*(?:a number is needed|positive integers)"):
        expand(WHOLE, [{section: [read("", value)]}])


def test_truth_values_stay_where_they_belong():
    run = read_spec(WHOLE | {"privacy": read("", "{placement: local, epsilon: 1, strict: yes}")})
    assert run.privacy is not None
    assert run.privacy.strict is True


def test_truth_values_are_no_numbers_of_sweeps_and_reports():
    with pytest.raises(UserError, match=r"^sweep.random.draws: a number is needed, no truth value"):
        expand(WHOLE, [{"random": {"draws": True, "over": {"algorithm.lr": {"uniform": [1, 2]}}}}])
    with pytest.raises(UserError, match=r"^target: one measure"):
        read_report({"target": {"accuracy": True}})
    with pytest.raises(UserError, match=r"^report.select.near: "):
        read_report({"select": {"by": "selection_accuracy", "near": {"selection_accuracy": True}}})


@pytest.mark.parametrize("section", ["data", "partition", "privacy", "compression", "cohort", "attacks"])
@pytest.mark.parametrize("value", [0.1, True])
def test_a_message_about_a_section_says_its_shape(section, value):
    with pytest.raises(UserError) as refused:
        read_spec(WHOLE | {section: value})
    assert "Spec" not in str(refused.value)
    if section != "cohort" or value is not True:
        assert re.match(rf"{section}: needs .*such as {{.*}}, given {value}$", str(refused.value))


def test_on_is_the_name_of_a_field_and_true_as_a_value():
    """YAML 1.1 reads the word as true; adapters have a field of that name."""
    text = "adapter: {on: [Linear], also: on}\n&a on: 1\n? 'on '\n: 2\n"
    assert read("text", text) == {"adapter": {"on": ["Linear"], "also": True}, "on": 1, "on ": 2}
    with pytest.raises(UserError, match="on is given twice"):
        read("text", "{on: 1, 'on': 2}")
