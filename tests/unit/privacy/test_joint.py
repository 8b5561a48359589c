"""What several runs release together: independent draws compose, shared draws compose inside the draw first."""

import subprocess
import sys

import pytest

from privacy.accounting import account
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from privacy.joint import MOST_KINDS, Released, joint_epsilon, joint_events

DELTA = 1e-5
ROUND = Event(4.0, 0.05, 100)


def runs(count, *events, stream=None, order=None):
    return [Released(events, stream, order)] * count


def test_independent_runs_are_one_run_of_as_many_draws():
    found = joint_epsilon(runs(8, ROUND), DELTA)
    assert found == account([Event(4.0, 0.05, 800)], DELTA)


def test_shared_draws_are_one_draw_of_all_releases():
    """Eight releases with noise 4 from one draw are one with noise 4 / sqrt(8)."""
    found = joint_epsilon(runs(8, ROUND, stream=1), DELTA)
    assert found.epsilon == pytest.approx(account([Event(2**0.5, 0.05, 100)], DELTA).epsilon, rel=1e-12)
    assert found.epsilon > joint_epsilon(runs(8, ROUND), DELTA).epsilon


def test_seeds_compose_after_their_shared_draws():
    two = runs(4, ROUND, stream=1) + runs(4, ROUND, stream=2)
    assert joint_events(two) == [Event(2.0, 0.05, 200)]
    assert joint_events(runs(3, ROUND)) == [Event(4.0, 0.05, 300)]


def test_a_shorter_run_shares_the_first_draws():
    long, short = Released((Event(4.0, 0.05, 100),), 1), Released((Event(3.0, 0.05, 40),), 1)
    joint = joint_events([short, long])
    assert [(event.times, round(event.noise_multiplier, 12)) for event in joint] == [(40, 2.4), (60, 4.0)]


def test_larger_cohorts_of_a_seed_hold_the_smaller():
    one, other = Released((Event(4.0, 0.05, 10),), 1), Released((Event(4.0, 0.1, 10),), 1)
    (event,) = joint_events([one, other])
    assert event.rate == 0.1 and event.noise_multiplier == pytest.approx(8**0.5)


def test_public_participation_is_one_gaussian():
    found = joint_epsilon(runs(9, Event(3.0, 1.0, 4)), DELTA)
    assert found.accountant == "exact"
    assert found.epsilon == pytest.approx(gaussian_epsilon(0.5, DELTA), rel=1e-12)
    mixed = joint_epsilon(runs(9, Event(3.0, 1.0, 4)) + runs(2, ROUND), DELTA).epsilon
    assert mixed == pytest.approx(account([Event(0.5), Event(4.0, 0.05, 200)], DELTA).epsilon, rel=1e-9)


def test_one_run_is_what_its_statement_says():
    assert joint_epsilon(runs(1, ROUND, stream=1), DELTA) == account([ROUND], DELTA)
    assert joint_epsilon([], DELTA).epsilon == 0.0
    assert joint_epsilon(runs(2, Event(0.0)), DELTA).epsilon == float("inf")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (runs(1, ROUND, stream=1, order="a") + runs(1, ROUND, stream=1, order="b"), "in different ways"),
        (runs(2, ROUND, Event(2.0, 0.05, 3), stream=1), "in several ways"),
        (runs(1, ROUND) + runs(1, ROUND._replace(sampling="without-replacement")), "no common adjacency"),
        (
            runs(1, Event(4.0, 0.1, 5, "without-replacement"), stream=1)
            + runs(1, Event(4.0, 0.2, 5, "without-replacement"), stream=1),
            "of different sizes",
        ),
    ],
)
def test_what_is_not_known_is_refused(given, why):
    with pytest.raises(ValueError, match=why):
        joint_epsilon(given, DELTA)


def test_many_kinds_are_bounded_from_above():
    """Of more kinds than are composed as they are, near ones count as the worst of them: within a few percent."""
    events = [Event(2.0 + n / 100, 0.05, 10) for n in range(MOST_KINDS + 4)]
    found = joint_epsilon([Released((event,)) for event in events], DELTA).epsilon
    exact = account(events, DELTA).epsilon
    assert exact <= found <= 1.05 * exact


@pytest.mark.slow
def test_a_thousand_equal_runs_are_one_event_and_need_no_torch():
    assert joint_epsilon(runs(1000, Event(40.0, 0.01, 1000)), DELTA).epsilon > 0
    assert len(joint_events(runs(1000, ROUND))) == 1
    script = (
        "import sys; from privacy.joint import *; from privacy.event import Event\n"
        "joint_epsilon([Released((Event(4.0, 0.05, 10),))] * 2, 1e-5); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
