"""Tables of commands."""

import io

from rich.console import Console

from datasets.catalog import describe
from harness.cli import console, listing


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
