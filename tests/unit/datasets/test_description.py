"""Descriptions of a user's table: the same as reading it, and all that is to be set at once."""

import json

import numpy as np
import pandas as pd
import pytest

import harness
from datasets.catalog import describe_data, load
from datasets.errors import DataError
from harness.__main__ import main

ROWS = 60


@pytest.fixture
def patients(tmp_path):
    """Return a function that writes a table with other columns, and the address of it."""

    def written(query="label=ill", **columns):
        rows = np.arange(ROWS)
        frame = pd.DataFrame({"age": 20 + rows % 50, "sex": np.where(rows % 3, "f", "m"), **columns})
        frame["ill"] = np.where(rows % 5, "no", "yes")
        frame.to_csv(tmp_path / "patients.csv", sep=";", index=False)
        return f"csv:{tmp_path / 'patients.csv'}?{query}"

    return written


def column(description, name):
    return next(one for one in description.columns if one.name == name)


def test_a_description_counts_what_reading_makes(patients):
    """60 rows: every fifth is ill, every third m; three sites of 20 rows; 30 people with two rows each."""
    rows = np.arange(ROWS)
    sites = np.array(["Aalen", "Bonn", "Ulm"])[rows % 3]
    address = patients("label=ill&sensitive=sex&client=site&user=id", site=sites, id=rows // 2)
    found = describe_data(address)
    assert (found.rows, found.used, found.problems) == (60, 60, ())
    assert (found.classes, found.positive) == ({"no": 48, "yes": 12}, "yes")
    assert (found.groups, found.clients) == ({"f": 40, "m": 20}, {"Aalen": 20, "Bonn": 20, "Ulm": 20})
    assert found.users == {"users": 30, "fewest": 2, "most": 2, "scattered": 30}
    assert "30 of them at several clients" in " ".join(found.summary)
    assert "30 users of column 'id' have samples at several clients, which privacy" in found.warnings[-1]
    assert found.features == load(address).x.shape[1] == 3
    assert [(one.name, one.role, one.features) for one in found.columns] == [
        ("age", "feature", 1),
        ("sex", "sensitive, feature", 2),
        ("site", "client", 0),
        ("id", "user", 0),
        ("ill", "label", 0),
    ]
    assert found.summary[0].endswith("60 rows; 3 features from 2 columns: numbers: age; one-hot: sex (2)")
    assert 3 <= len(found.summary) <= 6


def test_everything_to_set_is_said_at_once(patients):
    """Reading stops at the first of them."""
    commas = [f"{row},5" for row in range(ROWS)]
    holes = [1.0, None] * (ROWS // 2)
    found = describe_data(patients("drop=age", size=commas, weight=commas, dose=holes))
    said = "\n".join(found.problems)
    for word in (
        "'size' is text",
        "'weight' is text",
        "decimal=,",
        "'dose' (30)",
        "which column is the label",
    ):
        assert word in said
    assert column(found, "size").kind == "text" and found.used == 0
    assert column(found, "dose").missing == 30


def test_nothing_is_logged_and_every_warning_is_told(patients, caplog):
    """Fourteen columns of codes: a run says ten of them."""
    codes = {f"c{place}": [-999, *range(place, ROWS - 1 + place)] for place in range(14)}
    found = describe_data(patients(**codes))
    assert len([line for line in found.warnings if "-999" in line]) == 14
    assert column(found, "c3").codes == {"-999": 1}
    assert not caplog.text


def test_the_same_warning_is_said_again_by_a_run(patients, caplog):
    address = patients(still=7)
    assert any("'still' is 7 in every row" in line for line in describe_data(address).warnings)
    load(address)
    assert "'still' is 7 in every row and says nothing; leave it out with drop=still" in caplog.text


def test_columns_that_say_the_same_are_named(patients):
    """Text says the same under other names, numbers only where they are equal; ids say nothing of each other."""
    rows = np.arange(ROWS)
    found = describe_data(
        patients(
            gender=np.where(rows % 3, "woman", "man"),
            years=20 + rows % 50,
            doubled=2 * (20 + rows % 50),
            outcome=np.where(rows % 5, 0, 1),
            id=rows,
            number=rows,
            dose=rows / 7,
            measured=rows / 7,
        )
    )
    said = "\n".join(found.warnings)
    assert "'gender' says the same as 'sex' in every row; leave it out with drop=gender" in said
    assert "'years' says the same as 'age' in every row" in said
    assert "'outcome' tells the label 'ill' of every row" in said
    assert "'measured' says the same as 'dose' in every row" in said
    assert "'doubled'" not in said and "'number' says" not in said


@pytest.mark.parametrize(("code", "told"), [(-9, True), (-9.5, False), (9, False)])
def test_the_only_negative_number_may_be_a_code(patients, code, told):
    """-9 is nearer to ages of 20 to 69 than these to each other."""
    found = describe_data(patients(size=[code, *range(20, 19 + ROWS)]))
    assert any("far from its other numbers" in line for line in found.warnings) == told


def test_words_for_missing_are_counted(patients):
    found = describe_data(patients(job=["unknown", "n/a", "cook", "nurse"] * (ROWS // 4)))
    assert column(found, "job").codes == {"unknown": 15, "n/a": 15}


def test_dates_are_told(patients):
    found = describe_data(patients(day=["2024-03-01", "2024-03-02", "2024-04-01"] * 20))
    assert column(found, "day").kind == "dates as text"
    assert column(found, "day").values == "2024-03-01 to 2024-04-01"


def test_data_of_the_list_are_described_without_columns():
    found = describe_data("breast-cancer")
    assert (found.rows, found.used, found.features, found.columns) == (569, 569, 30, ())
    assert found.classes == {"malignant": 212, "benign": 357} and found.positive == "benign"
    assert found.summary[0].startswith("breast-cancer: 569 rows; 30 features from 30 columns: ")


def test_the_command_says_what_python_returns(patients, capsys):
    address = patients("")
    assert main(["data", "describe", address, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == list(harness.describe(address).problems)
    assert main(["data", "describe", address + "label=ill"]) == 0
    shown = capsys.readouterr().out
    assert "sex     feature (2)" in shown and "label ill: no 48, yes 12; yes is positive" in shown


def test_a_run_file_is_described_with_its_problem(patients, tmp_path):
    """Ages 20 to 69 once, and 20 to 29 again: (50 * 44.5 + 10 * 24.5) / 60 = 41.17."""
    address = patients("label=age")
    (tmp_path / "run.yaml").write_text(f"data: {{name: '{address}'}}\nproblem: regression\n")
    for path in (tmp_path / "run.yaml", str(tmp_path / "run.yaml")):
        assert harness.describe(path).summary[1] == "label age: numbers from 20 to 69, mean 41.17"


def test_a_run_begins_with_its_table(patients, tmp_path, capsys):
    options = ["--clients", "2", "--rounds", "1", "--algorithm", "fedavg", "--out", str(tmp_path / "out")]
    assert main(["run", "--data", patients(), *options]) == 0
    said = capsys.readouterr().err
    assert "patients.csv: 60 rows; 3 features from 2 columns" in said
    assert "label ill: no 48, yes 12; yes is positive" in said


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (["91.121", "449.871", "950"], True),
        (["91.121", "449.87", "9"], False),
        (["0.121", "0.870", "0"], False),
    ],
)
def test_points_before_three_digits_may_part_thousands(patients, count, told):
    """Platelets of 91,121 would be read as 91.1; numbers below one, or with other decimals, have decimals."""
    found = describe_data(patients(platelets=count * (ROWS // 3)))
    lines = [line for line in found.warnings if "thousands=.&decimal=," in line]
    assert len(lines) == told
    assert all("'platelets'" in line and "449.871" in line for line in lines)


def test_a_client_of_one_class_is_named(patients):
    """Every fifth row is ill, from the first; Ulm has the four rows between two of them."""
    site = np.where(np.isin(np.arange(ROWS), [1, 2, 3, 4]), "Ulm", "Bonn")
    found = describe_data(patients("label=ill&client=site", site=site))
    (line,) = [line for line in found.warnings if "one class only" in line]
    assert line.startswith("1 of 2 clients have one class only, such as 'Ulm', with 4 rows of 'no'")


def test_a_file_in_another_encoding_floods_no_terminal(patients, tmp_path):
    """Two bytes are one character then, so their number is even, and the whole file is a header."""
    address = patients("encoding=utf-16", note="none that matters")
    raw = (tmp_path / "patients.csv").read_bytes()
    (tmp_path / "patients.csv").write_bytes(raw + b"\n" * (len(raw) % 2))
    with pytest.raises(
        DataError, match=r"characters, which begins with .* are delimiter and encoding right"
    ) as e:
        describe_data(address)
    assert len(str(e.value)) < 400


def test_a_header_alone_is_described_as_no_rows(tmp_path):
    """Each column was called empty, with the advice to leave it out."""
    (tmp_path / "empty.csv").write_text("age,ill\n")
    assert describe_data(f"csv:{tmp_path / 'empty.csv'}?label=ill").problems == (
        "there is no row below the header",
    )


def test_a_zero_has_no_sign(tmp_path):
    (tmp_path / "zero.csv").write_text("x,y\n" + "-0.0,a\n3,b\n" * 4)
    assert column(describe_data(f"csv:{tmp_path / 'zero.csv'}?label=y"), "x").values == "0 to 3, mean 1.5"


def test_a_class_of_hardly_any_row_is_mentioned(tmp_path):
    """One "jaa" among "ja" and "nein" became a third class without a word."""
    path = tmp_path / "ward.csv"
    rows = [f"{n},{('ja', 'nein')[n % 2]},{('m', 'f')[n % 2]}" for n in range(300)]
    path.write_text("\n".join(["age,ill,sex", *rows, "7,jaa,9"]))
    warnings = " ".join(describe_data(f"csv:{path}?label=ill&sensitive=sex").warnings)
    assert "the value 'jaa' of the column 'ill' is a class of its own with 1 of 301 rows" in warnings
    assert "map.ill.jaa=VALUE" in warnings and "na=jaa" in warnings
    assert "the value '9' of the column 'sex' is a group of its own" in warnings
    renamed = " ".join(describe_data(f"csv:{path}?label=ill&sensitive=sex&labels.jaa=ja").warnings)
    assert "'jaa'" not in renamed and "the value '9' of the column 'sex' is a group of its own" in renamed
    path.write_text("\n".join(["age,ill,sex", *rows]))
    assert "of its own" not in " ".join(describe_data(f"csv:{path}?label=ill&sensitive=sex").warnings)


def test_a_column_with_a_factor_is_not_asked_whether_its_points_part_thousands(tmp_path):
    path = tmp_path / "height.csv"
    path.write_text("\n".join(["height,ill", *(f"1.{500 + n},{n % 2}" for n in range(60))]))
    plain, scaled = (
        " ".join(describe_data(f"csv:{path}?label=ill{option}").warnings)
        for option in ("", "&scale.height=100")
    )
    assert "every point stands before three digits" in plain and "three digits" not in scaled


def test_what_else_is_wrong_is_told_beside_missing_cells(tmp_path):
    """A user mended one mistake, and was told the next."""
    path = tmp_path / "ward.csv"
    rows = [f"{n},{('ja', 'nein', 'JA')[n % 3]},7" for n in range(1, 30)]
    path.write_text("\n".join(["age,ill,still", *rows, ",ja,7"]))
    found = describe_data(f"csv:{path}?label=ill")
    missing, spelling = found.problems
    assert "missing cells in 'age' (1)" in missing and "'JA', 'ja'" in spelling
    assert found.used == 0 and any("'still' is 7 in every row" in line for line in found.warnings)
    (alone,) = describe_data(f"csv:{path}?label=ill&labels.JA=ja").problems
    assert alone == missing
