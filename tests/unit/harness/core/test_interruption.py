"""Signals that arrive where Python ignores what they raise."""

import signal
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


@ignored
def test_a_lost_interruption_is_raised_when_asked_for():
    with pytest.raises(KeyboardInterrupt), interruption.remembered(), interruption.remembered():
        lose()
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
        interruption.check()
    interruption.check()  # and none is left for what comes later


@ignored
def test_and_at_the_end_if_nobody_asks():
    @interruption.remembered()
    def work():
        lose()

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_interruption_that_is_raised_is_raised_once():
    with pytest.raises(KeyboardInterrupt), interruption.remembered():
        signal.raise_signal(signal.SIGTERM)
    interruption.check()


def test_other_answers_to_a_signal_stay():
    answers = []
    before = signal.signal(signal.SIGINT, lambda number, frame: answers.append(number))
    try:
        with interruption.remembered():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert answers == [signal.SIGINT]


@ignored
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
