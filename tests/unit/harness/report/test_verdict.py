"""Verdicts on hypotheses: intervals derived by hand, and every verdict."""

import math

import pytest
from scipy.stats import nct

from harness import Hypothesis, UserError, judge

ABOVE, BELOW = Hypothesis(low=0, least=0.5), Hypothesis(high=0, least=0.5)


def test_the_interval_of_four_seeds_is_that_of_t():
    """1, 2, 3, 4: mean 2.5, deviation sqrt(5/3) = 1.290994; t(.975, 3) = 3.182446 times half of it is 2.054260.
    What is detectable is found by a t test of 4 values four times in five, by SciPy's noncentral t.
    """
    found = judge([1.0, 2.0, 3.0, 4.0], ABOVE)
    assert found.mean == 2.5
    assert (found.low, found.high) == pytest.approx((0.445740, 4.554260), abs=1e-5)
    power = nct.sf(3.182446, 3, 2 * found.detectable / 1.290994)
    assert power == pytest.approx(0.8, abs=1e-4)
    assert (found.seeds, found.verdict) == (4, "cannot be judged")


def test_from_five_seeds_on_the_wider_interval_decides():
    """A skewed sample: t alone ends below what the bootstrap reaches."""
    values = [0.0, 0.0, 0.0, 0.1, 3.0]
    found = judge(values, ABOVE)
    mean = 0.62
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 4)
    half = 2.776445 * spread / math.sqrt(5)
    assert found.low <= mean - half + 1e-6
    assert found.high > mean + half * 1.05


@pytest.mark.parametrize("expect", [ABOVE, Hypothesis(high=2, least=0.5), Hypothesis(0, 2)])
def test_fewer_than_five_seeds_decide_nothing(expect):
    values = [1.0, 1.01, 0.99, 1.0, 1.01]
    assert judge(values, expect).verdict == "held"
    assert judge(values[:4], expect).verdict == "cannot be judged"


def test_within_has_no_detectable_distance():
    values = [1.0, 1.1, 1.2, 0.9, 1.0]
    assert judge(values, Hypothesis(0, 2)).detectable is None
    assert judge(values, ABOVE).detectable > 0


@pytest.mark.parametrize(
    "values, expect, verdict",
    [
        ([1.0, 1.1, 1.2, 0.9, 1.0], ABOVE, "held"),
        ([-1.0, -1.1, -1.2, -0.9, -1.0], ABOVE, "refuted"),
        ([-0.1, 0.1, 0.05, -0.05, 0.0], ABOVE, "not seen"),
        ([-0.2, -0.3, -0.25, -0.2, -0.3], ABOVE, "not seen"),  # on the other side, by less than would matter
        ([-1.0, 1.0, 0.5, -0.5, 0.0], ABOVE, "cannot be judged"),
        ([-1.0, -1.1, -1.2, -0.9, -1.0], BELOW, "held"),
        ([1.0, 1.1, 1.2, 0.9, 1.0], BELOW, "refuted"),
        ([-0.1, 0.1, 0.05, -0.05, 0.0], BELOW, "not seen"),
        ([0.2, 0.3, 0.25, 0.2, 0.3], BELOW, "not seen"),
        ([-1.0, 1.0, 0.5, -0.5, 0.0], BELOW, "cannot be judged"),
        ([1.0, 1.1, 1.2, 0.9, 1.0], Hypothesis(0, 2), "held"),
        ([1.0, 1.1, 1.2, 0.9, 1.0], Hypothesis(2, 3), "refuted"),
        ([1.0, 1.1, 1.2, 0.9, 1.0], Hypothesis(-1, 0), "refuted"),
        ([1.0, 1.1, 1.2, 0.9, 1.0], Hypothesis(1, 3), "cannot be judged"),
        ([1.0], ABOVE, "cannot be judged"),
    ],
)
def test_every_verdict(values, expect, verdict):
    assert judge(values, expect).verdict == verdict


def test_differences_of_zero_are_within_and_nothing_is_not():
    assert judge([0.0] * 5, Hypothesis(-1, 1), differences=True).verdict == "held"
    assert judge([0.0] * 5, Hypothesis(-1, 1)).verdict == "cannot be judged"
    assert judge([], ABOVE).verdict == "cannot be judged"


@pytest.mark.parametrize(
    "bounds, said",
    [
        ({}, "needs low, high or both"),
        ({"low": 0}, "one bound needs least"),
        ({"low": 2, "high": 1}, "low must be below high"),
        ({"low": math.nan, "least": 1}, "finite"),
    ],
)
def test_a_hypothesis_that_nothing_could_refute_is_refused(bounds, said):
    with pytest.raises(UserError, match=said):
        Hypothesis(**bounds)


CLEAR = [1.0, 1.1, 1.2, 0.9, 1.0]  # of mean 1.04, held above 0 by its seeds


def test_the_interval_over_searches_decides_where_it_is_given():
    assert judge(CLEAR, ABOVE).verdict == "held"
    found = judge(CLEAR, ABOVE, interval=(-0.5, 2.0))
    assert (found.low, found.high, found.verdict) == (-0.5, 2.0, "cannot be judged")
    assert judge([-value for value in CLEAR], ABOVE, interval=(-2.0, 0.6)).verdict == "cannot be judged"
    assert judge(CLEAR, ABOVE, interval=(0.5, 2.0)).verdict == "held"


def test_no_verdict_rests_on_less_than_the_resolution():
    """Namesakes that differ by 1.05 leave a difference of 1.04 open, and one of -1.04 too."""
    found = judge(CLEAR, ABOVE, resolution=1.05)
    assert (found.low, found.verdict) == (pytest.approx(-0.01), "cannot be judged")
    assert judge([-value for value in CLEAR], ABOVE, resolution=1.05).verdict != "refuted"
    assert judge(CLEAR, ABOVE, resolution=1.0).verdict == "held"
    assert judge(CLEAR, Hypothesis(0, 2), resolution=1.0).verdict == "cannot be judged"
    nothing = [-0.1, 0.1, 0.05, -0.05, 0.0]
    assert (
        judge(nothing, ABOVE).verdict == "not seen"
        and judge(nothing, ABOVE, resolution=0.6).verdict != "not seen"
    )


@pytest.mark.parametrize("given", [{"interval": (2.0, 1.0)}, {"resolution": -0.1}, {"resolution": math.nan}])
def test_what_cannot_be_an_interval_or_a_resolution_is_refused(given):
    with pytest.raises(UserError, match=next(iter(given))):
        judge(CLEAR, ABOVE, **given)
