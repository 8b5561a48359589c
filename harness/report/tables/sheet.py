"""Tables of texts, in Markdown and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.report.tables.text import EXTRAPOLATED

#: Signs that LaTeX reads as commands or that its usual fonts lack, as it wants them.
IN_LATEX = {sign: "\\" + sign for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "ε": r"$\varepsilon$", "Δ": r"$\Delta$",
    "≈": r"$\approx$", EXTRAPOLATED: r"$\dagger$", "δ": r"$\delta$", "≤": r"$\leq$", "≥": r"$\geq$",
    "·": r"$\cdot$", "²": r"$^2$", "√": r"$\surd$", "…": r"\dots{}",
}  # fmt: skip

ENTITY = re.compile(r"&(?=#?\w+;)")  # HTML's name of a sign


class Sheet(NamedTuple):
    """A table of texts.

    Attributes
    ----------
    headings : sequence of str
        One for each column.
    numbers : sequence of bool
        Whether a column is aligned right.
    rows : sequence of sequence of str
        Texts.
    bold : collection of (int, int)
        Row and column of the texts to print in bold.
    groups : collection of int
        Numbers of the rows, but for the first, before which a group begins.
    """

    headings: Sequence[str]
    numbers: Sequence[bool]
    rows: Sequence[Sequence[str]]
    bold: Collection[tuple[int, int]] = ()
    groups: Collection[int] = ()

    def markdown(self) -> list[str]:
        """Return the lines of the table in GitHub's Markdown."""

        def line(texts: Iterable[str]) -> str:
            return "| " + " | ".join(texts) + " |"

        rows = self._texts(in_markdown, "**{}**")
        aligned = ("---:" if number else ":---" for number in self.numbers)
        return [line(map(in_markdown, self.headings)), line(aligned), *map(line, rows)]

    def latex(self) -> list[str]:
        """Return the lines of a LaTeX ``tabular``, which needs the package booktabs."""
        align = "".join("r" if number else "l" for number in self.numbers)
        lines = [rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        lines += [" & ".join(map(in_latex, self.headings)) + r" \\", r"\midrule"]
        for number, texts in enumerate(self._texts(in_latex, r"\textbf{{{}}}")):
            lines += [r"\midrule"] * (number in self.groups)
            lines.append(" & ".join(texts) + r" \\")
        return [*lines, r"\bottomrule", r"\end{tabular}"]

    def _texts(self, escaped: Callable[[str], str], strong: str) -> Iterator[list[str]]:
        for i, row in enumerate(self.rows):
            texts = [escaped(text) for text in row]
            yield [strong.format(t) if t and (i, j) in self.bold else t for j, t in enumerate(texts)]


def in_markdown(text: str) -> str:
    """Return text that GitHub's Markdown prints as it is, in one line: no HTML, code, link or further cell."""
    line = " ".join(text.splitlines()).replace("\\", "\\\\")
    line = ENTITY.sub("&amp;", line).replace("<", "&lt;").replace("](", "]\\(")
    return line.replace("|", "\\|").replace("`", "\\`")


def in_latex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(IN_LATEX.get(letter, letter) for letter in " ".join(text.splitlines()))


def latex_comment(text: str) -> str:
    """Return text as a comment of LaTeX, which a line break would end."""
    return f"% {' '.join(text.splitlines())}"
