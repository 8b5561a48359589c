"""Text that is numbers but for how some are written, codes of missing cells, and what a file says unusually."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from datasets.catalog import load
from datasets.doubts import sentinels
from datasets.errors import DataError
from harness.config.fields import DataSpec

RNG = np.random.default_rng(0)
HEIGHTS = RNG.normal(150, 20, 60).round(1)


@pytest.fixture
def read(tmp_path, caplog):
    """Return a function that loads a table with a column x of the given cells."""

    def loaded(cells, suffix="csv", **options):
        rows = np.arange(len(cells))
        path = tmp_path / f"people.{suffix}"
        frame = pd.DataFrame({"x": cells, "w": rows % 7, "y": rows % 2})
        frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, sep=";", index=False)
        caplog.clear()
        return load(suffix, path=path, label="y", **options)

    return loaded


def german(number):
    return f"{number:,.1f}".translate(str.maketrans(".,", ",."))


WRITTEN = {
    "decimal commas": ([german(x) for x in HEIGHTS], "decimal=,"),
    "two values": (["1,5", "2,5"] * 30, "decimal=,"),
    "both signs": ([german(10 * x) for x in HEIGHTS], r"decimal=,&thousands=\."),
    "thousands": ([f"{1000 * int(x):,}" for x in HEIGHTS], "thousands=, if"),
    "English": ([f"{1000 * x:,.1f}" for x in HEIGHTS], "thousands=,;"),
    "apostrophes": ([f"{1000 * int(x):,}".replace(",", "'") for x in HEIGHTS], "thousands='"),
    "spaces": ([f"{1000 * int(x):,}".replace(",", " ") for x in HEIGHTS], "thousands=%20"),
    "percent": ([f"{x}%" for x in HEIGHTS], "take signs such as that of"),
    "dollars": (["$5", "$7"] * 30, "take signs such as that of '\\$5'"),
    "unit": ([f"{x} kg" for x in HEIGHTS], "take signs"),
    "bounds": (["<5", "5.2", "6.1"] * 20, "take signs such as that of '<5' out .* map: {x: {'<5': NUMBER}}"),
    "stray": ([*map(str, HEIGHTS[:-1]), "n.a."], r"na=n\.a\."),
    "mostly missing": (["-"] * 40 + [*map(str, HEIGHTS[:20])], "na=-"),
    "null": ([*map(str, HEIGHTS[:-2]), "NULL", "N/A"], "na=NULL&na=N/A"),
    "a word": ([*map(str, HEIGHTS[:-1]), "low"], "na=low"),
}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("written", WRITTEN)
def test_numbers_that_look_like_text_say_what_to_set(read, written, suffix):
    """They became categories: decimal commas cost an AUROC of .966 against .757, and no word was said."""
    cells, advice = WRITTEN[written]
    with pytest.raises(DataError, match=f"column 'x' is text, but most.*{advice}.*or set text=x if"):
        read(cells, suffix)
    assert read(cells, suffix, text="x").features[0].startswith("x=")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_the_message_says_reads_the_numbers(read, suffix):
    grams = (10 * HEIGHTS).round(1)
    whole = read(grams).x[:, 0]
    for cells, options in (
        ([str(x).replace(".", ",") for x in grams], {"decimal": ","}),
        ([f"{x:,.1f}" for x in grams], {"thousands": ","}),
        ([german(x) for x in grams], {"decimal": ",", "thousands": "."}),
    ):
        assert read(cells, suffix, **options).x[:, 0].tolist() == whole.tolist()
    found = read([*map(str, grams[:-2]), "n/a", "-999"], suffix, na=["n/a", "-999"], missing="drop")
    assert found.x[:, 0].tolist() == whole[:-2].tolist()


def test_signs_elsewhere_than_they_should_be_are_no_numbers(read):
    """1,5 is not 15 where the comma separates thousands."""
    for cells, options in (
        (["1,5", "2,500"] * 30, {"thousands": ","}),
        (["1.5", "2,5"] * 30, {"decimal": ","}),
        (["1.5", "2.5"] * 30, {"decimal": ","}),
        (["0.125", "2,5"] * 30, {"decimal": ",", "thousands": "."}),
    ):
        with pytest.raises(DataError, match="is text, but most"):
            read(cells, **options)
    for signs in (
        {"decimal": ",", "thousands": ","},
        {"decimal": "ab"},
        {"delimiter": "x"},
        {"thousands": "-"},
    ):
        with pytest.raises(DataError, match=r"give (one character|two different signs)"):
            read(["1"] * 30, **signs)


@pytest.mark.parametrize(
    "cells",
    [
        ["Ulm", "Bonn", "Köln"] * 20,
        ["10-20", "20-30"] * 30,
        ["1a", "2b", "3c"] * 20,
        ["<30", ">30", "NO"] * 20,
        ["<5", "\u22655"] * 30,
        ["v1.2.3", "1.2.3"] * 30,
        ["2020-01-02", "03.04.2021"] * 30,
        ["12:30", "13:15"] * 30,
    ],
)
def test_categories_with_digits_stay_categories(read, cells):
    assert set(read(cells).features) == {f"x={cell}" for cell in cells} | {"w"}


def test_a_mark_among_categories_is_named(read, caplog):
    assert "x=n/a" in read(["Ulm", "Bonn", "n/a"] * 20).features
    assert (
        "'n/a' in 20 rows, a category like any other; if it stands for missing cells, give na=n/a"
        in caplog.text
    )
    assert read(["Ulm", "Bonn", "n/a"] * 20, na="n/a", missing="drop").features == ("x=Bonn", "x=Ulm", "w")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("codes", "told"),
    [([-999.0], "-999"), ([9999.0], "9999"), ([-99, 999], "-99 and 999"), ([], ""), ([99.0], "")],
)
def test_numbers_far_from_the_others_are_named(read, caplog, codes, told, suffix):
    """99 lies among heights from 100 to 200, closer to them than they to each other."""
    read([*HEIGHTS, *codes], suffix)
    assert ("far from its other numbers" in caplog.text) == bool(told)
    assert f"has {told} in {len(codes)} rows" in caplog.text or not told


@pytest.mark.parametrize(
    ("others", "code", "times", "told"),
    [
        (range(18, 71), 99, 3, True),
        (range(18, 71), 99, 2, False),  # two old people
        (range(18, 97), 99, 3, False),
        ([2**n for n in range(10)], 999, 3, False),  # gaps grow
        (range(0, 40), -9, 3, True),
        ([10, 40, 70], 99, 3, False),  # too few to compare with
    ],
)
def test_a_frequent_number_behind_a_wide_gap_may_be_a_code(others, code, times, told):
    values = np.array([*others, *others, *[code] * times], float)
    assert sentinels(values) == ([float(code)] if told else [])


def test_a_declared_code_is_missing_however_it_is_written(read, caplog):
    data = read([*map(str, HEIGHTS), "-999", "-999.0", "-9.99e2"], na="-999", missing="drop")
    assert len(data) == 60 and "far from" not in caplog.text


def test_wide_text_and_codes_with_zeros_are_named(read, caplog):
    read([f"c{n % 60}" for n in range(180)])
    assert "each of its 60 values becomes a feature" in caplog.text
    read(["01067", "90210"] * 30)
    assert "numbers with leading zeros, such as 01067; to read codes as text, give text=x" in caplog.text


def test_digits_that_a_file_calls_text_are_named(read, caplog):
    assert read(["12", "13"] * 30, "parquet").features == ("x=12", "x=13", "w")
    assert "is text of digits" in caplog.text


def test_many_lines_about_a_file_are_counted(tmp_path, caplog):
    head = ",".join(f"c{n}" for n in range(30))
    rows = "".join(",".join([f"0{n}"] * 30) + f",{n % 2}\n" for n in (10, 11, 12))
    (tmp_path / "wide.csv").write_text(f"{head},y\n{rows}")
    load("csv", path=tmp_path / "wide.csv", label="y")
    assert len(caplog.records) == 11 and "20 more columns are like these" in caplog.text


@pytest.mark.parametrize("role", ["client", "sensitive", "label"])
def test_ids_that_would_merge_are_refused(tmp_path, role):
    path = tmp_path / "ids.csv"
    path.write_text(
        "id,x,y\n" + "".join(f"{one},{n},{n % 2}\n" for n, one in enumerate(["007", "7", "12"] * 3))
    )
    options = {"label": "y"} | {role: "id"}
    with pytest.raises(DataError, match="'id', 007 and 7 would be one number; read it as text with text=id"):
        load("csv", path=path, **options)
    assert len(set(load("csv", path=path, text="id", **options).columns["id"].tolist())) == 3


def test_a_run_file_says_numbers_as_they_are(tmp_path):
    spec = DataSpec.model_validate({"name": "csv", "path": "a.csv", "na": [-999, "n/a"], "decimal": ","})
    assert spec.na == ("-999", "n/a")
    assert DataSpec.model_validate({"name": "csv", "path": "a.csv", "na": -999}).na == "-999"
    assert DataSpec.model_validate("csv:a.csv?na=[n/a,-999]").na == ("n/a", "-999")
    with pytest.raises(ValueError, match="give one character"):
        DataSpec.model_validate({"name": "csv", "path": "a.csv", "decimal": "comma"})


@pytest.mark.slow
def test_workers_do_not_say_it_again(tmp_path, capfd):
    """Every worker reads the data; the command has read them before."""
    path = tmp_path / "told.csv"
    path.write_text("x,y\n" + "".join(f"{n % 7 if n else -999},{n % 2}\n" for n in range(40)))
    run = {
        "data": f"csv:{path}?label=y",
        "partition": {"kind": "iid", "clients": 2},
        "model": "logistic",
        "algorithm": "fedavg",
        "rounds": 1,
    }
    (tmp_path / "told.yaml").write_text(
        json.dumps({"suite": "told", "base": run, "sweep": {"seed": [0, 1, 2, 3]}})
    )
    command = [sys.executable, "-m", "harness", "suite", str(tmp_path / "told.yaml"), "--jobs", "2"]
    subprocess.run([*command, "--out", str(tmp_path / "out")], check=True)
    assert capfd.readouterr().err.count("far from its other numbers") == 1


def test_points_between_thousands_are_named_once_the_decimal_sign_is_set(read):
    cells = [f"{n}.702" for n in range(10, 70)]
    with pytest.raises(DataError, match=r"set thousands=\. if that separates groups"):
        read(cells, decimal=",")
    assert read(cells, decimal=",", thousands=".").features == ("x", "w")
    with pytest.raises(DataError, match="set decimal and thousands as these are written"):
        read([f"{n}.7" for n in range(60)], decimal=",")


def test_a_sign_that_is_set_is_not_asked_for_again(read):
    """Of numbers with a decimal comma and one code, the code alone is left to set."""
    cells = [f"{n},5" for n in range(60)]
    with pytest.raises(DataError) as error:
        read([*cells, "k.A."], decimal=",")
    assert "set na=k.A." in str(error.value) and "decimal" not in str(error.value)
