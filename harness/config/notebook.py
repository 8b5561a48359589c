"""Parts of runs that a notebook or a script defines, in the module ``__main__``.

They can be tried by `harness.prepare` and `harness.Simulation`. Runs that use them are not stored: nothing tells
whether a cell, or something that it refers to, has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from harness.config.plugins import REGISTRIES
from harness.core.errors import UserError
from harness.core.registry import Registry, replaceable

WORDS = {
    "compression": "codec",
    "data": "data set",
    "privacy": "mechanism",
}  # what a section names, if its name is another word


def version(section: str, name: str) -> str | None:
    """Return a version of a part that a notebook or a script defines; None for others.

    It is another one at every call, so that no two runs of such a part have one id, or share noise.
    """
    return f"notebook:{secrets.token_hex(8)}" if _in_notebook(section, name) else None


def require_files(parts: Iterable[tuple[str, str]]) -> None:
    """Raise UserError if a notebook or a script defines one of some parts, given as sections and names."""
    for section, name in sorted(parts):
        if _in_notebook(section, name):
            raise UserError(
                f"{WORDS.get(section, section)} {name!r} is defined in a notebook or a script, so a change of it "
                "would go unnoticed in stored results; move it to a file (%%writefile mine.py, "
                "harness.load_plugin('mine.py')), or use harness.prepare and Simulation, which store nothing"
            )


def _in_notebook(section: str, name: str) -> bool:
    """Return whether a notebook or a script defines what is registered under a name."""
    things = REGISTRIES.get(section, {})
    if name not in things:
        return False
    if isinstance(things, Registry):
        return replaceable(things.defined(name))
    thing = things[name]
    return replaceable(getattr(thing, "defined", None) or getattr(thing, "fn", None) or thing)
