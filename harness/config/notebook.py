"""Parts of runs that a notebook or a script defines, in the module ``__main__``.

Their version is a digest of their source and of all that it refers to (`harness.config.content`): defaults,
globals, closures and attributes. A part that refers to something that a digest cannot cover is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.config.code import MAIN, NotIdentified
from harness.config.content import digest
from harness.config.plugins import REGISTRIES
from harness.core.registry import Registry, UserError

METRICS = REGISTRIES["metric"]
WORDS = {
    "compression": "codec",
    "data": "data set",
    "privacy": "mechanism",
}  # what a section names, if its name is another word


def version(section: str, name: str) -> str | None:
    """Return the version of a part that a notebook or a script defines; None for others.

    Raises
    ------
    UserError
        If it refers to something that cannot be identified.
    """
    part = _defined(section, name)
    if getattr(part, "__module__", None) != MAIN:
        return None
    try:
        return f"source:{digest(part)[:16]}"
    except NotIdentified as error:
        raise UserError(
            f"{WORDS.get(section, section)} {name!r}: it refers to {error}, and a change of that would go "
            "unnoticed; move the part to a file (%%writefile mine.py, harness.load_plugin('mine.py'))"
        ) from None


def require_files(plugged: Iterable[Mapping[str, str]]) -> None:
    """Raise UserError if runs need parts that worker processes cannot load.

    Parameters
    ----------
    plugged : Iterable[Mapping[str, str]]
        Sections and names of the parts of each run.
    """
    needed = {(section, name) for parts in plugged for section, name in parts.items()}
    for section, name in sorted(needed | {("metric", name) for name in METRICS}):
        if getattr(_defined(section, name), "__module__", None) == MAIN:
            raise UserError(
                f"{WORDS.get(section, section)} {name!r} is defined in a notebook or a script, which worker "
                "processes do not run; put it in a file that is loaded as a plugin, or run with one job"
            )


def _defined(section: str, name: str) -> object:
    """Return the class or function that somebody wrote for a name; None if there is none."""
    things = REGISTRIES.get(section, {})
    if name not in things:
        return None
    if isinstance(things, Registry):
        return things.defined(name)
    thing = things[name]
    return getattr(thing, "defined", None) or getattr(thing, "fn", None) or thing
