"""Verdicts on paper claims: seeds are paired, slopes fitted, and bounds reverse nothing."""

import math

import pytest
import yaml

from harness.core.errors import UserError
from studies.papers.claims import read_claims
from studies.papers.observations import Observation
from studies.papers.verdicts import judge


def claim_of(folder, **fields):
    given = {"says": "A", "measure": "accuracy", "of": {"algorithm": "fedavg"}, **fields}
    given.setdefault("expect", {"above": 0, "least": 0.5})
    (folder / "claims.yaml").write_text(yaml.safe_dump({"suite": "tiny", "claims": {"one": given}}))
    return read_claims(folder).claims[0]


def observations(values, arm="of", point=None, bounds=()):
    """Return an observation of each seed; None is a run without value, `bounds` are seeds short of the target."""
    return [
        Observation("tiny/one", "", arm, point, "", str(seed), value, seed in bounds, "id", "")
        for seed, value in enumerate(values)
    ]


def test_differences_are_paired_by_seed(tmp_path):
    """Both sides spread over 100, but 'of' is ahead by 1.0, 1.1, 0.9 in every seed."""
    claim = claim_of(tmp_path, than={"algorithm": "local"})
    ours, theirs = [1.0, 51.1, 100.9], [0.0, 50.0, 100.0]
    found = judge(claim, observations(ours) + observations(theirs, "than"))
    assert found.decision.mean == pytest.approx(1.0)
    assert found.decision.low == pytest.approx(1 - 4.302653 * 0.1 / math.sqrt(3), abs=1e-5)
    assert (found.decision.seeds, found.unpaired) == (3, 0)


def test_a_seed_of_one_side_only_leaves_a_claim_open(tmp_path):
    """Without the sixth seed, on which the other side may have done better, 'of' would be ahead for sure."""
    claim = claim_of(tmp_path, than={"algorithm": "local"})
    ours, theirs = [1.0, 1.1, 0.9, 1.2, 1.0], [0.0] * 5
    assert judge(claim, observations(ours) + observations(theirs, "than")).decision.verdict == "held"
    for more in (
        observations(ours) + observations([*theirs, 0.0], "than"),
        observations([*ours, 1]) + observations(theirs, "than"),
    ):
        found = judge(claim, more)
        assert (found.decision.seeds, found.unpaired, found.decision.verdict) == (5, 1, "cannot be judged")


@pytest.mark.parametrize(
    "expect",
    [{"above": 0, "least": 0.5}, {"above": 2, "least": 0.5}, {"below": 2, "least": 0.5}, {"within": [0, 2]}],
)
def test_seeds_that_agree_exactly_decide_nothing(tmp_path, expect):
    """Also a difference of always 1 between two sides; and equal values without anything to be equal to."""
    alone = claim_of(tmp_path, expect=expect)
    assert judge(alone, observations([1.0] * 10)).decision.verdict == "cannot be judged"
    assert judge(alone, observations([0.0] * 10)).decision.verdict == "cannot be judged"
    claim = claim_of(tmp_path, expect=expect, than={"algorithm": "local"})
    sides = observations([1.3, 2.3, 3.3, 4.3, 5.3]) + observations([0.3, 1.3, 2.3, 3.3, 4.3], "than")
    assert judge(claim, sides).decision.verdict == "cannot be judged"


def test_the_same_run_twice_is_within_what_is_asked(tmp_path):
    claim = claim_of(tmp_path, expect={"within": [-0.1, 0.1]}, than={"algorithm": "local"})
    same = [0.5, 0.6, 0.7, 0.6, 0.5]
    assert judge(claim, observations(same) + observations(same, "than")).decision.verdict == "held"
    apart = claim_of(tmp_path, expect={"within": [0.1, 0.2]}, than={"algorithm": "local"})
    assert judge(apart, observations(same) + observations(same, "than")).decision.verdict == "refuted"
    assert (
        judge(claim, observations(same[:4]) + observations(same[:4], "than")).decision.verdict
        == "cannot be judged"
    )


@pytest.mark.parametrize(
    "values, expect, size",
    [
        ([0.1, 0.11, 0.12, 0.1, 0.09], {"above": 0, "least": 0.5}, "is smaller than what would matter"),
        ([-0.1, -0.11, -0.12, -0.1, -0.09], {"below": 0, "least": 0.5}, "is smaller than what would matter"),
        ([0.3, 0.5, 0.7, 0.4, 0.6], {"above": 0, "least": 0.5}, "may be smaller than what would matter"),
        ([-0.3, -0.5, -0.7, -0.4, -0.6], {"below": 0, "least": 0.5}, "may be smaller than what would matter"),
        ([2.0, 2.1, 2.2, 1.9, 2.0], {"above": 1, "least": 0.5}, ""),
        ([2.0, 2.1, 2.2, 1.9, 2.0], {"above": 1.8, "least": 0.5}, "is smaller than what would matter"),
        ([2.0, 2.1, 2.2, 1.9, 2.0], {"within": [0, 3]}, ""),
        ([0.0, 0.1, 0.2, -0.1, 0.0], {"above": -0.5, "least": 0.5}, ""),  # a margin
        ([0.0, 0.1, 0.2, -0.1, 0.0], {"below": 0.5, "least": 0.5}, ""),
        ([0.1, 0.3, -0.5, 0.2, -0.1], {"above": 0, "least": 0.5}, ""),
    ],
)
def test_a_held_effect_that_may_not_matter_is_named(tmp_path, values, expect, size):
    assert judge(claim_of(tmp_path, expect=expect), observations(values)).size == size


def test_a_bound_leaves_the_size_of_an_effect_open(tmp_path):
    values = [0.1, 0.11, 0.12, 0.1, 0.09]
    found = judge(claim_of(tmp_path), observations(values, bounds=[0]))
    assert (found.decision.verdict, found.size) == ("held", "may be smaller than what would matter")


@pytest.mark.parametrize(
    "ours, theirs, bounded, expect, verdict",
    [
        # More rounds than theirs, at least: what is missing makes the difference larger.
        (
            [50.0, 52.0, 51.0, 50.0, 52.0],
            [10.0, 11.0, 12.0, 11.0, 10.0],
            "of",
            {"above": 0, "least": 1},
            "held",
        ),
        (
            [50.0, 52.0, 51.0, 50.0, 52.0],
            [10.0, 11.0, 12.0, 11.0, 10.0],
            "than",
            {"above": 0, "least": 1},
            "cannot be judged",
        ),
        (
            [10.0, 11.0, 12.0, 11.0, 10.0],
            [50.0, 52.0, 51.0, 50.0, 52.0],
            "than",
            {"above": 0, "least": 1},
            "refuted",
        ),
        (
            [10.0, 11.0, 12.0, 11.0, 10.0],
            [50.0, 52.0, 51.0, 50.0, 52.0],
            "of",
            {"above": 0, "least": 1},
            "cannot be judged",
        ),
        (
            [10.0, 11.0, 12.0, 11.0, 10.0],
            [50.0, 52.0, 51.0, 50.0, 52.0],
            "than",
            {"below": 0, "least": 1},
            "held",
        ),
        (
            [10.0, 11.0, 12.0, 11.0, 10.0],
            [50.0, 52.0, 51.0, 50.0, 52.0],
            "of",
            {"below": 0, "least": 1},
            "cannot be judged",
        ),
        (
            [10.0, 10.1, 9.9, 10.1, 10.0],
            [10.0, 10.0, 10.0, 10.0, 10.0],
            "of",
            {"above": 0, "least": 5},
            "cannot be judged",
        ),
        (
            [10.0, 10.1, 9.9, 10.1, 10.0],
            [10.0, 10.0, 10.0, 10.0, 10.0],
            "than",
            {"above": 0, "least": 5},
            "not seen",
        ),
        (
            [10.0, 10.1, 9.9, 10.1, 10.0],
            [10.0, 10.0, 10.0, 10.0, 10.0],
            "of",
            {"within": [-5, 5]},
            "cannot be judged",
        ),
        (
            [50.0, 52.0, 51.0, 50.0, 52.0],
            [10.0, 11.0, 12.0, 11.0, 10.0],
            "of",
            {"within": [-5, 5]},
            "refuted",
        ),
        (
            [50.0, 52.0, 51.0, 50.0, 52.0],
            [10.0, 11.0, 12.0, 11.0, 10.0],
            "than",
            {"within": [-5, 5]},
            "cannot be judged",
        ),
    ],
)
def test_a_bound_leaves_only_what_it_cannot_reverse(tmp_path, ours, theirs, bounded, expect, verdict):
    claim = claim_of(tmp_path, than={"algorithm": "local"}, expect=expect)
    sides = {"of": ours, "than": theirs}
    given = [
        one
        for arm, values in sides.items()
        for one in observations(values, arm, bounds=[1] * (arm == bounded))
    ]
    found = judge(claim, given)
    assert (found.bounds, found.decision.verdict) == (1, verdict)
    free = judge(claim, [one._replace(bound=False) for one in given])
    assert free.decision.verdict != "cannot be judged"


def test_the_slope_of_a_power_law_is_its_exponent(tmp_path):
    """value = c n^-1/2 with another c for each seed; the exponent has no spread."""
    claim = claim_of(tmp_path, along="problem.clients", scale="log", expect={"within": [-0.6, -0.4]})
    given = [one for n in (2.0, 8.0, 32.0) for one in observations([c * n**-0.5 for c in (1, 3, 9)], point=n)]
    found = judge(claim, given)
    assert (found.decision.mean, found.decision.low, found.decision.high) == pytest.approx(
        (-0.5, -0.5, -0.5), abs=1e-9
    )
    assert found.decision.verdict == "cannot be judged"
    powers = (-0.52, -0.51, -0.5, -0.49, -0.48)
    given = [one for n in (2.0, 8.0, 32.0) for one in observations([n**p for p in powers], point=n)]
    assert judge(claim, given).decision.mean == pytest.approx(-0.5)
    assert judge(claim, given).decision.verdict == "held"


def test_a_linear_slope_is_per_unit_of_the_logarithm(tmp_path):
    claim = claim_of(tmp_path, along="problem.clients", expect={"within": [2.9, 3.1]})
    given = [
        one for n in (1.0, 2.0, 7.0) for one in observations([s + 3 * math.log(n) for s in (0, 5)], point=n)
    ]
    assert judge(claim, given).decision.mean == pytest.approx(3.0)


@pytest.mark.parametrize("point, verdict", [(32.0, "held"), (2.0, "cannot be judged")])
def test_a_bound_tilts_a_slope_by_its_place(tmp_path, point, verdict):
    """At the right end the true slope is steeper, at the left end less so."""
    claim = claim_of(tmp_path, along="problem.clients", scale="log")
    given = [
        one
        for n in (2.0, 8.0, 32.0)
        for one in observations([n**p for p in (0.9, 1, 1.1, 1.2, 1.3)], point=n)
    ]
    given = [one._replace(bound=one.point == point and one.repetition == "0") for one in given]
    assert judge(claim, given).decision.verdict == verdict


def test_a_failed_run_leaves_the_claim_open(tmp_path):
    found = judge(claim_of(tmp_path), observations([1.0, 1.1, None, 0.9, 1.0, 1.2]))
    assert (found.decision.seeds, found.failed, found.decision.verdict) == (5, 1, "cannot be judged")
    assert found.decision.low > 0


def test_sides_without_a_common_seed_are_refused(tmp_path):
    claim = claim_of(tmp_path, than={"algorithm": "local"})
    with pytest.raises(UserError, match="no seed in common"):
        judge(
            claim, observations([1.0]) + [one._replace(repetition="7") for one in observations([1.0], "than")]
        )


AHEAD, BEHIND = [1.0, 1.1, 0.9, 1.2, 1.0], [0.0, 0.1, 0.0, 0.1, 0.0]


def test_what_a_search_could_have_chosen_as_well_is_in_the_interval(tmp_path):
    """Three in ten searches would have chosen a setting of 0, and nothing were left of the difference of 1."""
    claim = claim_of(tmp_path, than={"algorithm": "local"})
    ours, theirs = observations(AHEAD), observations(BEHIND, "than")
    assert judge(claim, ours + theirs).decision.verdict == "held"
    lucky = [each._replace(others="0.3=0") for each in ours]
    found = judge(claim, lucky + theirs).decision
    assert (found.mean, found.verdict) == (pytest.approx(1.0), "cannot be judged") and found.low < 0.01
    sure = [each._replace(others="0.3=0.9") for each in ours]
    assert judge(claim, sure + theirs).decision.verdict == "held"


def test_no_verdict_of_a_difference_rests_on_less_than_namesakes_differ_by(tmp_path):
    claim = claim_of(tmp_path, than={"algorithm": "local"})
    sides = observations(AHEAD) + observations(BEHIND, "than")
    coarse = [each._replace(resolution=1.1) for each in sides]
    assert judge(claim, coarse).decision.verdict == "cannot be judged"
    assert judge(claim, [each._replace(resolution=0.5) for each in sides]).decision.verdict == "held"
    alone = [each._replace(resolution=1.1) for each in observations(AHEAD)]
    assert judge(claim_of(tmp_path), alone).decision.verdict == "held", "a level is no difference"
