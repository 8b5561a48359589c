"""Coordinates of values in their ranges, and ranges that are widened."""

from statistics import fmean

import pytest

from harness.config.ranges import TUNED, Range, read_ranges
from harness.core.errors import UserError

KINDS = [
    Range("uniform", (2.0, 4.0)),
    Range("log_uniform", (0.01, 1.0)),
    Range("integer", (1, 9)),
    Range("log_integer", (1, 64)),
]


@pytest.mark.parametrize("over", KINDS, ids=lambda over: over.kind)
def test_coordinates_go_from_the_lowest_to_the_highest(over):
    low, high = over.bounds
    assert over.coordinates(low) == (0.0,)
    assert over.coordinates(high) == (pytest.approx(1.0),)
    (beyond,) = over.coordinates(high * 2)
    assert beyond > 1
    shares = [over.coordinates(over.at(share))[0] for share in (0.1, 0.5, 0.9)]
    assert shares == sorted(shares)


def test_choices_of_numbers_have_a_place_and_others_a_coordinate_each():
    assert Range("choice", (5, 20, 10)).coordinates(10) == (0.5,)
    assert Range("choice", ("sgd", "adam")).coordinates("adam") == (0.0, 1.0)
    assert Range("choice", (True, False)).coordinates(True) == (1.0, 0.0)


@pytest.mark.parametrize("over", [*KINDS, Range("choice", (2, 5, 20))], ids=lambda over: over.kind)
def test_the_mean_is_that_of_all_draws(over):
    draws = [over.at((number + 0.5) / 10_000) for number in range(10_000)]
    assert over.mean() == pytest.approx(fmean(draws), abs=0.5 if isinstance(over.mean(), int) else 1e-3)


def test_what_has_no_mean_is_planned_by_the_one_in_the_middle():
    assert Range("choice", ([8], [16], [32])).mean() == [16]
    assert Range("choice", (True, False)).mean() is False
    assert Range("log_integer", (7, 7)).mean() == 7


@pytest.mark.parametrize("over", KINDS, ids=lambda over: over.kind)
def test_a_range_is_widened_at_one_end(over):
    low, high = over.bounds
    above = over.widened(1 / 3, upward=True)
    assert above.bounds[0] == low and above.bounds[1] > high
    assert over.coordinates(above.bounds[1])[0] == pytest.approx(4 / 3, abs=0.1)
    below = over.widened(1 / 3, upward=False)
    assert below.bounds[1] == high and below.bounds[0] <= low
    assert below.bounds[0] >= 1 or over.kind not in ("integer", "log_integer"), (
        "steps and rounds are at least one"
    )


@pytest.mark.parametrize("lowest", [0, -3])
def test_whole_numbers_below_one_stay_in_a_widened_range(lowest):
    over = Range("integer", (lowest, 5))
    assert over.widened(1 / 3, upward=False) == over


def test_a_fixed_range_says_so():
    given = {"rounds": {"log_integer": [2, 100], "fixed": True}}
    over = read_ranges(TUNED, given)["rounds"]
    assert over.fixed and over.stored() == given["rounds"]
    with pytest.raises(UserError, match=r"tune\.settings\.rounds\.fixed: true or false, given 'yes'"):
        read_ranges(TUNED, {"rounds": {"log_integer": [2, 100], "fixed": "yes"}})
