"""Pages: Markdown in which tables stand between markers, and numbers name the figure that they are.

A table is replaced between ``<!-- figures: NAME -->`` and ``<!-- end -->``. In a sentence, a figure is written as
``2.9<!-- lending, ε 8 -->``: a row and a column of a table of the page. ``<!-- noise: NAME -->`` is a figure of
another page. Sentences are written by hand, so a number that is no longer right is reported and not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.core.errors import UserError
from studies.results.boards import Board
from studies.results.figures import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BLOCK = re.compile(r"^<!-- figures: ([\w-]+) -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)
REFERENCE = re.compile(r"<!-- (.+?) -->")
LITERAL = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
#: Numbers that are no figures: values of settings by their name, and the level of intervals.
SETTING = re.compile(
    r"\b(?:ε|alpha|beta|delta) \d[\d.e-]*(?:(?:, | and | or | to )\d[\d.e-]*)*(?<![.,])(?! (?:points?|of|%))|95 %"
)
NUMBER = re.compile(r"(?<![\w.])\.?\d")

MOST_ROWS = 10  # of a table
Cells = dict[str, dict[str, Figure | str]]  # row -> column -> figure or text


@dataclass
class Page:
    """Figures, tables and picture of a page.

    Attributes
    ----------
    name : str
        Name of its file in docs/results.
    boards : sequence of Board
        The leaderboards that it rests on.
    figures : dict
        Name -> figure.
    tables : dict
        Name -> table, in Markdown.
    size : tuple of float
        Size of its picture in inches; 7.5 wide are 1,200 pixels.
    draw : callable or None
        Draws its picture.
    """

    name: str
    boards: Sequence[Board] = ()
    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    size: tuple[float, float] = (7.5, 4.5)
    draw: Callable[[Canvas], None] | None = None

    def __post_init__(self) -> None:
        for board in self.boards:
            self.figures |= dict(board.facts())
        if self.boards:
            self.tables["repeat"] = "\n".join(board.repeat for board in self.boards)

    def table(
        self, name: str, corner: str, columns: Sequence[str], rows: Mapping[str, Mapping[str, Figure | str]]
    ) -> None:
        """Add a table of figures, of which the first rows are shown; each is ``ROW, COLUMN`` in a sentence."""
        lines = [f"| {corner} | {' | '.join(columns)} |", f"| :--- |{' ---: |' * len(columns)}"]
        for label, cells in rows.items():
            texts = []
            for column in columns:
                cell = cells.get(column, "")
                if isinstance(cell, Figure):
                    self.figures[f"{unlinked(label)}, {column}"] = cell
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
    """Return what sentences say that the figures do not.

    Parameters
    ----------
    text : str
        The Markdown.
    page : Page
        The page whose figures need no qualification.
    pages : Mapping
        All pages by name.
    strict : bool
        Whether every number must name its figure.
    """
    wrong, rest = [], BLOCK.sub("", text)
    for match in list(REFERENCE.finditer(rest)):
        of, colon, name = match[1].partition(": ")
        figures = pages[of].figures if colon and of in pages else page.figures
        name = name if colon and of in pages else match[1]
        before = text_before(rest, match)
        if name not in figures:
            if strict or before[-1:].isdigit():
                wrong.append(f"there is no figure {match[1]!r}")
        elif not any(re.search(rf"(?<![\w.+−]){re.escape(form)}$", before) for form in figures[name].forms):
            wrong.append(f"{before[-40:].strip()!r}: {match[1]} is {figures[name].text}")
    if strict:
        for line in plain(rest).splitlines():
            if NUMBER.search(line):
                wrong.append(f"a number names no figure: {line.strip()}")
    return wrong


def text_before(text: str, match: re.Match[str]) -> str:
    """Return the line up to a reference, without marks of emphasis."""
    start = text.rfind("\n", 0, match.start()) + 1
    return text[start : match.start()].rstrip("*")


def plain(text: str) -> str:
    """Return a text without figures that are named, settings, code and addresses."""
    forms = r"(?:[+−]?[\d.][\d.,]*(?: to [\d.,]+)?(?: \[[^\]]*\])?)"
    text = re.sub(rf"{forms}(?: %)?\**<!-- .+? -->", "", text)
    return SETTING.sub("", LITERAL.sub("", text))
