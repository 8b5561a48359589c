"""Registries: names to things, with a hint at the nearest name when one is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A request that cannot be met. The message says what was given and what is allowed; exit code 2.

    It is one line, whatever was given: what is not printed is escaped.
    """

    def __init__(self, message: str = "") -> None:
        text = " ".join(message.splitlines())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


class Incompatible(UserError):
    """Parts that are each valid but do not go together; in a suite such a combination is skipped."""


def unknown(kind: str, given: object, allowed: Iterable[str]) -> UserError:
    """Make the error for a name that does not exist, naming the nearest one that does."""
    names = sorted(allowed)
    near = get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {kind} {repr(given)[:100]}.{hint} Allowed: {', '.join(names)}.")


#: What plugins have registered, as (section of a spec, name), and the version of the code that did.
PLUGGED: dict[tuple[str, str], str] = {}


class Registry(Generic[T]):
    """Named things of one kind.

    Parameters
    ----------
    kind : str
        What the things are called in messages ("algorithm", "problem", ...).
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def add(self, name: str, thing: T) -> T:
        """Register under a new name; a name taken by something else is an error."""
        if self._things.get(name, thing) is not thing:
            raise UserError(f"two {self.kind}s are called {name!r}")
        self._things[name] = thing
        return thing

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise unknown(self.kind, name, self._things)
        return self._things[name]

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __len__(self) -> int:
        return len(self._things)
