"""Dates as people write them, and titles above the names of columns."""

from datetime import date

import pandas as pd
import pytest

from datasets.catalog import describe_data
from datasets.errors import DataError
from harness.config.describing import describe

ROWS = 12
DAYS = [date(2021, 2, 3 + row) for row in range(ROWS)]
WAYS = {"dd.mm.yyyy": "{0:%d.%m.%Y}", "mm/dd/yyyy": "{0.month}/{0.day}/{0:%Y}", "yyyy-mm-dd": "{0:%Y-%m-%d}"}


def columns(found):
    return {column.name: column for column in found.columns}


def lines(way, head=""):
    rows = "".join(
        f"{way.format(day)};{row},5;{'no' if row % 3 else 'yes'}\n" for row, day in enumerate(DAYS)
    )
    return f"{head}day;x;ill\n{rows}"


@pytest.mark.parametrize("dates", WAYS)
def test_dates_are_days_however_they_are_written(tmp_path, dates):
    """3 to 14 February 2021; with day and month exchanged they would not be 12 days of one month."""
    (tmp_path / "a.csv").write_text(lines(WAYS[dates]))
    found = describe_data(f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates={dates}")
    day = columns(found)["day"]
    assert found.problems == () and (day.kind, day.features) == ("dates as numbers", 1)
    assert day.values == "2021-02-03 to 2021-02-14"


def test_a_column_of_which_one_cell_is_no_date_stays_text(tmp_path):
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"]) + "31.2.21;1,5;no\n;2,5;no\n")
    address = f"csv:{tmp_path}/a.csv?label=ill&decimal=,&missing=drop"
    assert columns(describe_data(f"{address}&dates=dd.mm.yyyy"))["day"].kind == "text"
    assert columns(describe_data(f"{address}&dates=dd.mm.yyyy&na=31.2.21"))["day"].missing == 2


@pytest.mark.parametrize(
    ("dates", "advice"),
    [
        ("dd.mm.yyyy", "set dates=dd.mm.yyyy to"),
        ("mm/dd/yyyy", "set dates=dd/mm/yyyy or dates=mm/dd/yyyy to"),
        ("yyyy-mm-dd", "set dates=yyyy-mm-dd to"),
    ],
)
def test_dates_as_text_are_told_with_the_way_they_are_written(tmp_path, dates, advice):
    (tmp_path / "a.csv").write_text(lines(WAYS[dates]))
    assert advice in "\n".join(describe_data(f"csv:{tmp_path}/a.csv?label=ill&decimal=,").warnings)


@pytest.mark.parametrize(
    "cell", ["31.02.2021", "01.02.21", "02/13/2021", "01.02.2021 02:30 PM", "01.02.2021 1430"]
)
def test_a_cell_that_is_no_such_date_is_named(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"{lines(WAYS['dd.mm.yyyy'])}{cell};1,5;no\n")
    address = f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates=dd.mm.yyyy"
    assert f"'{cell}' is no date written dd.mm.yyyy" in describe_data(address).problems[0]
    assert describe_data(f"{address}&text=day").problems == ()


def test_times_without_a_zone_are_not_those_of_one(tmp_path):
    cells = ["01.02.2021 14:30+02:00;1,5;no", "02.02.2021 14:30;1,5;yes", "03.02.2021 14:30Z;2,5;no"]
    (tmp_path / "a.csv").write_text("\n".join(["day;x;ill", *cells]))
    found = describe_data(f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates=dd.mm.yyyy")
    assert "'02.02.2021 14:30' has no time zone, and others have one" in found.problems[0]


def test_numbers_of_excel_and_dates_do_not_go_together(tmp_path):
    """Excel counts days since 1900; 44,230 would be a day of 2091."""
    ill = ["no" if row % 3 else "yes" for row in range(ROWS)]
    serials = pd.DataFrame({"day": range(44230, 44230 + ROWS), "x": 0.5, "ill": ill})
    serials.to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"day": DAYS, "x": 0.5, "ill": ill}).to_parquet(tmp_path / "b.parquet")
    files = {"A": f"{tmp_path}/a.csv", "B": f"{tmp_path}/b.parquet"}
    (problem,) = describe({"name": "files", "files": files, "label": "ill"}).problems
    assert "a.csv: the column 'day' is numbers there, and dates in" in problem


def test_codes_of_missing_numbers_are_no_days(tmp_path):
    """18,661 stands for nothing in a column of numbers; 3 February 2021 is the day of that number."""
    ill = ["no" if row % 3 else "yes" for row in range(ROWS)]
    pd.DataFrame({"day": DAYS, "x": range(ROWS), "ill": ill}).to_parquet(tmp_path / "b.parquet")
    found = describe_data(f"parquet:{tmp_path}/b.parquet?label=ill&na=18661")
    assert "na would take 2021-02-03, day 18661 since 1970, for missing" in found.problems[0]
    assert describe_data(f"parquet:{tmp_path}/b.parquet?label=ill&na=-999").problems == ()


def test_dates_of_other_centuries_are_told(tmp_path):
    (tmp_path / "a.csv").write_text(f"{lines(WAYS['dd.mm.yyyy'])}31.12.9999;1,5;no\n")
    found = describe_data(f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates=dd.mm.yyyy")
    assert "9999-12-31 in 1 rows" in "\n".join(found.warnings)


def test_dates_that_excel_knows_do_not_go_with_text(tmp_path):
    """An English Excel that opens German dates exchanges day and month up to the 12th, and leaves the others."""
    pytest.importorskip("openpyxl")
    rows = [["day", "x", "ill"]]
    for row in range(ROWS):
        day = date(2021, row + 1, 3) if row < 6 else f"{row + 9}.03.2021"
        rows.append([day, row / 2, "no" if row % 3 else "yes"])
    pd.DataFrame(rows).to_excel(tmp_path / "a.xlsx", header=False, index=False)
    found = describe_data(f"excel:{tmp_path}/a.xlsx?label=ill&dates=dd.mm.yyyy")
    assert "Excel may have exchanged day and month" in "\n".join(found.problems)


@pytest.mark.parametrize("dates", ["yyyy-dd-mm", "dd.mm", "d.m.y", "%d.%m.%Y", "dd.mm.yyyy.dd"])
def test_another_way_of_dates_is_refused(tmp_path, dates):
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"]))
    with pytest.raises(DataError, match=r"dates is .*such as dd\.mm\.yyyy"):
        describe_data(f"csv:{tmp_path}/a.csv?label=ill&dates={dates}")


def test_files_with_dates_of_text_and_of_numbers_go_together(tmp_path):
    """One hospital sends CSV, another Parquet, whose dates are numbers."""
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"]))
    ill = ["no" if row % 3 else "yes" for row in range(ROWS)]
    pd.DataFrame({"day": DAYS, "x": 0.5, "ill": ill}).to_parquet(tmp_path / "b.parquet")
    files = {"A": {"path": f"{tmp_path}/a.csv", "decimal": ","}, "B": f"{tmp_path}/b.parquet"}
    data = {"name": "files", "files": files, "label": "ill"}
    (problem,) = describe(data).problems
    assert "dates of text" in problem and "set dates=dd.mm.yyyy" in problem
    files["A"]["dates"] = "dd.mm.yyyy"
    found = describe(data)
    assert found.problems == () and columns(found)["day"].values == "2021-02-03 to 2021-02-14"


@pytest.mark.parametrize("head", ["Register 2021\n\n", "Register;;\n;;\n", "\ufeffRegister\r\n\r\n"])
def test_a_title_is_told_with_the_line_of_the_names(tmp_path, head):
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"], head), newline="")
    address = f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates=dd.mm.yyyy"
    with pytest.raises(DataError, match=r"one cell, 'Register.* line 3, set header=3"):
        describe_data(address)
    found = describe_data(f"{address}&header=3")
    assert found.problems == () and list(columns(found)) == ["day", "x", "ill"]
    with pytest.raises(DataError, match="header=99 is none of them"):
        describe_data(f"{address}&header=99")


@pytest.mark.parametrize(
    ("head", "number"), [("", 1), ('"Register, a\nlist"\n', 3), ("sep=;\nRegister\n", 3), ("sep=;\n", 2)]
)
def test_lines_are_counted_as_an_editor_counts_them(tmp_path, head, number):
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"], head))
    address = f"csv:{tmp_path}/a.csv?label=ill&decimal=,&dates=dd.mm.yyyy"
    if "R" in head:
        with pytest.raises(DataError, match=f"one cell, 'Register.*set header={number}; if they are in line"):
            describe_data(address)
    found = describe_data(f"{address}&header={number}")
    assert found.problems == () and list(columns(found)) == ["day", "x", "ill"]


def test_a_title_of_a_sheet_is_told_too(tmp_path):
    pytest.importorskip("openpyxl")
    rows = [["Register", None, None], [None] * 3, ["day", "x", "ill"]]
    rows += [[day, row / 2, "no" if row % 3 else "yes"] for row, day in enumerate(DAYS)]
    pd.DataFrame(rows).to_excel(tmp_path / "a.xlsx", header=False, index=False)
    address = f"excel:{tmp_path}/a.xlsx?label=ill"
    with pytest.raises(DataError, match=r"one cell, 'Register', .* set header=3"):
        describe_data(address)
    found = describe_data(f"{address}&header=3")
    assert found.problems == () and columns(found)["day"].kind == "dates as numbers"


def test_an_absent_label_is_told_before_all_else(tmp_path):
    """Other problems hid it."""
    (tmp_path / "a.csv").write_text(lines(WAYS["dd.mm.yyyy"]))
    assert "no column 'il'; did you mean 'ill'" in describe_data(f"csv:{tmp_path}/a.csv?label=il").problems[0]
