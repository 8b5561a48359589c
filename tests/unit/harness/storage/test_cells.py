"""Text of others is no formula in a spreadsheet, and reads back as it was."""

import csv
import io

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.report.data.export import write_tidy
from harness.report.tables.pivot import Grid, Place, grids_csv, grids_latex, grids_markdown
from harness.report.tables.sheet import in_latex, in_markdown
from harness.report.tables.write import csv_text
from harness.storage.cells import FORMULAS, as_csv, from_csv, inert
from harness.storage.files import output_text

WIDE = "\uff1d"  # an equals sign as wide as a Chinese one, which is read alike
LIVE = [
    "=1+1",
    "+cmd",
    "-cmd",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "\n=1",
    "\nx",
    "'=1",
    f"{WIDE}1+1",
    '=H("http://x";"a")',
]


def first_letters(path):
    with open(path, newline="") as file:
        return {cell[:1] for row in csv.reader(file) for cell in row}


@pytest.mark.parametrize("text", LIVE)
def test_text_of_others_is_no_formula(tmp_path, text):
    frame = pd.DataFrame({text: [1.5, -2.0], "name": [text, "x"], "kind": pd.Categorical([text, "y"])})
    for write in (write_tidy, lambda frame, path: output_text(path, csv_text(frame))):
        write(frame, tmp_path / "a.csv")
        assert not {*FORMULAS} - {"-"} & first_letters(tmp_path / "a.csv")
        assert pd.read_csv(tmp_path / "a.csv").iloc[:, 0].tolist() == [1.5, -2.0]
    assert as_csv([[text]]).lstrip('"').startswith("'")
    assert as_csv([[f"x\r{text}"]]).startswith('"')


@pytest.mark.parametrize("number", ["-1.5", "+2", "-1e-3", "-inf", 3, -4.25, None, True, ""])
def test_numbers_and_other_cells_stay(number):
    assert inert(number) is number


cells = st.text(st.sampled_from(f"'=+-@\t\r\n\"a,1{WIDE}"), max_size=6) | st.text()


@given(st.lists(st.lists(cells, min_size=1), min_size=1))
@example([["x\r=1"]])
@example([["'=x", "''", "'", "'-1", "-1"]])
def test_what_was_written_reads_back(rows):
    """Also with a carriage return, after which other writers begin a row."""
    assert from_csv(as_csv(rows)) == rows


def test_a_table_of_a_report_is_written_so():
    """Its title, note and cells hold names that others chose."""
    place = Place(".5", {0: 0.5}, "=1+1")
    grid = Grid("=t\n\\input{x}", "rows", "note\r<script>", ("=a",), ("@b",), {("=a", "@b"): place})
    assert not {"=", "@"} & {cell[:1] for row in csv.reader(io.StringIO(grids_csv([grid]))) for cell in row}
    assert [line for line in grids_latex([grid]).splitlines() if "input" in line] == ["% =t \\input{x}"]
    assert "<script>" not in grids_markdown([grid])


def test_markdown_and_latex_print_text_in_one_line_as_it_is():
    assert in_markdown("a|b\n`c` <b>&lt; [d](e) & x_y*") == r"a\|b \`c\` &lt;b>&amp;lt; [d]\(e) & x_y*"
    assert in_latex("a\n\nb\r%") == r"a  b \%"
