"""Files of claims: what is read, and what is refused with the nearest name."""

import math

import pytest
import yaml

from harness.core.errors import UserError
from harness.report.verdict import Hypothesis
from studies.papers.claims import read_claims

GOOD = {
    "says": "A helps",
    "measure": "accuracy",
    "of": {"algorithm": "scaffold"},
    "than": {"algorithm": "fedavg"},
    "expect": {"above": 0, "least": 0.01},
}


def read(folder, **changes):
    """Return the one claim of a folder, with fields changed; None leaves one out."""
    given = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    content = {"suite": "tiny", "claims": {"one": given}}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (claim,) = read_claims(folder).claims
    return claim


def test_the_name_of_a_part_stands_for_its_section(tmp_path):
    claim = read(
        tmp_path,
        at={"topology": "ring", "privacy": None, "problem": {"kind": "auroc"}},
        of={"algorithm": {"name": "scaffold", "lr": [0.1, 0.2]}},
    )
    assert claim.id == "tiny/one"
    assert claim.at == {"topology.kind": "ring", "privacy": None, "problem.kind": "auroc"}
    assert claim.arms["of"] == {"algorithm.name": "scaffold", "algorithm.lr": [0.1, 0.2]}
    assert claim.compared == ("accuracy: scaffold lr=0.1/0.2 minus fedavg, at ring privacy=none auroc")


def test_ratios_become_logarithms(tmp_path):
    below = read(tmp_path, scale="log", expect={"ratio_below": 2, "least_ratio": 1.1})
    assert below.expect == Hypothesis(high=math.log(2), least=math.log(1.1))
    assert below.expected == "< 2 (least: a factor 1.1)"
    within = read(tmp_path, scale="log", expect={"within": [-math.log(2), math.log(2)]})
    assert within.expected == "0.5 to 2"  # beside the mean, which is printed as a ratio
    ratios = read(tmp_path, scale="log", expect={"ratio_within": [0.5, 2]})
    assert (ratios.expect, ratios.expected) == (within.expect, within.expected)


@pytest.mark.parametrize(
    "given, text, higher",
    [
        ("accuracy", "accuracy", True),
        ({"measure": "loss", "round": 20}, "loss at round 20", False),
        ({"measure": "auroc", "last": 3}, "auroc, mean of the last 3 evaluations", True),
        ({"max": "stationarity"}, "maximum of stationarity", True),
        ({"min": "auroc"}, "minimum of auroc", False),
        ({"bytes_to": {"accuracy": 0.8}}, "bytes to accuracy >= 0.8", False),
    ],
)
def test_a_measure_says_what_is_read_and_what_is_better(tmp_path, given, text, higher):
    measure = read(tmp_path, measure=given).measure
    assert (str(measure), measure.better_is_higher) == (text, higher)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"measurex": "accuracy"}, "Did you mean 'measure'?"),
        ({"measure": {"rounds_too": {"accuracy": 1}}}, "Did you mean 'rounds_to'?"),
        ({"measure": {"rounds_to": {"accuracyx": 1}}}, "Did you mean 'accuracy'?"),
        ({"measure": {"max": "auroc", "min": "loss"}}, "one of measure, max, min"),
        ({"measure": {"measure": "loss", "round": 1, "last": 2}}, "round or last, not both"),
        ({"measure": {"measure": "loss", "last": 0}}, "at least 1, given 0"),
        ({"scale": "logs"}, "Did you mean 'log'?"),
        ({"verdict": "hold"}, "Did you mean 'held'?"),
        ({"at": {"algorithmx.lr": 1}}, "Did you mean 'algorithm'?"),
        ({"along": "problm.clients"}, "unknown section of a run"),
        ({"expect": {"ratio_below": 1, "least_ratio": 2}}, "ratios go with scale: log"),
        ({"over": "problem.clients"}, "ends in seed, such as problem.seed; given problem.clients"),
        ({"over": "problem.seeds"}, "ends in seed, such as problem.seed; given problem.seeds"),
        ({"expect": {"above": 0}}, "with least (what would matter)"),
        ({"expect": {"above": 0, "least": 0}}, "a number above 0"),
        ({"expect": {"above": 0, "lest": 1}}, "Did you mean 'least'?"),
        ({"expect": {"within": [2, 1]}}, "[lowest, highest]"),
        ({"choose": {"by": "accuracy", "seeds": []}}, "a list of seeds that are not reported"),
        ({"choose": {"by": "accuracyx", "seeds": [1]}}, "Did you mean 'accuracy'?"),
        ({"expect": None}, "expect is missing"),
    ],
)
def test_a_wrong_claim_is_refused_with_what_is_allowed(tmp_path, changes, told):
    with pytest.raises(UserError) as refused:
        read(tmp_path, **changes)
    assert told in str(refused.value)


def test_words_do_not_change_the_question(tmp_path):
    """Expectation, scale and words are judged from the observations at hand; settings and measure need others."""
    first = read(tmp_path).question
    assert read(tmp_path, says="B", reading="C", verdict="held", scale="log").question == first
    assert read(tmp_path, expect={"above": 1, "least": 1}).question == first
    assert read(tmp_path, measure="auroc").question != first
    assert read(tmp_path, at={"rounds": 20}).question != first
    assert read(tmp_path, choose={"by": "accuracy", "seeds": [1]}).question != first
