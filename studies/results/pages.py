"""Pages: Markdown in which tables stand between markers, and numbers name the value that they are.

A table is replaced between ``<!-- figures: NAME -->`` and ``<!-- end -->``. In a sentence, a value is written as
``2.9<!-- lending, ε 8 -->``: a row and a column of a table of the page. ``<!-- noise: NAME -->`` is a value of
another page. Sentences are written by hand, so a number that is no longer right is reported and not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from studies.results.boards import Board
from studies.results.values import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK = re.compile(r"^<!-- figures: ([\w-]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
REFERENCE = re.compile(r"<!-- (.+?) -->")
LITERAL = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
#: Numbers that are none of these: values of settings by their name, and the level of intervals.
SETTING = re.compile(
    r"\b(?:ε|alpha|beta|delta) \d[\d.e-]*(?:(?:, | and | or | to )\d[\d.e-]*)*(?<![.,])(?! (?:points?|of|%))|95 %"
)
NUMBER = re.compile(r"(?<![\w.])\.?\d")

MOST_ROWS = 10  # of a table
Cells = dict[str, dict[str, Value | str]]  # row -> column -> value or text


@dataclass
class Page:
    """Values, tables and picture of a page.

    Attributes
    ----------
    name : str
        Name of its file in docs/results.
    boards : sequence of Board
        The leaderboards that it rests on.
    values : dict
        Name -> value.
    tables : dict
        Name -> table, in Markdown.
    size : tuple of float
        Size of its picture in inches; 7.5 wide are 1,200 pixels.
    draw : callable or None
        Draws its picture.
    """

    name: str
    boards: Sequence[Board] = ()
    values: dict[str, Value] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    size: tuple[float, float] = (7.5, 4.5)
    draw: Callable[[Figure], None] | None = None

    def __post_init__(self) -> None:
        for board in self.boards:
            self.values |= dict(board.facts())
        if self.boards:
            self.tables["repeat"] = "\n".join(board.repeat for board in self.boards)

    def table(
        self, name: str, corner: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Value | str]]
    ) -> None:
        """Add a table of values, of which the first rows are shown; each is ``ROW, COLUMN`` in a sentence."""
        lines = [f"| {corner} | {' | '.join(columns)} |", f"| :--- |{' ---: |' * len(columns)}"]
        for label, cells in rows.items():
            texts = []
            for column in columns:
                cell = cells.get(column, "")
                if isinstance(cell, Value):
                    self.values[f"{unlinked(label)}, {column}"] = cell
                    cell = cell.text
                texts.append(cell)
            lines.append(f"| {label} | {' | '.join(texts)} |")
        self.tables[name] = "\n".join(lines[: 2 + MOST_ROWS])


def unlinked(label: str) -> str:
    """Return the text of a link; what is no link as it is."""
    return re.sub(r"^\[(.*)\]\(.*\)$", r"\1", label)


def filled(text: str, page: Page) -> str:
    """Return the text of a page with its tables as they are now."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        if name not in page.tables:
            raise UserError(f"{page.name}: no table {name!r}. Allowed: {', '.join(page.tables)}.")
        return f"<!-- figures: {name} -->\n\n{page.tables[name]}\n\n<!-- end -->"

    return BLOCK.sub(block, text)


def faults(text: str, page: Page, pages: Mapping[str, Page], strict: bool = True) -> list[str]:
    """Return what sentences say that the values do not.

    Parameters
    ----------
    text : str
        The Markdown.
    page : Page
        The page whose values need no qualification.
    pages : Mapping
        All pages by name.
    strict : bool
        Whether every number must name its value.
    """
    wrong, rest = [], BLOCK.sub("", text)
    for match in list(REFERENCE.finditer(rest)):
        of, colon, name = match[1].partition(": ")
        values = pages[of].values if colon and of in pages else page.values
        name = name if colon and of in pages else match[1]
        before = text_before(rest, match)
        if name not in values:
            if strict or before[-1:].isdigit():
                wrong.append(f"there is no value {match[1]!r}")
        elif not any(re.search(rf"(?<![\w.+−]){re.escape(form)}$", before) for form in values[name].forms):
            wrong.append(f"{before[-40:].strip()!r}: {match[1]} is {values[name].text}")
    if strict:
        for line in plain(rest).splitlines():
            if NUMBER.search(line):
                wrong.append(f"a number names no value: {line.strip()}")
    return wrong


def text_before(text: str, match: re.Match[str]) -> str:
    """Return the line up to a reference, without marks of emphasis."""
    start = text.rfind("\n", 0, match.start()) + 1
    return text[start : match.start()].rstrip("*")


def plain(text: str) -> str:
    """Return a text without values that are named, settings, code and addresses."""
    forms = r"(?:[+−]?[\d.][\d.,]*(?: to [\d.,]+)?(?: \[[^\]]*\])?)"
    text = re.sub(rf"{forms}(?: %)?\**<!-- .+? -->", "", text)
    return SETTING.sub("", LITERAL.sub("", text))
