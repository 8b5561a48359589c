"""Interruptions that are not lost.

Python raises KeyboardInterrupt wherever the program is. In a finalizer or a callback of a weak reference, which run
whenever an object ends, it is printed as ignored, and the program goes on. Loops ask again with `check`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_asked = False


@contextmanager
def remembered() -> Iterator[None]:
    """Remember the signals that raise KeyboardInterrupt; also a decorator. Other answers to them stay as they are.

    Raises
    ------
    KeyboardInterrupt
        At the end, if a signal was lost.
    """
    global _asked
    answered = [
        each for each in SIGNALS if _is_main() and signal.getsignal(each) is signal.default_int_handler
    ]
    for each in answered:
        signal.signal(each, _ask)
    try:
        yield
        check()
    finally:
        for each in answered:
            signal.signal(each, signal.default_int_handler)
        if answered:
            _asked = False


def check() -> None:
    """Raise KeyboardInterrupt if this process was interrupted within `remembered`, and has gone on."""
    if _asked and _is_main():
        raise KeyboardInterrupt


def _ask(number: int, frame: FrameType | None) -> NoReturn:
    global _asked
    _asked = True
    raise KeyboardInterrupt


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
