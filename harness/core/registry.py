"""Registries of named objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from harness.core.errors import UserError, unknown

T = TypeVar("T")

#: Entry points of installed packages that bring parts.
PLUGINS = "fedfrontier.plugins"


def replaceable(known: object) -> bool:
    """Whether a part is of ``__main__``: a notebook, whose cells are executed again or moved to a file."""
    return getattr(known, "__module__", None) == "__main__"


#: Names registered by plugins, as (section of a spec, name), and the version of the plugin's code.
PLUGGED: dict[tuple[str, str], str] = {}


class Registry(Generic[T]):
    """Named objects of one kind.

    Parameters
    ----------
    kind : str
        What messages call the objects ("algorithm", "problem", ...).
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._defined: dict[str, object] = {}

    def add(self, name: str, thing: T, defined: object = None) -> T:
        """Register an object and return it; it takes the place of what a notebook has defined.

        Parameters
        ----------
        name : str
            Name in run files.
        thing : T
            The object.
        defined : object, optional
            The class or function that somebody wrote, if the object is another.

        Raises
        ------
        UserError
            If the name belongs to another object.
        """
        defined = thing if defined is None else defined
        if self._things.get(name, thing) is not thing and not replaceable(self._defined[name]):
            raise UserError(f"two {self.kind}s are called {name!r}")
        self._things[name], self._defined[name] = thing, defined
        return thing

    def defined(self, name: str) -> object:
        """Return the class or function behind an object."""
        return self._defined[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise unknown(self.kind, name, self._things)
        return self._things[name]

    def __delitem__(self, name: str) -> None:
        del self._things[name], self._defined[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __len__(self) -> int:
        return len(self._things)
