"""Interruptions that are not lost.

Python raises KeyboardInterrupt wherever the program is. In a finalizer or a callback of a weak reference, which run
whenever an object ends, it is printed as ignored, and the program goes on. Loops ask again with `check`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lost = False
_before = sys.unraisablehook


@contextmanager
def remembered() -> Iterator[None]:
    """Remember interruptions that Python ignores; also a decorator. What the program catches is its own affair.

    Raises
    ------
    KeyboardInterrupt
        At the end, if an interruption was lost and nobody has asked.
    """
    global _lost, _before
    if sys.unraisablehook is _note or not _is_main():
        yield
        check()
        return
    _lost, _before = False, sys.unraisablehook
    try:
        sys.unraisablehook = _note
        yield
        check()
    finally:
        sys.unraisablehook = _before


def check() -> None:
    """Raise KeyboardInterrupt if one was lost within `remembered`; signals interrupt the main thread only."""
    global _lost
    if _lost and _is_main():
        _lost = False
        raise KeyboardInterrupt


def _note(unraisable: Any) -> None:
    """Note what Python ignores, in place of printing it; print all else."""
    global _lost
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _lost = True
    else:
        _before(unraisable)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
