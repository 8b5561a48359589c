"""Command ``results``: the pages of docs/results, made from the committed leaderboards."""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.cli.console import log
from harness.core.units import counted
from harness.report.plots.figure import DPI, canvas
from harness.storage.files import write_text
from studies.results.boards import ROOT, Boards
from studies.results.pages import Page, faults, filled
from studies.results.questions import (
    attacks,
    epsilon,
    fairness,
    methods,
    noise,
    papers,
    personal,
    pretrained,
    pruning,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTIONS = (
    epsilon.page,
    pruning.page,
    methods.page,
    personal.page,
    pretrained.page,
    fairness.page,
    noise.page,
    attacks.page,
    papers.page,
)
FOLDER = Path("docs") / "results"
FIGURES = FOLDER / "figures.csv"


def results_options(to: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    to.add_argument("--check", action="store_true", help="write nothing, compare what is there")


def results_command(args: argparse.Namespace) -> int:
    """Write tables, values and pictures; 1 if a sentence says something else than they do."""
    pages = make_pages(Boards())
    if args.check:
        wrong = stale(pages, ROOT)
    else:
        write(pages, ROOT)
        wrong = misstated(pages, ROOT)
    for fault in wrong:
        log.print(fault, markup=False)
    if not wrong:
        log.print(f"{counted(len(pages), 'page')} of {FOLDER} as in the leaderboards")
    return 1 if wrong else 0


def make_pages(boards: Boards) -> dict[str, Page]:
    """Return what every page is made from, by name; README of docs/results has the answers of all."""
    pages = [question(boards) for question in QUESTIONS]
    return {page.name: page for page in (*pages, Page("README"))}


def write(pages: Mapping[str, Page], root: Path) -> None:
    """Write tables, values and pictures; sentences stay."""
    for path, text in texts(pages, root):
        write_text(root / path, text)
    for path, figure in pictures(pages):
        figure.savefig(root / path, dpi=DPI, metadata={"Software": None, "Comment": drawn(figure)})


def stale(pages: Mapping[str, Page], root: Path) -> list[str]:
    """Return what is not as the leaderboards have it: files, and sentences."""
    wrong = [
        f"{path} is not up to date: python -m studies results writes it"
        for path, text in texts(pages, root)
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]
    wrong += [
        f"{path} shows something else: python -m studies results writes it"
        for path, figure in pictures(pages)
        if shows(root / path) != drawn(figure)
    ]
    return wrong + misstated(pages, root)


def misstated(pages: Mapping[str, Page], root: Path) -> list[str]:
    """Return the sentences that say something else than the values."""
    return [
        f"{path}: {fault}"
        for path, page, strict in documents(pages)
        for fault in faults((root / path).read_text(encoding="utf-8"), page, pages, strict)
    ]


def documents(pages: Mapping[str, Page]) -> Iterator[tuple[Path, Page, bool]]:
    """Yield every document with its page, and whether all of its numbers must be values that it has."""
    for page in pages.values():
        yield FOLDER / f"{page.name}.md", page, True
    if "epsilon" in pages:
        yield Path("README.md"), pages["epsilon"], False


def texts(pages: Mapping[str, Page], root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the documents and the table of values as they should be."""
    for path, page, _ in documents(pages):
        yield path, filled((root / path).read_text(encoding="utf-8"), page)
    yield FIGURES, figures_csv(pages)


def pictures(pages: Mapping[str, Page]) -> Iterator[tuple[Path, Figure]]:
    """Yield the pictures of all pages, drawn and not yet written."""
    for page in pages.values():
        if page.draw is not None:
            with canvas(page.size) as figure:
                page.draw(figure)
                yield FOLDER / f"{page.name}.png", figure


def drawn(figure: Figure) -> str:
    """Return a digest of what a picture shows: names, lines, bands and bars, however fonts are rendered."""
    from matplotlib.patches import Rectangle  # slow to import

    shown: list[str] = []
    for ax in figure.axes:
        ticks = (label.get_text() for label in (*ax.get_xticklabels(), *ax.get_yticklabels()))
        shown += [ax.get_title(loc="left"), *(text for text in ticks if re.search("[a-z]", text))]
        shown += [str(line.get_label()) for line in ax.lines]
        shapes = [line.get_xydata() for line in ax.lines]
        shapes += [path.vertices for band in ax.collections for path in band.get_paths()]
        shapes += [bar.get_bbox().extents for bar in ax.patches if isinstance(bar, Rectangle)]
        shown += [f"{number:.6g}" for shape in shapes for number in np.ravel(shape)]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()


def shows(path: Path) -> str | None:
    """Return the digest of what a written picture shows; None if there is none."""
    from PIL import Image  # slow to import

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.info.get("Comment")


def figures_csv(pages: Mapping[str, Page]) -> str:
    """Return the table of values: where each stands, its number and interval, how it is written, its rows."""
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(("page", "name", "value", "low", "high", "text", "rows"))
    for page in pages.values():
        for name, value in page.values.items():
            ends = ("" if end is None else f"{end:.6g}" for end in (value.low, value.high))
            rows = " ".join(dict.fromkeys(value.rows))
            table.writerow((page.name, name, f"{value.number:.6g}", *ends, value.text, rows))
    return file.getvalue()
