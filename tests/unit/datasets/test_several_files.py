"""Several files as clients of one table: columns and values made alike, and checked for agreement."""

import sys

import numpy as np
import pandas as pd
import pytest

from datasets.catalog import describe_data, load
from datasets.errors import DataError
from harness.config.describing import describe
from harness.config.fields import DataSpec
from harness.config.recorded import run_id
from harness.core.errors import UserError

ROWS = 20


@pytest.fixture
def hospitals(tmp_path):
    """Three files of 20 rows: German signs, other names and codes, and one that is like the first in UTF-8."""
    rows = np.arange(ROWS)
    frame = pd.DataFrame(
        {"Größe": 150 + rows + 0.5, "sex": np.where(rows % 2, "m", "w"), "ill": rows % 5 == 0}
    )
    frame["ill"] = np.where(frame.ill, "ja", "nein")
    frame.to_csv(tmp_path / "a.csv", sep=";", decimal=",", encoding="cp1252", index=False)
    other = frame.rename(columns={"Größe": "height", "ill": "outcome"})
    other["sex"], other["outcome"] = other.sex.map({"m": 1, "w": 2}), other.outcome.map({"ja": 1, "nein": 0})
    other.to_csv(tmp_path / "b.csv", index=False)
    frame.to_csv(tmp_path / "c.csv", index=False)
    return tmp_path


def section(folder, **changed):
    """Return the data section that reads all three."""
    files = {
        "Köln": {"path": str(folder / "a.csv"), "encoding": "cp1252", "decimal": ","},
        "Bern": {
            "path": str(folder / "b.csv"),
            "rename": {"height": "Größe", "outcome": "ill"},
            "map": {"sex": {1: "m", 2: "w"}, "ill": {1: "ja", 0: "nein"}},
        },
        "Wien": str(folder / "c.csv"),
    }
    for name, settings in changed.items():
        files[name] = {**files[name], **settings}
    return {"files": files, "label": "ill"}


def read(section):
    spec = DataSpec.model_validate(section)
    hash(spec)  # tables that were read are kept by their settings
    return load(**spec.model_dump(exclude_none=True, exclude={"drop_negatives"}))


def test_files_that_write_the_same_differently_are_one_table(hospitals):
    """Each holds the same 20 rows."""
    data = read(section(hospitals))
    assert data.client == "client" and data.name == "files:Köln + Bern + Wien"
    assert data.columns["client"].tolist() == ["Köln"] * 20 + ["Bern"] * 20 + ["Wien"] * 20
    assert data.features == ("Größe", "sex=m", "sex=w") and data.classes == ("nein", "ja")
    parts = data.x.reshape(3, 20, 3)
    assert (parts == parts[0]).all() and parts[0, 1].tolist() == [151.5, 1, 0]
    assert data.y.reshape(3, 20).sum(1).tolist() == [4, 4, 4]


def test_a_pattern_names_clients_by_files(hospitals):
    (hospitals / "d.csv").write_bytes((hospitals / "c.csv").read_bytes())
    data = load(f"csv:{hospitals}/[cd]*.csv?label=ill")
    assert sorted({*data.columns["client"].tolist()}) == ["c", "d"]
    with pytest.raises(DataError, match="no file is called like"):
        load(f"csv:{hospitals}/*.txt?label=ill")


def test_an_address_renames_and_maps(hospitals):
    query = "label=ill&rename.outcome=ill&rename.height=size&map.sex.1=m&map.sex.*=other"
    data = load(f"csv:{hospitals / 'b.csv'}?{query}")
    assert data.features == ("size", "sex=m", "sex=other")


def test_numbers_of_a_map_are_written_as_in_the_file(tmp_path):
    """0.25 was text in a file of decimal commas, and 0.125 was 125 where points separate thousands."""
    (tmp_path / "a.csv").write_text("crp;ill\n" + "".join(f"{i},5;{i % 2}\n" for i in range(20)) + "<0,5;1\n")
    german = {"decimal": ",", "thousands": "."}
    own = {"path": str(tmp_path / "a.csv"), "map": {"crp": {"<0,5": 0.125, 1.5: 2.5}}}
    for data in (
        {"name": "csv", "label": "ill", **german, **own},
        {"files": {"A": {**own, **german}}, "label": "ill"},
        {"files": {"A": own}, "label": "ill", **german},
    ):
        spec = DataSpec.model_validate(data)
        assert load(**spec.model_dump(exclude_none=True, exclude={"drop_negatives"})).x[-1, 0] == 0.125
        assert DataSpec.model_validate(spec.model_dump(exclude_none=True)) == spec
    with pytest.raises(
        DataError, match="is text, but most"
    ):  # a text stands for itself, and is no number there
        read({"name": "csv", "label": "ill", **german, **own, "map": {"crp": {"<0,5": "0.125"}}})
    with pytest.raises(DataError, match="allowed: '0,5', '1,5'"):  # where one ends is seen
        read({"name": "csv", "label": "ill", **german, **own, "map": {"crp": {"2": "1"}}})


def test_the_rest_of_a_map_keeps_people_apart(hospitals):
    """Both hospitals number their patients from 0."""
    for name in ("c", "d"):
        frame = pd.read_csv(hospitals / "c.csv").assign(id=np.arange(ROWS) // 2)
        frame.to_csv(hospitals / f"{name}.csv", index=False)
    files = {
        "C": str(hospitals / "c.csv"),
        "D": {"path": str(hospitals / "d.csv"), "map": {"id": {"*": "D*"}}},
    }
    users = read({"files": files, "label": "ill", "user": "id"}).columns["id"]
    assert len({*users.tolist()}) == 20 and users[-1] == "D9"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"Köln": {"decimal": "."}},
            r"a\.csv: the column 'Größe' is text, but most of it looks .* decimal=,",
        ),
        (
            {"Bern": {"rename": {"height": "Größe"}, "map": {}}},
            r"b\.csv lacks the column 'ill', which .*a\.csv has; if it has",
        ),
        (
            {"Bern": {"rename": {}, "map": {}}},
            r"b\.csv lacks the columns '.*', '.*', which .*a\.csv has, and has '.*', '.*' instead; give rename",
        ),
        (
            {"Bern": {"rename": {"heightt": "Größe"}}},
            r"b\.csv: rename names 'heightt'; did you mean 'height'\?",
        ),
        (
            {"Bern": {"map": {"ill": {1: "ja", 0: "nein"}}}},
            r"b\.csv: the column 'sex' is|a\.csv: the column 'sex' is",
        ),
        (
            {"Bern": {"map": {"sex": {1: "m", 2: "w"}}}},
            r"the column 'ill' is text there, such as 'ja', 'nein'",
        ),
        ({"Bern": {"map": {"sx": {1: "m"}}}}, r"b\.csv: map names a column 'sx'; did you mean 'sex'"),
        (
            {"Bern": {"map": {"sex": {1: "m", 3: "w"}}}},
            r"map names '3', which is no value of the column 'sex'",
        ),
        (
            {"Bern": {"map": {"sex": {1: "m", 2: "w"}, "ill": {1: "yes", 0: "no"}}}},
            r"b\.csv: the column 'ill' has 'no', 'yes' in .*b\.csv, and 'ja', 'nein' in .*a\.csv; .* give map",
        ),
    ],
)
def test_disagreement_names_file_and_column(hospitals, changed, said):
    with pytest.raises(DataError, match=said):
        read(section(hospitals, **changed))


def test_all_files_and_columns_that_disagree_are_named_at_once(hospitals):
    """Two files have names that no rename makes alike; with them two columns are text in one file only."""
    bern = {"rename": {"height": "Größe"}, "map": {}}
    (hospitals / "c.csv").write_text("height,sex,outcome\n1,m,ja\n2,w,nein\n")
    with pytest.raises(DataError) as refused:
        read(section(hospitals, Bern=bern))
    bern_says, wien_says = map(str, refused.value.errors)
    assert (
        "b.csv lacks the column 'ill'" in bern_says and "c.csv lacks the columns 'Größe', 'ill'" in wien_says
    )
    files = {
        "Köln": section(hospitals)["files"]["Köln"],
        "Bern": section(hospitals, Bern={"map": {}})["files"]["Bern"],
    }
    with pytest.raises(DataError, match=r"\(1\) .*'sex' is .*\(2\) .*'ill' is "):
        read({"files": files, "label": "ill"})
    with pytest.raises(
        DataError, match=r"no columns 'il', 'sx', 'Grö'; did you mean 'ill' for 'il', 'sex' for 'sx'"
    ):
        load(f"csv:{hospitals / 'a.csv'}?label=il&sensitive=sx&missing.Grö=drop&delimiter=;&encoding=cp1252")


def test_another_code_or_unit_of_a_feature_is_named(hospitals, caplog):
    words = {"sex": {1: "male", 2: "female"}, "ill": {1: "ja", 0: "nein"}}
    frame = pd.read_csv(hospitals / "b.csv")
    frame.assign(height=frame.height / 100).to_csv(hospitals / "b.csv", index=False)
    read(section(hospitals, Bern={"map": words}))
    assert "the column 'sex' has 'female', 'male' in" in caplog.text
    assert (
        "the column 'Größe' lies mostly from 1.51" in caplog.text and "scale: {Größe: FACTOR}" in caplog.text
    )


def test_a_factor_makes_units_alike(hospitals):
    """Bern measures in m, the others in cm, and all is wanted in mm: 1.505 m are 150.5 cm."""
    frame = pd.read_csv(hospitals / "b.csv")
    frame.assign(height=frame.height / 100).to_csv(hospitals / "b.csv", index=False)
    made = read({**section(hospitals, Bern={"scale": {"Größe": 1000}}), "scale": {"Größe": 10}})
    assert made.x[[0, ROWS, 2 * ROWS], 0].tolist() == [1505.0] * 3
    one = load(f"csv:{hospitals}/b.csv?label=outcome&scale.height=1e2")
    assert one.x[0, 0] == 150.5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scale": {"sex": 2}}, "b.csv: scale multiplies numbers, and the column 'sex' is text there"),
        ({"scale": {"Grösse": 2}}, "b.csv: scale names a column 'Grösse'; did you mean 'Größe'"),
        (
            {"scale": {"Größe": 0}},
            r"data.files.Bern: data.scale.Größe: a factor above 0 is needed, .* given 0",
        ),
        ({"scale": 0.001}, "columns with their factors are needed, as in {weight: 0.001}, given 0.001"),
    ],
)
def test_a_factor_that_is_none_is_refused(hospitals, changed, said):
    with pytest.raises(ValueError, match=said):
        read(section(hospitals, Bern=changed))
    with pytest.raises(DataError, match="no file has a column 'x'"):
        read({**section(hospitals), "scale": {"x": 2}})
    with pytest.raises(DataError, match=r"scale\.x: a factor above 0 is needed, .* given 'two'"):
        load("csv:a.csv?label=y&scale.x=two")


def test_a_column_that_one_file_has_empty_is_of_the_others_kind(hospitals):
    frame = pd.read_csv(hospitals / "c.csv")
    frame.assign(sex="").to_csv(hospitals / "c.csv", index=False)
    data = read({**section(hospitals), "missing": "fill"})
    assert data.features == ("Größe", "sex=(missing)", "sex=m", "sex=w")


def test_columns_left_out_are_described_in_their_order(hospitals):
    """Wien has three columns that the others lack; 20 of 60 rows hold a value."""
    frame = pd.read_csv(hospitals / "c.csv")
    frame.assign(ward="I", day="1.2.2024", note="x").to_csv(hospitals / "c.csv", index=False)
    found = describe({**section(hospitals), "drop": ["note", "ward", "day"]})
    left_out = [column for column in found.columns if column.role == "left out"]
    assert [column.name for column in left_out] == ["note", "ward", "day"]
    assert [(column.kind, column.missing) for column in left_out] == [
        ("text", 40), ("text", 40), ("dates as text", 40)
    ]  # fmt: skip


def test_a_code_of_one_column_is_missing_there_alone(hospitals):
    frame = pd.read_csv(hospitals / "c.csv")
    frame.assign(age=99, smoker=["99", "yes", "no", "no"] * 5).to_csv(hospitals / "c.csv", index=False)
    found = describe_data(f"csv:{hospitals / 'c.csv'}?label=ill&map.smoker.99=&missing=fill")
    assert {column.name: column.missing for column in found.columns if column.missing} == {"smoker": 5}


def test_paths_are_no_part_of_an_id_and_settings_are(hospitals):
    def named(path, **settings):
        data = DataSpec.model_validate({"files": {"A": {"path": path, **settings}}, "label": "ill"})
        return run_id({"data": data.model_dump(mode="json")}, "digest", {})

    assert named("a.csv") == named("elsewhere/a.csv") != named("a.csv", decimal=",")
    assert named("a.csv") != named("a.csv", scale={"x": 2}) != named("a.csv", scale={"x": 3})


def test_a_moved_path_without_settings_keeps_an_id():
    one, other = (
        DataSpec.model_validate({"files": {"A": path}}).model_dump(mode="json") for path in ("a.csv", "b.csv")
    )
    assert run_id({"data": one}, "digest", {}) == run_id({"data": other}, "digest", {})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"files": {"A": {"path": "a.csv", "decimel": ","}}}, "did you mean 'decimal'"),
        ({"files": {"A": {"decimal": ","}}}, r"data\.files\.A\.path: missing"),
        ({"files": ["a.csv"]}, "names of clients with their files are needed"),
        ({"files": {"A": "a.csv"}, "map": {"sex": "f"}}, "columns with their values are needed"),
        ({"files": {"A": "a.csv"}, "map": {"sex": {True: "f"}}}, "YAML reads a word as true"),
    ],
)
def test_settings_that_are_none_are_refused(data, said):
    with pytest.raises((UserError, ValueError), match=f"(?i){said}"):
        DataSpec.model_validate(data)


def test_a_column_of_the_origins_name_is_refused(hospitals):
    frame = pd.read_csv(hospitals / "c.csv")
    frame.assign(client="x").to_csv(hospitals / "c.csv", index=False)
    with pytest.raises(DataError, match=r"has a column 'client'.*rename"):
        read({"files": {"C": str(hospitals / "c.csv")}, "label": "ill"})


def test_excel_is_read_like_csv(hospitals):
    pytest.importorskip("openpyxl")
    frame = pd.read_csv(hospitals / "c.csv")
    frame.to_excel(hospitals / "c.xlsx", index=False)
    one, other = (load(f"{hospitals}/c.{suffix}?label=ill") for suffix in ("csv", "xlsx"))
    assert (one.x == other.x).all() and one.features == other.features and (one.y == other.y).all()


def test_excel_knows_numbers_text_and_dates(hospitals):
    """A number is one whatever the decimal sign of those kept as text; 2 January 1970 is day 1."""
    pytest.importorskip("openpyxl")
    size: list[object] = [1.5, "2,5"] * 10
    day = [pd.Timestamp("1970-01-02"), pd.Timestamp("1970-01-03")] * 10
    frame = pd.read_csv(hospitals / "c.csv").assign(size=size, day=day)
    frame.loc[len(frame)] = None  # spreadsheets end with empty rows
    frame.to_excel(hospitals / "c.xlsx", index=False)
    data = load(f"{hospitals}/c.xlsx?label=ill&decimal=,")
    assert data.x[:2, -2:].tolist() == [[1.5, 1.0], [2.5, 2.0]] and len(data) == 20


def test_excel_without_openpyxl_says_how_to_install_it(hospitals, monkeypatch):
    (hospitals / "c.xlsx").write_bytes(b"PK\x05\x06" + bytes(18))  # an empty archive
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"it is in the extra excel: pip install 'fedfrontier\[excel\]'"):
        load(f"{hospitals}/c.xlsx?label=ill")


def test_what_is_no_excel_file_is_refused(hospitals):
    (hospitals / "c.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"is no Excel file of the kind \.xlsx"):
        load(f"{hospitals}/c.xlsx?label=ill")
