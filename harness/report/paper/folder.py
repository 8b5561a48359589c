"""The folder of a paper: tables, figures, privacy statement, references, and a document that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.config.report import ReportSpec
from harness.core.errors import UserError
from harness.report.data.best import RULE, best_of
from harness.report.data.results import Results
from harness.report.paper.privacy import privacy_statement
from harness.report.paper.references import bibtex, software
from harness.report.plots.every import PICTURES
from harness.report.tables.columns import measures_of, narrow_columns
from harness.report.tables.pivot import Grid
from harness.report.tables.rows import Board, board_of
from harness.report.tables.sheet import Sheet, in_latex, in_markdown
from harness.report.tables.write import sheet, summary
from harness.storage.files import write_text

MOST_ROWS = 60  # of the table of a task
WIDE = 6  # columns of a table that is fitted to the width of the text
#: Columns of the leaderboard that a paper seldom has room for; `leaderboard --columns --latex` has any.
LEFT_OUT = (
    *("#", "Suite", "Neighbors", "Noise", "Gap", "Work"),
    *("Seconds", "Pareto", "Runs", "Model for", "Clients"),
)
TOP = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[margin=2.5cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
"""
BOTTOM = r"""\input{figures}
\nocite{*}
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""


def write_paper(
    results: Results,
    folder: Path,
    spec: ReportSpec,
    grids: Mapping[str, Sequence[Grid]],
    pictures: Sequence[Path],
) -> dict[str, Path]:
    """Write everything of a suite that goes into a paper.

    Parameters
    ----------
    results : Results
        The runs.
    folder : Path
        Output folder; created if missing. Tables and figures of an earlier paper are replaced, other files stay.
    spec : ReportSpec
        Settings of the report.
    grids : Mapping
        Tables beside the leaderboard, by the name of their file in the report.
    pictures : sequence of Path
        Figures as PDF, which are copied.

    Returns
    -------
    dict[str, Path]
        File name to path: ``paper.tex``, which holds the others, ``privacy.tex`` and ``.md``, ``table-*.tex``,
        ``figures.tex`` with the PDFs that it shows, and ``references.bib``.

    Raises
    ------
    UserError
        If no run has finished.
    """
    if not any(cell.done for cell in results.cells):
        raise UserError("paper: no run has finished; there is nothing to write about")
    folder.mkdir(parents=True, exist_ok=True)
    replaced = ("privacy.tex", "privacy.md", *(f"{stem}.pdf" for stem in PICTURES))
    for old in (*folder.glob("table-*.tex"), *(folder / name for name in replaced)):
        old.unlink(missing_ok=True)
    frame = board_of(results, spec).frame
    statement = privacy_statement([cell for cell in results.cells if cell.done])
    tables = {"table-leaderboard.tex": _board(results, frame)}
    for stem, grids_of_file in grids.items():
        for number, grid in enumerate(grids_of_file, 1):
            name = f"{stem}-{number}"
            tables[f"table-{name}.tex"] = _table(grid.sheet(), f"{grid.title}. {grid.note}", f"tab:{name}")
    privacy = {"privacy.tex": f"{in_latex(statement)}\n", "privacy.md": f"{in_markdown(statement)}\n"}
    written = (privacy if statement else {}) | tables
    inputs = (rf"\input{{{name.removesuffix('.tex')}}}" + "\n" for name in written if name.endswith(".tex"))
    texts = {
        "paper.tex": "".join([TOP, *inputs, BOTTOM]),
        **written,
        "figures.tex": "\n".join(map(_figure, pictures)),
        "references.bib": _cited(results),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    for picture in pictures:
        (folder / picture.name).write_bytes(picture.read_bytes())
    return {name: folder / name for name in (*texts, *(picture.name for picture in pictures))}


def _board(results: Results, frame: pd.DataFrame) -> str:
    """Return the table of the rows with results, the best of every task if they are many."""
    done = frame[frame["done"] > 0]
    part = done.groupby("task", sort=False).head(MOST_ROWS).reset_index(drop=True)
    board = Board(part)
    columns = [column for column in narrow_columns(board) if column.heading not in LEFT_OUT]
    omitted = {
        "without a finished run": len(frame) - len(done),
        f"beyond the {MOST_ROWS} best of a task": len(done) - len(part),
    }
    sentence = "".join(f" Rows left out {why}: {count}." for why, count in omitted.items() if count)
    best = best_of(results.cells, measures_of(columns))
    return _table(sheet(board, columns, best), f"{summary(part)} {RULE}{sentence}", "tab:leaderboard")


def _table(content: Sheet, caption: str, label: str) -> str:
    lines = content.latex()
    if len(content.headings) > WIDE:
        lines = [r"\resizebox{\linewidth}{!}{%", *lines, "}"]
    head = [r"\begin{table}[htbp]", r"\centering", rf"\caption{{{in_latex(caption)}}}", rf"\label{{{label}}}"]
    return "\n".join([*head, *lines, r"\end{table}", ""])


def _figure(picture: Path) -> str:
    title, note = PICTURES.get(picture.stem, (picture.stem.replace("-", " by "), ""))
    caption = f"{title}. {note}".rstrip()
    return "\n".join(
        [
            r"\begin{figure}[htbp]",
            r"\centering",
            rf"\includegraphics[width=\linewidth]{{{picture.name}}}",
            rf"\caption{{{in_latex(caption)}}}",
            rf"\label{{fig:{picture.stem}}}",
            r"\end{figure}",
            "",
        ]
    )


def _cited(results: Results) -> str:
    """Return the BibTeX of fedfrontier and of the algorithms that have ended."""
    made = [run.final.get("timing", {}) for cell in results.cells for run in cell.records]
    return f"{software(made)}\n{bibtex({cell.algorithm for cell in results.cells if cell.done})}"
