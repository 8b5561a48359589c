"""BibTeX of algorithms, from ``references.bib``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("references.bib")
ENTRY = re.compile(r"^@\w+\{([^,]+),\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
NAMES = re.compile(r"^  keywords = \{([^}]*)\},\n", re.MULTILINE)


class Reference(NamedTuple):
    """A work: its key, its BibTeX, and the algorithms that it describes, by their names in the registry."""

    key: str
    text: str
    algorithms: tuple[str, ...]


@cache
def references() -> tuple[Reference, ...]:
    """Return all works, in the order of their keys."""
    works = []
    for match in ENTRY.finditer(FILE.read_text(encoding="utf-8")):
        names = NAMES.search(match[2])
        algorithms = tuple(names[1].split(", ")) if names else ()
        works.append(Reference(match[1], NAMES.sub("", match[0]), algorithms))
    return tuple(works)


def bibtex(algorithms: Iterable[str]) -> str:
    """Return the BibTeX of the works that describe some algorithms."""
    names = set(algorithms)
    return "\n\n".join(work.text for work in references() if names & set(work.algorithms)) + "\n"
