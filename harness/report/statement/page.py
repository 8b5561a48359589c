"""The files of a statement: a page, two sheets for each kind of guarantee; a PDF where a browser is installed."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.config.report import ReportSpec
from harness.core.errors import UserError
from harness.report.data.resolution import Resolution
from harness.report.data.results import Cell, Results, grouped
from harness.report.data.specs import is_compressed
from harness.report.html.templates import template
from harness.report.statement.costs import answers, cost_rows, heads, method_note, note
from harness.report.statement.questions import NOT_ADDRESSED, annex, questions
from harness.report.statement.subject import Subject
from harness.report.tables.costs import data_of
from harness.report.tables.protection import Comparison, compare_protection
from harness.report.tables.rows import board_of
from harness.storage.files import write_text, writing

log = logging.getLogger(__name__)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 120  # until a browser is given up
AUROC = "auroc"  # the measure of costs, where all cells have it
MOST_BUDGETS = 4  # columns; of more the largest and the smallest
#: Fields of a privacy statement in which guarantees of one kind agree.
KIND = (
    *("unit", "user", "adjacency", "placement", "sampling"),
    *("mechanism", "delta", "dropouts", "noise_cohort"),
)


def write_statement(results: Results, folder: Path, spec: ReportSpec) -> dict[str, Path]:
    """Write ``statement.html`` and, where a browser is installed, ``statement.pdf``; return their paths by name.

    Raises
    ------
    UserError
        If no private run can be compared with the same run without privacy.
    """
    statements = [_content(subject) for subject in subjects(results, spec)]
    if not statements:
        raise UserError(
            "report --statement: the cost of privacy is shown by runs with privacy beside the same runs without, "
            "and there are none. Sweep privacy over null and budgets, as by --sweep privacy.epsilon=null,8,2"
        )
    page, pdf = folder / "statement.html", folder / "statement.pdf"
    text = template("statement.html", Path(__file__).parent).render(
        statements=statements, unanswered=NOT_ADDRESSED
    )
    write_text(page, text)
    pdf.unlink(missing_ok=True)
    return {file.name: file for file in (page, pdf) if file is page or print_page(page, pdf)}


def subjects(results: Results, spec: ReportSpec) -> Iterator[Subject]:
    """Yield what is compared on every data set that has private runs and the same runs without privacy.

    Guarantees of different kinds are no budgets of one another, so each kind has its own subject. Rows that are
    private and nothing else are preferred, the largest budgets first. Sentences and tables are about AUROC where
    all cells have it, whatever ranks the report: a share of right answers says little where cases are rare.
    """
    spec = results.ranked(spec)
    frame = board_of(results, spec).frame
    resolutions = {by: Resolution(results.cells, by) for by in dict.fromkeys((spec.by, AUROC))}
    for comparison in compare_protection(results, spec.by, spec.baseline):
        private = [cell for cell in comparison.protected if cell.privacy() is not None]
        kinds = grouped(private, _kind)
        differing = [place for place in range(len(KIND)) if len({kind[place] for kind in kinds}) > 1]
        dataset = frame.loc[frame["cell"] == comparison.plain.key, "dataset"]
        rows = frame[frame["dataset"].isin(dataset)]
        for kind, members in kinds.items():
            alone = [cell for cell in members if not is_compressed(cell.spec)]
            every = alone or members
            shown = [*every[: MOST_BUDGETS - 1], every[-1]] if len(every) > MOST_BUDGETS else every
            apart = ", ".join(f"{KIND[place]} {kind[place]}" for place in differing if kind[place])
            scored = all(cell.values(AUROC) for cell in (comparison.plain, *shown))
            measure = AUROC if scored else spec.by
            selected = Comparison(measure, comparison.plain, tuple(shown))
            yield Subject(selected, results, rows, resolutions[measure], apart, len(every) - len(shown))


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Return what must be the same in two guarantees for their epsilons to be compared."""
    claim = cell.privacy() or {}
    return tuple(claim.get(name) for name in KIND)


def _content(subject: Subject) -> dict[str, Any]:
    """Return what the template shows of a data set."""
    rows = cost_rows(subject)
    methods = subject.methods
    return {
        "title": ", ".join(filter(None, [data_of(subject.plain), subject.plain.algorithm, subject.apart])),
        "site": subject.site,
        "answers": answers(subject),
        "measures": heads(subject),
        "budgets": ["no privacy", *subject.budgets],
        "rows": rows,
        "note": note(subject, rows),
        "methods": methods and methods._replace(note=method_note(subject, methods)),
        "questions": questions(subject),
        "annex": annex(subject),
    }


def print_page(page: Path, pdf: Path) -> bool:
    """Print a page by a browser; return whether there is one that did."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as profile:
        printed = Path(profile) / pdf.name
        options = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={profile}"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # as root Chromium starts with it only
        command = [browser, *options, f"--print-to-pdf={printed}", page.resolve().as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("%s did not print %s: %s", browser, page, error)
            return False
        with writing(pdf):
            shutil.move(printed, pdf)
    return True
