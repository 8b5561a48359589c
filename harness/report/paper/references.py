"""BibTeX of algorithms, from ``references.bib``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.recorded import part
from harness.core.registry import PLUGGED
from harness.report.tables.sheet import in_latex

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
    """Return the BibTeX of the works that describe some algorithms; of plugins what their `Meta` says."""
    names = set(algorithms)
    ours = [work.text for work in references() if names & set(work.algorithms)]
    return "\n\n".join([*ours, *map(_of_plugin, sorted(names & _plugged()))]) + "\n"


def software(environments: Iterable[Mapping[str, Any]]) -> str:
    """Return the BibTeX of fedfrontier, with the versions that made some runs (see CITATION.cff)."""
    made = {
        f"version {one['fedfrontier']}" + (f" (commit {one['commit']})" if "commit" in one else "")
        for one in environments
        if "fedfrontier" in one
    }
    note = f"  note = {{{in_latex('; '.join(sorted(made)).capitalize())}}},\n" if made else ""
    author = "  author = {{The fedfrontier authors}},\n"
    title = "  title = {{fedfrontier: the cost of privacy and compression in federated learning}},\n"
    return f"@misc{{fedfrontier,\n{author}{title}{note}}}\n"


def _plugged() -> set[str]:
    return {name for section, name in PLUGGED if section == "algorithm"}


def _of_plugin(name: str) -> str:
    """Return the citation of a plugin's algorithm."""
    row = part("algorithm", name)["row"]
    address = f"  url = {{{row['url']}}},\n" if row["url"] else ""
    title, note = f"  title = {{{{{in_latex(name)}}}}},\n", f"  note = {{{in_latex(row['paper'])}}},\n"
    return f"@misc{{{name},\n{title}{note}{address}}}"
