"""Any CSV file: types of columns, labels, groups, missing cells, and files that cannot be used."""

import csv  # the standard library's: `datasets.csv` must not hide it

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.catalog import load
from datasets.errors import DataError, FederationError
from datasets.federation import federate
from datasets.partition import Iid, Natural, PartitionError

TABLE = """age,city,member,sex,income
30,Ulm,1,f,high
41.5,Bonn,0,m,low
29,Ulm,0,f,low
60,Köln,1,m,high
"""


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(text, name="people.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


def test_the_standard_csv_module_is_still_reachable():
    assert csv.reader


def test_numbers_stay_and_text_becomes_one_hot(table):
    """Sorted: Bonn, Köln, Ulm; f, m; labels high, low. Only age is standardized: member is 0 or 1."""
    data = load("csv", path=table(TABLE), label="income")
    assert data.features == ("age", "city=Bonn", "city=Köln", "city=Ulm", "member", "sex=f", "sex=m")
    assert data.x.tolist() == [
        [30.0, 0, 0, 1, 1, 1, 0],
        [41.5, 1, 0, 0, 0, 0, 1],
        [29.0, 0, 0, 1, 0, 1, 0],
        [60.0, 0, 1, 0, 1, 0, 1],
    ]
    assert data.continuous.tolist() == [True] + [False] * 6
    assert data.classes == ("high", "low") and data.y.tolist() == [0, 1, 1, 0]
    assert data.group is None and data.groups == ()
    assert data.source == "csv (people.csv)"
    assert set(data.columns) == {"age", "city", "member", "sex", "income"}
    assert data.columns["city"].tolist() == ["Ulm", "Bonn", "Ulm", "Köln"]


def test_an_address_says_the_same_as_arguments(table):
    path = table(TABLE)
    spelled = load(f"csv:{path}?label=income&sensitive=sex&sensitive=member&keep_sensitive=false&drop=city")
    given = load(
        "csv", path=path, label="income", sensitive=["sex", "member"], keep_sensitive=False, drop="city"
    )
    assert spelled.features == given.features == ("age",)
    assert spelled.groups == given.groups == ("f & 0", "f & 1", "m & 0", "m & 1")
    assert spelled.group.tolist() == given.group.tolist() == [1, 2, 0, 3]
    assert "city" not in given.columns


def test_an_address_can_spell_any_column_name(table):
    path = table("a&b,x?\n1,2\n0,3\n")
    assert load(f"csv:{path}?label=a%26b").features == ("x?",)


def test_numeric_labels_keep_their_order(table):
    data = load("csv", path=table("x,y\n1,10\n2,9\n3,-1\n4,9\n"), label="y")
    assert data.classes == ("-1", "9", "10") and data.y.tolist() == [2, 1, 0, 1]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_tabs_spaces_quotes_and_a_byte_order_mark(table, separator):
    text = "\ufeffname, x ,y\n'a', 1 ,u\n\"b\", 2 ,v\n".replace(",", separator)
    data = load("csv", path=table(text), label="y")
    assert data.features == ("name='a'", "name=b", "x")
    assert data.x[:, 2].tolist() == [1.0, 2.0]


MISSING = "x,city,y\n1,Ulm,0\n,Bonn,1\n3,?,1\n5,Ulm,1\n"


def test_missing_cells_are_refused_with_their_columns(table):
    with pytest.raises(DataError, match=r"'x' \(1\), 'city' \(1\); choose missing=drop .* missing=fill"):
        load("csv", path=table(MISSING), label="y")


def test_missing_cells_can_be_dropped(table):
    data = load("csv", path=table(MISSING), label="y", missing="drop")
    assert data.x.tolist() == [[1.0, 1.0], [5.0, 1.0]] and data.features == ("x", "city=Ulm")


def test_missing_cells_can_be_filled(table):
    """x becomes (1 + 3 + 5) / 3 = 3; the city gets a category of its own."""
    data = load("csv", path=table(MISSING), label="y", missing="fill")
    assert data.features == ("x", "city=(missing)", "city=Bonn", "city=Ulm")
    assert data.x.tolist() == [[1, 0, 0, 1], [3, 0, 1, 0], [3, 1, 0, 0], [5, 0, 0, 1]]


HOLES = "age,city,person,y\n1,Ulm,a,0\n,Bonn,b,1\n3,,c,1\n5,Ulm,,1\n9,Bonn,e,\n"


def test_every_column_has_a_policy_of_its_own(table):
    """Row 3 goes for its city, row 5 for its label. The age of row 2 is the mean of the others, (1 + 5) / 2 = 3."""
    policies = {"age": "fill", "city": "drop", "person": "fill", "y": "drop"}
    data = load("csv", path=table(HOLES), label="y", missing=policies)
    assert data.x[:, data.features.index("age")].tolist() == [1.0, 3.0, 5.0]
    assert data.columns["person"].tolist() == ["a", "b", "(missing)"]
    assert data.source == "csv (people.csv, 3 of 5 rows)" and data.public
    query = "label=y&missing=fill&missing.city=drop"
    spelled = load(f"csv:{table(HOLES)}?{query}")
    assert torch.equal(spelled.x, data.x) and torch.equal(spelled.y, data.y)


def test_a_column_without_a_policy_refuses_holes(table):
    with pytest.raises(DataError, match=r"missing cells in 'city' \(1\); .* missing\.city=drop"):
        load("csv", path=table(HOLES), label="y", missing={"age": "fill", "person": "drop", "y": "drop"})
    with pytest.raises(DataError, match=r"no column 'agee'.*did you mean 'age'"):
        load("csv", path=table(HOLES), label="y", missing={"agee": "fill"})
    with pytest.raises(DataError, match="missing='mean' is unknown"):
        load("csv", path=table(HOLES), label="y", missing={"age": "mean"})


def test_rows_without_a_label_are_left_out_and_counted(table, caplog):
    """A label is never filled. The mean of x is that of the rows that stay, (1 + 3) / 2."""
    path = table("x,y\n1,no\n,yes\n3,yes\n8,\n")
    data = load("csv", path=path, label="y", missing="fill")
    assert data.x[:, 0].tolist() == [1.0, 2.0, 3.0] and data.classes == ("no", "yes")
    assert "1 of 4 rows are left out, in which 'y' (1) is missing" in caplog.text
    load("csv", path=path, label="y", missing="fill")
    assert len(caplog.records) == 1, "said once, however many runs read the file"


def test_a_column_without_a_cell_in_labelled_rows_is_refused(table):
    """There is no mean to fill it with."""
    with pytest.raises(DataError, match="'x' is empty in the rows that are left"):
        load("csv", path=table("x,z,y\n,1,a\n,2,b\n3,4,\n"), label="y", missing="fill")


def test_a_missing_user_is_never_filled(table):
    with pytest.raises(DataError, match=r"never filled: leave them out with missing\.person=drop"):
        load("csv", path=table(HOLES), label="y", user="person", missing="fill")


def test_a_column_that_looks_like_an_identifier_is_named(table, caplog):
    """Numbers with decimals differ in every row too, and are measurements."""
    rows = "".join(f"{n + 100},p{n},{n + 0.5},{n % 7},{n % 2}\n" for n in range(30))
    path = table("id,person,x,day,y\n" + rows)
    load("csv", path=path, label="y", user="person")
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["id"]
    assert "leave it out with drop=id" in caplog.text
    caplog.clear()
    load("csv", path=path, label="y", drop="id")
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["person"]


def test_a_column_of_dates_is_named(table, caplog):
    """It became 25 features in silence. Versions and ranges are no dates."""
    rows = "".join(f"2024-01-{n % 25 + 1:02},1.2.{n % 3},{n % 9}-{n % 2},{n},{n % 2}\n" for n in range(50))
    path = table("day,version,range,x,y\n" + rows.replace("2024-01-07", ""))
    data = load("csv", path=path, label="y", missing="fill", drop="x")
    (said,) = (record.getMessage() for record in caplog.records)
    assert "the column 'day' holds dates as text, and each of its 25 values" in said and "drop=day" in said
    assert "day=2024-01-01" in data.features


def test_a_label_of_many_numbers_is_named(table, caplog):
    """They may be meant as numbers; with more than a hundred the error says so."""

    def rows(n):
        return "x,y\n" + "".join(f"{i % 7},{i % n}\n" for i in range(4 * n))

    load("csv", path=table(rows(20)), label="y")
    load("csv", path=table(rows(21)), label="y", task="regression")
    assert not caplog.records
    load("csv", path=table(rows(21)), label="y")
    assert "the label 'y' has 21 different numbers" in caplog.text and "--problem regression" in caplog.text
    with pytest.raises(DataError, match=r"has 101 values .* --problem regression"):
        load("csv", path=table(rows(101)), label="y")


def test_rare_values_become_other(table):
    """Ulm is in three rows, Bonn and Bern in one each. The raw column, by which clients are told apart, stays."""
    text = "city,sex,y\nUlm,f,0\nUlm,m,1\nBonn,f,1\nBern,f,0\nUlm,f,1\n"
    data = load("csv", path=table(text), label="y", sensitive="sex", rare=2)
    assert data.features == ("city=Ulm", "city=other", "sex=f", "sex=m")
    assert data.x[:, 1].tolist() == [0, 0, 1, 1, 0]
    assert data.columns["city"].tolist() == ["Ulm", "Ulm", "Bonn", "Bern", "Ulm"]
    assert data.public == ("which values of text columns are in at least 2 rows",)
    with pytest.raises(DataError, match="at least 1"):
        load("csv", path=table(text), label="y", rare=0)


def test_numbers_that_are_codes_can_be_read_as_text(table):
    data = load("csv", path=table("zip,x,y\n01234,1,0\n1234,2,1\n99,3,1\n"), label="y", text="zip")
    assert data.features == ("zip=01234", "zip=1234", "zip=99", "x")


LONG_CODES = "code,x,y\n1234567890123456788,1,a\n1234567890123456789,2,b\n1234567890123456789,3,b\n"


@pytest.mark.parametrize("role", ["label", "sensitive"])
def test_codes_of_19_digits_do_not_merge(table, role):
    """float64 holds 2^53, about 9e15, exactly: both codes would be one number."""
    options = {"label": "y"} | {role: "code"}
    with pytest.raises(DataError, match=r"more than 15 digits, .*read it as text with text=code"):
        load("csv", path=table(LONG_CODES), **options)
    data = load("csv", path=table(LONG_CODES), **options, text="code")
    names = data.classes if role == "label" else data.groups
    assert names == ("1234567890123456788", "1234567890123456789")


def test_clients_of_19_digits_do_not_merge(table):
    data = load("csv", path=table(LONG_CODES), label="y", client="code")
    with pytest.raises(PartitionError, match="more than 15 digits"):
        federate(data, Natural(), None, np.random.default_rng(0))
    data = load("csv", path=table(LONG_CODES), label="y", client="code", text="code")
    assert federate(data, Natural(), None, np.random.default_rng(0)).clients == 2


def test_labels_of_16_digits_keep_their_names_apart(table):
    """Two numbers, but 15 digits of their names are the same."""
    text = "x,y\n1,1234567890123456\n2,1234567890123457\n"
    with pytest.raises(DataError, match="more than 15 digits"):
        load("csv", path=table(text), label="y")


def test_crossed_groups_of_one_name_are_refused(table):
    text = "g,h,y\na & b,c,0\na,b & c,1\n"
    with pytest.raises(DataError, match=r"have the same name; rename a value that holds ' & '"):
        load("csv", path=table(text), label="y", sensitive=["g", "h"])


def test_numbers_to_predict_that_float32_rounds_are_refused(table):
    """At 1.7e9 the steps of float32 are 128, and these numbers differ by 1."""
    rows = "".join(f"{n % 5},{1_700_000_000 + n}\n" for n in range(40))
    with pytest.raises(DataError, match=r"differ too little for their size.*subtract a constant"):
        load("csv", path=table("x,y\n" + rows), label="y", task="regression")


def test_thousands_of_columns_are_read_column_by_column(table, monkeypatch):
    """Operations on a frame take seconds for thousands of columns, so none is made on it."""
    monkeypatch.setattr(pd.DataFrame, "apply", None)
    monkeypatch.setattr(pd.DataFrame, "__getitem__", None)
    head = ",".join(f"c{n}" for n in range(500))
    rows = "\n".join(",".join(str(n * 3 + row) for n in range(500)) + f",{row % 2}" for row in range(3))
    data = load("csv", path=table(f"{head},y\n{rows}\n"), label="y")
    assert data.x.shape == (3, 500) and data.x[2, 499] == 1499.0


def test_federations_without_a_test_sample_are_refused(table):
    data = load("csv", path=table("h,x,y\na,1,0\nb,2,1\nc,3,0\n"), label="y", client="h")
    with pytest.raises(FederationError, match="no client has a test sample"):
        federate(data, Natural(), None, np.random.default_rng(0))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=8))
def test_any_numbers_come_back_exactly(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("csv") / "n.csv"
    rows = "\n".join(f"{x!r},{i % 2}" for i, x in enumerate(numbers))
    path.write_text(f"x,y\n{rows}\n")
    data = load("csv", path=path, label="y")
    assert torch.equal(data.x[:, 0], torch.tensor(np.array(numbers, np.float32)))


LONG = "\n".join(f"{i},w{i},{i % 2}" for i in range(201))


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (
            TABLE,
            {"label": "incom"},
            "no column 'incom'; did you mean 'income'.*age, city, member, sex, income",
        ),
        (TABLE, {}, "say which column is the label"),
        (TABLE, {"label": "income", "sensitive": "gender"}, "no column 'gender'"),
        (TABLE, {"label": "income", "drop": ["agee"]}, "did you mean 'age'"),
        (TABLE, {"label": "income", "sensitive": "income"}, "cannot be sensitive"),
        (TABLE, {"label": "income", "drop": "income"}, "none of them can be dropped"),
        (TABLE, {"label": "income", "missing": "mean"}, "missing='mean' is unknown; .*error, drop, fill"),
        (TABLE, {"label": "income", "drop": ["age", "city", "member", "sex"]}, "no column left"),
        (f"i,w,y\n{LONG}\n", {"label": "y"}, "text column 'w' has 201 different values"),
        (f"i,w,y\n{LONG}\n", {"label": "y", "drop": "w", "sensitive": "i"}, "201 different numbers"),
        (f"i,w,y\n{LONG}\n", {"label": "i", "drop": "w"}, "has 201 values"),
        ("x,y\n1,a\n2,a\n", {"label": "y"}, "one value only, 'a'"),
        ("x,y\n1,a\ninf,b\n", {"label": "y"}, "infinite"),
        ("x,z,y\n1,,a\n2,,b\n", {"label": "y"}, "'z' is empty"),
        ("x,x,y\n1,1,a\n2,2,b\n", {"label": "y"}, "names 'x' more than once"),
        ("x,y\n1,a\n2,b,c\n", {"label": "y"}, "not a well-formed CSV.*line 3 has 3 cells, and the header 2"),
        ("t\n\nx,y\n1,a\n2,b,c\n", {"label": "y", "header": 3}, "line 5 has 3 cells.*in double quotes"),
        ("x,y,z\n1,a,2\n2,b\n", {"label": "y"}, r"missing cells in 'z' \(1\)"),
        ("x,y\n1,a\n", {"label": "y"}, "1 rows of data"),
        ("x,y\n1,\n,a\n", {"label": "y", "missing": "drop"}, "nothing is left"),
        ("", {"label": "y"}, "empty"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(table, text, options, reason):
    with pytest.raises(DataError, match=reason):
        load("csv", path=table(text), **options)


def test_bytes_that_are_no_text_are_refused(table, tmp_path):
    with pytest.raises(DataError, match="not UTF-8"):
        load("csv", path=table(TABLE, encoding="latin-1"), label="income")
    with pytest.raises(DataError, match="cannot be read"):
        load("csv", path=tmp_path, label="income")
    with pytest.raises(
        DataError, match=r"encoding=cp1252, which reads 'p³eæ' there or encoding=cp1250, .* 'płeć'"
    ):
        load("csv", path=table("wiek;płeć\n1;K\n", encoding="cp1250"), label="wiek")
    with pytest.raises(DataError, match="as in encoding=utf-16"):
        load("csv", path=table(TABLE, encoding="utf-16"), label="income")
    named = table(TABLE)
    with pytest.raises(DataError, match=f"does not exist; did you mean {named}"):
        load(f"csv:{named.with_name(named.stem + 's.csv')}?label=income")
    with pytest.raises(DataError, match=r"does not exist$"):
        load(f"csv:{tmp_path}/elsewhere/none.csv?label=income")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("labels=y", "is not labels.OLD=NEW"),
        ("label", "'label' is not label=VALUE"),
        ("label=a&label=b", "given twice"),
        ("keep_sensitive=no", "allowed: true, false"),
        ("missing.x=drop&missing.x=fill", "given twice"),
        ("label.x=drop", "not label=VALUE"),
        ("rare=few", "give a number of rows"),
    ],
)
def test_a_malformed_address_is_refused(query, reason):
    with pytest.raises(DataError, match=reason):
        load(f"csv:x.csv?{query}")


def test_an_option_beside_the_address_must_agree(table):
    path = table(TABLE)
    assert load(f"csv:{path}?label=income", label="income").classes == ("high", "low")
    with pytest.raises(DataError, match="label is given twice"):
        load(f"csv:{path}?label=income", label="sex")


@pytest.mark.parametrize("missing", ["error", "fill", "drop"])
def test_small_differences_of_large_numbers_are_standardized(table, missing):
    """A time in seconds has ten digits, float32 holds seven: 1.7e9 + n would be the same for 64 n in a row."""
    numbers = np.random.default_rng(0).normal(size=200)
    hole = "" if missing == "error" else "?,1,a\n"
    found = []
    for offset in (0, 1_700_000_000):
        rows = "".join(f"{x + offset!r},{n},{'ab'[n % 2]}\n" for n, x in enumerate(numbers.tolist()))
        data = load("csv", path=table("t,n,y\n" + rows + hole), label="y", missing=missing)
        found.append(federate(data, Iid(), 4, np.random.default_rng(1)).pool.x)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert len(found[1][:, 0].unique()) > 190


def test_numbers_beyond_single_precision_are_refused(table):
    with pytest.raises(DataError, match=r"one above 3\.4e\+38"):
        load("csv", path=table("x,y\n1,a\n1e39,b\n"), label="y")


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ('a,"b;c;d;e;f",y\n1,2,u\n3,4,v\n', ("a", "b;c;d;e;f")),
        ('"a;b;c"\ty\n1\tu\n2\tv\n', ("a;b;c",)),
        ('a,"b\nc;d;e",y\n1,2,u\n3,4,v\n', ("a", "b\nc;d;e")),
        ('"say ""a;b;c""",x,y\n1,2,u\n3,4,v\n', ('say "a;b;c"', "x")),
        ("sep=;\na,b;c;y\n1;2;u\n3;4;v\n", ("a,b", "c")),
        ('"sep=;"\r\na;y\r\n1;u\r\n3;v\r\n', ("a",)),
        ("sep=\t\na\ty\n1\tu\n3\tv\n", ("a",)),
        ("a|y\n1|u\n3|v\n", ("a",)),
        ("\n\na;y\n1;u\n\n3;v\n", ("a",)),
        ("a,y,\n1,u,\n3,v,\n", ("a",)),
        ("a;y;;;\n1;u;;;\n3;v;;;\n", ("a",)),
        ("a,y\n1,u,\n3,v,\n", ("a",)),
        ("a,,y\n1,5,u\n3,6,v\n", ("a", "column 2")),
        (",a,y\n0,1,u\n1,2,v\n", ("column 1", "a")),
    ],
)
def test_columns_are_told_apart_outside_of_quotes(table, text, features):
    """Separators were counted inside of quotes too; a separator at the end was a column without a name."""
    assert load("csv", path=table(text), label="y").features == features


def test_a_column_without_a_name_can_be_dropped_by_its_place(table):
    path = table("a,y,\n1,u,7\n3,v,8\n")
    assert load("csv", path=path, label="y").features == ("a", "column 3")
    assert load("csv", path=path, label="y", drop="column 3").features == ("a",)


def test_the_delimiter_can_be_given_and_is_named(table):
    path = table("a:b;y\n1:2;u\n3:4;v\n")
    with pytest.raises(DataError, match=r"no column 'b;y'.*separated by ';', which the option delimiter"):
        load("csv", path=path, label="b;y")
    assert load("csv", path=path, label="b;y", delimiter=":").features == ("a",)
    tabs = table("a;y\tz\n1;2\tu\n3;4\tv\n")
    assert load(f"csv:{tabs}?label=z&delimiter=tab").features == ("a;y=1;2", "a;y=3;4")


def test_other_encodings_are_named(table):
    path = table(TABLE, encoding="cp1252")
    assert "city=Köln" in load("csv", path=path, label="income", encoding="cp1252").features
    with pytest.raises(DataError, match="as in encoding=cp1252"):
        load("csv", path=path, label="income")
    with pytest.raises(DataError, match="unknown encoding"):
        load("csv", path=path, label="income", encoding="cp125")


def test_wide_tables_are_read_as_others_are(table, monkeypatch):
    """From 2,000 columns on pandas takes ten times as long as the standard library, which reads the same."""
    text = 'a, b ,"c ""d""\n",y\n1,"x, y", 3,u\n\n2,,4,v\n5\n'
    found = []
    for wide in (2000, 1):
        monkeypatch.setattr("datasets.csv.WIDE", wide)
        found.append(load("csv", path=table(text), label="y", missing="fill"))
    assert found[0].features == found[1].features and torch.equal(found[0].x, found[1].x)
    with pytest.raises(DataError, match="not a well-formed CSV"):
        load("csv", path=table("x,y\n1,a\n2,b,c\n"), label="y")
    assert load("csv", path=table("x,y\n1,a,\n2,b\n"), label="y").features == ("x",)
