"""Which of two classes is the positive one, and labels that are spelled in two ways."""

from __future__ import annotations

import pytest

from datasets.catalog import load
from datasets.errors import DataError
from datasets.labels import folded, similar_groups
from harness.config.fields import DataSpec
from harness.config.settings import checked
from harness.core.errors import UserError


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a table with one feature and the given labels."""

    def write(*labels, name="visits.csv"):
        path = tmp_path / name
        path.write_text("x,ill\n" + "".join(f'{n},"{label}"\n' for n, label in enumerate(labels * 2)))
        return path

    return write


def classes(path, **options):
    data = load("csv", path=path, label="ill", **options)
    return data.classes, data.y.tolist()[:2]


@pytest.mark.parametrize(
    ("no", "yes"),
    [
        *(("nein", "ja"), ("NO", "YES"), ("No", "Sí"), ("non", "oui"), ("não", "sim"), ("nee", "ja")),
        *(("0", "1"), ("-1", "1"), ("False", "TRUE"), ("negative", "positive"), ("absent", "present")),
    ],
)
def test_an_obvious_pair_needs_no_setting(table, caplog, no, yes):
    """By the alphabet ja would come before nein, and be the negative class."""
    assert classes(table(yes, no)) == ((no, yes), [1, 0])
    assert not caplog.records


def test_another_pair_is_taken_in_order_with_a_warning(table, caplog):
    assert classes(table("sick", "healthy")) == (("healthy", "sick"), [1, 0])
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the label 'ill' has the classes 'healthy' and 'sick'; 'sick' counts as the positive one" in told
    assert "data.positive (healthy or sick)" in told


@pytest.mark.parametrize("given", ["healthy", "Healthy "])
def test_the_positive_class_is_the_one_that_is_named(table, caplog, given):
    assert classes(table("sick", "healthy"), positive=given) == (("sick", "healthy"), [0, 1])
    assert not caplog.records


def test_numbers_are_named_like_text(table):
    assert classes(table("1", "2"), positive="1") == (("2", "1"), [1, 0])


def test_an_unknown_positive_class_is_refused(table):
    with pytest.raises(
        DataError, match=r"positive is 'il', which is not a class of the label 'ill': 'healthy', 'sick'"
    ):
        classes(table("sick", "healthy"), positive="il")
    with pytest.raises(
        DataError, match=r"positive is for two classes, and the label 'ill' has 3: 'a', 'b', 'c'"
    ):
        classes(table("a", "b", "c"), positive="a")
    with pytest.raises(DataError, match="positive and labels are for classes"):
        classes(table("1", "2"), positive="1", task="regression")


@pytest.mark.parametrize("other", ["JA", "ja.", "Ja", "j\u0061\u00a0."])
def test_two_spellings_of_a_label_are_refused(table, other):
    with pytest.raises(DataError, match=r"differ in case, spaces or a trailing dot only: ") as told:
        classes(table("ja", "nein", other))
    assert "data.labels" in str(told.value) and repr("ja") in str(told.value)


def test_the_refusal_names_all_that_is_to_be_set(table):
    with pytest.raises(DataError) as told:
        classes(table("ja", "JA", "nein", "Nein"))
    labels = {"JA": "ja", "Nein": "nein"}
    assert f"labels: {labels}" in str(told.value)
    assert classes(table("ja", "JA", "nein", "Nein"), labels=labels) == (("nein", "ja"), [1, 1])


def test_labels_says_which_are_one(table):
    labels = {"JA": "ja", "ja ": "ja", "Nein.": "nein"}
    path = table("ja", "nein", "JA", "ja ", "Nein.")
    data = load("csv", path=path, label="ill", labels=labels)
    assert data.classes == ("nein", "ja") and data.y.tolist()[:5] == [1, 0, 1, 1, 0]
    assert set(data.columns["ill"]) == {"ja", "nein"}
    with pytest.raises(DataError, match=r"labels renames 'Jaa', which is not a value of 'ill'"):
        load("csv", path=path, label="ill", labels={**labels, "Jaa": "ja"})


def test_labels_joins_numbers(table):
    """Grades 1 and 2 are good, 3 is not."""
    data = load("csv", path=table("1", "2", "3"), label="ill", labels={"1": "yes", "2": "yes", "3": "no"})
    assert data.classes == ("no", "yes") and data.y.tolist()[:3] == [1, 1, 0]


def test_letters_in_two_cases_may_be_two_classes(table):
    data = load("csv", path=table("a", "A", "b"), label="ill", labels={"a": "a", "A": "A"})
    assert data.classes == ("A", "a", "b")


def test_an_address_names_both(table):
    path = table("ja", "nein", "JA")
    assert load(f"csv:{path}?label=ill&labels.JA=ja&positive=nein").classes == ("ja", "nein")


def test_groups_and_users_in_two_spellings_are_pointed_out(tmp_path, caplog):
    path = tmp_path / "people.csv"
    path.write_text("x,ill,sex,person\n" + "1,no,F,p1\n2,yes,f,P1\n3,no,m,p2\n")
    load("csv", path=path, label="ill", sensitive="sex", user="person")
    told = [record.getMessage() for record in caplog.records]
    assert any("column 'sex' differ in case" in text and "'F'" in text for text in told)
    assert any("column 'person' differ in case" in text for text in told)


def test_what_yaml_reads_as_a_truth_value():
    """`positive: yes` is the truth value true in YAML, and means the class yes; keys of labels need quotes."""
    assert DataSpec.model_validate({"name": "csv", "positive": True}).positive == "true"
    assert DataSpec.model_validate({"name": "csv", "positive": 1}).positive == "1"
    assert DataSpec.model_validate({"name": "csv", "labels": {1: 2}}).labels == {"1": "2"}
    with pytest.raises(UserError, match="write yes, no and null in quotes"):
        checked("data", DataSpec.model_validate, {"name": "csv", "labels": {True: "ja"}})


def test_a_truth_value_names_the_class_yes(table):
    assert classes(table("yes", "no"), positive="false") == (("yes", "no"), [0, 1])


def test_folding():
    assert folded(" >50K. ") == folded(">50k") and folded("a\u00a0 b") == folded("A b")
    assert similar_groups(["a", "b", "A", "c."]) == [["a", "A"]]
