"""Errors of requests, which suggest the nearest allowed name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from datasets.errors import Mistake

MOST_NAMES = 100  # allowed names that are listed; of more, the nearest are
NEAREST = 8
#: What a plugin may bring, as messages call it.
PLUGIN_KINDS = (
    "algorithm", "codec", "data set", "encoder", "mechanism", "metric", "model", "partition", "problem",
)  # fmt: skip


class UserError(Mistake):
    """An invalid request; exit code 2. The message states what was given and what is allowed.

    The message is one line; characters that are not printable are escaped.
    """

    def __init__(self, message: str = "") -> None:
        text = " ".join(message.splitlines())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


class Incompatible(UserError):
    """Settings that are valid individually but not together; a suite skips such a combination."""


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
