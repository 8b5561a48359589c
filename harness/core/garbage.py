"""Python's collection of garbage, paused where many objects are made that are none."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collection of cycles: records have none, and looking for them takes a third of a report."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def last_work() -> Iterator[None]:
    """Pause it for the last work of a process, which need not look at what that made: half a second of a report.

    Elsewhere, as in tests, it is looked at with all that has long been there.
    """
    with no_collection():
        try:
            yield
        finally:
            kept = gc.get_freeze_count()
            gc.freeze()
            if not kept:
                gc.unfreeze()


@contextmanager
def first_imports() -> Iterator[None]:
    """Collect nothing while torch is imported, nor ever what that makes: a sixth of the time of a start.

    Where torch is there already, or nothing is collected, nothing changes.
    """
    if not gc.isenabled() or "torch" in sys.modules:
        yield
        return
    with no_collection():
        try:
            yield
        finally:
            gc.freeze()
