"""Registries of named objects, and errors that suggest the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_NAMES = 100  # allowed names that are listed; of more, the nearest are
NEAREST = 8
#: Entry points of installed packages that bring parts.
PLUGINS = "fedfrontier.plugins"
#: What a plugin may bring, as messages call it.
PLUGIN_KINDS = (
    "algorithm", "codec", "data set", "encoder", "mechanism", "metric", "model", "partition", "problem",
)  # fmt: skip


class UserError(ValueError):
    """An invalid request; exit code 2. The message states what was given and what is allowed.

    The message is one line; characters that are not printable are escaped. Where it names several mistakes,
    ``errors`` has one error for each.
    """

    errors: tuple[UserError, ...] = ()

    def __init__(self, message: str = "") -> None:
        text = " ".join(message.splitlines())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


class Incompatible(UserError):
    """Settings that are valid individually but not together; a suite skips such a combination."""


def together(errors: Sequence[UserError]) -> UserError:
    """Return one error that names all of some, of which there must be one."""
    every = {str(one): one for error in errors for one in (error.errors or (error,))}
    if len(every) == 1:
        return next(iter(every.values()))
    kind = Incompatible if all(isinstance(one, Incompatible) for one in every.values()) else UserError
    whole = kind(" ".join(f"({number}) {message}" for number, message in enumerate(every, 1)))
    whole.errors = tuple(every.values())
    return whole


def tried(checks: Iterable[Callable[[], T]]) -> list[T]:
    """Return what some checks return; raise the errors of all of them together."""
    values, errors = [], []
    for check in checks:
        try:
            values.append(check())
        except UserError as error:
            errors.append(error)
    if errors:
        raise together(errors)
    return values


class Interrupted(UserError):
    """Loss of a resource while a command works, such as a Ray cluster; exit code 130.

    The same command continues from there.
    """


def unknown(kind: str, given: object, allowed: Iterable[str]) -> UserError:
    """Return the error for an unknown name, which suggests the nearest allowed one."""
    names = sorted(allowed)
    near = get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    said = f"Allowed: {', '.join(names) or 'none'}."
    if len(names) > MOST_NAMES:
        nearest = get_close_matches(str(given), names, n=NEAREST, cutoff=0.0)
        said = f"Nearest of the {len(names)} allowed: {', '.join(nearest)}."
    plugin = (
        " One of your own needs the file that registers it: --plugin FILE.py." if kind in PLUGIN_KINDS else ""
    )
    return UserError(f"unknown {kind} {repr(given)[:100]}.{hint} {said}{plugin}")


def counted(count: object, noun: str) -> str:
    """Return a number, or a range in words, with its noun: in the plural unless it is one."""
    number = f"{count:,}" if isinstance(count, int) else str(count)
    plural = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {noun}{'' if number in ('1', '1.0') else plural}"


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
