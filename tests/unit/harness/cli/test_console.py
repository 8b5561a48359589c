"""Tables of commands."""

import io
import os
import subprocess
import sys
from argparse import Namespace

import pytest
from rich.console import Console
from rich.table import Table

from datasets.catalog import describe
from harness.cli import console, described, listing


def printed(monkeypatch, width, expendable):
    text = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=text, width=width))
    rows = [{"algorithm": "fedavg", "oracle_calls": 1_000_000, "seconds": 1.5, "reason": None}]
    console.print_rows(rows, "1 run", expendable)
    return " ".join(text.getvalue().split())


def test_a_narrow_terminal_lacks_the_most_dispensable_columns_and_says_so(monkeypatch):
    expendable = ("oracle_calls", "reason")
    assert "Omitted" not in printed(monkeypatch, 60, expendable)
    text = printed(monkeypatch, 30, expendable)
    assert "1000000" not in text and "fedavg 1.5" in text and "reason" in text
    assert "Omitted for lack of width: oracle calls; COLUMNS=200 or --json show more" in text
    text = printed(monkeypatch, 20, expendable)
    assert "Omitted for lack of width: oracle calls, reason;" in text


def test_no_word_of_a_narrow_table_is_broken(monkeypatch):
    """Of nine columns in 80 a federation was "federat ion", a method "scaffol d"."""
    row = {
        "federation": "lending",
        "method": "scaffold",
        "AUROC": "0.533 [0.498, 0.561]",
        "costs_(points)": "11.6",
    }
    row |= {
        "told_apart": "yes",
        "within_bounds": "about 40 of 50",
        "bytes": "112 kB",
        "worst_client": "0.6844",
    }
    text = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=text, width=80))
    console.print_rows([row, row | {"federation": "vote"}], "2 rows")
    lines = text.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    for word in ("federation", "scaffold", "(points)", "0.6844", "bounds"):
        assert any(word in line.split() for line in lines), word


def test_the_list_of_data_sets_has_a_line_for_each_in_80_columns(monkeypatch):
    text = io.StringIO()
    screen = Console(file=text, width=80)
    for module in (console, listing):
        monkeypatch.setattr(module, "out", screen)
    listing.list_data(as_json=False)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows, names = describe(), [line.split()[0] if line.strip() else "" for line in lines]
    first = names.index(rows[0]["name"])
    assert names[first : first + len(rows) + 1] == [*(row["name"] for row in rows), ""], "none is folded"
    for row, line in zip(rows, lines[first:], strict=False):
        assert row["clients"] in line and line.rstrip().endswith(("yes", "no"))


def test_a_table_is_described_with_a_line_for_each_column_in_80_columns(monkeypatch, tmp_path):
    """Long names and values do not wrap: values are cut, and codes that may stand for nothing have lines below."""
    text = io.StringIO()
    screen = Console(file=text, width=80)
    for module in (console, described):
        monkeypatch.setattr(module, "out", screen)
    rows = [
        f"{n},{'unknown' if n % 9 == 0 else 'mw'[n % 2]},{word},{n % 3 == 0}" for n, word in enumerate(WORDS)
    ]
    header = "age_at_admission_years,sex,comorbidity_description,readmitted"
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]))
    args = Namespace(data=f"csv:{tmp_path}/a.csv?label=readmitted&sensitive=sex", json=False, numbers=False)
    assert described.describe_command(args) == 0
    lines = text.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(" age_at_admission_years"))
    assert [line.split()[0] for line in lines[first : first + 4]] == header.split(",")
    assert (
        max(map(len, lines)) <= 80
        and "…" in lines[first + 2]
        and "missing codes in sex? unknown in 5" in lines
    )


WORDS = ["diabetes mellitus", "arterial hypertension", "chronic kidney disease"] * 15


def test_brackets_in_names_and_reasons_are_text(capsys):
    """In cells, headings and titles, and in the tables of reports, which are printed on the same console."""
    console.print_rows([{"no [/red]": "no [bold]"}], "1 run [/]")
    table = Table("hospital [/b]")
    table.add_row("client [red]")
    console.out.print(table)
    console.log.print("reason [/x]")
    said = capsys.readouterr()
    for text in ("no [/red]", "no [bold]", "1 run [/]", "hospital [/b]", "client [red]"):
        assert text in said.out
    assert said.err == "reason [/x]\n"


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_failure():
    """As ``head -1`` does; here the reader has left before anything is printed."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "harness", "list", "suites"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_terminal_without_a_size_is_told_all_the_same():
    """With COLUMNS=0 nothing was printed, not even why a command was refused."""
    command = [sys.executable, "-c", "from harness.cli.console import log; log.print('no results folder')"]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "0"})
    assert ended.returncode == 0 and "no results folder" in ended.stderr


def test_a_terminal_of_ascii_is_told_all_in_escapes():
    """A leaderboard ended with a traceback at its first ±."""
    command = [sys.executable, "-c", "from harness.cli.console import out; out.print('1 ± 2'); print('ε')"]
    ended = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (ended.returncode, ended.stdout) == (0, b"1 \\xb1 2\n\\u03b5\n"), ended.stderr
