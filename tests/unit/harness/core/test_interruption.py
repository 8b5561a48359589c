"""Signals that arrive where Python ignores what they raise."""

import signal
import sys
import threading
import weakref

import pytest

from harness.core import interruption

ignored = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Thing:
    """Something that can end."""


def lose(number=signal.SIGTERM):
    """Raise a signal in the callback of a weak reference."""
    thing = Thing()
    watched = weakref.ref(thing, lambda reference: signal.raise_signal(number))
    del thing
    assert watched() is None


@pytest.fixture(autouse=True)
def as_in_workers():
    """Let SIGTERM raise KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGTERM, before) is signal.default_int_handler


@ignored
def test_without_it_the_interruption_is_lost():
    lose()
    interruption.check()


def test_a_lost_interruption_is_raised_when_asked_for():
    with interruption.remembered(), interruption.remembered():
        lose()
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
        interruption.check()  # once


def test_and_at_the_end_if_nobody_asks():
    @interruption.remembered()
    def work():
        lose()

    with pytest.raises(KeyboardInterrupt):
        work()
    with interruption.remembered():  # and none is left for what comes later
        interruption.check()


def test_an_interruption_that_the_program_catches_is_its_own_affair():
    """As of a callback that ends a run its own way."""
    with interruption.remembered():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        interruption.check()


def test_an_interruption_that_is_raised_is_raised_once():
    with pytest.raises(KeyboardInterrupt), interruption.remembered():
        signal.raise_signal(signal.SIGTERM)
    interruption.check()


def test_other_errors_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    before = sys.unraisablehook
    with interruption.remembered():
        thing = Thing()
        watched = weakref.ref(thing, lambda reference: 1 // 0)
        del thing
        assert watched() is None
        interruption.check()
    assert [one.exc_type for one in told] == [ZeroDivisionError]
    assert sys.unraisablehook is before


def test_only_the_main_thread_is_interrupted():
    found = []

    def other():
        with interruption.remembered():
            found.append(interruption.check())

    with pytest.raises(KeyboardInterrupt), interruption.remembered():
        lose()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == [None]
