import dataclasses
import json
import math

import pytest

from privacy import Ledger, epsilon, gaussian_epsilon

DELTA = 1e-5


def _rounds(number, releases, rate, z=1.0, **more):
    book = Ledger()
    for key in range(number):
        for _ in range(releases):
            book = book.book(("cohort", key), z, rate=rate, **more)
    return book


def test_releases_of_one_draw_are_one_event_and_draws_add_up():
    """Rule 1: 100 draws at rate 0.1, two releases of multiplier 1 each: 16.1; booked apart 11.0."""
    report = _rounds(100, 2, 0.1).report(DELTA)
    assert report["epsilon_total"] == pytest.approx(16.1, abs=0.05)
    assert (report["releases"], report["draws"], report["accountant"]) == (200, 100, "rdp")
    assert _rounds(200, 1, 0.1).report(DELTA)["epsilon_total"] == pytest.approx(11.0, abs=0.05)


def test_k_unsampled_releases_are_one_gaussian():
    report = _rounds(5, 3, 1.0, z=2.0).report(DELTA, accountant="prv")
    assert report["epsilon_total"] == pytest.approx(gaussian_epsilon(2.0 / math.sqrt(15), DELTA))
    assert report["epsilon_release"] == pytest.approx(gaussian_epsilon(2.0, DELTA))
    assert report["noise_multiplier"] == 2.0
    assert report["accountant"] == "exact"
    assert report["epsilon_approximate"] is None


def test_the_weakest_release_is_the_one_reported():
    book = Ledger().book(0, 3.0).book(0, 0.5).book(1, 2.0)
    report = book.report(DELTA)
    assert report["noise_multiplier"] == 0.5
    assert report["epsilon_release"] == gaussian_epsilon(0.5, DELTA)
    assert report["epsilon_total"] > report["epsilon_release"]


def test_a_release_without_noise_makes_everything_infinite():
    report = Ledger().book(0, 3.0).book(1, 0.0, rate=0.5).report(DELTA)
    assert report["epsilon_total"] == report["epsilon_release"] == math.inf


def test_an_empty_ledger_reveals_nothing():
    report = Ledger().report(DELTA)
    assert (report["epsilon_total"], report["epsilon_release"], report["releases"]) == (0.0, 0.0, 0)
    assert report["note"] == "nothing was released"


def test_fixed_size_cohorts_get_an_approximate_column():
    report = _rounds(100, 1, 1.0, approximate_rate=0.1).report(DELTA)
    assert report["epsilon_total"] == pytest.approx(gaussian_epsilon(0.1, DELTA))
    assert report["epsilon_approximate"] == pytest.approx(epsilon(1.0, 100, DELTA, 0.1))
    assert report["accountant"] == "exact"


def test_repeating_one_round_projects_the_whole_run():
    one = Ledger().book("init", 4.0)
    cohort = Ledger().book(0, 1.0, rate=0.2).book(0, 2.0, rate=0.2)
    ran = one
    for key in range(30):
        ran = ran.book(key, 1.0, rate=0.2).book(key, 2.0, rate=0.2)
    assert one.merge(cohort.repeat(30)).report(DELTA) == ran.report(DELTA)
    assert cohort.repeat(0) == Ledger()


def test_the_ledger_of_a_long_run_stays_a_few_entries():
    book = Ledger()
    for key in range(2000):
        book = book.book(key, 1.0 if key % 2 else 2.0)
    assert len(book.closed) == 2
    assert book.draws == book.releases == 2000


def test_a_draw_that_was_closed_does_not_reopen():
    """Only the most recent draw is open: booking key 0 again after key 1 is a third event."""
    assert Ledger().book(0, 1.0).book(1, 1.0).book(0, 1.0).draws == 3


def test_booking_leaves_the_old_ledger_as_it_was():
    before = Ledger().book(0, 1.0)
    after = before.book(0, 1.0)
    assert (before.releases, after.releases, after.draws) == (1, 2, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.key = 1


def test_a_ledger_from_json_books_into_its_open_draw():
    book = _rounds(3, 2, 0.1, approximate_rate=0.3).book(("cohort", ("inner", 9)), 2.5)
    again = Ledger.from_json(json.loads(json.dumps(book.to_json())))
    assert again == book
    key = ("cohort", ("inner", 9))
    assert again.book(key, 1.0) == book.book(key, 1.0)
    assert again.book(key, 1.0).draws == book.draws
    assert Ledger.from_json(json.loads(json.dumps(Ledger().to_json()))) == Ledger()
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.from_json({})


def test_bad_bookings_are_refused():
    with pytest.raises(ValueError, match="noise multiplier"):
        Ledger().book(0, -1.0)
    with pytest.raises(ValueError, match="sampling rate"):
        Ledger().book(0, 1.0, rate=0.0)
    with pytest.raises(ValueError, match="sampling rate"):
        Ledger().book(0, 1.0, approximate_rate=2.0)
    with pytest.raises(ValueError, match="one draw has one rate"):
        Ledger().book(0, 1.0, rate=0.5).book(0, 1.0, rate=0.4)
    with pytest.raises(ValueError, match="number of repetitions"):
        Ledger().repeat(-1)
    with pytest.raises(ValueError, match="delta"):
        Ledger().report(1.0)
